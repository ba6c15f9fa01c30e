"""For components that write later than they are given something: a page is done after them.

A sink must not wait in ``process_item``: the page's other items wait behind it, and at the end of
a crawl everybody for everybody. It remembers what it was given, and tells the frontier of a future
that is done when the bytes are on disk::

    class Packs:
        @classmethod
        def from_crawler(cls, crawler):
            sink = cls(crawler)
            crawler.signals.connect(sink.item_scraped, signals.item_scraped)
            return sink

        def item_scraped(self, item, response):
            block = self.append(item)  # block.written: an asyncio.Future
            hold(self.crawler, response, block.written)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_spider_suite.scheduler import FrontierScheduler

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


def hold(
    crawler: Crawler, response: Response | Failure | None, durable: asyncio.Future[Any]
) -> bool:
    """Let the page of *response* be done only when *durable* is.

    If *durable* fails or is cancelled, or the crawl ends before it is done, the page stays pending
    and is fetched again. To be called from a handler of ``item_scraped`` or ``response_received``,
    with what that was given as *response*: before the page is through.

    Returns:
        Whether something will wait for it: not where there is no page (items of ``start()``), it is
        through already, or the scheduler is not the suite's.
    """
    slot = None if crawler.engine is None else crawler.engine._slot
    scheduler = None if slot is None else slot.scheduler
    # Not isinstance(): to Scrapy's metaclass every scheduler is an instance of any other's class.
    if FrontierScheduler not in type(scheduler).__mro__:
        return False
    held: bool = scheduler.hold(response, durable)  # type: ignore[union-attr]
    return held
