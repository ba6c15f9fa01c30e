"""How many hosts wait, by reason: those in memory are counted in portions, those on disk as they
come and go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.states import HostState
from scrapy_spider_suite.frontier.waits import (
    WaitCount,
    WaitReason,
    add_up,
    reason_of_words,
    wait_of,
)
from scrapy_spider_suite.frontier.workbench import Workbench
from scrapy_spider_suite.storage.clocks import NEVER
from scrapy_spider_suite.storage.records import HostRecord
from scrapy_spider_suite.storage.store import Store

_KEY = b"waits"
_MINUTE = 60.0
_PORTION = 2_000
"""Hosts in memory that are looked at at a time, some 0.4 µs each."""
_EVERY = 1.0
"""Seconds between the beginnings of two counts, at least."""


class DiskWaits:
    """Hosts on disk, counted by the reason that their records name and the minute they are due in.

    The counts are stored in the batches that store what is counted.
    """

    def __init__(self, store: Store, rows: Iterable[tuple[float, HostRecord]]) -> None:
        """Load the counts from *store*; a job that has none is counted by its *rows*.

        Raises `JobDamagedError`.
        """
        self._kv = store.kv("counters")
        self._changed = False
        self._minutes: dict[str, dict[int, int]] = {}
        data = self._kv.get(_KEY)
        if data is None:
            for when, record in rows:
                self.change(when, record, 1)
            return
        try:
            minutes = msgpack.unpackb(data, strict_map_key=False)
            self._minutes = {
                WaitReason(reason): {int(minute): int(hosts) for minute, hosts in counts.items()}
                for reason, counts in minutes.items()
            }
        except (ValueError, TypeError, AttributeError) as error:
            raise JobDamagedError(f"the counts of waiting hosts are unreadable: {error}") from error

    def change(self, when: float, record: HostRecord, hosts: int) -> None:
        """Count so many *hosts* more that are due at *when* (wall), with a *record* like this."""
        minutes = self._minutes.setdefault(reason_of_words(record.why), {})
        minute = int(when // _MINUTE)
        minutes[minute] = minutes.get(minute, 0) + hosts
        if minutes[minute] <= 0:
            del minutes[minute]
        self._changed = True

    def save(self) -> None:
        """Put the counts into the store's next batch."""
        if self._changed:
            self._changed = False
            self._kv.put(_KEY, msgpack.packb(self._minutes))

    def counts(self, wall: float) -> Iterator[WaitCount]:
        """The hosts by reason; those whose time has come wait for room in memory."""
        for reason, minutes in self._minutes.items():
            for minute, hosts in minutes.items():
                if (minute + 1) * _MINUTE <= wall:
                    yield WaitCount(WaitReason.MEMORY, hosts, wall)
                else:
                    until = max(wall, minute * _MINUTE)
                    never = until > NEVER - _MINUTE
                    yield WaitCount(WaitReason(reason), hosts, None if never else until)


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
