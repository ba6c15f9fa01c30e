"""Scrapy's requests, answers and errors as the frontier sees them; redirects as links.

One identity decides which requests ask for the same page: the normal form for bulk links and plain
GET requests of the broad profile, else REQUEST_FINGERPRINTER_CLASS. Scrapy follows a redirect past
the duplicates filter, so a broad crawl would fetch a page once for every URL that leads to it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import zlib
from collections.abc import Callable
from contextvars import ContextVar
from functools import cached_property
from gzip import BadGzipFile
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy import exceptions as scrapy_exceptions
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from scrapy.spidermiddlewares import referer
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import load_object

from scrapy_spider_suite import errors, exceptions
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.exceptions import PageRedirected, RedirectLoop, TooManyHops
from scrapy_spider_suite.fetch.exchange import Exchange
from scrapy_spider_suite.fetch.http_messages import MEDIA_TYPES, TRUNCATE, MalformedResponseError
from scrapy_spider_suite.frontier.entries import Entry, Flag, host_key, state_key
from scrapy_spider_suite.frontier.outcomes import Event, event_of_status
from scrapy_spider_suite.runtime.text import field_text
from scrapy_spider_suite.store.request_codec import RequestCodec
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.normalizer import Normal, Normalizer
from scrapy_spider_suite.urls.sitemaps import BYTES_MAX

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.context import Crawl


logger = logging.getLogger(__name__)

_FAILED: ContextVar[Fetch | None] = ContextVar("FAILED", default=None)


def mark_errback(request: Request, fetch: Fetch) -> None:
    """Have `in_errback` recognise the errback of *request*, whose download has failed.

    Nobody else could tell its output, which Scrapy shows to no middleware, from the operator's.
    """
    errback = request.errback
    if errback is None:
        return

    def noted(failure: Any) -> Any:
        request.errback = errback  # copies of the request are to have the spider's own
        _FAILED.set(fetch)
        return errback(failure)

    request.errback = noted


def in_errback() -> bool:
    """Whether an errback is running, or its output is being taken."""
    fetch = _FAILED.get()
    # Later tasks have inherited the note, too: of a page that is over by then.
    return fetch is not None and not fetch.settled


_EVENTS: tuple[tuple[type[BaseException], Event], ...] = (
    # The first that fits counts: the narrower class stands before the wider one.
    (exceptions.RobotsForbidden, Event.ROBOTS),
    (exceptions.RobotsUnavailable, Event.ROBOTS_UNAVAILABLE),
    (exceptions.HostExcluded, Event.BARRED),
    (exceptions.UnwantedMediaType, Event.MEDIA_TYPE),
    (exceptions.NotModified, Event.SUCCESS),
    (exceptions.PageRedirected, Event.REPLACED),
    (exceptions.FilterRefused, Event.FILTERED),
    (exceptions.TooManyHops, Event.TOO_MANY_HOPS),
    (exceptions.RedirectLoop, Event.REDIRECT_LOOP),
    (errors.PrivateAddressError, Event.PRIVATE_ADDRESS),
    (scrapy_exceptions.IgnoreRequest, Event.IGNORED),
    (errors.NoSuchHostError, Event.NO_SUCH_HOST),
    (errors.ResolveError, Event.DNS),
    (errors.OutOfFilesError, Event.OUT_OF_FILES),
    (scrapy_exceptions.DownloadTimeoutError, Event.TIMEOUT),
    (scrapy_exceptions.DownloadConnectionRefusedError, Event.REFUSED),
    (scrapy_exceptions.CannotResolveHostError, Event.DNS),
    (scrapy_exceptions.DownloadCancelledError, Event.TOO_LARGE),
    (scrapy_exceptions.ResponseDataLossError, Event.DATA_LOSS),
    (MalformedResponseError, Event.BAD_RESPONSE),
    (exceptions.HostUnreachable, Event.HOST_DEAD),
    (scrapy_exceptions.DownloadFailedError, Event.CONNECTION_LOST),
    # What Scrapy's HttpCompressionMiddleware lets through when a body is not what it says.
    (BadGzipFile, Event.BAD_RESPONSE),
    (zlib.error, Event.BAD_RESPONSE),
    (scrapy_exceptions.UnsupportedURLSchemeError, Event.UNSUPPORTED),
    (scrapy_exceptions.NotSupported, Event.UNSUPPORTED),
    (TimeoutError, Event.TIMEOUT),
    (ConnectionRefusedError, Event.REFUSED),
)

_SCRAPYS_ROBOTS = "Forbidden by robots.txt"
"""What Scrapy's own RobotsTxtMiddleware says: it raises nothing of its own."""

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


