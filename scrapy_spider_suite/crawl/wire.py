"""Waiting for the wire to a host: first come first served, and before new visits to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from scrapy_spider_suite.crawl.events import StoppedError
from scrapy_spider_suite.exceptions import HostWaitsTooLong
from scrapy_spider_suite.frontier.workbench import FOREVER, AddressState, HostState, Visit

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.core import CrawlCore


class Wire:
    """The queues of one crawl. What is given as *may* raises if the request may not be sent."""

    def __init__(self, core: CrawlCore) -> None:
        self._core = core
        self._locks: dict[str, asyncio.Lock] = {}
        # Who waits for a host or an address, by its key, first come first.
        self._moves: dict[str, dict[asyncio.Future[None], None]] = {}

    async def queue(self, host: HostState, address: AddressState, may: Callable[[], None]) -> None:
        """Wait without a visit. Raises `StoppedError`, `HostWaitsTooLong` and what *may* raises."""
        workbench = self._core.frontier.workbench
        lock = self._locks.setdefault(host.key, asyncio.Lock())
        host.waiting += 1
        address.booked += 1
        longest = self._core.settings.max_wait or FOREVER
        try:
            async with lock:
                await self._wait(host, address, may, longest)
        finally:
            host.waiting -= 1
            address.booked -= 1
            if not host.waiting:
                self._locks.pop(host.key, None)
            workbench.offer(host)

    async def queue_again(
        self, host: HostState, address: AddressState, may: Callable[[], None]
    ) -> None:
        """Wait in a visit, since a fetch nested in it (or beside it) has used the wire.

        The address is not held meanwhile. Raises `StoppedError` and what *may* raises.
        """
        address.out -= 1
        address.booked += 1
        self._core.frontier.workbench.offer_address(address)
        self._core.wake()
        try:
            await self._wait(host, address, may, FOREVER)
        finally:
            address.booked -= 1
            address.out += 1
            address.intrusions += 1  # a visit that left for it meanwhile must look again

    async def queue_to_begin(self, visit: Visit, may: Callable[[], None]) -> None:
        """Wait in a visit, since another one that was held up on its way has begun just now.

        Raises `StoppedError` and what *may* raises.
        """
        core = self._core
        while pause := visit.pause_to_begin(core.now()):
            if core.stopping:
                raise StoppedError("the crawl is being stopped")
            may()
            await self._until_moved(pause, visit.host.key, visit.address.key)

    async def _wait(
        self, host: HostState, address: AddressState, may: Callable[[], None], longest: float
    ) -> None:
        core = self._core
        workbench = core.frontier.workbench
        while True:
            if core.stopping:
                raise StoppedError("the crawl is being stopped")
            may()
            now = core.now()
            pause = workbench.pause_needed(host, address, now)
            leave = not pause and core.sharing is not None
            if core.sharing is not None and leave:
                pause = core.sharing.pause(host, address)
            if not pause:
                return
            if longest < pause < FOREVER:
                raise HostWaitsTooLong(host.key, pause, host.why)
            # Only the address is in the way: nobody new may slip in before us there.
            alone = host.wire < host.concurrency and host.next_fetch <= now and not leave
            address.waiting += alone
            try:
                await self._until_moved(pause, host.key, address.key)
            finally:
                address.waiting -= alone
                if alone:
                    # Whoever waited may have given up: others may go there again.
                    workbench.offer_address(address)
                    core.wake()

    async def _until_moved(self, seconds: float, *keys: str) -> None:
        """Return after *seconds*, or as soon as one of *keys* is free or the crawl stops."""
        loop = asyncio.get_running_loop()
        moved: asyncio.Future[None] = loop.create_future()
        both = set(keys)  # an address as a host's name: its key is the host's too
        for key in both:
            self._moves.setdefault(key, {})[moved] = None
        timer = None if seconds == FOREVER else loop.call_later(seconds, _finish, moved)
        try:
            await moved
        finally:
            for key in both:
                self._forget(key, moved)
            if timer is not None:
                timer.cancel()

    def _forget(self, key: str, moved: asyncio.Future[None]) -> None:
        moves = self._moves[key]
        del moves[moved]
        if not moves:
            del self._moves[key]

    def wake(self, *keys: str) -> None:
        """Let those who wait for one of *keys* look again; without any, everyone who waits."""
        for key in keys or tuple(self._moves):
            for moved in self._moves.get(key, ()):
                _finish(moved)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
