"""Sliding windows: which hosts, or which of their leaves, are admitted next (Tarantula, §5.2).

The window is a table with a column for each host and a row for each leaf. The *top* window
has one row and a fixed number of columns; the *leaf* window has a fixed number of rows. A
host that had its turn is held until the row is over; the workbench decides about the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from scrapy_spider_suite.frontier.workbench import HostState, Workbench


class Window:
    """One place of a sliding window: the table of its hosts, and its current row.

    *columns* is the most hosts that enter it, *rows* how many visits each of them has in it.
    Invariant: a row is over if and only if no host owes a visit; hosts that owe are in the window.
    """

    def __init__(self, columns: float, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self.hosts: dict[str, None] = {}
        """Those in the window, in the order in which they came."""
        self.owing: set[str] = set()
        self._entered = 0
        self._row = 0

    @classmethod
    def from_settings(cls, kind: str, size: int) -> Window | None:
        """The window of ``SUITE_WINDOW`` (None for none) and ``SUITE_WINDOW_SIZE``."""
        if kind == "top":
            return cls(size, 1)
        return cls(math.inf, size) if kind == "leaf" else None

    @property
    def room(self) -> float:
        return self.columns - self._entered

    @property
    def over(self) -> bool:
        return not self.owing and bool(self._entered)

    def enter(self, host: str) -> None:
        self._entered += host not in self.hosts
        self.hosts[host] = None
        self.owing.add(host)

    def leave(self, host: str) -> None:
        self.hosts.pop(host, None)
        self.owing.discard(host)

    def mark_visited(self, host: str) -> None:
        self.owing.discard(host)

    def next_row(self, having: Iterable[str]) -> bool:
        """Begin another row with the hosts *having* a leaf; False if the window has to move."""
        self._row += 1
        self.owing = set(having) if self._row < self.rows else set()
        return bool(self.owing)

    def move(self, staying: Iterable[str]) -> None:
        """It has moved on: the hosts *staying* are the first of its new place."""
        self.hosts = dict.fromkeys(staying)
        self.owing = set(self.hosts)
        self._entered = len(self.hosts)
        self._row = 0


_PORTION = 1_000
"""Hosts that are let go at a time."""


class HostWindow:
    def __init__(self, window: Window, workbench: Workbench) -> None:
        self._window = window
        self._workbench = workbench
        self._going: list[HostState] = []  # those that a row has just begun for

    @property
    def room(self) -> float:
        return self._window.room

    def host_entered(self, host: HostState, *, expected: bool) -> None:
        """*host* came into memory to be visited, or is *expected* to be.

        Hosts for traffic without a visit take no place.
        """
        if expected or not has_nothing_left(host):
            self._window.enter(host.key)

    def host_left(self, key: str) -> None:
        self._window.leave(key)

    def visit_over(self, host: HostState, *, visited: bool) -> None:
        if visited:
            self._window.mark_visited(host.key)
        else:
            self._release_host(host)

    def has(self, host: HostState) -> bool:
        return host.key in self._window.hosts

    def hosts(self) -> list[HostState]:
        hosts = self._workbench.hosts
        return [hosts[key] for key in self._window.hosts if key in hosts]

    def pass_over(self, now: float) -> None:
        """Wait no longer for hosts that have nothing left, or wait longer than their delay."""
        for key in list(self._window.owing):
            host = self._workbench.hosts.get(key)
            if host is None:
                self._window.leave(key)
            elif host.idle() and (
                has_nothing_left(host) or host.record.dead or host.ready_at() - now > host.gap()
            ):
                self._window.mark_visited(key)
                host.held = True

    def row_over(self) -> bool:
        """Begin the next row if this one is over; True if the window is to move."""
        if not self._window.over:
            return False
        hosts = self.hosts()
        if not self._window.next_row(host.key for host in hosts if not has_nothing_left(host)):
            return True
        self.release(hosts)
        return False

    def moved(self) -> None:
        """The hosts that stay are the first of the window's new place.

        Hosts with nothing left but pages under way have no place, until these bring more.
        """
        staying = self.hosts()
        self._window.move(host.key for host in staying if not has_nothing_left(host))
        self.release(staying)

    def release(self, hosts: list[HostState]) -> None:
        self._going = hosts[::-1]
        self.step()

    def step(self) -> bool:
        """Release some more hosts of a row that has begun; whether there are others."""
        for _ in range(min(_PORTION, len(self._going))):
            host = self._going.pop()
            if self._workbench.hosts.get(host.key) is host:
                self._release_host(host)
        return bool(self._going)

    def next_in(self, now: float) -> float | None:
        """Seconds until a held host could be visited; None if none is held."""
        held = [host.ready_at() for host in self.hosts() if host.held and host.front]
        return max(0.0, min(held) - now) if held else None

    def _release_host(self, host: HostState) -> None:
        host.held = False
        self._workbench.offer(host)


def has_nothing_left(host: HostState) -> bool:
    """Whether nothing of *host* is left to be visited at present."""
    return not host.front and not host.more
