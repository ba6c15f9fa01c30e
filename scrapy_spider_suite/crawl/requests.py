"""Scrapy's requests as the frontier sees them: pacing key, identity, entry, and back.

One identity decides what is the same page (architecture, §4.1): the normal form for bulk links
and plain GET requests of the broad profile, the project's REQUEST_FINGERPRINTER_CLASS for all
else. A request that a spider yielded is sent as it is, whatever it is known by.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from scrapy import Request, Spider
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import load_object

from scrapy_spider_suite.crawl.referers import Referers
from scrapy_spider_suite.errors import UnstorableError
from scrapy_spider_suite.fetch.exchange import MEDIA_TYPES, TRUNCATE
from scrapy_spider_suite.frontier.entries import Entry, Flag, host_key, state_key
from scrapy_spider_suite.runtime.http_fields import header
from scrapy_spider_suite.store.request_codec import RequestCodec
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.normalizer import Normal, Normalizer
from scrapy_spider_suite.urls.sitemaps import BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

SLOT = "download_slot"
OUR_SLOT = "suite_slot"
"""The ``download_slot`` that the gate wrote, so that copies of meta do not make it a wish."""
BULK = "suite_bulk"
HOPS = "suite_hops"
BEYOND = "suite_beyond"
"""How many links in a row have led out of the scope."""
SELF_REDIRECT = "suite_self_redirect"
VIA = "suite_via"
REFERRER_POLICY = "suite_referrer_policy"
"""The number of the policy of the page that linked there, if that sent one."""
SITEMAP = "suite_sitemap"
"""The host that vouches for the sitemap that is asked for: its URLs it may name, too."""
_OF_BULK = (BULK, HOPS, BEYOND, SELF_REDIRECT, VIA, REFERRER_POLICY, SITEMAP, "dont_retry")

# A host as nearly all URLs write it: parsing them takes ten times as long.
_PLAIN_HOST = re.compile(r"https?://([a-z0-9._-]*[a-z0-9_-])(?::[0-9]*)?(?:[/?#]|$)")
# Plain integers: operators of flags are Python code.
_DONT_FILTER, _START, _PROXIED = int(Flag.DONT_FILTER), int(Flag.START), int(Flag.PROXIED)
_NO_ROBOTS, _SELF_REDIRECT = int(Flag.NO_ROBOTS), int(Flag.SELF_REDIRECT)
_USER, _VOLATILE = int(Flag.USER), int(Flag.VOLATILE)

# Begins no encoded request, whose first byte is the number of a format.
_OF_SITEMAP = b"sitemap "

_DEFAULT_FINGERPRINTER = "scrapy.utils.request.RequestFingerprinter"


def own_slot(request: Request) -> str | None:
    """The ``download_slot`` that a spider chose for *request*, if it did."""
    slot = request.meta.get(SLOT)
    return None if slot is None or slot == request.meta.get(OUR_SLOT) else str(slot)


def hostname(request: Request) -> str:
    """The host of *request* in normal form."""
    plain = _PLAIN_HOST.match(request.url)
    if plain is not None:
        return plain[1]
    name = (urlparse_cached(request).hostname or "").rstrip(".")
    return f"[{name}]" if ":" in name else name


def pacing_key(request: Request) -> str:
    """Whose clock *request* goes by: the slot that a spider chose, else its host."""
    return own_slot(request) or hostname(request)


def disown(request: Request) -> None:
    """Make *request*, which a spider yielded, the spider's own.

    With the meta of a bulk page, which spiders hand on as it is, it would pass for a bulk link:
    without its callback, method and body, and out of reach of RetryMiddleware.
    """
    if BULK in request.meta:
        if BEYOND in request.meta:
            request.meta.pop("allow_offsite", None)
        for key in _OF_BULK:
            request.meta.pop(key, None)


class Translator:
    """Turns requests into entries and back, for one crawl.

    *codec* is None where nothing is stored: entries then carry the requests themselves. *normal*
    is the crawl's normaliser, *read_sitemap* the callback of sitemaps. *note_sitemap* is told the
    state key of one that was redirected to, and the host that vouches for it. *other* names the
    agent whose an entry is; it is "" where that is this one.
    """

    def __init__(
        self, crawler: Crawler, codec: RequestCodec | None, *, broad: bool,
        normal: Normalizer | None = None, read_sitemap: Callable[..., Any] | None = None,
        note_sitemap: Callable[[bytes, str], None] | None = None,
        other: Callable[[Entry], str] = lambda entry: "",
    ) -> None:  # fmt: skip
        self._crawler = crawler
        self.referers = Referers(crawler)
        self._note_sitemap = note_sitemap
        self._read_sitemap = read_sitemap
        self._normal = normal or Normalizer()
        self._codec = codec
        self._by_normal_form = broad and _default_fingerprinter(crawler.settings)
        self._other = other
        self._warned: set[bool] = set()  # of those that stay here, and of others

    def identity(self, request: Request) -> bytes:
        """The state key under which *request* is remembered."""
        if self._by_normal_form and request.method == "GET" and not request.body:
            normal = self._normal_form(request)
            if normal is not None:
                return state_key(host_of(normal), normal)
        key = host_key(hostname(request))
        # 0xFF begins no URL.
        return key + b"\xff" + self._crawler.request_fingerprinter.fingerprint(request)

    def _normal_form(self, request: Request) -> str | None:
        """What *request* is known by; None if only its fingerprint will do."""
        plain = normalize(request.url)
        # Links were brought into their normal form where they were found.
        if plain is None or self._normal.idle or request.meta.get(BULK):
            return plain
        before = request.meta.get("redirect_urls")
        page = normalize(before[-1]) if before else None
        if page is not None and self._normal.insisted(page, plain):
            return None
        return self._normal.respell(plain)

    def entry(self, request: Request) -> Entry:
        """The entry of *request*, which came from a spider or a middleware."""
        meta = request.meta
        entry = Entry(
            pacing_key(request), request.url, self.identity(request),
            priority=request.priority,
            depth=int(meta.get("depth", 0)),
            hops=int(meta.get(HOPS, 0)),
            beyond=int(meta.get(BEYOND, 0)),
            flags=_flags(request),
            referrer=header(request.headers, "Referer"),
        )  # fmt: skip
        if meta.get(BULK):
            normal = normalize(request.url)
            if normal is not None:
                entry.url = normal
                entry.referrer = meta.get(VIA, "")
                entry.referrer_policy = meta.get(REFERRER_POLICY, 0)
                if SITEMAP in meta:
                    entry.payload = sitemap_payload(meta[SITEMAP])
                    if self._note_sitemap is not None:
                        self._note_sitemap(entry.identity, meta[SITEMAP])
                return entry
        entry.flags |= _USER
        entry.payload = request if self._codec is None else self._packed(request, entry)
        return entry

    def _packed(self, request: Request, entry: Entry) -> bytes | Request:
        if self._codec is None:
            return request
        try:
            return self._codec.encode(request)
        except UnstorableError as error:
            entry.flags |= _VOLATILE
            self._crawler.stats.inc_value("scheduler/unserializable")
            self._warn(request, error, self._other(entry))
            return request

    def _warn(self, request: Request, error: UnstorableError, other: str) -> None:
        """Say, the first time, what becomes of a *request* that is the agent *other*'s, or ours."""
        if bool(other) in self._warned:
            return
        self._warned.add(bool(other))
        fate = (
            f"It belongs to the agent {other} and cannot travel: it has failed (elsewhere), and "
            "its errback is not called" if other else
            "It is kept in memory, and the page that it came from is not done before it is"
        )  # fmt: skip
        logger.warning(
            "%s cannot be stored (%s): spider %s, callback %r. %s. Further ones are only counted "
            "(scheduler/unserializable).",
            request, error, self._spider.name, request.callback, fate,
        )  # fmt: skip

    @property
    def _spider(self) -> Spider:
        spider = self._crawler.spider
        if spider is None:
            raise RuntimeError("the crawl has no spider yet")
        return spider

    def request(self, entry: Entry) -> Request:
        """The request to send for *entry*. Raises `CodecError` if its stored form is damaged."""
        payload = entry.payload
        if isinstance(payload, Request):
            return payload
        voucher = voucher_of(payload)
        if voucher is None and payload is not None and self._codec is not None:
            return self._codec.decode(payload)
        meta = {BULK: True, "depth": entry.depth, "dont_retry": True, VIA: entry.referrer}
        if entry.hops:
            meta[HOPS] = entry.hops
        if entry.flags & _SELF_REDIRECT:
            meta[SELF_REDIRECT] = True
        callback = None
        if voucher is not None:
            # Whatever is wanted of pages: of a sitemap it is as much as one may have.
            meta |= {SITEMAP: voucher, TRUNCATE: BYTES_MAX, MEDIA_TYPES: ()}
            callback = self._read_sitemap
        if entry.referrer_policy:
            meta[REFERRER_POLICY] = entry.referrer_policy
        referer = self.referers.referer(entry)
        headers = {"Referer": referer} if referer else None
        return Request(entry.url, callback, headers=headers, meta=meta, priority=entry.priority)


