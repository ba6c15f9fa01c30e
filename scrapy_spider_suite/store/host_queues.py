"""Fronts of queues, host records, clocks, and the hosts that wait on disk (the ``due`` family).

Invariant: of a resident host's rows on disk, those up to its cursor are in its front or leased;
those beyond it are on disk only, and then `more` is true. Hosts that wait for a rule stand in a
band of their own behind all others; hosts in memory stand behind both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Set
from heapq import heapify, heappop, heappush, nsmallest

from msgspec.structs import replace

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.policy import Policy, excluded_pattern, waits_for_rule
from scrapy_spider_suite.frontier.workbench import (
    AddressState,
    HostState,
    WaitCount,
    WaitReason,
    Workbench,
    add_up,
    reason_of_clock,
    reason_of_words,
    wait_of,
)
from scrapy_spider_suite.store.rocks_store import Store
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.urls.host_patterns import PatternKind

LATEST = 30 * 86400.0  # no stored time is believed to be further ahead (a clock that was set back)
GRAIN = 1e-6  # seconds added where wall time becomes monotonic time, more than a double loses
NEVER = 4e12  # the end (wall) of an exclusion without an end


class AddressClocks:
    """When addresses may be visited. All count as fetched at *floor*, the start of a later run."""

    def __init__(self, workbench: Workbench, policy: Policy, floor: float | None) -> None:
        self._addresses = workbench.addresses
        self._policy = policy
        self._floor = floor
        self._early: dict[str, float] = {}  # of addresses that no host in memory has

    def not_before(self, pacing_key: str, next_fetch: float) -> None:
        """The address paced under *pacing_key* is not visited before *next_fetch*."""
        state = self._addresses.get(pacing_key)
        if state is not None:
            state.next_fetch = max(state.next_fetch, next_fetch)
        else:
            self._early[pacing_key] = max(self._early.get(pacing_key, next_fetch), next_fetch)

    def next_fetch(self, pacing_key: str) -> float:
        """When the address paced under *pacing_key* may be visited; long ago if unknown."""
        state = self._addresses.get(pacing_key)
        if state is not None:
            return state.next_fetch
        at = self._early.get(pacing_key, -math.inf)
        if self._floor is None:
            return at
        return max(at, self._floor + self._policy.for_address(pacing_key).delay)

    def all_free_at(self) -> float:
        """When the delay of every address is over, in memory or not."""
        known = [*self._early.values(), *(each.next_fetch for each in self._addresses.values())]
        if self._floor is not None:
            longest = max(self._policy.address.delay, self._policy.overrides.longest_delay)
            known.append(self._floor + longest)
        return max(known, default=-math.inf)

    def state(self, pacing_key: str, address: str, now: float) -> AddressState:
        state = self._addresses.get(pacing_key)
        if state is None:
            pace = self._policy.for_address(address) if address else None
            delay, concurrency = (pace.delay, pace.concurrency) if pace else (0.0, 0)
            next_fetch = self._early.pop(pacing_key, now)
            if self._floor is not None:
                next_fetch = max(next_fetch, self._floor + delay)
            state = AddressState(pacing_key, delay, concurrency, next_fetch)
            state.numeric, state.revision = address, self._policy.revision
            if next_fetch > now or self._floor is not None:
                state.fetched = next_fetch - delay
            self._addresses[pacing_key] = state
        return state


def seconds_until_due(record: HostRecord, gap: float, wall: float) -> float:
    """Seconds until the host with *record* may be visited again; *gap* is its delay."""
    wait = record.next_fetch - wall + GRAIN
    if wait >= LATEST or waits_for_rule(record.why):
        wait = min(wait, gap)  # an exclusion is examined anew
    return wait


def load_clock(host: HostState, now: float, wall: float, floor: float | None) -> None:
    """Set the clock of a host by its record; *floor* as in `Residents`."""
    record: HostRecord = host.record
    wait = seconds_until_due(record, host.gap(), wall)
    host.next_fetch, host.fetched = now + max(0.0, wait), now + wait - host.gap()
    if floor is not None:
        host.fetched = max(host.fetched, floor)
        host.next_fetch = max(host.next_fetch, floor + host.gap())
    if wait > host.gap():
        host.why = record.why or "kept from before"


def note_clock(host: HostState, wall_offset: float) -> None:
    """Write into its record when a host may be visited: the later of clock and exclusion."""
    record: HostRecord = host.record
    record.next_fetch, record.why = host.next_fetch + wall_offset, reason_of_clock(host)
    if host.exclusion is not None and host.exclusion.until > record.next_fetch:
        record.next_fetch, record.why = min(host.exclusion.until, NEVER), str(host.exclusion)


_FRONT = 8  # entries of one host in memory, or those of a visit; a front is cut at twice as many
_NONE: Set[bytes] = frozenset()


class QueueFronts:
    """Moves entries between the fronts of hosts and their rows in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._leased: dict[str, set[bytes]] = {}

    # The rows of leased entries stay in the store; a refill must not bring them again.

    def lease(self, entry: Entry) -> None:
        self._leased.setdefault(entry.host, set()).add(entry.key)

    def unlease(self, entry: Entry) -> None:
        keys = self._leased.get(entry.host)
        if keys is not None:
            keys.discard(entry.key)
            if not keys:
                del self._leased[entry.host]

    def leased(self, key: str) -> int:
        return len(self._leased.get(key, _NONE))

    def hosts_leased(self) -> list[str]:
        return list(self._leased)

    def is_leased(self, entry: Entry) -> bool:
        return entry.key in self._leased.get(entry.host, _NONE)

    def push(self, host: HostState, entry: Entry) -> bool:
        """Put a pending *entry* into the front if it belongs there; False: it waits on disk."""
        if host.more and entry.key > host.cursor and not entry.volatile:
            return False  # its turn comes with a refill
        heappush(host.front, (entry.key, entry))
        if self._store.durable and len(host.front) > 2 * max(_FRONT, host.burst):
            self._cut(host)
        return True

    def remove(self, host: HostState, entry: Entry) -> None:
        host.front[:] = [item for item in host.front if item[0] != entry.key]
        heapify(host.front)

    def _cut(self, host: HostState) -> None:
        keep = nsmallest(max(_FRONT, host.burst), host.front)
        cursor = keep[-1][0]
        volatile = [item for item in host.front if item[0] > cursor and item[1].volatile]
        if len(keep) + len(volatile) < len(host.front):
            host.front[:] = keep + volatile
            heapify(host.front)
            host.cursor, host.more = cursor, True

    def refill(self, host: HostState) -> None:
        leased, size = self._leased.get(host.key, _NONE), max(_FRONT, host.burst)
        while host.more:
            rows = self._store.rows(host.key, host.cursor, size)
            host.more = len(rows) == size
            if rows:
                host.cursor = rows[-1].key
            for entry in rows:
                if entry.key not in leased:
                    heappush(host.front, (entry.key, entry))
            if host.front:
                return

    def set_head(self, host: HostState) -> None:
        """Note below which key nothing is left: refills start there after a restart."""
        leased = self._leased.get(host.key)
        least = min(leased) if leased else None
        if host.front and (least is None or host.front[0][0] < least):
            least = host.front[0][0]
        host.record.head = host.cursor if least is None else before(least)

    def drain(self, host: HostState, limit: int) -> list[Entry]:
        """Remove some *limit* pending entries of a resident host; [] if all others are leased."""
        if host.front:
            return [heappop(host.front)[1] for _ in range(min(limit, len(host.front)))]
        if not host.more:
            return []
        leased = self._leased.get(host.key, _NONE)
        rows = self._store.rows(host.key, host.cursor, limit + len(leased))
        host.more = len(rows) == limit + len(leased)
        if rows:
            host.cursor = rows[-1].key
        return [entry for entry in rows if entry.key not in leased]

    def drain_disk(self, key: str, record: HostRecord, limit: int) -> list[Entry]:
        """`drain` for a host that is not in memory."""
        leased = self._leased.get(key, _NONE)
        rows = self._store.rows(key, record.head, limit + len(leased))
        if rows:
            record.head = before(min(leased)) if leased else rows[-1].key
        return [entry for entry in rows if entry.key not in leased]


