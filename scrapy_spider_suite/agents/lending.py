"""Carries what `grants` wants to a ledger and back, and says when the ledger is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from scrapy_spider_suite.agents.asking import Need
from scrapy_spider_suite.agents.grants import Grants
from scrapy_spider_suite.agents.ledger import Ledger
from scrapy_spider_suite.errors import LedgerError
from scrapy_spider_suite.runtime.clock import boottime

logger = logging.getLogger(__name__)

SOONEST, LATEST = 0.25, 10.0
"""Seconds until a ledger that failed is asked again: the first time, and after many."""

PAUSE: Final = 0.005
"""Seconds between calls, in which what is to be said gathers."""


class Lending:
    """Keeps *grants* and *ledger* in touch while `run` runs.

    Args:
        clock: that of all times of *grants*.
        news: told the keys for which `Grants.ready` may say something else.

    Attributes:
        failures: calls that failed so far.
        away: why the last one did, empty if it did not.
        damaged: keys under which the ledger has what no ledger wrote, as of late; a few of them.
    """

    def __init__(
        self, ledger: Ledger, grants: Grants, *, clock: Callable[[], float] = boottime,
        news: Callable[[set[str]], None] = lambda keys: None, pause: float = PAUSE,
    ) -> None:  # fmt: skip
        self.grants = grants
        self.failures = 0
        self.away = ""
        self.damaged: set[str] = set()
        self._ledger = ledger
        self._clock = clock
        self._news = news
        self._pause = pause
        self._closed = False
        self._one = asyncio.Lock()
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()

    def poke(self) -> None:
        """`grants` was asked or told something."""
        self._wake.set()

    async def run(self) -> None:
        """Go on until closed, or cancelled."""
        wait = SOONEST
        while await self._awaited():
            try:
                await self._call()
                wait = SOONEST
                await asyncio.sleep(self._pause)
            except LedgerError:
                await asyncio.sleep(wait)
                wait = min(LATEST, 2 * wait)

    async def leave(self, needs: Sequence[Need], within: Collection[Need] = ()) -> tuple[Need, ...]:
        """Wait until a fetch with *needs* may start, and start it; for what has no visit."""
        while True:
            now = self._clock()
            at = self.grants.ready(needs, now, within)
            if at <= now:
                return self.grants.start(needs, now, within)
            self.poke()
            changed = self._changed
            try:
                async with asyncio.timeout(at - now):
                    await changed.wait()
            except TimeoutError:
                pass

    def end(self, taken: Iterable[Need]) -> None:
        """A fetch that was started ended now."""
        self.grants.end(taken, self._clock())
        self.poke()
        self._tell()

    async def close(self) -> None:
        """Return what is not used and say what is owed, in one more call for each batch; never
        raises. What is out is held until its grant runs out. `run` ends by itself.
        """
        self._closed = True
        self.poke()
        self.grants.close()
        try:
            while await self._call():
                pass
        except LedgerError:
            pass
        await self._ledger.close()

    async def _awaited(self) -> bool:
        """Return once there is something to send, False once it is closed."""
        while not self._closed and (due := self.grants.due(self._clock())) != 0.0:
            self._wake.clear()
            try:
                async with asyncio.timeout(due):
                    await self._wake.wait()
            except TimeoutError:
                pass
        return not self._closed

    async def _call(self) -> bool:
        """One call, if there is anything to be said. Raises `LedgerError`."""
        async with self._one:
            return await self._called()

    async def _called(self) -> bool:
        now = self._clock()
        sent = self.grants.outgoing(now)
        if sent is None:
            return False
        try:
            reply = await self._ledger.settle(sent.batch)
        except BaseException as error:
            self.grants.failed(sent)
            if isinstance(error, LedgerError):
                self._failed(error)
            raise
        if self.away:
            logger.info("%s is back", self._ledger.where)
            self.away = ""
        self._report(reply.damaged)
        self._news(self.grants.answered(sent, reply, now, self._clock()))
        self._tell()
        return True

    def _tell(self) -> None:
        """Wake all that wait."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _failed(self, error: LedgerError) -> None:
        self.failures += 1
        if not self.away:
            logger.warning("%s; no fetch starts on what is shared until it is back", error)
        self.away = str(error)

    def _report(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key not in self.damaged and len(self.damaged) < 100:
                self.damaged.add(key)
                logger.warning(
                    "%s holds what the suite did not write under %r: nothing is fetched there",
                    self._ledger.where, key,
                )  # fmt: skip
