"""Ties what a page brings to the page, and runs ``start()`` to its end once in a job's life."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.http import Response

from scrapy_spider_suite.core import STARTING, CrawlCore, core_of
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
        outputs, turns = aiter(start), Turns()
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
            yield output
        if core.job is not None and not core.volatile_start:
            core.store.kv("start").put(STARTED, b"1")
