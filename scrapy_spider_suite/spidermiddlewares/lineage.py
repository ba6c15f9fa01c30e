"""Ties what a page brings to the page, and runs ``start()`` to its end once in a job's life."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from scrapy import Request, signals
from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_spider_suite.core import STARTING, CrawlCore, core_of
from scrapy_spider_suite.events import is_disk_full
from scrapy_spider_suite.requests import disown
from scrapy_spider_suite.turns import Turns

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

STARTED = b"started"


class LineageMiddleware:
    """Spider middleware for order 1: what it sees is what the engine gets."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> LineageMiddleware:
        """Build it for *crawler*."""
        return cls(crawler)

    @property
    def _core(self) -> CrawlCore:
        return core_of(self._crawler)

    def process_spider_output(self, response: Response, result: Iterable[Any]) -> Iterable[Any]:
        """Note the page that each request came from."""
        for output in result:
            self._note(response, output)
            yield output

    async def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Note the page that each request came from."""
        async for output in result:
            self._note(response, output)
            yield output

    def _note(self, response: Response, output: Any) -> None:
        if isinstance(output, Request) and response.request is not None:
            disown(output)
            core = self._core
            lease = core.leases.get(response.request)
            if lease is not None:
                core.parents[output] = lease

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Pass ``start()`` on, unless an earlier run of this job has been through all of it.

        While it can send nothing more, Scrapy's engine reads without a pause: 100,000 URLs of a
        list would hold up everything else, so the reading is done in slices.
        """
        core = self._core
        if core.job is not None and core.store.kv("start").get(STARTED):
            logger.info("start() ran to its end in an earlier run of this job: not run again")
            return
        outputs, turns, items = aiter(start), Turns(), _StartItems(core)
        while True:
            await turns.leave()
            # Between two of them, what runs in this task is the engine.
            STARTING.set(True)
            core.reader = asyncio.current_task()
            try:
                output = await anext(outputs)
            except StopAsyncIteration:
                break
            finally:
                STARTING.set(False)
                core.reader, core.start_waits = None, False
            items.out += not isinstance(output, Request)
            yield output
        items.no_more()


class _StartItems:
    """The items of ``start()`` that are in the pipelines: it has not run to its end before them."""

    def __init__(self, core: CrawlCore) -> None:
        self.out = 0
        self._core = core
        self._all = False
        self._through = {
            signals.item_scraped: self._item_through,
            signals.item_dropped: self._item_through,
            signals.item_error: self._item_failed,
        }
        for signal, handler in self._through.items():
            core.crawler.signals.connect(handler, signal, weak=False)
        # Older releases of Scrapy do not wait for the last of them.
        core.crawler.signals.connect(self._forget, signals.spider_closed, weak=False)

    def no_more(self) -> None:
        """``start()`` has yielded everything."""
        self._all = True
        self._note_the_end()

    def _item_through(self, response: object) -> None:
        if response is None:
            self.out -= 1
            self._note_the_end()

    def _item_failed(self, response: object, failure: Failure) -> None:
        # What a full disk did not take is to come again.
        if not is_disk_full(failure.value):
            self._item_through(response)

    def _note_the_end(self) -> None:
        core = self._core
        if self._all and not self.out and core.job is not None and not core.volatile_start:
            core.store.kv("start").put(STARTED, b"1")

    def _forget(self) -> None:
        for signal, handler in self._through.items():
            self._core.crawler.signals.disconnect(handler, signal)
