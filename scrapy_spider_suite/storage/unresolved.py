"""Hosts in memory that have no address yet: whose names are to be looked up, and when."""

from __future__ import annotations

from collections.abc import Iterator

from scrapy_spider_suite.frontier.states import HostState
from scrapy_spider_suite.frontier.workbench import Workbench

_AHEAD = 1.0
"""Seconds before its time at which the name of a host is looked up."""


class Unresolved:
    """First come, first served; but a host that must wait, or has nothing queued, is put aside.

    Attributes:
        later: hosts that were put aside, until the next tick or until something is queued.
    """

    def __init__(self, workbench: Workbench) -> None:
        self.later: dict[str, HostState] = {}
        self._workbench = workbench
        self._wanted: dict[str, HostState] = {}

    def __len__(self) -> int:
        """How many are to be looked up next."""
        return len(self._wanted)

    def want(self, host: HostState) -> None:
        """The host's name is to be resolved before it can be visited."""
        self._workbench.displace(host)
        self._wanted[host.key] = host

    def drop(self, key: str) -> None:
        """The host's name needs no look-up any more."""
        self._wanted.pop(key, None)
        self.later.pop(key, None)

    def wanting(self, now: float, limit: int) -> Iterator[HostState]:
        """Take up to *limit* hosts whose names may be resolved now.

        Hosts that must wait or have nothing queued are put aside.
        """
        while self._wanted and limit > 0:
            key = next(iter(self._wanted))
            host = self._wanted.pop(key)
            if host.front and host.ready_at() <= now + _AHEAD:
                limit -= 1
                yield host
            else:
                self.put_aside(host)

    def put_aside(self, host: HostState) -> None:
        """Ask for the address of *host* later."""
        self.later[host.key] = host

    def hurry(self, key: str) -> None:
        """A host that was put aside has something queued."""
        self._wanted[key] = self.later.pop(key)

    def tick(self) -> None:
        """Those that were put aside may have waited long enough."""
        self._wanted.update(self.later)
        self.later.clear()

    def next_in(self, now: float) -> float | None:
        """Seconds until one that was put aside may be visited; None if none has anything queued."""
        return min(
            (host.ready_at() - now for host in self.later.values() if host.front), default=None
        )
