"""What durable sinks tell the crawl: which pages are on disk, and when to pause.

With the suite's scheduler a page is done when all its output is durable (`FrontierLog`). With
another one no page waits; failed writes are tried again later (`PlainLog`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from scrapy import signals
from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_spider_suite.crawl.context import Crawl, Engine
from scrapy_spider_suite.crawl.requests import is_disk_full
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.runtime.tasks import PeriodicTask
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.signals import item_not_exported
from scrapy_spider_suite.store.rocks_store import DamageGuard

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_spider_suite.crawl.queue.leases import Fetch

logger = logging.getLogger(__name__)

_RETRY: Final = 5.0  # seconds between two attempts to write
_DISK: Final = "the disk"  # why the engine is paused then
_pauses: Final[WeakKeyDictionary[Crawler, set[tuple[int, str]]]] = WeakKeyDictionary()
"""Why engines are paused without the suite's scheduler, by all sinks (their log's id, the reason):
none may let an engine go on that another wants to stand still."""


class Sink(Protocol):
    def settled(self, fetch: Fetch) -> None:
        """The page of *fetch* has settled: hold it while something is not written."""

    def pulse(self) -> None: ...
    async def finish(self) -> None: ...
    async def close(self) -> None: ...


async def finish_quietly(ending: Awaitable[None]) -> None:
    """Await the end of a sink; log its error: others are to end, too."""
    try:
        await ending
    except Exception:  # whatever it is
        logger.exception("What pages brought could not be written to its end")


class FrontierLog:
    """The log with the suite's scheduler."""

    def __init__(
        self, crawl: Crawl, engine: Engine, pause_until_writable: Callable[[str], None]
    ) -> None:
        self.crawl = crawl
        self.crawler = crawl.crawler
        self._engine = engine
        self.pause, self.unpause = engine.pause, engine.unpause
        self.pause_until_writable = pause_until_writable

    @property
    def settings(self) -> SuiteSettings:
        return self.crawl.settings

    @property
    def waits(self) -> bool:
        """Whether all pages under way wait for sinks."""
        return self.crawl.frontier.commit.waits

    def count(self, name: str, number: int) -> None:
        """Add *number* to a stat that each page changes; it is published once a second."""
        self.crawl.counts[name] += number

    def lease_of(self, request: Request | None) -> Fetch | None:
        return None if request is None else self.crawl.fetches.get(request)

    def written(self, fetches: Iterable[Fetch]) -> None:
        """The output of each of *fetches* is durable, or its faults say that it will not be."""
        crawl = self.crawl
        with DamageGuard(crawl.store):
            crawl.frontier.commit.unhold(fetches, crawl.now())
        self._engine.flush_soon()
        crawl.wake()


class PlainLog:
    """The log with another scheduler; one for each sink."""

    crawl = None
    waits = False

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.settings = suite_settings(crawler)
        self._pauses = _pauses.setdefault(crawler, set())
        self._timer: asyncio.TimerHandle | None = None

    def start(self, sink: Sink) -> None:
        self._sink = sink
        self._ticker = PeriodicTask(1.0, sink.pulse)
        self._ticker.start()

    async def stop(self) -> None:
        self._ticker.stop()
        if self._timer is not None:
            self._timer.cancel()
        await finish_quietly(self._sink.finish())
        await finish_quietly(self._sink.close())

    def count(self, name: str, number: int) -> None:
        self.crawler.stats.inc_value(name, number)

    def lease_of(self, request: Request | None) -> None: ...
    def written(self, fetches: Iterable[Fetch]) -> None: ...

    def pause(self, why: str) -> None:
        self._pauses.add((id(self), why))
        if self.crawler.engine is not None:
            self.crawler.engine.pause()

    def unpause(self, why: str) -> None:
        self._pauses.discard((id(self), why))
        if self.crawler.engine is not None and not self._pauses:
            self.crawler.engine.unpause()

    def pause_until_writable(self, why: str) -> None:
        """Nothing can be written, because of *why*: pause until that may have changed."""
        if self._timer is None:
            logger.error("%s: the crawl pauses until it can be written", why)
        else:
            self._timer.cancel()
        self.pause(_DISK)
        self._timer = asyncio.get_running_loop().call_later(_RETRY, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self.unpause(_DISK)


CommitLog: TypeAlias = FrontierLog | PlainLog


class PageFaults:
    """Notes the faults of each page in its fetch; calls *full* for a full disk."""

    def __init__(self, crawl: Crawl, full: Callable[[str], None]) -> None:
        self._crawl = crawl
        self._full = full
        connect = crawl.crawler.signals.connect
        connect(self._callback_failed, signals.spider_error)
        connect(self._item_failed, signals.item_error)
        connect(self._item_failed, item_not_exported)
        connect(self._item_dropped, signals.item_dropped)

    def lease_of(self, response: Response | Failure | None) -> Fetch | None:
        request = getattr(response, "request", None)
        return None if request is None else self._crawl.fetches.get(request)

    def hold(
        self, response: Response | Failure | None, durable: asyncio.Future[Any],
        then: Callable[[], None],
    ) -> bool:  # fmt: skip
        """Hold the page of *response* until *durable*; then call *then*. False: no page."""
        fetch, crawl = self.lease_of(response), self._crawl
        if fetch is None or fetch.settled:
            return False
        fetch.holds += 1

        def resolved(future: asyncio.Future[Any]) -> None:
            if future.cancelled() or future.exception() is not None:
                fetch.faults.add(Event.INTERRUPTED)
            with DamageGuard(crawl.store):
                crawl.frontier.commit.unhold([fetch], crawl.now())
            then()
            crawl.wake()

        durable.add_done_callback(resolved)
        return True

    def _callback_failed(self, failure: Failure, response: Response | Failure) -> None:
        self._note(response, Event.CALLBACK_ERROR)

    def _item_failed(self, response: Response | Failure | None, failure: Failure) -> None:
        if is_disk_full(failure.value):
            self._note(response, Event.DISK_FULL)
            self._full(f"an item cannot be written: {failure.value}")
        else:
            self._note(response, Event.PIPELINE_ERROR)

    def _item_dropped(self, response: Response | Failure | None) -> None:
        self._note(response, Event.NOT_STORED)

    def _note(self, response: Response | Failure | None, event: Event) -> None:
        fetch = self.lease_of(response)
        if fetch is not None:
            fetch.faults.add(event)
