"""How many hosts wait, by reason: those in memory are counted in portions, those on disk as they
come and go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.waits import (
    WaitCount,
    WaitReason,
    add_up,
    reason_of_words,
    wait_of,
)
from scrapy_spider_suite.frontier.workbench import HostState, Workbench
from scrapy_spider_suite.storage.clocks import NEVER
from scrapy_spider_suite.storage.records import HostRecord
from scrapy_spider_suite.storage.store import Store

_PREFIX = b"waits/"
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_PORTION = 2_000
"""Hosts in memory that are looked at at a time, some 0.4 µs each."""
_EVERY = 1.0
"""Seconds between the beginnings of two counts, at least."""

_Kind = tuple[WaitReason, int]
"""The reason of hosts, and the seconds of the spans of time by which they are counted."""
_PAST: _Kind = (WaitReason.MEMORY, 0)
"""Of the hosts whose time has come."""


class DiskWaits:
    """Hosts on disk, counted by the reason that their records name and the minute they are due in.

    Those that are due in more than a day are counted by the hour, and those whose time has come
    all together, so there are few counts however long the crawl. Each is a row, and the rows that
    changed are stored in the batches that store what is counted.

    The hosts of a reason are as many as they are counted. Where some of an hour are counted by the
    minute and others are not, one that goes may be taken for another one of the same hour.
    """

    def __init__(self, store: Store, rows: Iterable[tuple[float, HostRecord]]) -> None:
        """Load the counts from *store*; a job that has none is counted by its *rows*.

        Raises `JobDamagedError`.
        """
        self._kv = store.kv("counters")
        self._counts: dict[_Kind, dict[int, int]] = {_PAST: {0: 0}}
        self._changed: set[tuple[_Kind, int]] = set()
        self._wall: float | None = None
        """As of the last fold; None: there was none."""
        stored = dict(self._kv.items(_PREFIX))
        if _key(_PAST, 0) not in stored:
            for when, record in rows:
                self.change(when, record, 1)
            return
        try:
            for key, hosts in stored.items():
                _, width, number, reason = key.decode().split("/", 3)
                kind = WaitReason(reason), int(width)
                self._counts.setdefault(kind, {})[int(number)] = int(hosts)
        except ValueError as error:
            raise JobDamagedError(f"the counts of waiting hosts are unreadable: {error}") from error

    def change(self, when: float, record: HostRecord, hosts: int) -> None:
        """Count one host more, or less (*hosts* is 1 or -1), that is due at *when* (wall), with a
        *record* like this."""
        reason = reason_of_words(record.why)
        by_minute, by_hour = (reason, _MINUTE), (reason, _HOUR)
        if hosts > 0:
            kind = by_minute if self._wall is None else self._kind(by_minute, when, self._wall)
            self._add(kind, _number(kind, when), hosts)
            return
        # From the finest on: so what is left is never counted finer than it came.
        for kind in (by_minute, by_hour, _PAST):
            number = _number(kind, when)
            if self._counts.get(kind, {}).get(number):
                self._add(kind, number, hosts)
                return

    def save(self) -> None:
        """Put the counts that changed into the store's next batch."""
        if not self._changed:
            return
        for kind, number in self._changed | {(_PAST, 0)}:  # which says that there are counts
            hosts = self._counts.get(kind, {}).get(number)
            if hosts is None:
                self._kv.delete(_key(kind, number))
            else:
                self._kv.put(_key(kind, number), b"%d" % hosts)
        self._changed.clear()

    def counts(self, wall: float) -> Iterator[WaitCount]:
        """The hosts by reason; those whose time has come wait for room in memory."""
        if self._wall is None or wall // _MINUTE != self._wall // _MINUTE:
            self._fold(wall)
        self._wall = wall
        for (reason, width), numbers in self._counts.items():
            if hosts := sum(numbers.values()):
                until = max(wall, float(min(numbers) * width))
                yield WaitCount(reason, hosts, None if until > NEVER - _HOUR else until)

    def _fold(self, wall: float) -> None:
        """Count what has passed, and what is far, less finely."""
        for kind, numbers in list(self._counts.items()):
            if kind == _PAST:
                continue
            for number, hosts in list(numbers.items()):
                less = self._kind(kind, number * kind[1], wall)
                if less != kind:
                    self._add(kind, number, -hosts)
                    self._add(less, _number(less, number * kind[1]), hosts)

    def _kind(self, kind: _Kind, when: float, wall: float) -> _Kind:
        """How a host of this *kind* that is due at *when* is counted at the time *wall*."""
        reason, width = kind
        if (when // width + 1) * width <= wall:
            return _PAST
        return (reason, _HOUR) if when >= wall + _DAY else kind

    def _add(self, kind: _Kind, number: int, hosts: int) -> None:
        numbers = self._counts.setdefault(kind, {})
        left = numbers.get(number, 0) + hosts
        if left or kind == _PAST:
            numbers[number] = left
        else:
            del numbers[number]
        self._changed.add((kind, number))


def _number(kind: _Kind, when: float) -> int:
    """Of the span of time of *kind* in which *when* lies; that of the past is one."""
    return 0 if kind == _PAST else int(when // kind[1])


def _key(kind: _Kind, number: int) -> bytes:
    reason, width = kind
    return _PREFIX + f"{width}/{number}/{reason}".encode()


class Waits:
    """Counts the hosts of one frontier. *elsewhere* says which hosts another agent holds.

    Attributes:
        counts: the hosts by reason, the most frequent first, as of the last count.
    """

    def __init__(
        self, workbench: Workbench, on_disk: DiskWaits, elsewhere: Callable[[str], bool]
    ) -> None:
        self.counts: list[WaitCount] = []
        self._workbench = workbench
        self._on_disk = on_disk
        self._elsewhere = elsewhere
        self._left: list[HostState] = []
        self._found: dict[WaitReason, tuple[int, float]] = {}
        self._began = -math.inf

    def look(self, now: float, wall: float) -> None:
        """Look at the next portion of the hosts in memory; call a few times a second."""
        if not self._left:
            if now - self._began < _EVERY:
                return
            self._begin(now)
        self._go_on(_PORTION, now, wall)

    def count(self, now: float, wall: float) -> None:
        """Count all hosts at once."""
        self._begin(now)
        self._go_on(len(self._left), now, wall)

    def _begin(self, now: float) -> None:
        self._began, self._found = now, {}
        self._left = list(self._workbench.hosts.values())

    def _go_on(self, most: int, now: float, wall: float) -> None:
        found = self._found
        for host in self._left[-most:]:
            wait = None if host.record.dead else wait_of(host, now)
            if wait is not None:
                reason, until = wait
                if reason is WaitReason.NAME and self._elsewhere(host.key):
                    reason = WaitReason.ELSEWHERE
                hosts, earliest = found.get(reason, (0, math.inf))
                found[reason] = (hosts + 1, min(earliest, until))
        del self._left[-most:]
        if not self._left:
            offset = wall - now
            in_memory = [WaitCount(r, n, until + offset) for r, (n, until) in found.items()]
            self.counts = add_up([*in_memory, *self._on_disk.counts(wall)])
