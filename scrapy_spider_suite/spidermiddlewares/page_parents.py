"""Ties requests and items to their page; runs ``start()`` to its end once per job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from scrapy import Request, signals
from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_spider_suite.crawl.assembly import open_crawl
from scrapy_spider_suite.crawl.context import STARTING, Crawl, get_crawl
from scrapy_spider_suite.crawl.empty_runs import STARTED, is_noted, note_fact
from scrapy_spider_suite.crawl.requests import detach_from_page, is_disk_full
from scrapy_spider_suite.items import PageItem
from scrapy_spider_suite.runtime.event_loop import TimeSlices
from scrapy_spider_suite.signals import item_not_exported

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

class PageParentMiddleware:
    """Spider middleware for order 1: its output is what the engine gets."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> PageParentMiddleware:
        return cls(crawler)

    @property
    def _crawl(self) -> Crawl:
        return get_crawl(self._crawler)

    def process_spider_output(self, response: Response, result: Iterable[Any]) -> Iterable[Any]:
        """Note the parent page of each request and each `PageItem`."""
        for output in result:
            self._note(response, output)
            yield output

    async def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Note the parent page of each request and each `PageItem`."""
        async for output in result:
            self._note(response, output)
            yield output

    def _note(self, response: Response, output: Any) -> None:
        if isinstance(output, PageItem):
            output.owner = response.request
        elif isinstance(output, Request) and response.request is not None:
            detach_from_page(output)
            crawl = self._crawl
            lease = crawl.leases.get(response.request)
            if lease is not None:
                crawl.translator.parents[output] = lease

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield from ``start()``, unless an earlier run of this job has run it to its end.

        It runs again with another scheduler, which may have lost its requests, and if it yielded
        nothing. Scrapy's engine reads without a pause while it can send nothing: so this reads in
        slices of time.
        """
        crawl = self._crawl
        once = crawl.job is not None and crawl.engine is not None
        if once and is_noted(crawl, STARTED):
            logger.info("start() ran to its end in an earlier run of this job: not run again")
            return
        outputs, turns, items = aiter(start), TimeSlices(), _StartItems(crawl.crawler)
        while True:
            await turns.yield_turn()
            # Between two outputs, the engine runs in this task.
            STARTING.set(True)
            crawl.seeds.start.task = asyncio.current_task()
            try:
                output = await anext(outputs)
            except StopAsyncIteration:
                break
            finally:
                STARTING.set(False)
                crawl.seeds.start.task, crawl.seeds.start.waits = None, False
            if isinstance(output, Request):
                open_crawl(self._crawler).trusted.add_start(output)
            else:
                items.begin()
            yield output
        if not once:
            return
        await items.through()
        # Queued URLs may be another agent's.
        came = items.any or crawl.agent is not None or crawl.frontier.counters.has_urls
        if came and not (crawl.seeds.start.volatile or items.lost or crawl.stopping):
            note_fact(crawl, STARTED)


class _StartItems:
    def __init__(self, crawler: Crawler) -> None:
        self.any = False
        self._out = 0
        self.lost = False  # a full disk did not take an item: start() runs again
        self._changed = asyncio.Event()
        for signal in (signals.item_scraped, signals.item_dropped, signals.item_error):
            crawler.signals.connect(self._over, signal)
        crawler.signals.connect(self._not_exported, item_not_exported)

    def begin(self) -> None:
        """Count an item that is yielded."""
        self.any = True
        self._out += 1

    async def through(self) -> None:
        """Return when each item was scraped, dropped or has failed."""
        while self._out > 0:
            self._changed.clear()
            await self._changed.wait()

    def _over(self, response: object, failure: Failure | None = None) -> None:
        if response is None:
            self._out -= 1
            self.lost = self.lost or (failure is not None and is_disk_full(failure.value))
            self._changed.set()

    def _not_exported(self, response: object, failure: Failure) -> None:
        # Sent while item_scraped is, which counts the item.
        self.lost = self.lost or (response is None and is_disk_full(failure.value))