def before(key: bytes) -> bytes:
    return (int.from_bytes(key, "big") - 1).to_bytes(len(key), "big")


_CACHE = 20_000  # records of hosts that are not resident


class HostRecords:
    """Reads and stores records; *fronts* know where the queue of a resident host begins."""

    def __init__(
        self, store: Store, workbench: Workbench, fronts: QueueFronts, *, by_head: bool
    ) -> None:  # fmt: skip
        self.wall_offset = 0.0  # wall time minus ``now``
        self._by_head = by_head  # the order of the queues depends on `head`
        self._store = store
        self._hosts = workbench.hosts
        self._fronts = fronts
        self._cache: dict[str, HostRecord] = {}
        store.update_record = self._update

    def touch(self, key: str) -> HostRecord:
        """The record of a host, which is about to change."""
        host = self._hosts.get(key)
        if host is None:
            record = self.get(key)
        else:
            record = host.record
            if self._by_head:
                self._fronts.set_head(host)
        self._store.put_record(key, record)
        return record

    def get(self, key: str) -> HostRecord:
        host = self._hosts.get(key)
        record: HostRecord | None = self._cache.get(key) if host is None else host.record
        if record is not None:
            return record
        if len(self._cache) >= _CACHE and self._store.durable:
            self._cache.clear()
        record = self._store.record(key) or HostRecord()
        self._cache[key] = record
        return record

    def current(self, key: str) -> HostRecord:
        """The record of a host, with clock and `head` as they are now."""
        record = self.get(key)
        self._update(key, record)
        return record

    def left(self, key: str) -> int:
        """How many stored URLs of a host are still to be asked for."""
        return max(0, self.get(key).pending - self._fronts.leased(key))

    def forget(self, key: str) -> None:
        """The host with this *key* is in memory now, or has no record."""
        self._cache.pop(key, None)

    def host_left(self, key: str, record: HostRecord) -> None:
        self._cache[key] = record
        self._store.put_record(key, record)

    def _update(self, key: str, record: HostRecord) -> None:
        host = self._hosts.get(key)
        if host is not None:
            self._fronts.set_head(host)
            note_clock(host, self.wall_offset)


