"""Hosts that wait on disk, by the time at which they may be visited (the ``due`` family).

Those that wait for a rule, whose time changes with the rules, stand in a band of their own behind
all others: so they are found when the rules change, however many hosts wait beside them. Hosts in
memory stand behind both, under a time that never comes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from scrapy_spider_suite.frontier.policy import Policy, barred_subject, waits_for_rule
from scrapy_spider_suite.storage.clocks import LATEST, NEVER
from scrapy_spider_suite.storage.records import HostRecord
from scrapy_spider_suite.storage.store import Store
from scrapy_spider_suite.storage.waits import DiskWaits
from scrapy_spider_suite.urls.host_patterns import Kind

RESIDENT = 1e13
"""The ``due`` time of hosts in memory (wall seconds; some 300,000 years away)."""
BARRED = 1e12
"""What is added to the times of hosts that wait for a rule."""
AWAY = 30.0
"""A host that must wait longer (seconds) makes room, and is not brought into memory yet."""
_STEP, _STEPS = 1e-3, 1_000
"""A host that missed its phase goes ahead of others in the next one, by so many seconds for each
that it missed, and for so many at most; times that wait for a rule are exact to a tenth of that."""


class WaitingList:
    """Reads and writes the ``due`` times of hosts. Records are the caller's to store."""

    def __init__(self, store: Store, policy: Policy) -> None:
        self._store = store
        self._policy = policy
        self.earliest = math.inf
        """No host on disk is due before this (wall seconds)."""
        self.counts = DiskWaits(store, self._counted())

    def _counted(self) -> Iterator[tuple[float, HostRecord]]:
        """Every host that waits, and when it is due."""
        due, after = 0.0, ""
        while rows := self.rows(due, after, 1_000):
            for due, after in rows:
                record = self._store.record(after) if due < RESIDENT else None
                if record is not None and record.due is not None:
                    yield due_time(record.due), record

    def add(
        self, key: str, record: HostRecord, wall: float, since: float | None = None,
        ahead: float = 0.0,
    ) -> None:  # fmt: skip
        """Let a host wait until the time that its record names, or a rule that it names.

        Those whose time has come wait in the order in which they came, or *since* when they do;
        *ahead* (seconds) of others of the same time.
        """
        barred = self._look_at_rules(key, record, wall) or self._out_of_phase(key, record, wall)
        when = max(wall if since is None else since, record.next_fetch) - ahead
        record.due = when + BARRED if barred else when
        self._store.put_due(record.due, key)
        self.counts.change(due_time(record.due), record, 1)
        self.earliest = min(self.earliest, when)

    def _out_of_phase(self, key: str, record: HostRecord, wall: float) -> bool:
        """Whether nothing but its phase has a host wait; its record says until when."""
        bar = None if self._policy.phases is None else self._policy.bar_of_visit(key, "", wall)
        if bar is None or record.next_fetch >= bar.until:
            return False
        record.next_fetch, record.why = min(bar.until, NEVER), str(bar)
        return True

    def put_off(self, key: str, record: HostRecord, wall: float) -> bool:
        """Let a host that is due wait for its next phase, if it missed one; whether it did."""
        phases, due = self._policy.phases, record.due
        if phases is None or due is None or phases.opens(key, wall) - wall < AWAY + _STEP * _STEPS:
            return False
        before = record.next_fetch - due + (BARRED if due >= BARRED else 0.0)
        self.leave(key, record)
        self.add(key, record, wall, ahead=min(max(before, 0.0) + _STEP, _STEP * _STEPS))
        return True

    def leave(self, key: str, record: HostRecord) -> None:
        """Take a host off the list, if it is on it; its record says why it waited until then."""
        if record.due is not None:
            self._store.delete_due(record.due, key)
            if record.due < RESIDENT:
                self.counts.change(due_time(record.due), record, -1)
            record.due = None

    def take_in(self, key: str, record: HostRecord) -> None:
        """Note that a host is in memory."""
        self.leave(key, record)
        record.due = RESIDENT
        self._store.put_due(RESIDENT, key)

    def next_in(self, wall: float) -> float | None:
        """Seconds until a host on disk may be visited (negative: overdue); None if none waits."""
        if self.earliest >= RESIDENT:
            return None
        waits = [when - wall for when, _ in self._store.due(1) if when < BARRED]
        barred = self._store.due(1, BARRED)
        waits += [when - BARRED - wall for when, _ in barred if when < RESIDENT]
        return min(waits, default=None)

    def due(self, room: int, wall: float) -> list[str]:
        """Up to *room* hosts that may be visited now, or so soon that they are wanted in memory."""
        if room <= 0 or self.earliest > wall + AWAY:
            return []
        found: list[str] = []
        earliest = [self._due_of(band, room, wall, found) for band in (0.0, BARRED)]
        self.earliest = min(earliest)
        return found

    def _due_of(self, band: float, room: int, wall: float, found: list[str]) -> float:
        """Add those of one band to *found*; when the next of it is due."""
        for due, key in self._store.due(room - len(found) + 1, band):
            if due >= (RESIDENT if band else BARRED):
                break
            when = due - band
            # A clock that was set back makes a time look far away.
            far = when - wall > AWAY and (band or when - wall < LATEST)
            if far or len(found) == room:
                return when
            found.append(key)
        return math.inf

    def rows(self, since: float, after: str, limit: int) -> list[tuple[float, str]]:
        """Up to *limit* hosts and what they are due at, from *since* and the host after *after* on.
        """
        return self._store.due(limit, since, after)

    def bring_forward(self, key: str, record: HostRecord, wall: float) -> bool:
        """Let a host wait no longer than its record names; False if it does not."""
        due = record.due
        if due is None or due >= RESIDENT:
            return False
        if due_time(due) - max(wall, record.next_fetch) < _STEP * _STEPS:
            return False
        self.leave(key, record)
        self.add(key, record, wall)
        return True

    # Rules

    def barred(self, since: float, after: str, limit: int) -> list[tuple[float, str]]:
        """Up to *limit* hosts that wait for a rule, from *since* and the host after *after* on."""
        return [row for row in self.rows(max(since, BARRED), after, limit) if row[0] < RESIDENT]

    def look_again(self, key: str, record: HostRecord, wall: float) -> bool:
        """Let a host that waits for a rule wait as the rules are now; False if that is the same."""
        before = replace(record)
        self._look_at_rules(key, record, wall)
        if (record.next_fetch, record.why) == (before.next_fetch, before.why):
            return False
        self.leave(key, before)
        self.add(key, record, wall)
        return True

    def hurry(self, key: str, record: HostRecord, wall: float) -> None:
        """A host on the list has something new, which rules for some of its URLs may not concern.

        Its delay runs from now.
        """
        subject = barred_subject(record.why) if record.why else None
        if subject is not None and subject.kind is Kind.PREFIX:
            self.leave(key, record)
            record.next_fetch, record.why = wall + self._policy.of_host(key).delay, ""
            self.add(key, record, wall)

    def _look_at_rules(self, key: str, record: HostRecord, wall: float) -> bool:
        """Whether a host that waits for a rule has to; its record says for which, and until when.

        The host's address is not known here: a rule of its address counts while it is there.
        """
        if not waits_for_rule(record.why):
            return False
        bar, subject = self._policy.bar_of_visit(key, "", wall), barred_subject(record.why)
        if bar is None and subject is not None:
            bar = self._policy.bar_of_rule(subject, wall)
        if bar is None:
            # Nobody knows any more when it was visited: its delay runs from now.
            delay = max(self._policy.of_host(key).delay, record.crawl_delay)
            record.next_fetch, record.why = wall + delay, ""
        else:
            record.next_fetch, record.why = min(bar.until, NEVER), str(bar)
        return bar is not None


def due_time(due: float) -> float:
    """The time (wall) at which a host that is not in memory, and stands under *due*, is due."""
    return due - BARRED if due >= BARRED else due