class StoppedError(scrapy_exceptions.IgnoreRequest):
    """The crawl is being stopped: the request stays pending."""


def event_of_error(error: BaseException) -> Event:
    if isinstance(error, StoppedError):
        return Event.INTERRUPTED
    if type(error) is scrapy_exceptions.IgnoreRequest and str(error) == _SCRAPYS_ROBOTS:
        return Event.ROBOTS
    if isinstance(error, scrapy_exceptions.CannotResolveHostError):
        cause = error.__cause__
        error = cause if isinstance(cause, errors.ResolveError) else error
    for kind, event in _EVENTS:
        if isinstance(error, kind):
            return event
    return Event.DOWNLOAD_ERROR


def event_of_result(result: Request | Response) -> Event:
    if isinstance(result, Response):
        return event_of_status(result.status)
    return Event.REPLACED  # or the engine refuses what a project's own downloader gave


def event_of_exchange(exchange: Exchange) -> Event:
    if exchange.unwanted:
        return Event.MEDIA_TYPE
    if isinstance(exchange.error, asyncio.CancelledError):
        return Event.INTERRUPTED
    if exchange.error is not None:
        return event_of_error(exchange.error)
    return event_of_status(exchange.status)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a pipeline or a feed failed because nothing more can be written."""
    return isinstance(error, OSError) and error.errno in _DISK_FULL


# Stored by their numbers, from 1: new ones come last. 0 is that the page sent none.
_POLICIES: Final = (
    referer.POLICY_NO_REFERRER, referer.POLICY_NO_REFERRER_WHEN_DOWNGRADE,
    referer.POLICY_SAME_ORIGIN, referer.POLICY_ORIGIN, referer.POLICY_STRICT_ORIGIN,
    referer.POLICY_ORIGIN_WHEN_CROSS_ORIGIN, referer.POLICY_STRICT_ORIGIN_WHEN_CROSS_ORIGIN,
    referer.POLICY_UNSAFE_URL, referer.POLICY_SCRAPY_DEFAULT,
)  # fmt: skip
_NO_REFERRER: Final = 1


class LinkReferers:
    """Referers of links, as Scrapy's middleware would set them, where it is enabled."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @cached_property
    def _middleware(self) -> referer.RefererMiddleware | None:
        return self._crawler.get_spider_middleware(referer.RefererMiddleware)

    def policy(self, page: Exchange) -> int:
        """The number of the policy that *page* sent; 0: none; a project's own: no-referrer."""
        values = page.fields.get(b"Referrer-Policy")
        if not values or self._middleware is None:
            return 0
        # Not by the middleware's policy(), which warns of each unknown text, and so keeps it.
        known = self._middleware.policies
        for name in reversed(values[-1].decode("latin-1").lower().split(",")):
            if (kind := known.get(name.strip())) is not None:
                other = 0 if kind is self._middleware.default_policy else _NO_REFERRER
                same = (n for n, each in enumerate(_POLICIES, 1) if known.get(each) is kind)
                return next(same, other)
        return 0

    def referer(self, entry: Entry) -> str | None:
        if not entry.referrer or entry.flags & Flag.SPECULATIVE or self._middleware is None:
            return None
        kind = self._middleware.default_policy
        if entry.referrer_policy:
            if entry.referrer_policy > len(_POLICIES):
                return None  # another agent's
            name = _POLICIES[entry.referrer_policy - 1]
            kind = self._middleware.policies.get(name, kind)
        page = entry.referrer
        safe = page.startswith("http://") or entry.url.startswith("https://")
        if kind is referer.DefaultReferrerPolicy and safe and not _TO_STRIP.search(page):
            return page  # what Scrapy makes of a URL in normal form, by parsing it four times
        return kind().referrer(page, entry.url)