def sitemap_payload(voucher: str) -> bytes:
    """The payload of the entry of a sitemap that the host *voucher* vouches for."""
    return _OF_SITEMAP + voucher.encode()


def voucher_of(payload: object) -> str | None:
    """The host in the payload of a sitemap's entry; None in that of any other entry."""
    if isinstance(payload, bytes) and payload.startswith(_OF_SITEMAP):
        return payload[len(_OF_SITEMAP) :].decode()
    return None


def seed_entry(url: str, normal: Normal = normalize) -> Entry | None:
    """The entry of a seed or of a link without a page; None if *url* is no web address.

    *normal* is the crawl's normaliser.
    """
    found = normal(url)
    if found is None:
        return None
    host = host_of(found)
    return Entry(host, found, state_key(host, found))


def _flags(request: Request) -> int:
    flags = 0
    if request.dont_filter:
        flags |= _DONT_FILTER
    if request.meta.get("is_start_request"):
        flags |= _START
    if request.meta.get("proxy"):
        flags |= _PROXIED
    if request.meta.get("dont_obey_robotstxt"):
        flags |= _NO_ROBOTS
    if request.meta.get(SELF_REDIRECT):
        flags |= _SELF_REDIRECT
    return flags


def _default_fingerprinter(settings: BaseSettings) -> bool:
    chosen = load_object(settings["REQUEST_FINGERPRINTER_CLASS"])
    return chosen is load_object(_DEFAULT_FINGERPRINTER)
