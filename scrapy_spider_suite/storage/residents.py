"""Which hosts are in memory, and how much of their queues (workbench virtualisation, U13).

A host is *resident* (on the workbench, with a short front of its queue), or it waits on disk
in the ``due`` family under the time at which it may be visited, or it has nothing pending.
Resident hosts stand in ``due`` as well, under a time that never comes: after a kill that is
how they are found again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scrapy_spider_suite.frontier.entries import LAST, Entry
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.windows import Sliding
from scrapy_spider_suite.frontier.workbench import HostState, Unresolved, Workbench
from scrapy_spider_suite.storage.clocks import AddressClocks, load_clock, note_clock
from scrapy_spider_suite.storage.fronts import Fronts, before
from scrapy_spider_suite.storage.hostrecords import HostRecords
from scrapy_spider_suite.storage.records import HostRecord
from scrapy_spider_suite.storage.store import Store
from scrapy_spider_suite.storage.waiting import AWAY, RESIDENT, WaitingList

HELD = 300.0
"""Seconds until it is looked again whether a host on disk is still held back, if nobody says."""

Elsewhere = Callable[[str, str], bool]
"""Whether a URL may not be fetched here: of its host, and itself ("" if that goes by host)."""


class Residents:
    """Moves hosts and their fronts between the workbench and the store.

    *floor*, after an unclean end, is the moment at which every host and address counts as
    fetched (None otherwise).

    Attributes:
        capacity: how many hosts may be resident; those that are too many leave when they can.
        elsewhere: which hosts are held back: they make room for others. None: none are.
        revision: goes up when it is said anew which hosts are held back.
        sliding: the window over them, if there is one; `Rotation.slide` changes it.
        waiting: the hosts that wait on disk.
    """

    def __init__(
        self, workbench: Workbench, store: Store, policy: Policy, capacity: int,
        floor: float | None, sliding: Sliding | None = None,
    ) -> None:  # fmt: skip
        self.capacity = capacity
        self.elsewhere: Elsewhere | None = None
        self.revision = 0
        self.fronts = Fronts(store)
        self.records = HostRecords(store, workbench, self.fronts)
        self.clocks = AddressClocks(workbench, store, policy, floor)
        self.unresolved = Unresolved(workbench)
        self.waiting = WaitingList(store, policy)
        self._workbench = workbench
        self._store = store
        self._policy = policy
        self._floor = floor
        self.sliding = sliding

    def open(self, now: float, wall: float) -> None:
        """Take over from an earlier run: its resident hosts are due, its clocks go on."""
        # A window begins with those that were in it.
        since = wall if self.sliding is None else 0.0
        rows = self._store.due(1_000, RESIDENT)
        while rows:
            for _, key in rows:
                record = self.records.touch(key)
                record.due = RESIDENT
                self.waiting.leave(key, record)
                self.waiting.add(key, record, wall, since)
            self.records.save()
            rows = self._store.due(1_000, RESIDENT)
        self.waiting.earliest = 0.0
        self.clocks.load(now, wall)

    @property
    def on_disk(self) -> bool:
        """Whether hosts that leave memory are to be found again."""
        return self._store.durable

    @property
    def room(self) -> int:
        """How many more hosts may come into memory."""
        room = self.capacity - len(self._workbench.hosts)
        return room if self.sliding is None else int(min(room, self.sliding.room))

    # Coming and going

    def push(self, entry: Entry, record: HostRecord, now: float, wall: float) -> None:
        """A pending *entry* (its row is stored): into its host's front if it belongs there."""
        host = self._workbench.hosts.get(entry.host)
        if host is None:
            parked = self._parked(entry.host, record, new=not entry.volatile)
            if parked and not entry.volatile:
                record.head = min(record.head, before(entry.key))
                return
            crowded = self.on_disk and (self.room <= 0 or self.far(entry.host, wall))
            if (crowded or record.due is not None) and not entry.volatile:
                head = before(entry.key)
                record.head = head if record.due is None else min(record.head, head)
                if record.due is None:
                    self._wait_on_disk(entry.host, record, wall)
                elif not entry.key.startswith(LAST):
                    self.waiting.hurry(entry.host, record, wall)
                return
            more = record.due is not None or parked
            host = self.bring_in(entry.host, record, now, wall, more=more, expected=True)
        elif self.sliding is not None and not self.sliding.has(host):
            if self.room <= 0 and not entry.volatile and host.idle():
                self.leave(host, wall, now)
                record.head = min(record.head, before(entry.key))
                return
            self.sliding.came(host, expected=True)
        if self.fronts.push(host, entry):
            if host.key in self.unresolved.later:
                self.unresolved.hurry(host.key)
            if host.bar is not None and host.bar.of_urls and not entry.key.startswith(LAST):
                self._workbench.set_bar(host, None, -math.inf)  # this one may not be barred
            self._workbench.offer(host)

    def far(self, key: str, wall: float) -> bool:
        """Whether the phase of a host is so far off that it need not be in memory (K8)."""
        phases = self._policy.phases
        return phases is not None and phases.opens(key, wall) - wall >= AWAY

    def hold_back(self, elsewhere: Elsewhere | None) -> None:
        """Hold back hosts that are *elsewhere* from now on, and no others."""
        if elsewhere is not None or self.elsewhere is not None:
            self.revision += 1
        self.elsewhere = elsewhere

    def held_back(self, key: str) -> bool:
        """Whether nothing of a host may be fetched here for now."""
        return self.elsewhere is not None and self.elsewhere(key, "")

    def _parked(self, key: str, record: HostRecord, *, new: int = 0) -> bool:
        """Whether a host that is not in memory has rows on disk, besides *new* ones, and waits for
        no time: it is being handed over."""
        return record.due is None and record.pending > new and self.held_back(key)

    def put_off(self, key: str, record: HostRecord, wall: float) -> bool:
        """Let a host that is due on disk wait on, if its phase is over or it is held back; whether
        it does."""
        if self.waiting.put_off(key, record, wall):
            return True
        if not self.held_back(key):
            return False
        self.waiting.leave(key, record)
        self._wait_on_disk(key, record, wall)
        return True

    def bring_in(
        self, key: str, record: HostRecord, now: float, wall: float, *, more: bool,
        expected: bool = False,
    ) -> HostState:  # fmt: skip
        """Make a host resident; with *more*, its rows are on disk, or an entry is *expected*."""
        pace = self._policy.of_host(key)
        delay = max(pace.delay, self._policy.start_delay)
        host = HostState(key, delay, pace.concurrency, pace.burst)
        host.record = record
        self.set_crawl_delay(host)
        host.revision = self._policy.revision
        load_clock(host, now, wall, self._floor)
        self.records.came(key)
        self._workbench.hosts[key] = host
        if self._store.durable:
            self.waiting.take_in(key, record)
            self.records.changed(key, record)
        if more:
            host.cursor, host.more = record.head, True
            self.fronts.refill(host)
        if self.sliding is not None:
            self.sliding.came(host, expected=expected)
        self.unresolved.want(host)
        return host

    def _wait_on_disk(self, key: str, record: HostRecord, wall: float) -> None:
        self.waiting.add(key, record, wall, wall + HELD if self.held_back(key) else None)
        self.records.changed(key, record)

    def look_at_barred(
        self, since: float, after: str, limit: int, wall: float
    ) -> tuple[float, str] | None:
        """Look whether hosts that wait on disk for a rule still have to, *limit* at a time.

        Begins behind the host *after* of those that wait until *since*; returns where to go on,
        None at the end.
        """
        rows = self.waiting.barred(since, after, limit)
        for _, key in rows:
            record = self.records.of(key)
            if self.waiting.look_again(key, record, wall):
                self.records.changed(key, record)
        self.records.save()
        return rows[-1] if len(rows) == limit else None

    def leave(self, host: HostState, wall: float, now: float) -> None:
        """Take an idle host out of memory; what it has on disk waits there for its time."""
        record: HostRecord = host.record
        self.fronts.set_head(host)
        note_clock(host, wall - now)
        self._forget(host)
        self.records.went(host.key, record)
        if not self._store.durable:
            return
        self.waiting.leave(host.key, record)
        if record.pending:
            self._wait_on_disk(host.key, record, wall)

    def _forget(self, host: HostState) -> None:
        self._workbench.forget(host)
        self.unresolved.drop(host.key)
        if self.sliding is not None:
            self.sliding.went(host.key)

    def visitor(self, key: str, now: float, wall: float) -> HostState:
        """The host of traffic that has no visit: its clock counts, resident or not."""
        host = self._workbench.hosts.get(key)
        if host is None:
            record = self.records.touch(key)
            more = record.due is not None or self._parked(key, record)
            host = self.bring_in(key, record, now, wall, more=more)
            self.records.save()
        return host

    def set_crawl_delay(self, host: HostState) -> None:
        """Let a host go by its Crawl-delay: whoever asks for one gets one visit at a time."""
        host.crawl_delay = self.crawl_delay(host)
        host.concurrency = 1 if host.crawl_delay else self._policy.of_host(host.key).concurrency

    def crawl_delay(self, host: HostState) -> float:
        """The Crawl-delay that a host goes by: none where a rule says to ignore robots.txt."""
        asked = float(host.record.crawl_delay)
        if asked and self._policy.obeys_robots(host.key, host.connect_to) is False:
            return 0.0
        return asked

    def look_up_again(self, now: float) -> None:
        """Have the names of all resident hosts looked up before their next visits.

        They may come to addresses of other names: those begin with the delay of a fresh fetch.
        """
        self.clocks.begin_anew(now)
        for host in self._workbench.hosts.values():
            host.resolved_until = min(host.resolved_until, now)

    # Giving up

    def drain(self, key: str, limit: int) -> list[Entry]:
        """Take some *limit* pending entries of a host, resident or not, out of its queue.

        None are left when none are returned (leased ones apart).
        """
        host = self._workbench.hosts.get(key)
        if host is None:
            return self.fronts.drain_disk(key, self.records.touch(key), limit)
        return self.fronts.drain(host, limit)

    def withdraw(self, key: str) -> None:
        """A host is not to be visited any more."""
        host = self._workbench.hosts.get(key)
        if host is not None:
            self._workbench.displace(host)
            self.unresolved.drop(key)

    def retire(self, key: str) -> None:
        """A host was given up: it needs no memory and no address any more."""
        host = self._workbench.hosts.get(key)
        if host is None:
            record = self.records.touch(key)
            self.waiting.leave(key, record)

    def forget(self, key: str) -> None:
        """Drop a host that is idle and has nothing pending from memory and from the waiting list;
        its record is deleted by the caller."""
        host = self._workbench.hosts.get(key)
        self.waiting.leave(key, self.records.touch(key))
        if host is not None:
            self._forget(host)
        self.records.drop(key)

    def postpone(self, host: HostState, until: float, why: str) -> None:
        """Keep *host* waiting until *until* at least, and store why."""
        self._workbench.postpone(host, until, why)
        self.records.touch(host.key)
        self.records.save()

    def close(self, wall_offset: float) -> None:
        """Write the clocks of resident hosts and addresses; the hosts are due again."""
        for key, host in self._workbench.hosts.items():
            self.records.changed(key, host.record)
        self.records.save()
        self.clocks.save(wall_offset)
