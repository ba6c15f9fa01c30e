"""Redirects as links: the target goes to the scheduler as a request of its own.

Scrapy follows a redirect past the duplicates filter, so a broad crawl would fetch a page once for
every URL that leads to it.
"""

from __future__ import annotations

import logging
from typing import Any, Self

from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.http import Request, Response
from scrapy.statscollectors import StatsCollector

from scrapy_spider_suite.crawl.context import get_normalizer
from scrapy_spider_suite.crawl.requests import _STATUSES, redirect_target
from scrapy_spider_suite.exceptions import RedirectLoop, TooManyHops
from scrapy_spider_suite.urls.normalize import normalize

logger = logging.getLogger(__name__)

HOPS_MAX = 10  # redirects in a row that are followed from one link

# Meta keys of the one fetch that was redirected. A proxy of the URL's scheme is chosen anew.
_OF_THIS_FETCH = frozenset(
    {"download_latency", "download_slot", "suite_address", "suite_self_redirect"}
)
_OF_SCHEME_PROXY = frozenset({"_auth_proxy", "_scheme_proxy", "proxy"})


class LinkRedirectMiddleware:
    """Turns the redirects of bulk requests (meta ``suite_bulk``) into requests of their own.

    The new request has the depth and the parent of the redirected one, and takes over callback,
    errback, meta, priority and Referer, but no other header, body or cookies. A page that redirects
    to itself is fetched once more, in case it only wanted to set a cookie. Requests that a spider
    yielded are left to Scrapy's ``RedirectMiddleware``.

    ``REDIRECT_ENABLED``, meta ``dont_redirect``, ``handle_httpstatus_list`` and
    ``handle_httpstatus_all`` and the spider's ``handle_httpstatus_list`` mean what they mean to
    Scrapy. A redirect without a usable target goes to the spider.

    Stats: ``suite/redirect/count``, ``suite/redirect/invalid``, ``suite/redirect/loop``,
    ``suite/redirect/too_many``.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._stats: StatsCollector = crawler.stats
        self._url_max = crawler.settings.getint("URLLENGTH_LIMIT")  # 0: no limit

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        if not crawler.settings.getbool("REDIRECT_ENABLED"):
            raise NotConfigured("REDIRECT_ENABLED is off")
        return cls(crawler)

    def process_response(self, request: Request, response: Response) -> Request | Response:
        """Return the request for the target, or *response* if it is not to be followed as a link.

        Raises:
            TooManyHops: it would be the eleventh redirect in a row.
            RedirectLoop: the page redirects to itself, and did so just before.
        """
        if response.status not in _STATUSES or not request.meta.get("suite_bulk"):
            return response
        if b"Location" not in response.headers or self._is_wanted(request, response.status):
            return response
        target = self._target(request, response)
        if target is None or (self._url_max and len(target) > self._url_max):
            self._stats.inc_value("suite/redirect/invalid")
            request.meta["dont_redirect"] = True  # or Scrapy's own middleware may try it
            return response
        return self._follow(request, target)

    def _target(self, request: Request, response: Response) -> str | None:
        """The target as the crawl spells it; as the server does, if the server insists on that."""
        target, page = redirect_target(request.url, response), normalize(request.url)
        if target is None or page is None:
            return target
        normal = get_normalizer(self._crawler)
        if normal.is_plain or normal.is_own_spelling(page, target):
            return target
        return normal.respell(target)

    def _is_wanted(self, request: Request, status: int) -> bool:
        spider, meta = self._crawler.spider, request.meta
        return bool(
            meta.get("dont_redirect")
            or meta.get("handle_httpstatus_all")
            or status in meta.get("handle_httpstatus_list", ())
            or status in getattr(spider, "handle_httpstatus_list", ())
        )

    def _follow(self, request: Request, target: str) -> Request:
        to_itself = target == normalize(request.url)
        if to_itself and request.meta.get("suite_self_redirect"):
            self._stats.inc_value("suite/redirect/loop")
            raise RedirectLoop(f"{request.url} redirects to itself")
        hops = request.meta.get("suite_hops", 0) + 1
        if hops > HOPS_MAX:
            self._stats.inc_value("suite/redirect/too_many")
            raise TooManyHops(f"more than {HOPS_MAX} redirects, the last to {target}")
        self._stats.inc_value("suite/redirect/count")
        logger.debug(
            "Redirected to %(target)s from %(request)s", {"target": target, "request": request}
        )
        dropped = _OF_THIS_FETCH | (_OF_SCHEME_PROXY if "_scheme_proxy" in request.meta else set())
        meta: dict[str, Any] = {k: v for k, v in request.meta.items() if k not in dropped}
        referer = request.headers.get(b"Referer")
        if referer and referer.startswith(b"https:") and not target.startswith("https:"):
            referer = None  # never tell plain HTTP about a secure page
        meta["suite_hops"] = hops
        if to_itself:
            meta["suite_self_redirect"] = True
        return Request(
            target,
            callback=request.callback,
            errback=request.errback,
            headers={b"Referer": referer} if referer else {},
            meta=meta,
            cb_kwargs=request.cb_kwargs,
            priority=request.priority,
            flags=request.flags,
            dont_filter=to_itself,
        )
