"""The callback of a page of the fetch loop, and what it yields.

Most callbacks yield nothing, or one item of a page: that goes straight to the item pipelines. All
else goes through Scrapy's scraper, and so through the spider middlewares: requests, several items,
output of a coroutine, and everything where a middleware of the project's is to see it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import chain
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from scrapy import Request
from twisted.python.failure import Failure

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.items import PageItem

if TYPE_CHECKING:
    from scrapy.core.engine import ExecutionEngine
    from scrapy.http import Response

    from scrapy_spider_suite.crawl.context import Crawl
    from scrapy_spider_suite.crawl.queue.leases import Fetch

logger = logging.getLogger(__name__)

_PLAIN = (GeneratorType, list, tuple)
"""What is walked through here; Scrapy knows what to do with anything else."""


class PageCallbacks:
    """Calls the callback of pages; *over* is called when all that it yielded is through.

    *seen*: a spider middleware sees what callbacks yield.
    """

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
        items: list[Any] = []
        try:
            output = self._spider._parse(response)
            if output is not None and not isinstance(output, _PLAIN):
                self._scrape(fetch, request, response, output)
                return
            outputs = iter(output or ())
            for each in outputs:
                if each is not None:
                    items.append(each)
                    if len(items) > 1 or isinstance(each, Request | PageItem):
                        self._scrape(fetch, request, response, chain(items, outputs))
                        return
        except JobDamagedError:
            raise
        except Exception as error:  # the project's own code
            if items:
                self._scrape(fetch, request, response, _raise_after(items, error))
                return
            failure: Any = Failure()  # type: ignore[no-untyped-call]
            self._scraper.handle_spider_error(failure, request, response)
        if items:
            task = asyncio.get_running_loop().create_task(self._process(fetch, response, items[0]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._over(fetch)

    async def _process(self, fetch: Fetch, response: Response, item: Any) -> None:
        slot: Any = self._scraper.slot
        size = max(len(response.body), slot.MIN_RESPONSE_SIZE)
        slot.active_size += size  # by which the engine and the loop see that pipelines are behind
        try:
            await self._scraper.start_itemproc_async(item, response=response)
        except Exception:  # Scrapy has dealt with those of pipelines
            logger.exception("The item of %s cannot be processed", response.url)
        finally:
            slot.active_size -= size
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
        scraped.addBoth(lambda _: self._over(fetch))


def _raise_after(items: list[Any], error: Exception) -> Iterator[Any]:
    yield from items
    raise error