_PREFIX = b"waits/"
_MINUTE = 60
_PORTION = 2_000  # hosts in memory that are counted at a time, some 0.4 µs each
_EVERY, _PER_HOST = 1.0, 3e-4  # seconds from one count to the next, at least; for each host
_PAST = (WaitReason.MEMORY, 0)  # of the hosts whose time has come


class DiskWaits:
    """Hosts on disk by reason and by the minute they are due in, past ones together; a row each."""

    def __init__(self, store: Store) -> None:
        """Load the counts from *store*. Raises `JobDamagedError`."""
        self._kv = store.kv("counters")
        self._counts: dict[WaitReason, dict[int, int]] = {WaitReason.MEMORY: {0: 0}}
        self._changed: set[tuple[WaitReason, int]] = set()
        self._minute = 0  # before it all are past
        try:
            for key, hosts in self._kv.items(_PREFIX):
                _, minute, reason = key.decode().split("/", 2)
                self._counts.setdefault(WaitReason(reason), {})[int(minute)] = int(hosts)
        except ValueError as error:
            raise JobDamagedError(f"the counts of waiting hosts are unreadable: {error}") from error

    def change(self, when: float, record: HostRecord, hosts: int) -> None:
        """Count *hosts* (1 or -1) due at *when* (wall), with a *record* like this."""
        reason, minute = reason_of_words(record.why), int(when // _MINUTE)
        known = self._counts.get(reason, {}).get(minute)
        if minute < self._minute if hosts > 0 else not known:
            reason, minute = _PAST
        self._add(reason, minute, hosts)

    def save(self) -> None:
        if not self._changed:
            return
        for reason, minute in self._changed:
            hosts = self._counts.get(reason, {}).get(minute)
            if hosts is None:
                self._kv.delete(_key(reason, minute))
            else:
                self._kv.put(_key(reason, minute), b"%d" % hosts)
        self._changed.clear()

    def counts(self, wall: float) -> Iterator[WaitCount]:
        """The hosts by reason; those whose time has come wait for room in memory."""
        if int(wall // _MINUTE) != self._minute:
            self._minute = int(wall // _MINUTE)
            self._fold()
        for reason, minutes in self._counts.items():
            if hosts := sum(minutes.values()):
                until = max(wall, float(min(minutes) * _MINUTE))
                yield WaitCount(reason, hosts, None if until > NEVER - _MINUTE else until)

    def _fold(self) -> None:
        for reason, minutes in list(self._counts.items()):
            for minute in [each for each in minutes if 0 < each < self._minute]:
                hosts = minutes[minute]
                self._add(reason, minute, -hosts)
                self._add(*_PAST, hosts)

    def _add(self, reason: WaitReason, minute: int, hosts: int) -> None:
        minutes = self._counts.setdefault(reason, {})
        left = minutes.get(minute, 0) + hosts
        if left > 0 or (reason, minute) == _PAST:
            minutes[minute] = max(0, left)
        else:
            del minutes[minute]
        self._changed.add((reason, minute))


def _key(reason: WaitReason, minute: int) -> bytes:
    return _PREFIX + f"{minute}/{reason}".encode()


class WaitCounts:
    """Counts the waiting hosts in portions. *elsewhere*: whether another agent has a host.

    *counts* are the hosts by reason, the most frequent first, as of the last count.
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

    def step(self, now: float, wall: float) -> None:
        """Count the next portion of the hosts in memory; call a few times a second."""
        if not self._left:
            if now - self._began < max(_EVERY, _PER_HOST * len(self._workbench.hosts)):
                return
            self._begin(now)
        self._count_portion(_PORTION, now, wall)

    def count(self, now: float, wall: float) -> None:
        self._begin(now)
        self._count_portion(len(self._left), now, wall)

    def _begin(self, now: float) -> None:
        self._began, self._found = now, {}
        self._left = list(self._workbench.hosts.values())

    def _count_portion(self, most: int, now: float, wall: float) -> None:
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


RESIDENT = 1e13  # the ``due`` time of hosts in memory (wall seconds; some 300,000 years away)
EXCLUDED_BAND = 1e12  # what is added to the times of hosts that wait for a rule
FAR_AHEAD = 30.0
"""Seconds; a host that must wait longer makes room, and is not brought into memory yet."""
_STEP, _AHEAD_MAX = 1e-3, 1.0
"""Seconds by which a host precedes others in its next phase: for each missed phase; at most."""


class WaitingList:
    """Reads and writes the ``due`` times of hosts. Records are the caller's to store."""

    def __init__(self, store: Store, policy: Policy) -> None:
        self._store = store
        self._policy = policy
        self.earliest = math.inf  # no host on disk is due before this (wall seconds)
        self.counts = DiskWaits(store)

    def add(
        self, key: str, record: HostRecord, wall: float, since: float | None = None,
        ahead: float = 0.0,
    ) -> None:  # fmt: skip
        """Let a host wait by its record; if due, in order of coming, *since*, or *ahead* of it."""
        barred = self._apply_rule(key, record, wall) or self._out_of_phase(key, record, wall)
        when = max(wall if since is None else since, record.next_fetch) - ahead
        record.due = when + EXCLUDED_BAND if barred else when
        self._store.put_due(record.due, key)
        self.counts.change(due_time(record.due), record, 1)
        self.earliest = min(self.earliest, when)

    def _out_of_phase(self, key: str, record: HostRecord, wall: float) -> bool:
        if self._policy.phases is None:
            return False
        exclusion = self._policy.exclusion_of_visit(key, "", wall)
        if exclusion is None or record.next_fetch >= exclusion.until:
            return False
        record.next_fetch, record.why = min(exclusion.until, NEVER), str(exclusion)
        return True

    def put_off(self, key: str, record: HostRecord, wall: float) -> bool:
        """Let a due host wait for its next phase, if it missed one; whether it did."""
        phases, due = self._policy.phases, record.due
        if phases is None or due is None:
            return False
        if phases.opens(key, wall) - wall < FAR_AHEAD + _AHEAD_MAX:
            return False
        before = record.next_fetch - due + (EXCLUDED_BAND if due >= EXCLUDED_BAND else 0.0)
        self.leave(key, record)
        self.add(key, record, wall, ahead=min(max(before, 0.0) + _STEP, _AHEAD_MAX))
        return True

    def is_far(self, key: str, wall: float) -> bool:
        phases = self._policy.phases
        return phases is not None and phases.opens(key, wall) - wall >= FAR_AHEAD

    def leave(self, key: str, record: HostRecord) -> None:
        """Take a host off the list, if it is on it; its record keeps the reason."""
        if record.due is not None:
            self._store.delete_due(record.due, key)
            if record.due < RESIDENT:
                self.counts.change(due_time(record.due), record, -1)
            record.due = None

    def next_in(self, wall: float) -> float | None:
        """Seconds until a host on disk may be visited (negative: overdue); None if none waits."""
        if self.earliest >= RESIDENT:
            return None
        waits = [when - wall for when, _ in self._store.due(1, before=EXCLUDED_BAND)]
        barred = self._store.due(1, EXCLUDED_BAND, before=RESIDENT)
        waits += [when - EXCLUDED_BAND - wall for when, _ in barred]
        return min(waits, default=None)

    def due(self, room: int, wall: float) -> list[str]:
        """Up to *room* hosts that may be visited now, or soon."""
        if room <= 0 or self.earliest > wall + FAR_AHEAD:
            return []
        found: list[str] = []
        earliest = [self._due_of(band, room, wall, found) for band in (0.0, EXCLUDED_BAND)]
        self.earliest = min(earliest)
        return found

    def _due_of(self, band: float, room: int, wall: float, found: list[str]) -> float:
        before = RESIDENT if band else EXCLUDED_BAND
        for due, key in self._store.due(room - len(found) + 1, band, before=before):
            when = due - band
            # A clock that was set back makes a time look far away.
            far = when - wall > FAR_AHEAD and (band or when - wall < LATEST)
            if far or len(found) == room:
                return when
            found.append(key)
        return math.inf

    def bring_forward(self, key: str, record: HostRecord, wall: float) -> bool:
        """Let a host wait no longer than its record names; False if it does not."""
        due = record.due
        if due is None or due >= RESIDENT:
            return False
        if due_time(due) - max(wall, record.next_fetch) < _AHEAD_MAX:
            return False
        self.leave(key, record)
        self.add(key, record, wall)
        return True

    def update_rule(self, key: str, record: HostRecord, wall: float) -> bool:
        """Let a host wait by the rules of now; False if nothing changed."""
        before = replace(record)
        self._apply_rule(key, record, wall)
        if (record.next_fetch, record.why) == (before.next_fetch, before.why):
            return False
        self.leave(key, before)
        self.add(key, record, wall)
        return True

    def expedite(self, key: str, record: HostRecord, wall: float) -> None:
        """A waiting host got a URL that no URL rule may concern: its delay runs from now."""
        subject = excluded_pattern(record.why) if record.why else None
        if subject is not None and subject.kind is PatternKind.PREFIX:
            self.leave(key, record)
            record.next_fetch, record.why = wall + self._policy.for_host(key).delay, ""
            self.add(key, record, wall)

    def _apply_rule(self, key: str, record: HostRecord, wall: float) -> bool:
        """Whether a host has to wait for a rule; rules of its address count while they exist."""
        if not waits_for_rule(record.why):
            return False
        exclusion = self._policy.exclusion_of_visit(key, "", wall)
        subject = excluded_pattern(record.why)
        if exclusion is None and subject is not None:
            exclusion = self._policy.exclusion_of_rule(subject, wall)
        if exclusion is None:
            # The time of its last visit is lost: its delay runs from now.
            delay = max(self._policy.for_host(key).delay, record.crawl_delay)
            record.next_fetch, record.why = wall + delay, ""
        else:
            record.next_fetch, record.why = min(exclusion.until, NEVER), str(exclusion)
        return exclusion is not None


def due_time(due: float) -> float:
    return due - EXCLUDED_BAND if due >= EXCLUDED_BAND else due