# What is stripped of a Referer; https://www.w3.org/TR/referrer-policy/#strip-url.
_TO_STRIP = re.compile(r"[#@]|:(?:80|443)(?:/|$)|^(?!https?://)")
DOWNLOAD_SLOT = "download_slot"
GATE_SLOT = "suite_slot"
"""The ``download_slot`` that the gate wrote, so that copies of meta do not make it a wish."""
BULK = "suite_bulk"
HOPS = "suite_hops"
BEYOND = "suite_beyond"  # how many links in a row have led out of the scope
SELF_REDIRECT = "suite_self_redirect"
VIA = "suite_via"
REFERRER_POLICY = "suite_referrer_policy"
"""The number of the policy of the page that linked there, if that sent one."""
SITEMAP = "suite_sitemap"
"""The host that vouches for the sitemap that is asked for: its URLs it may name, too."""
_OF_BULK = (BULK, HOPS, BEYOND, SELF_REDIRECT, VIA, REFERRER_POLICY, SITEMAP,
            "dont_redirect", "dont_retry")  # fmt: skip

# A host as nearly all URLs write it: parsing them takes ten times as long.
_PLAIN_HOST = re.compile(r"https?://([a-z0-9._-]*[a-z0-9_-])(?::[0-9]*)?(?:[/?#]|$)")
# Begins no encoded request, whose first byte is the number of a format.
_OF_SITEMAP = b"sitemap "

_DEFAULT_FINGERPRINTER = "scrapy.utils.request.RequestFingerprinter"


def chosen_slot(request: Request) -> str | None:
    """The ``download_slot`` that a spider chose for *request*."""
    slot = request.meta.get(DOWNLOAD_SLOT)
    return None if slot is None or slot == request.meta.get(GATE_SLOT) else str(slot)


def hostname(request: Request) -> str:
    plain = _PLAIN_HOST.match(request.url)
    if plain is not None:
        return plain[1]
    name = (urlparse_cached(request).hostname or "").rstrip(".")
    return f"[{name}]" if ":" in name else name


def pacing_key(request: Request) -> str:
    """The slot that a spider chose for *request*, else its host: the delays of both hold."""
    return chosen_slot(request) or hostname(request)


def detach_from_page(request: Request) -> None:
    """Remove the meta of a bulk page from *request*, else it would pass for a bulk link."""
    if BULK in request.meta:
        if BEYOND in request.meta:
            request.meta.pop("allow_offsite", None)
        for key in _OF_BULK:
            request.meta.pop(key, None)


