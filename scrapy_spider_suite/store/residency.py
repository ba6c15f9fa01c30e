"""Which hosts are in memory, and how much of their queues (workbench virtualisation, U13).

A host is *resident* (on the workbench, with a short front of its queue), or it waits on disk
in the ``due`` family under the time at which it may be visited, or it has nothing pending.
Resident hosts stand in ``due`` as well, under a time that never comes: after a kill that is
how they are found again.

Hosts on disk that are held back no more: they do not wait to be looked at again.

What a host's answers mean for it: waiting longer, or being given up.

Of a host that was given up everything that is pending fails, a part at a time. Nothing of that
is stored: after a restart the host's record says that it is dead, and the first visit that it
would get gives it up again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scrapy_spider_suite.frontier.entries import LAST, Entry
from scrapy_spider_suite.frontier.outcomes import OUTCOMES, Event, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.politeness import judge_host
from scrapy_spider_suite.frontier.windows import HostWindow
from scrapy_spider_suite.frontier.workbench import HostState, UnresolvedHosts, Workbench
from scrapy_spider_suite.store.host_queues import (
    EXCLUDED_BAND,
    FAR_AHEAD,
    RESIDENT,
    AddressClocks,
    HostRecords,
    QueueFronts,
    WaitingList,
    before,
    load_clock,
    note_clock,
)
from scrapy_spider_suite.store.interface import Store
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.store.url_states import UrlStates

HELD = 300.0
"""Seconds until it is looked again whether a host on disk is still held back, if nobody says."""

IsForeign = Callable[[str, str], bool]
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
        floor: float | None, sliding: HostWindow | None = None,
    ) -> None:  # fmt: skip
        self.capacity = capacity
        self.elsewhere: IsForeign | None = None
        self.revision = 0
        self.fronts = QueueFronts(store)
        self.records = HostRecords(store, workbench, self.fronts)
        self.clocks = AddressClocks(workbench, store, policy, floor)
        self.unresolved = UnresolvedHosts(workbench)
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
        return phases is not None and phases.opens(key, wall) - wall >= FAR_AHEAD

    def hold_back(self, elsewhere: IsForeign | None) -> None:
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


_PORTION = 200
"""Hosts that are looked at at a time, some 10 us each."""


class ReleasedHosts:
    """Has them wait for their own times, once others are held back than before.

    They are found among the hosts that are due within the time after which such a host is looked
    at again: also those that an earlier process has put off.
    """

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        self._waiting = residents.waiting
        self._records = residents.records
        self._revision = 0
        self._left: list[tuple[float, float, str]] = []  # since, until, after which host

    @property
    def at_work(self) -> bool:
        """Whether more is to be looked at."""
        return bool(self._left) or self._revision != self._residents.revision

    def go_on(self, wall: float) -> bool:
        """Look at a portion; whether there is more.

        What changes meanwhile has it begin again at the end, so that it comes to one.
        """
        if not self._left and self.at_work:
            self._revision = self._residents.revision
            self._left = [(band + wall, band + wall + HELD, "") for band in (EXCLUDED_BAND, 0.0)]
        if self._left:
            since, until, after = self._left.pop()
            rows = self._waiting.rows(since, after, _PORTION)
            for due, key in rows:
                if due <= until:
                    self._look(key, wall)
            self._records.save()
            if len(rows) == _PORTION and rows[-1][0] <= until:
                self._left.append((rows[-1][0], until, rows[-1][1]))
        return self.at_work

    def _look(self, key: str, wall: float) -> None:
        if self._residents.held_back(key):
            return
        record = self._records.of(key)
        if self._waiting.bring_forward(key, record, wall):
            self._records.changed(key, record)


_AT_ONCE = 2_000
"""URLs that are failed before anyone else has a turn again."""
_NO_ANSWER = frozenset({Event.REFUSED, Event.TIMEOUT, Event.CONNECTION_LOST})


class HostHealth:
    """Applies what `politeness.judge` decides to hosts in memory.

    *let_go* is told of every URL that failed with its host.
    """

    def __init__(
        self, workbench: Workbench, residents: Residents, ledger: UrlStates, policy: Policy,
        let_go: Callable[[Entry, float], None],
    ) -> None:  # fmt: skip
        self._workbench = workbench
        self._residents = residents
        self._records = residents.records
        self._ledger = ledger
        self._policy = policy
        self._let_go = let_go
        self._given_up: dict[str, Event] = {}

    def judge(
        self, host: HostState, event: Event, now: float, wall: float, retry_after: float | None
    ) -> None:
        """Let *host* wait, or give it up, for what its last visit ended with."""
        record: HostRecord = host.record
        verdict = judge_host(event, record.failures, self._policy.back_off, retry_after)
        record.failures = verdict.failures
        if verdict.wait:
            self._workbench.postpone(host, now + verdict.wait, verdict.why)
            if event in _NO_ANSWER:
                host.resolved_until = now  # its address may have changed
            self._records.touch(host.key)
        if verdict.dead and not record.dead:
            record.dead = Event.HOST_DEAD.value
            self._ledger.counters.dead_hosts += 1
            self.give_up(host.key, Event.HOST_DEAD, now, wall)
        self._records.save()

    def unresolved(self, host: HostState, event: Event, now: float, wall: float) -> None:
        """The name of *host* has no address: fail what it has, or have it looked up again later."""
        if OUTCOMES[event].state is State.FAILED:
            host.record.dead = event.value
            self.give_up(host.key, event, now, wall)
            return
        self.judge(host, event, now, wall, None)
        if not host.record.dead:
            self._residents.unresolved.want(host)

    # Giving up

    @property
    def giving_up(self) -> int:
        """Hosts that were given up and have URLs left."""
        return len(self._given_up)

    def given_up(self, key: str) -> Event | None:
        """Why a host is being given up; None if it is not."""
        return self._given_up.get(key)

    def give_up(self, key: str, event: Event, now: float, wall: float) -> None:
        """Give up a host because of *event*."""
        self._given_up[key] = event
        self._residents.withdraw(key)
        self._fail(key, _AT_ONCE, now, wall)
        self._records.save()

    def forgive(self, key: str) -> None:
        """A host is not given up after all; what is still pending for it may be visited."""
        self._given_up.pop(key, None)
        host = self._workbench.hosts.get(key)
        if host is not None and host.address is None:
            self._residents.unresolved.want(host)

    def revive(self, key: str, record: HostRecord) -> bool:
        """Forget that the host with *record* was given up; whether it was."""
        dead, record.dead, record.failures = record.dead, "", 0
        if dead:
            self._ledger.counters.dead_hosts -= dead == Event.HOST_DEAD.value
            self.forgive(key)
        return bool(dead)

    def go_on(self, now: float, wall: float) -> None:
        """The next part of what is pending for hosts that were given up."""
        left = _AT_ONCE
        for key in list(self._given_up):
            left -= max(1, self._fail(key, left, now, wall))
            if left <= 0:
                break
        self._records.save()

    def _fail(self, key: str, limit: int, now: float, wall: float) -> int:
        """Fail some *limit* pending URLs of a host; return how many."""
        event = self._given_up[key]
        failed = 0
        while failed < limit:
            entries = self._residents.drain(key, min(limit - failed, 500))
            if not entries:
                if not self._residents.fronts.leased(key):
                    del self._given_up[key]
                    self._residents.retire(key)
                break
            failed += len(entries)
            for entry in entries:
                self.fail(entry, event, now, wall)
        return failed

    def fail(self, entry: Entry, event: Event, now: float, wall: float) -> None:
        """Fail *entry*, which was taken out of its queue, because of *event*."""
        record = self._records.touch(entry.host)
        self._ledger.remove(entry, record)
        self._ledger.refuse(entry, record, event, wall)
        self._let_go(entry, now)
