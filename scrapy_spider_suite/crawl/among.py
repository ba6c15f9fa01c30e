"""A crawl among others: it takes part first, and fetches nothing, nor takes anything in, before."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from scrapy.utils.defer import deferred_from_coro

from scrapy_spider_suite.errors import SuiteError
from scrapy_spider_suite.runtime.refusal import refuse, running_command

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.agency import Agency
    from scrapy_spider_suite.crawl.sharing import Sharing
    from scrapy_spider_suite.scheduler import FrontierScheduler

Others: TypeAlias = "list[Sharing | Agency]"
"""What leads to others: the ledger, and the agents."""

_PATIENCE = 1.0
"""Seconds for which tasks that were cancelled are waited for, and other crawls of the process."""


async def take_part(others: Others, scheduler: FrontierScheduler) -> None:
    """Open *others* one after the other.

    Raises the `SuiteError` that says why that is refused; under a command, ends the process.
    """
    opening = asyncio.ensure_future(_open(others, scheduler))
    closed = asyncio.Event()

    async def shut_down() -> None:
        await _give_up(opening, others, scheduler, "shutdown")
        if not _by_deferreds():
            closed.set()
            await _all_ended()

    with _before_shutdown(shut_down):
        try:
            await opening
        except asyncio.CancelledError:
            await closed.wait()
            raise  # Scrapy's tasks end by it, too
        except (SuiteError, OSError) as error:
            await _give_up(opening, others, scheduler, "refused")
            if running_command() is None:
                raise
            # A Deferred would swallow it.
            asyncio.get_running_loop().call_soon(refuse, error)
            await asyncio.get_running_loop().create_future()


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


def _by_deferreds() -> bool:
    """Whether Scrapy waits for its engine by a Deferred (`CrawlerProcess`): that would tell of a
    cancellation with a traceback, as of an error for which nobody cares."""
    names = (getattr(task.get_coro(), "__name__", "") for task in asyncio.all_tasks())
    return "open_spider_async" in names


async def _all_ended() -> None:
    """Let all tasks of the crawl end: asyncio tells of those that end with the process."""
    if left := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(left, timeout=_PATIENCE)


@contextmanager
def _before_shutdown(what: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[None]:
    """Within it, have the reactor do *what* before it stops: Scrapy's engine cannot be stopped
    while it opens a crawl, so it would stop in the midst of it."""
    if "twisted.internet.reactor" not in sys.modules:
        yield
        return
    from twisted.internet import reactor as installed

    reactor: Any = installed
    begun = False

    def begin() -> Any:
        nonlocal begun
        begun = True
        return deferred_from_coro(what())

    trigger = reactor.addSystemEventTrigger("before", "shutdown", begin)
    try:
        yield
    finally:
        if not begun:
            reactor.removeSystemEventTrigger(trigger)
