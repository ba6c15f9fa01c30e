"""Filters of answers: whether a page is parsed, and whether its items are stored.

Close to the callback: a response that gets this far was accepted, whatever its status.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from scrapy import Request
from scrapy.http import Response

from scrapy_spider_suite.crawl.context import get_crawl, has_crawl
from scrapy_spider_suite.crawl.empty_runs import ANSWERED, is_noted, note_fact
from scrapy_spider_suite.crawl.filters import get_filters
from scrapy_spider_suite.crawl.requests import SITEMAP
from scrapy_spider_suite.exceptions import FilterRefused
from scrapy_spider_suite.fetch.http_messages import ADDRESS
from scrapy_spider_suite.frontier.outcomes import Event, event_of_status
from scrapy_spider_suite.urls.filters import Stage

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

class PageFilterMiddleware:
    """SUITE_PARSE_FILTER and SUITE_STORE_FILTER.

    A page that is not parsed ends as in Scrapy's HttpErrorMiddleware: its errback gets
    `FilterRefused`. For a page that is not stored the callback runs, its requests are queued, and
    its items are dropped.

    Stats: ``suite/filter/store/items``, and those of `Filtering`.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._not_stored: WeakSet[Request] = WeakSet()
        self._noted = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> PageFilterMiddleware:
        return cls(crawler)

    def process_spider_input(self, response: Response) -> None:
        """Ask both filters. Raises `FilterRefused` if *response* is not to be parsed."""
        self._check(response)
        # Of a page the counters tell.
        if not self._noted and event_of_status(response.status) is not Event.SUCCESS:
            self._note_answer()

    def _note_answer(self) -> None:
        self._noted = True
        crawl = get_crawl(self._crawler) if has_crawl(self._crawler) else None
        if crawl is not None and crawl.engine is not None and not is_noted(crawl, ANSWERED):
            note_fact(crawl, ANSWERED)

    def _check(self, response: Response) -> None:
        request, filters = response.request, get_filters(self._crawler)
        if request is None or not filters.has(Stage.PARSE, Stage.STORE):
            return
        if SITEMAP in request.meta:
            return  # no page
        lease = get_crawl(self._crawler).leases.get(request)
        if lease is None:
            return
        address = str(response.ip_address or request.meta.get(ADDRESS, ""))
        if not filters.wants_page(Stage.STORE, response, lease.entry, address):
            lease.faults.add(Event.NOT_STORED)
            self._not_stored.add(request)
        if not filters.wants_page(Stage.PARSE, response, lease.entry, address):
            lease.faults.add(Event.NOT_PARSED)
            raise FilterRefused(f"SUITE_PARSE_FILTER does not want {response.url}", response)

    def process_spider_exception(
        self, response: Response, exception: Exception
    ) -> Iterable[Any] | None:
        """Return [] for a page that is not parsed: it is no error."""
        return [] if isinstance(exception, FilterRefused) else None

    def process_spider_output(self, response: Response, result: Iterable[Any]) -> Iterable[Any]:
        """Drop the items of pages that are not stored."""
        if not self._drops(response):
            return result
        return (output for output in result if self._passes(output))

    async def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Drop the items of pages that are not stored."""
        drops = self._drops(response)
        async for output in result:
            if not drops or self._passes(output):
                yield output

    def _drops(self, response: Response) -> bool:
        return response.request is not None and response.request in self._not_stored

    def _passes(self, output: Any) -> bool:
        if isinstance(output, Request):
            return True
        self._crawler.stats.inc_value("suite/filter/store/items")
        return False
