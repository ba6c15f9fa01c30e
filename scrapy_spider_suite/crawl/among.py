"""A crawl among others: it takes part first, and fetches nothing, nor takes anything in, before."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from scrapy.utils.defer import deferred_from_coro

from scrapy_spider_suite.crawl.core import other_crawls
from scrapy_spider_suite.errors import SuiteError
from scrapy_spider_suite.refusal import refuse, say

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.agency import Agency
    from scrapy_spider_suite.crawl.sharing import Sharing
    from scrapy_spider_suite.scheduler import FrontierScheduler

Others: TypeAlias = "list[Sharing | Agency]"
"""What leads to others: the ledger, and the agents."""


async def take_part(others: Others, scheduler: FrontierScheduler) -> None:
    """Open *others* one after the other; where that is refused, end the process.

    Raises the `SuiteError` that says why instead, if there are other crawls in the process.
    """
    opening = asyncio.ensure_future(_open(others, scheduler))
    with _before_shutdown(lambda: _give_up(opening, others, scheduler, "shutdown")):
        try:
            await opening
        except asyncio.CancelledError:
            await asyncio.get_running_loop().create_future()  # the process ends
        except (SuiteError, OSError) as error:
            await _give_up(opening, others, scheduler, "refused")
            if not other_crawls(scheduler.crawler):
                # A Deferred would swallow it.
                asyncio.get_running_loop().call_soon(refuse, error)
                await asyncio.get_running_loop().create_future()
            say(error)
            raise


async def _open(others: Others, scheduler: FrontierScheduler) -> None:
    for each in others:
        await each.open(scheduler)


async def _give_up(
    opening: asyncio.Future[None], others: Others, scheduler: FrontierScheduler, reason: str
) -> None:
    """Leave everything as it was."""
    scheduler.abandon()
    opening.cancel()
    for each in others:
        await each.close()
    scheduler.core.let_go(reason)


@contextmanager
def _before_shutdown(what: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[None]:
    """Within it, have the reactor do *what* before it stops: Scrapy's engine cannot be stopped
    while it opens a crawl, so it would stop in the midst of it."""
    if "twisted.internet.reactor" not in sys.modules:
        yield
        return
    from twisted.internet import reactor as installed

    reactor: Any = installed
    trigger = reactor.addSystemEventTrigger(
        "before", "shutdown", lambda: deferred_from_coro(what())
    )
    try:
        yield
    finally:
        reactor.removeSystemEventTrigger(trigger)