class Translator:
    """Turns requests into entries and back, for one crawl.

    *codec* is None where nothing is stored: entries then carry the requests themselves.
    """

    def __init__(
        self, crawler: Crawler, codec: RequestCodec | None, *, broad: bool,
        normal: Normalizer | None = None,
    ) -> None:  # fmt: skip
        self._crawler = crawler
        self.referers = LinkReferers(crawler)
        self.parents: WeakKeyDictionary[Request, Fetch] = WeakKeyDictionary()
        """The fetches of the pages that brought the requests."""
        self.note_sitemap: Callable[[bytes, str], None] | None = None
        """Called with the state key of a sitemap's redirect, and the host that vouches for it."""
        self.read_sitemap: Callable[..., Any] | None = None  # the callback of sitemaps
        self.owner_elsewhere: Callable[[Entry], str] = lambda entry: ""  # another agent
        self._normal = normal or Normalizer()
        self._codec = codec
        chosen = load_object(crawler.settings["REQUEST_FINGERPRINTER_CLASS"])
        self._by_normal_form = broad and chosen is load_object(_DEFAULT_FINGERPRINTER)
        self._warned: set[bool] = set()  # of those that stay here, and of others

    def identity(self, request: Request) -> bytes:
        if self._by_normal_form and request.method == "GET" and not request.body:
            normal = self._normal_form(request)
            if normal is not None:
                return state_key(host_of(normal), normal)
        key = host_key(hostname(request))
        # 0xFF begins no URL.
        return key + b"\xff" + self._crawler.request_fingerprinter.fingerprint(request)

    def _normal_form(self, request: Request) -> str | None:
        plain = normalize(request.url)
        # Links were brought into their normal form where they were found.
        if plain is None or self._normal.is_plain or request.meta.get(BULK):
            return plain
        before = request.meta.get("redirect_urls")
        page = normalize(before[-1]) if before else None
        if page is not None and self._normal.is_own_spelling(page, plain):
            return None
        return self._normal.respell(plain)

    def entry(self, request: Request, identity: bytes) -> Entry:
        """The entry of *request*, which came from a spider or a middleware, and has *identity*."""
        meta = request.meta
        entry = Entry(
            pacing_key(request), request.url, identity,
            priority=request.priority,
            depth=int(meta.get("depth", 0)),
            hops=int(meta.get(HOPS, 0)),
            hops_outside=int(meta.get(BEYOND, 0)),
            flags=_flags(request),
            referrer=field_text(request.headers, "Referer"),
        )  # fmt: skip
        if meta.get(BULK):
            normal = normalize(request.url)
            if normal is not None:
                entry.url = normal
                entry.referrer = meta.get(VIA, "")
                entry.referrer_policy = meta.get(REFERRER_POLICY, 0)
                if SITEMAP in meta:
                    entry.payload = sitemap_payload(meta[SITEMAP])
                    if self.note_sitemap is not None:
                        self.note_sitemap(entry.identity, meta[SITEMAP])
                return entry
        entry.flags |= Flag.USER
        entry.payload = request
        if self._codec is not None:
            try:
                entry.payload = self._codec.encode(request)
            except errors.UnstorableError as error:
                entry.flags |= Flag.VOLATILE
                self._crawler.stats.inc_value("scheduler/unserializable")
                self._warn(request, error, self.owner_elsewhere(entry))
        return entry

    def _warn(self, request: Request, error: errors.UnstorableError, other: str) -> None:
        if bool(other) in self._warned:
            return
        self._warned.add(bool(other))
        fate = "It is kept in memory, and the page that it came from is not done before it is"
        if other:
            fate = (
                f"It belongs to the agent {other} and cannot travel: it has failed (elsewhere), "
                "and its errback is not called"
            )
        logger.warning(
            "%s cannot be stored (%s): spider %s, callback %r. %s. Further ones are only counted "
            "(scheduler/unserializable).",
            request, error, getattr(self._crawler.spider, "name", ""), request.callback, fate,
        )  # fmt: skip

    def request(self, entry: Entry) -> Request:
        """The request for *entry*. Raises `CodecError` if its stored form is damaged."""
        payload = entry.payload
        if isinstance(payload, Request):
            return payload
        voucher = voucher_of(payload)
        if voucher is None and payload is not None and self._codec is not None:
            return self._codec.decode(payload)
        # Redirects are links: `LinkRedirects`.
        meta = {BULK: True, "depth": entry.depth, "dont_redirect": True, "dont_retry": True,
                VIA: entry.referrer}
        if entry.hops:
            meta[HOPS] = entry.hops
        if entry.flags & Flag.SELF_REDIRECT:
            meta[SELF_REDIRECT] = True
        callback = None
        if voucher is not None:
            # Whatever is wanted of pages: of a sitemap it is as much as one may have.
            meta |= {SITEMAP: voucher, TRUNCATE: BYTES_MAX, MEDIA_TYPES: ()}
            callback = self.read_sitemap
        if entry.referrer_policy:
            meta[REFERRER_POLICY] = entry.referrer_policy
        came_from = self.referers.referer(entry)
        headers = {"Referer": came_from} if came_from else None
        return Request(entry.url, callback, headers=headers, meta=meta, priority=entry.priority)


def sitemap_payload(voucher: str) -> bytes:
    return _OF_SITEMAP + voucher.encode()


def voucher_of(payload: object) -> str | None:
    """The host in the payload of a sitemap's entry; None for other entries."""
    if isinstance(payload, bytes) and payload.startswith(_OF_SITEMAP):
        return payload[len(_OF_SITEMAP) :].decode()
    return None


def seed_entry(url: str, normal: Normal = normalize) -> Entry | None:
    """The entry of a seed or of a link without a page; None if *url* is no web address."""
    found = normal(url)
    return None if found is None else Entry(host_of(found), found)


_FLAGS_OF_META: Final = {
    "is_start_request": Flag.START, "proxy": Flag.PROXIED,
    "dont_obey_robotstxt": Flag.NO_ROBOTS, SELF_REDIRECT: Flag.SELF_REDIRECT,
}


def _flags(request: Request) -> int:
    meta, flags = request.meta, Flag.DONT_FILTER if request.dont_filter else 0
    for key in _FLAGS_OF_META.keys() & meta.keys():  # of most requests there is none
        if meta[key]:
            flags |= _FLAGS_OF_META[key]
    return flags


REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
"""The statuses that name another URL for the same thing."""
_NOT_ASCII = re.compile(rb"[^\x00-\x7f]")


