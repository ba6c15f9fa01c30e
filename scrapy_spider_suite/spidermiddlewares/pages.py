"""Spider middlewares: pages are filtered, their links followed, their output tied to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.http import HtmlResponse, Response
from twisted.python.failure import Failure

from scrapy_spider_suite.crawl.assembly import open_crawl
from scrapy_spider_suite.crawl.context import STARTING, follows_links, get_crawl, has_crawl
from scrapy_spider_suite.crawl.empty_runs import ANSWERED, STARTED, is_noted, note_fact
from scrapy_spider_suite.crawl.requests import SITEMAP, detach_from_page, is_disk_full
from scrapy_spider_suite.exceptions import FilterRefused
from scrapy_spider_suite.fetch.exchange import Exchange
from scrapy_spider_suite.fetch.http_messages import ADDRESS
from scrapy_spider_suite.frontier.outcomes import Event, event_of_status
from scrapy_spider_suite.items import PageItem
from scrapy_spider_suite.packs import Link
from scrapy_spider_suite.runtime.event_loop import TimeSlices
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.signals import item_not_exported

logger = logging.getLogger(__name__)


class PageOutputMiddleware:
    """Spider middleware for order 1: its output is what the engine gets.

    The items of a page that SUITE_STORE_FILTER refuses are dropped; its requests are queued.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> PageOutputMiddleware:
        return cls(crawler)

    def process_spider_output(self, response: Response, result: Iterable[Any]) -> Iterable[Any]:
        """Note the parent page of each request and each `PageItem`; drop items of refused pages."""
        return (output for output in result if self._passes(response, output))

    async def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        async for output in result:
            if self._passes(response, output):
                yield output

    def _passes(self, response: Response, output: Any) -> bool:
        page = response.request
        if page is None or not has_crawl(self._crawler):
            return True
        crawl = get_crawl(self._crawler)
        fetch = crawl.fetches.get(page)
        if isinstance(output, Request):
            detach_from_page(output)
            if fetch is not None:
                crawl.translator.parents[output] = fetch
        elif fetch is not None and fetch.items_refused:
            self._crawler.stats.inc_value("suite/filter/store/items")
            return False
        elif isinstance(output, PageItem):
            output.owner = page
        return True

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield from ``start()``, unless an earlier run of this job has run it to its end.

        It runs again with another scheduler, which may have lost its requests, and if it yielded
        nothing. Scrapy's engine reads without a pause while it can send nothing: so this reads in
        slices of time.
        """
        crawl = get_crawl(self._crawler)
        once = crawl.job is not None and crawl.engine is not None
        if once and is_noted(crawl, STARTED):
            logger.info("start() ran to its end in an earlier run of this job: not run again")
            return
        outputs, turns, items = aiter(start), TimeSlices(), _StartItems(crawl.crawler)
        while True:
            await turns.yield_turn()
            # Between two outputs, the engine runs in this task.
            STARTING.set(True)
            crawl.seeds.start = asyncio.current_task()
            try:
                output = await anext(outputs)
            except StopAsyncIteration:
                break
            finally:
                STARTING.set(False)
                crawl.seeds.start, crawl.seeds.start_waits = None, False
            if isinstance(output, Request):
                open_crawl(self._crawler).trusted.add_start(output)
            else:
                items.count_yielded()
            yield output
        if not once:
            return
        await items.wait_until_done()
        # Queued URLs may be another agent's.
        came = items.any or crawl.agent is not None or crawl.frontier.counters.has_urls
        if came and not (crawl.seeds.volatile or items.lost or crawl.stopping):
            note_fact(crawl, STARTED)


class _StartItems:
    def __init__(self, crawler: Crawler) -> None:
        self.any = False
        self._out = 0
        self.lost = False  # a full disk did not take an item: start() runs again
        self._changed = asyncio.Event()
        for signal in (signals.item_scraped, signals.item_dropped, signals.item_error):
            crawler.signals.connect(self._on_item_done, signal)
        crawler.signals.connect(self._not_exported, item_not_exported)

    def count_yielded(self) -> None:
        self.any = True
        self._out += 1

    async def wait_until_done(self) -> None:
        """Return when each item was scraped, dropped or has failed."""
        while self._out > 0:
            self._changed.clear()
            await self._changed.wait()

    def _on_item_done(self, response: object, failure: Failure | None = None) -> None:
        if response is None:
            self._out -= 1
            self.lost = self.lost or (failure is not None and is_disk_full(failure.value))
            self._changed.set()

    def _not_exported(self, response: object, failure: Failure) -> None:
        # Sent while item_scraped is, which counts the item.
        self.lost = self.lost or (response is None and is_disk_full(failure.value))


class PageMiddleware:
    """Hands a page to the stages of the crawl before its callback gets it (`PageStages`).

    A page that SUITE_PARSE_FILTER refuses ends as in Scrapy's HttpErrorMiddleware: its errback gets
    `FilterRefused`.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._noted = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> PageMiddleware:
        return cls(crawler)

    def process_spider_input(self, response: Response) -> None:
        """Run the stages. Raises `FilterRefused` if *response* is not to be parsed."""
        self._run_stages(response)
        # Of a page the counters tell.
        if not self._noted and event_of_status(response.status) is not Event.SUCCESS:
            self._noted = True
            crawl = get_crawl(self._crawler) if has_crawl(self._crawler) else None
            if crawl is not None and crawl.engine is not None and not is_noted(crawl, ANSWERED):
                note_fact(crawl, ANSWERED)

    def _run_stages(self, response: Response) -> None:
        request = response.request
        if request is None or not has_crawl(self._crawler):
            return
        fetch = get_crawl(self._crawler).fetches.get(request)
        if fetch is None or fetch.page is not None:
            return
        fetch.page = page = Exchange.of_handler(response.url, request.method, response)
        page.address = page.address or request.meta.get(ADDRESS, "")
        if not open_crawl(self._crawler).pages.run(fetch, page):
            raise FilterRefused(f"SUITE_PARSE_FILTER does not want {response.url}", response)

    def process_spider_exception(
        self, response: Response, exception: Exception
    ) -> Iterable[Any] | None:
        """Return [] for a page that is not parsed: it is no error."""
        return [] if isinstance(exception, FilterRefused) else None


class PageItemMiddleware:
    """Yields every followed page as an item before the output of its callback: SUITE_PAGE_ITEMS."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> PageItemMiddleware:
        settings = suite_settings(crawler)
        wanted = settings.page_items and follows_links(crawler)
        if not wanted or settings.profile != "broad":
            raise NotConfigured  # the spider itself yields a PageItem where it wants one
        return cls(crawler)

    def process_spider_output(self, response: Response, result: Iterable[Any]) -> Iterable[Any]:
        yield from self._page(response)
        yield from result

    async def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        for item in self._page(response):
            yield item
        async for output in result:
            yield output

    def _page(self, response: Response) -> Iterator[PageItem]:
        request = response.request
        if request is None or SITEMAP in request.meta:
            return
        fetch = get_crawl(self._crawler).fetches.get(request)
        links = None
        if fetch is not None and fetch.unread is None and isinstance(response, HtmlResponse):
            links = [Link(*edge) for edge in fetch.outlinks]
        yield PageItem.from_response(response, links)
