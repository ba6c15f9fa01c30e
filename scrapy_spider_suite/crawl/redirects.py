"""Redirects as links: the target becomes a row of the frontier of its own.

Scrapy follows a redirect past the duplicates filter, so a broad crawl would fetch a page once for
every URL that leads to it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response

from scrapy_spider_suite.crawl.requests import REDIRECTS, redirect_target, voucher_of
from scrapy_spider_suite.exceptions import PageRedirected, RedirectLoop, TooManyHops
from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.urls.normalize import host_of, normalize

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.context import Crawl
    from scrapy_spider_suite.crawl.queue.leases import Lease

logger = logging.getLogger(__name__)

HOPS_MAX = 10  # redirects in a row that are followed from one link
# Plain integers: operators of flags are Python code.
_SELF_REDIRECT, _DONT_FILTER = int(Flag.SELF_REDIRECT), int(Flag.DONT_FILTER)
_USER = int(Flag.USER)


class LinkRedirects:
    """Makes a row of the target of a redirect of a row without a request of its own.

    The new row has the depth, the referrer and the priority of the redirected one. A page that
    redirects to itself is fetched once more, in case it only wanted to set a cookie.

    ``REDIRECT_ENABLED`` and the spider's ``handle_httpstatus_list`` mean what they mean to Scrapy.

    Stats: ``suite/redirect/count``, ``suite/redirect/invalid``, ``suite/redirect/loop``,
    ``suite/redirect/too_many``.
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

    def follow(self, lease: Lease, url: str, status: int, location: bytes | None) -> bool:
        """Queue the target of the answer to *url*, the row of *lease*; False: it is no redirect.

        Raises:
            TooManyHops: it would be the eleventh redirect in a row.
            RedirectLoop: the page redirects to itself, and did so just before.
        """
        if location is None or status not in self._statuses:
            return False
        target = self._target(url, status, location)
        if target is None or (self._url_max and len(target) > self._url_max):
            self._stats.inc_value("suite/redirect/invalid")
            return False
        entry = self._next_entry(lease.entry, url, target)
        self._stats.inc_value("suite/redirect/count")
        logger.debug("Redirected to %s from <GET %s>", target, url)
        lease.event = Event.REPLACED
        if self._is_on_site(entry) and self._crawl.engine is not None:
            self._crawl.engine.enqueue_entry(entry, lease)
        return True

    def refuse_redirect(self, request: Request, lease: Lease, result: object) -> None:
        """Raise `PageRedirected` if *result*, of *request*, was followed as a link."""
        if lease.entry.flags & _USER or not isinstance(result, Response):
            return
        if self.follow(lease, request.url, result.status, result.headers.get(b"Location")):
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
        if to_itself and page.flags & _SELF_REDIRECT:
            self._stats.inc_value("suite/redirect/loop")
            raise RedirectLoop(f"{url} redirects to itself")
        if page.hops >= HOPS_MAX:
            self._stats.inc_value("suite/redirect/too_many")
            raise TooManyHops(f"more than {HOPS_MAX} redirects, the last to {target}")
        entry = Entry(
            host_of(target), target, priority=page.priority, depth=page.depth, hops=page.hops + 1,
            hops_outside=page.hops_outside, referrer=page.referrer,
            referrer_policy=page.referrer_policy, payload=page.payload,
            flags=_SELF_REDIRECT | _DONT_FILTER if to_itself else 0,
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
            again = bool(entry.flags & _DONT_FILTER)
            offsite.process_request(Request(entry.url, dont_filter=again))
        except IgnoreRequest:
            return False
        return True
