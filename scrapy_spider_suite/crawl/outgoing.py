"""What goes out next: the request of the next visit, or, for now, none."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from scrapy import Request

from scrapy_spider_suite.errors import CodecError
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.storage.leases import Lease

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.core import CrawlCore
    from scrapy_spider_suite.crawl.errands import Errands
    from scrapy_spider_suite.crawl.keeper import Keeper
    from scrapy_spider_suite.scheduler import FrontierScheduler

logger = logging.getLogger(__name__)

_LONGEST = 60.0
"""Seconds after which the scheduler looks again at the latest."""
_LATE = 0.0005
"""Seconds by which it looks too late rather than too early."""


class Outgoing:
    """One per crawl; where nothing may be sent, it has *scheduler* look again in time."""

    def __init__(
        self, core: CrawlCore, scheduler: FrontierScheduler, errands: Errands, keeper: Keeper
    ) -> None:
        self._core = core
        self._scheduler = scheduler
        self._errands = errands
        self._keeper = keeper
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.TimerHandle | None = None

    def next(self) -> Request | None:
        """The next request that may be sent now."""
        core = self._core
        while not self._scheduler.closing and not core.stopping and self._may():
            lease = self._next_lease()
            if lease is None:
                break
            try:
                request = core.translator.request(lease.entry)
            except CodecError as error:
                logger.error("%s cannot be read back and is dropped: %s", lease.entry.url, error)
                lease.event = Event.DROPPED
                core.frontier.settle(lease, core.now())
                core.visits.release(lease, core.now())
                continue
            core.filtering.open_scope(request, lease.entry)
            core.leases[request] = lease
            core.revisiting.leased(lease)
            core.caps.book(lease, core.now())
            place = "memory" if isinstance(lease.entry.payload, Request) else "disk"
            stats = core.crawler.stats
            stats.inc_value("scheduler/dequeued")
            stats.inc_value(f"scheduler/dequeued/{place}")
            return request
        return None

    def _may(self) -> bool:
        """Whether this process may fetch anything: an agent only while its own lease runs."""
        agency = self._core.agency
        return agency is None or agency.may_fetch()

    def _next_lease(self) -> Lease | None:
        core, scheduler = self._core, self._scheduler
        while True:
            if core.visits.ready:
                return core.visits.ready.pop()
            now = core.now()
            if scheduler.gate is not None and (lease := core.dead_hosts.next_lease(now)):
                return lease
            held = self._errands.full or core.caps.pause(now) > 0
            leases = [] if held else core.frontier.acquire(now)
            if not leases:
                if self._errands.resolve():
                    continue
                self._set_alarm(now)
                self._keeper.sift(starving=not held)
                return None
            if not self._errands.robots_first(leases):
                return core.visits.hand_out(leases)

    def _set_alarm(self, now: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        # With no room for errands, the end of one is what has the engine ask again.
        wait = None if self._errands.full else self._core.frontier.wait(now)
        if wait is not None:
            wait = max(wait, self._core.caps.pause(now))
            self._alarm = self._loop.call_later(min(wait, _LONGEST) + _LATE, self._scheduler.wake)

    def stop(self) -> None:
        """Do not have the scheduler look again."""
        if self._alarm is not None:
            self._alarm.cancel()
