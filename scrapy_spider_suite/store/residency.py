"""Which hosts are in memory, and how much of their queues (workbench virtualisation, U13).

A host is *resident* (on the workbench, with a short front of its queue), or it waits on disk in
the ``due`` family under the time at which it may be visited, or it has nothing pending. Resident
hosts stand in ``due`` as well, under a time that never comes: so they are found after a kill.
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
"""Seconds until it is examined again whether a host on disk is still held back."""

IsForeign = Callable[[str, str], bool]
"""Whether a URL may not be fetched here: by host and URL ("" if hosts decide)."""


def crawl_delay(policy: Policy, host: HostState) -> float:
    """The Crawl-delay of *host* in seconds; 0.0 where a rule says to ignore robots.txt."""
    asked = float(host.record.crawl_delay)
    if asked and policy.obeys_robots(host.key, host.connect_to) is False:
        return 0.0
    return asked


class Residents:
    """Moves hosts and their fronts between the workbench and the store.

    *floor*, after an unclean end, is the moment at which every host and address counts as
    fetched (None otherwise). Times ``now`` are monotonic.

    Attributes:
        capacity: how many hosts may be resident; those that exceed it leave when they can.
        released: hosts on disk that are held back no longer.
        waiting: the hosts that wait on disk.
        window: the sliding window over the hosts, if there is one.
    """

    def __init__(
        self, workbench: Workbench, store: Store, policy: Policy, capacity: int,
        floor: float | None, window: HostWindow | None = None,
    ) -> None:  # fmt: skip
        self.workbench = workbench
        self.store = store
        self.policy = policy
        self.capacity = capacity
        self.fronts = QueueFronts(store)
        self.records = HostRecords(store, workbench, self.fronts)
        self.clocks = AddressClocks(workbench, store, policy, floor)
        self.unresolved = UnresolvedHosts(workbench)
        self.waiting = WaitingList(store, policy)
        self.released = ReleasedHosts(self)
        self.window = window
        self._floor = floor
        self._is_foreign: IsForeign | None = None

    def open(self, now: float, wall: float) -> None:
        """Take over from an earlier run: its resident hosts are due, its clocks go on."""
        # A window begins with the hosts that were in it.
        since = wall if self.window is None else 0.0
        rows = self.store.due(1_000, RESIDENT)
        while rows:
            for _, key in rows:
                record = self.records.touch(key)
                record.due = RESIDENT
                self.waiting.leave(key, record)
                self.waiting.add(key, record, wall, since)
            self.records.save()
            rows = self.store.due(1_000, RESIDENT)
        self.waiting.earliest = 0.0
        self.clocks.load(now, wall)

    @property
    def room(self) -> int:
        room = self.capacity - len(self.workbench.hosts)
        return room if self.window is None else int(min(room, self.window.room))

    # Coming and going

    def push(self, entry: Entry, record: HostRecord, now: float) -> None:
        host, wall = self.workbench.hosts.get(entry.host), now + self.records.wall_offset
        if host is None:
            parked = self._is_parked(entry.host, record, new=not entry.volatile)
            if parked and not entry.volatile:
                record.head = min(record.head, before(entry.key))
                return
            crowded = self.store.durable and (
                self.room <= 0 or self.waiting.is_far(entry.host, wall)
            )
            if (crowded or record.due is not None) and not entry.volatile:
                head = before(entry.key)
                record.head = head if record.due is None else min(record.head, head)
                if record.due is None:
                    self.wait_on_disk(entry.host, record, wall)
                elif not entry.key.startswith(LAST):
                    self.waiting.expedite(entry.host, record, wall)
                return
            more = record.due is not None or parked
            host = self.bring_in(entry.host, record, now, more=more, expected=True)
        elif self.window is not None and not self.window.has(host):
            if self.room <= 0 and not entry.volatile and host.idle():
                self.leave(host, now)
                record.head = min(record.head, before(entry.key))
                return
            self.window.host_entered(host, expected=True)
        if self.fronts.push(host, entry):
            if host.key in self.unresolved.later:
                self.unresolved.expedite(host.key)
            exclusion = host.exclusion
            if exclusion is not None and exclusion.of_urls and not entry.key.startswith(LAST):
                # This URL may not be excluded.
                self.workbench.set_exclusion(host, None, -math.inf)
            self.workbench.offer(host)

    def hold_back(self, is_foreign: IsForeign | None) -> None:
        """Hold back hosts that are foreign from now on, and no others."""
        if is_foreign is not None or self._is_foreign is not None:
            self.released.revision += 1
        self._is_foreign = is_foreign

    def held_back(self, key: str) -> bool:
        return self._is_foreign is not None and self._is_foreign(key, "")

    def _is_parked(self, key: str, record: HostRecord, *, new: int = 0) -> bool:
        """Whether a host that is not in memory has rows on disk, besides *new* ones, and waits for
        no time: it is being handed over."""
        return record.due is None and record.pending > new and self.held_back(key)

    def bring_in(
        self, key: str, record: HostRecord, now: float, *, more: bool, expected: bool = False
    ) -> HostState:
        """Make a host resident; with *more*, it has rows on disk; *expected*: an entry follows."""
        wall = now + self.records.wall_offset
        pace = self.policy.for_host(key)
        delay = max(pace.delay, self.policy.start_delay)
        host = HostState(key, delay, pace.concurrency, pace.burst)
        host.record = record
        self._apply_crawl_delay(host)
        host.revision = self.policy.revision
        load_clock(host, now, wall, self._floor)
        self.records.host_entered(key)
        self.workbench.hosts[key] = host
        if self.store.durable:
            self.waiting.mark_resident(key, record)
            self.records.changed(key, record)
        if more:
            host.cursor, host.more = record.head, True
            self.fronts.refill(host)
        if self.window is not None:
            self.window.host_entered(host, expected=expected)
        self.unresolved.add(host)
        return host

    def wait_on_disk(self, key: str, record: HostRecord, wall: float) -> None:
        self.waiting.add(key, record, wall, wall + HELD if self.held_back(key) else None)
        self.records.changed(key, record)

    def leave(self, host: HostState, now: float) -> None:
        record: HostRecord = host.record
        self.fronts.set_head(host)
        note_clock(host, self.records.wall_offset)
        self._remove(host)
        self.records.host_left(host.key, record)
        if not self.store.durable:
            return
        self.waiting.leave(host.key, record)
        if record.pending:
            self.wait_on_disk(host.key, record, now + self.records.wall_offset)

    def _remove(self, host: HostState) -> None:
        self.workbench.forget(host)
        self.unresolved.drop(host.key)
        if self.window is not None:
            self.window.host_left(host.key)

    def visitor(self, key: str, now: float) -> HostState:
        """The host of traffic that has no visit: its clock counts, resident or not."""
        host = self.workbench.hosts.get(key)
        if host is None:
            record = self.records.touch(key)
            more = record.due is not None or self._is_parked(key, record)
            host = self.bring_in(key, record, now, more=more)
            self.records.save()
        return host

    def set_crawl_delay(self, host: HostState, seconds: float) -> None:
        """The robots.txt of *host* asks for *seconds* between fetches (0.0: for no delay)."""
        host.record.crawl_delay = seconds
        self._apply_crawl_delay(host)
        self.workbench.offer(host)

    def _apply_crawl_delay(self, host: HostState) -> None:
        host.crawl_delay = crawl_delay(self.policy, host)
        host.concurrency = 1 if host.crawl_delay else self.policy.for_host(host.key).concurrency

    def retire(self, key: str) -> None:
        """A host has nothing pending: it leaves the waiting list, if it is not in memory."""
        if self.workbench.hosts.get(key) is None:
            self.waiting.leave(key, self.records.touch(key))

    def forget(self, key: str) -> None:
        """Remove an idle host without URLs from memory and waiting list; the caller deletes its
        record.
        """
        host = self.workbench.hosts.get(key)
        self.waiting.leave(key, self.records.touch(key))
        if host is not None:
            self._remove(host)
        self.records.drop(key)

    def close(self, wall_offset: float) -> None:
        """Write the clocks of resident hosts and addresses; the hosts are due again."""
        for key, host in self.workbench.hosts.items():
            self.records.changed(key, host.record)
        self.records.save()
        self.clocks.save(wall_offset)


_PORTION = 200
"""Hosts that are examined at a time."""


class ReleasedHosts:
    """Has hosts on disk that are held back no longer wait for their own times.

    They are found among the hosts that are due within `HELD`: also hosts that an earlier process
    has held back.

    Attributes:
        revision: goes up when other hosts are held back than before.
    """

    def __init__(self, residents: Residents) -> None:
        self.revision = 0
        self._residents = residents
        self._waiting = residents.waiting
        self._records = residents.records
        self._examined = 0  # the revision of the pass under way
        self._left: list[tuple[float, float, str]] = []  # since, until, after which host

    @property
    def busy(self) -> bool:
        return bool(self._left) or self._examined != self.revision

    def step(self, wall: float) -> bool:
        """Examine a portion; whether there is more. A change in between starts another pass
        afterwards.
        """
        if not self._left and self.busy:
            self._examined = self.revision
            self._left = [(band + wall, band + wall + HELD, "") for band in (EXCLUDED_BAND, 0.0)]
        if self._left:
            since, until, after = self._left.pop()
            rows = self._waiting.rows(since, after, _PORTION)
            for due, key in rows:
                if due <= until:
                    self._release(key, wall)
            self._records.save()
            if len(rows) == _PORTION and rows[-1][0] <= until:
                self._left.append((rows[-1][0], until, rows[-1][1]))
        return self.busy

    def _release(self, key: str, wall: float) -> None:
        if self._residents.held_back(key):
            return
        record = self._records.get(key)
        if self._waiting.bring_forward(key, record, wall):
            self._records.changed(key, record)


_AT_ONCE = 2_000
"""URLs that are failed before anyone else has a turn again."""
_NO_ANSWER = frozenset({Event.REFUSED, Event.TIMEOUT, Event.CONNECTION_LOST})


class HostHealth:
    """Lets hosts wait for their answers, or gives them up (`politeness.judge_host`).

    All pending URLs of such a host fail, a part at a time; *release_holder* is called with each.
    After a restart the first visit of a dead host gives it up again.
    """

    def __init__(
        self, residents: Residents, states: UrlStates,
        release_holder: Callable[[Entry, float], None],
    ) -> None:  # fmt: skip
        self._workbench = residents.workbench
        self._residents = residents
        self._records = residents.records
        self._states = states
        self._release_holder = release_holder
        self._given_up: dict[str, Event] = {}

    def judge(
        self, host: HostState, event: Event, now: float, retry_after: float | None = None
    ) -> None:
        record: HostRecord = host.record
        back_off = self._residents.policy.back_off
        verdict = judge_host(event, record.failures, back_off, retry_after)
        record.failures = verdict.failures
        if verdict.wait:
            self._workbench.postpone(host, now + verdict.wait, verdict.why)
            if event in _NO_ANSWER:
                host.resolved_until = now  # its address may have changed
            self._records.touch(host.key)
        if verdict.dead and not record.dead:
            record.dead = Event.HOST_DEAD.value
            self._states.counters.dead_hosts += 1
            self.give_up(host.key, Event.HOST_DEAD, now)
        self._records.save()

    def no_address(self, host: HostState, event: Event, now: float) -> None:
        """The name of *host* has no address: give it up, or resolve it again later."""
        if OUTCOMES[event].state is State.FAILED:
            host.record.dead = event.value
            self.give_up(host.key, event, now)
            return
        self.judge(host, event, now)
        if not host.record.dead:
            self._residents.unresolved.add(host)

    def postpone(self, host: HostState, until: float, why: str) -> None:
        self._workbench.postpone(host, until, why)
        self._records.touch(host.key)
        self._records.save()

    # Giving up

    @property
    def giving_up(self) -> int:
        return len(self._given_up)

    def given_up(self, key: str) -> Event | None:
        return self._given_up.get(key)

    def give_up(self, key: str, event: Event, now: float) -> None:
        self._given_up[key] = event
        host = self._workbench.hosts.get(key)
        if host is not None:
            self._workbench.displace(host)
            self._residents.unresolved.drop(key)
        self._fail_pending(key, _AT_ONCE, now)
        self._records.save()

    def cancel_giving_up(self, key: str) -> None:
        self._given_up.pop(key, None)
        host = self._workbench.hosts.get(key)
        if host is not None and host.address is None:
            self._residents.unresolved.add(host)

    def revive(self, key: str, record: HostRecord) -> bool:
        dead, record.dead, record.failures = record.dead, "", 0
        if dead:
            self._states.counters.dead_hosts -= dead == Event.HOST_DEAD.value
            self.cancel_giving_up(key)
        return bool(dead)

    def step(self, now: float) -> None:
        left = _AT_ONCE
        for key in list(self._given_up):
            left -= max(1, self._fail_pending(key, left, now))
            if left <= 0:
                break
        self._records.save()

    def _fail_pending(self, key: str, limit: int, now: float) -> int:
        event = self._given_up[key]
        fronts, failed = self._residents.fronts, 0
        while failed < limit:
            portion, host = min(limit - failed, 500), self._workbench.hosts.get(key)
            if host is None:
                entries = fronts.drain_disk(key, self._records.touch(key), portion)
            else:
                entries = fronts.drain(host, portion)
            if not entries:
                if not fronts.leased(key):
                    del self._given_up[key]
                    self._residents.retire(key)
                break
            failed += len(entries)
            for entry in entries:
                self.fail(entry, event, now)
        return failed

    def fail(self, entry: Entry, event: Event, now: float) -> None:
        record = self._records.touch(entry.host)
        self._states.remove(entry, record)
        self._states.refuse(entry, record, event, now + self._records.wall_offset)
        self._release_holder(entry, now)
