"""Visits that wait for leave, where other processes fetch from the same hosts and addresses.

A host without leave keeps its place in the workbench while leave is asked for; the next host goes
meanwhile. Invariant: a host is either in the workbench's heaps or held here, never both.
"""

from __future__ import annotations

from collections.abc import Collection
from heapq import heappop, heappush
from typing import Final, Protocol

from scrapy_spider_suite.frontier.workbench import AddressState, HostState, Visit, Workbench

NEAR: Final = 0.25  # seconds for which a place is held for leave that begins then

_MOST: Final = 250  # hosts held at a time: an unused grant blocks others

_AGAIN: Final = 1.0  # seconds until a host that is held is looked at again, whatever happens

_LEAST: Final = 0.05  # seconds for which an address waits after a host of it had to

WHY: Final = "others fetch there, too"


class PermitSource(Protocol):
    @property
    def away(self) -> bool:
        """Whether it gives none at present."""

    def pause(self, host: HostState, address: AddressState) -> float:
        """Seconds until a fetch may start there, 0.0 for at once. Asks for what is missing."""

    def awaits(self, host: HostState, address: AddressState) -> bool:
        """Whether what `pause` asked for has not been answered yet."""

    def drop(self, host: HostState, address: AddressState) -> None:
        """No fetch starts there now: others may have the leave."""


class VisitPermits:
    """Holds the visits that wait for leave; *source* is None where none needs it."""

    def __init__(self, workbench: Workbench) -> None:
        self.source: PermitSource | None = None
        self._workbench = workbench
        self._held: dict[str, Visit] = {}
        self._at: dict[str, str] = {}  # by address, which host is held
        self._agenda: list[tuple[float, int, Visit]] = []
        self._numbers = 0
        self._leaving: Visit | None = None  # for which there is leave

    def __len__(self) -> int:
        return len(self._held)

    @property
    def full(self) -> bool:
        return self.source is not None and (self.source.away or len(self._held) >= _MOST)

    def acquire(self, now: float, host: str = "") -> Visit | None:
        while self._agenda and self._agenda[0][0] <= now:
            visit = heappop(self._agenda)[2]
            if self._held.get(visit.host.key) is visit:
                self._leaving = self._try_held(visit, now)
                if self._leaving is not None:
                    return self._leaving
        if self.full:
            return None
        bench = self._workbench
        return bench.acquire_host(host, now) if host else bench.acquire(now)

    def check(self, visit: Visit, now: float) -> bool:
        """Whether *visit* may leave now; if not, it has been dealt with."""
        if self.source is None or not visit.entries[0].url.startswith(("http://", "https://")):
            return True
        pause = self.source.pause(visit.host, visit.address)
        if not pause:
            return True
        self._workbench.reserve(visit)
        if self._is_held(visit, pause):
            self._held[visit.host.key] = visit
            self._at[visit.address.key] = visit.host.key
            self._schedule(visit, now + pause)
        else:
            self._put_off(visit, pause, now)
        return False

    def cancel(self, visit: Visit) -> None:
        """*visit* does not leave after all, for some other reason."""
        if self._leaving is visit and self.source is not None:
            self.source.drop(visit.host, visit.address)
        self._leaving = None

    def announce(self, hosts: Collection[str], addresses: Collection[str], now: float) -> None:
        """There may be leave for *hosts* and hosts at *addresses*: examine them next."""
        for key in {*hosts, *(self._at.get(each, "") for each in addresses)}:
            visit = self._held.get(key)
            if visit is not None:
                self._schedule(visit, now)

    def wait(self, now: float) -> float | None:
        """Seconds until `acquire` may have something, None if nothing is known of."""
        own = max(0.0, self._agenda[0][0] - now) if self._agenda else None
        if self.full:
            return _AGAIN if own is None else own
        other = self._workbench.wait(now)
        known = [each for each in (own, other) if each is not None]
        return min(known) if known else None

    def release_all(self) -> None:
        for visit in list(self._held.values()):
            self._release(visit)
            self._workbench.release(visit)
        self._agenda.clear()

    def _try_held(self, visit: Visit, now: float) -> Visit | None:
        pause = 0.0 if self.source is None else self.source.pause(visit.host, visit.address)
        if pause and self._is_held(visit, pause):
            self._schedule(visit, now + pause)
            return None
        self._release(visit)
        if not pause:
            gone = self._workbench.claim(visit, now)
            if gone is None and self.source is not None:
                self.source.drop(visit.host, visit.address)
            return gone
        self._put_off(visit, pause, now)
        return None

    def _is_held(self, visit: Visit, pause: float) -> bool:
        if self.source is None or self.source.away:
            return False
        return pause <= NEAR or self.source.awaits(visit.host, visit.address)

    def _schedule(self, visit: Visit, at: float) -> None:
        self._numbers += 1
        heappush(self._agenda, (at, self._numbers, visit))

    def _release(self, visit: Visit) -> None:
        del self._held[visit.host.key]
        if self._at.get(visit.address.key) == visit.host.key:
            del self._at[visit.address.key]

    def _put_off(self, visit: Visit, pause: float, now: float) -> None:
        """Let a host wait, and its address for a part of that: perhaps only the host is not free.
        """
        host, address = visit.host, visit.address
        self._workbench.postpone(host, now + pause, WHY)
        if address.concurrency:
            until = now + min(pause, max(address.delay / 4, _LEAST))
            address.next_fetch = max(address.next_fetch, until)
        self._workbench.release(visit)
