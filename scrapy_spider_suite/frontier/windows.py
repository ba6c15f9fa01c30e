"""Sliding windows: which hosts, or which of their leaves, are admitted next (Tarantula, §5.2).

The window is a table with a column for each host and a row for each leaf. The *top* window
has one row and a fixed number of columns; the *leaf* window has a fixed number of rows. A
host that had its turn is held until the row is over; the workbench decides about the others.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from scrapy_spider_suite.frontier.workbench import HostState, Workbench


class Window(NamedTuple):
    """*columns*: the most hosts that enter it; *rows*: how many visits each of them has in it."""

    columns: float
    rows: int

    @classmethod
    def from_settings(cls, kind: str, size: int) -> Window | None:
        """The window of ``SUITE_WINDOW`` (None for none) and ``SUITE_WINDOW_SIZE``."""
        if kind == "top":
            return cls(size, 1)
        return cls(math.inf, size) if kind == "leaf" else None


_PORTION = 1_000  # hosts that are let go at a time


class HostWindow:
    """One place of a sliding window: the table of its hosts, and its current row.

    Invariant: a row is over if and only if no host owes a visit; hosts that owe are in the window.
    """

    def __init__(self, window: Window, workbench: Workbench) -> None:
        self._columns, self._rows = window
        self._workbench = workbench
        self._hosts: dict[str, None] = {}  # in the order in which they came
        self._owing: set[str] = set()
        self._entered = self._row = 0
        self._going: list[HostState] = []  # those that a row has just begun for

    @property
    def room(self) -> float:
        return self._columns - self._entered

    def host_entered(self, host: HostState, *, expected: bool) -> None:
        """*host* came to be visited, or is *expected* to be; others take no place."""
        if expected or not has_nothing_left(host):
            self._entered += host.key not in self._hosts
            self._hosts[host.key] = None
            self._owing.add(host.key)

    def host_left(self, key: str) -> None:
        self._hosts.pop(key, None)
        self._owing.discard(key)

    def visit_over(self, host: HostState, *, visited: bool) -> None:
        if visited:
            self._owing.discard(host.key)
        else:
            self._release_host(host)

    def has(self, host: HostState) -> bool:
        return host.key in self._hosts

    def hosts(self) -> list[HostState]:
        hosts = self._workbench.hosts
        return [hosts[key] for key in self._hosts if key in hosts]

    def pass_over(self, now: float) -> None:
        """Wait no longer for hosts that have nothing left, or wait longer than their delay."""
        for key in list(self._owing):
            host = self._workbench.hosts.get(key)
            if host is None:
                self.host_left(key)
            elif host.idle() and (
                has_nothing_left(host) or host.record.dead or host.ready_at() - now > host.gap()
            ):
                self._owing.discard(key)
                host.held = True

    def row_over(self) -> bool:
        """Begin the next row if this one is over; True if the window is to move."""
        if self._owing or not self._entered:
            return False
        self._row += 1
        hosts = self.hosts()
        if self._row < self._rows:
            self._owing = {host.key for host in hosts if not has_nothing_left(host)}
        if not self._owing:
            return True
        self.release(hosts)
        return False

    def moved(self) -> None:
        """The hosts that stay are the window's first, if they have something left."""
        staying = self.hosts()
        self._hosts = {host.key: None for host in staying if not has_nothing_left(host)}
        self._owing = set(self._hosts)
        self._entered, self._row = len(self._hosts), 0
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
        held = [host.ready_at() for host in self.hosts() if host.held and host.front]
        return max(0.0, min(held) - now) if held else None

    def _release_host(self, host: HostState) -> None:
        host.held = False
        self._workbench.offer(host)


def has_nothing_left(host: HostState) -> bool:
    return not host.front and not host.more
