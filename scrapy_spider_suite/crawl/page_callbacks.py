"""The callback of a page of the fetch loop, and what it yields.

A single item goes straight to the item pipelines. All other output goes through Scrapy's scraper
and the spider middlewares. All output goes there if the project has a spider middleware of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextvars import copy_context
from functools import partial
from itertools import chain
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.http import TextResponse
from twisted.python.failure import Failure

from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.items import PageItem

if TYPE_CHECKING:
    from scrapy.core.engine import ExecutionEngine
    from scrapy.http import Response

    from scrapy_spider_suite.crawl.context import Crawl
    from scrapy_spider_suite.crawl.queue.leases import Fetch

logger = logging.getLogger(__name__)

_PLAIN = (GeneratorType, list, tuple)
"""Types of output that are read here. Output of another type goes to Scrapy's scraper."""


class PageCallbacks:
    """Calls the callback of a page, then *over*; *seen*: a spider middleware sees the output."""

    def __init__(
        self, crawl: Crawl, engine: ExecutionEngine, over: Callable[[Fetch], None], *, seen: bool
    ) -> None:
        self._crawl = crawl
        self._scraper = engine.scraper
        self._spider: Any = crawl.crawler.spider
        self._over = over
        self._seen = seen
        self._tasks: set[asyncio.Task[None]] = set()

    def call(self, fetch: Fetch, response: Response) -> None:
        """Call the callback of *fetch* with its page."""
        request = self._crawl.request_of(fetch)
        response.request = request
        if self._seen or fetch.items_refused or request.callback is not None:
            self._scrape(fetch, request, response)
            return
        context = copy_context()  # as in a task: what a callback sets there stays there
        item, others = context.run(self._output_of, request, response)
        if others is not None:
            self._scrape(fetch, request, response, others)
        elif item is None:
            self._end(fetch, response)
        else:
            slot: Any = self._scraper.slot
            slot.active.add(request)
            slot.active_size += max(len(response.body), slot.MIN_RESPONSE_SIZE)
            process = self._scraper.start_itemproc_async(item, response=response)
            task = asyncio.get_running_loop().create_task(process, context=context)
            self._tasks.add(task)
            task.add_done_callback(partial(self._processed, fetch, request, response))

    def _output_of(self, request: Request, response: Response) -> tuple[Any, Any]:
        """The one item that the callback yields, if any; or all its output, for Scrapy."""
        items: list[Any] = []
        try:
            output = self._spider._parse(response)
            if output is not None and not isinstance(output, _PLAIN):
                return None, output
            outputs = iter(output or ())
            for each in outputs:
                if each is not None:
                    items.append(each)
                    if len(items) > 1 or isinstance(each, Request | PageItem):
                        return None, chain(items, outputs)
        except Exception as error:  # the project's own code
            if items:
                return None, _raise_after(items, error)
            failure: Any = Failure()  # type: ignore[no-untyped-call]
            self._scraper.handle_spider_error(failure, request, response)
        return (items[0] if items else None), None

    def _processed(
        self, fetch: Fetch, request: Request, response: Response, task: asyncio.Task[None]
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # by a pipeline
            fetch.faults.add(Event.INTERRUPTED)
        elif (error := task.exception()) is not None:  # Scrapy deals with those of pipelines
            fetch.faults.add(Event.PIPELINE_ERROR)
            logger.error("The item of %s cannot be processed", response.url, exc_info=error)
        scraper: Any = self._scraper
        scraper.slot.finish_response(response, request)
        scraper._check_if_closing()
        self._end(fetch, response)

    def _end(self, fetch: Fetch, response: Response) -> None:
        # A response and its selector hold each other: trees would wait for a collection.
        if isinstance(response, TextResponse):
            response._cached_selector = None
        self._over(fetch)

    def _scrape(
        self, fetch: Fetch, request: Request, response: Response, output: Any = None
    ) -> None:
        """Let Scrapy call the callback, or take the *output* that it has had."""
        if output is not None:
            def give(_: Response) -> Any:
                request.callback = None
                return output

            request.callback = give
        scraped = self._scraper.enqueue_scrape(response, request)
        scraped.addBoth(lambda _: self._end(fetch, response))


def _raise_after(items: list[Any], error: Exception) -> Iterator[Any]:
    yield from items
    raise error