def redirect_target(url: str, status: int, location: bytes | None) -> str | None:
    """The target, in normal form, of the answer to *url*; None if there is none."""
    if status not in REDIRECTS or not location:
        return None
    # Servers send raw UTF-8 and worse. Escaped byte by byte it is what they meant.
    escaped = _NOT_ASCII.sub(lambda found: b"%%%02X" % found[0][0], location)
    return normalize(escaped.decode("ascii"), url)


HOPS_MAX = 10  # redirects in a row that are followed from one link


class LinkRedirects:
    """Makes a row of the target of a redirect of a row without a request of its own.

    A page that redirects to itself is fetched once more: perhaps it only wanted to set a cookie.
    """

    def __init__(self, crawl: Crawl) -> None:
        settings = crawl.crawler.settings
        self._crawl = crawl
        self._stats = crawl.crawler.stats
        self._url_max = settings.getint("URLLENGTH_LIMIT")  # 0: no limit
        handled = getattr(crawl.crawler.spider, "handle_httpstatus_list", ())
        self._statuses = REDIRECTS.difference(handled)
        self._scoped = bool(getattr(crawl.crawler.spider, "allowed_domains", None))
        if not settings.getbool("REDIRECT_ENABLED"):
            self._statuses = frozenset()

    def follow(self, fetch: Fetch, url: str, status: int, location: bytes | None) -> bool:
        """Queue the target of the answer to *url*, the row of *fetch*; False: it is no redirect.

        Raises `TooManyHops`, `RedirectLoop`.
        """
        if location is None or status not in self._statuses:
            return False
        target = self._target(url, status, location)
        if target is None or (self._url_max and len(target) > self._url_max):
            self._stats.inc_value("suite/redirect/invalid")
            return False
        entry = self._next_entry(fetch.entry, url, target)
        self._stats.inc_value("suite/redirect/count")
        logger.debug("Redirected to %s from <GET %s>", target, url)
        fetch.event = Event.REPLACED
        if self._is_on_site(entry) and self._crawl.engine is not None:
            self._crawl.engine.enqueue_entry(entry, fetch)
        return True

    def refuse_redirect(self, request: Request, fetch: Fetch, result: object) -> None:
        """Raise `PageRedirected` if *result*, of *request*, was followed as a link."""
        if fetch.entry.flags & Flag.USER or not isinstance(result, Response):
            return
        if self.follow(fetch, request.url, result.status, result.headers.get(b"Location")):
            raise PageRedirected(f"{request.url} leads elsewhere")

    def _target(self, url: str, status: int, location: bytes) -> str | None:
        """The target as the crawl spells it; as the server does, if the server insists on that."""
        target, page = redirect_target(url, status, location), normalize(url)
        if target is None or page is None:
            return target
        normal = self._crawl.normalizer
        if normal.is_plain or normal.is_own_spelling(page, target):
            return target
        return normal.respell(target)

    def _next_entry(self, page: Entry, url: str, target: str) -> Entry:
        to_itself = target == normalize(url)
        if to_itself and page.flags & Flag.SELF_REDIRECT:
            self._stats.inc_value("suite/redirect/loop")
            raise RedirectLoop(f"{url} redirects to itself")
        if page.hops >= HOPS_MAX:
            self._stats.inc_value("suite/redirect/too_many")
            raise TooManyHops(f"more than {HOPS_MAX} redirects, the last to {target}")
        entry = Entry(
            host_of(target), target, priority=page.priority, depth=page.depth, hops=page.hops + 1,
            hops_outside=page.hops_outside, referrer=page.referrer,
            referrer_policy=page.referrer_policy, payload=page.payload,
            flags=Flag.SELF_REDIRECT | Flag.DONT_FILTER if to_itself else 0,
        )  # fmt: skip
        voucher = voucher_of(page.payload)
        if voucher is not None and self._crawl.translator.note_sitemap is not None:
            self._crawl.translator.note_sitemap(entry.identity, voucher)
        return entry

    def _is_on_site(self, entry: Entry) -> bool:
        if not self._scoped:
            return True
        offsite = self._crawl.crawler.get_downloader_middleware(OffsiteMiddleware)
        if offsite is None or entry.hops_outside or self._crawl.filters.opens_scope:
            return True
        try:
            again = bool(entry.flags & Flag.DONT_FILTER)
            offsite.process_request(Request(entry.url, dont_filter=again))
        except IgnoreRequest:
            return False
        return True
