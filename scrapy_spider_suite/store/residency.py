"""Which hosts are in memory, and how much of their queues; which leave and which come.

A host is *resident* (on the workbench, with a short front of its queue), or it waits on disk in
the ``due`` family under the time at which it may be visited, or it has nothing pending. Resident
hosts stand in ``due`` as well, under a time that never comes: so they are found after a kill.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scrapy_spider_suite.frontier.entries import LAST, Entry
from scrapy_spider_suite.frontier.outcomes import Event, Pace, State, judge_host
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.windows import HostWindow, has_nothing_left
from scrapy_spider_suite.frontier.workbench import (
    AddressState,
    HostState,
    UnresolvedHosts,
    Visit,
    Workbench,
)
from scrapy_spider_suite.store import host_queues
from scrapy_spider_suite.store.rocks_store import Store
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.store.url_states import NO_ANSWER, UrlStates

HELD = 300.0  # seconds until it is examined again whether a host on disk is still held back

IsForeign = Callable[[str, str], bool]
"""Whether another agent fetches a URL: by host and URL ("" if hosts decide)."""


def crawl_delay(policy: Policy, host: HostState) -> float:
    """The Crawl-delay of *host* in seconds; 0.0 where a rule says to ignore robots.txt."""
    delay = float(host.record.crawl_delay)
    if delay and policy.obeys_robots(host.key, host.connect_to) is False:
        return 0.0
    return delay


class Residents:
    """Moves hosts and their fronts between the workbench and the store.

    *capacity*: how many hosts may be resident; others leave when they can. *floor*: after an
    unclean end, the moment at which every host counts as fetched. Times ``now`` are monotonic.
    """

    def __init__(
        self, workbench: Workbench, store: Store, policy: Policy, capacity: int,
        floor: float | None, clocks: host_queues.AddressClocks, window: HostWindow | None = None,
        *, by_head: bool = False,
    ) -> None:  # fmt: skip
        self.workbench = workbench
        self.store = store
        self.policy = policy
        self.fronts = host_queues.QueueFronts(store)
        self.records = host_queues.HostRecords(store, workbench, self.fronts, by_head=by_head)
        self.clocks = clocks
        self.unresolved = UnresolvedHosts(workbench)
        self.waiting = host_queues.WaitingList(store, policy)
        self.released = ReleasedHosts(self)
        self.window = window
        self._capacity = capacity
        self._floor = floor
        self._is_foreign: IsForeign | None = None

    def open(self, wall: float) -> None:
        """Take over from an earlier run: its resident hosts are due, its clocks go on."""
        # A window begins with the hosts that were in it.
        since = wall if self.window is None else 0.0
        rows = self.store.due(1_000, host_queues.RESIDENT)
        while rows:
            for _, key in rows:
                record = self.records.touch(key)
                record.due = host_queues.RESIDENT
                self.waiting.leave(key, record)
                self.waiting.add(key, record, wall, since)
            rows = self.store.due(1_000, host_queues.RESIDENT)
        self.waiting.earliest = 0.0

    def wall(self, now: float) -> float:
        return now + self.records.wall_offset

    @property
    def room(self) -> int:
        room = self._capacity - len(self.workbench.hosts)
        return room if self.window is None else int(min(room, self.window.room))

    def push(self, entry: Entry, record: HostRecord, now: float) -> None:
        """Let a new pending *entry* wait in memory, if it belongs there."""
        host = self.host_for(entry.host, entry.key, record, now, volatile=entry.volatile)
        if host is not None:
            self.push_front(host, entry)

    def host_for(
        self, name: str, key: bytes, record: HostRecord, now: float, *, volatile: bool = False
    ) -> HostState | None:
        """The host in memory in whose front the URL belongs; None: the URL waits on disk."""
        host = self.workbench.hosts.get(name)
        if host is None:
            parked = self._is_parked(name, record, new=not volatile)
            if not volatile and self._stays_on_disk(name, key, record, now, parked=parked):
                return None
            more = record.due is not None or parked
            host = self.bring_in(name, record, now, more=more, expected=True)
        elif self.window is not None and not self.window.has(host):
            if self.room <= 0 and not volatile and host.idle():
                self.leave(host, now)
                record.head = min(record.head, host_queues.before(key))
                return None
            self.window.host_entered(host, expected=True)
        return None if host.more and key > host.cursor and not volatile else host

    def _stays_on_disk(
        self, name: str, key: bytes, record: HostRecord, now: float, *, parked: bool
    ) -> bool:
        if parked or record.due is not None:
            record.head = min(record.head, host_queues.before(key))
            if not parked and not key.startswith(LAST):
                self.waiting.expedite(name, record, self.wall(now))
            return True
        wall = self.wall(now)
        if not self.store.durable or (self.room > 0 and not self.waiting.is_far(name, wall)):
            return False
        record.head = host_queues.before(key)
        self.wait_on_disk(name, record, wall)
        return True

    def push_front(self, host: HostState, entry: Entry) -> None:
        if self.fronts.push(host, entry):
            if host.key in self.unresolved.later:
                self.unresolved.expedite(host.key)
            exclusion = host.exclusion
            of_urls = exclusion is not None and "://" in exclusion.rule.subject
            if of_urls and not entry.key.startswith(LAST):
                # The rule may not concern this URL.
                self.workbench.set_exclusion(host, None, -math.inf)
            if len(host.front) == 1:  # else it is offered already, if it may be
                self.workbench.offer(host)

    def hold_back(self, is_foreign: IsForeign | None) -> None:
        """Hold back hosts that are foreign from now on, and no others."""
        if is_foreign is not None or self._is_foreign is not None:
            self.released.revision += 1
        self._is_foreign = is_foreign

    def held_back(self, key: str) -> bool:
        return self._is_foreign is not None and self._is_foreign(key, "")

    def _is_parked(self, key: str, record: HostRecord, *, new: int = 0) -> bool:
        """Whether a host is being handed over: rows on disk, besides *new* ones, and not due."""
        if self._is_foreign is None or record.due is not None:
            return False
        return record.pending > new and self.held_back(key)

    def bring_in(
        self, key: str, record: HostRecord, now: float, *, more: bool, expected: bool = False
    ) -> HostState:
        """Make a host resident; with *more*, it has rows on disk; *expected*: an entry follows."""
        pace = self.policy.for_host(key)
        delay = max(pace.delay, self.policy.start_delay)
        host = HostState(key, delay, pace.concurrency, pace.burst)
        host.record = record
        self._apply_crawl_delay(host)
        host.revision = self.policy.revision
        host_queues.load_clock(host, now, now + self.records.wall_offset, self._floor)
        self.records.forget(key)
        self.workbench.hosts[key] = host
        if self.store.durable:
            self.waiting.leave(key, record)
            record.due = host_queues.RESIDENT
            self.store.put_due(host_queues.RESIDENT, key)
            self.store.put_record(key, record)
        if more:
            host.cursor, host.more = record.head, True
            self.fronts.refill(host)
        if self.window is not None:
            self.window.host_entered(host, expected=expected)
        self.unresolved.add(host)
        return host

    def wait_on_disk(self, key: str, record: HostRecord, wall: float) -> None:
        self.waiting.add(key, record, wall, wall + HELD if self.held_back(key) else None)
        self.store.put_record(key, record)

    def leave(self, host: HostState, now: float) -> None:
        record: HostRecord = host.record
        self.fronts.set_head(host)
        host_queues.note_clock(host, self.records.wall_offset)
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
        """The host of traffic that has no visit, brought in if need be."""
        host = self.workbench.hosts.get(key)
        if host is None:
            record = self.records.touch(key)
            more = record.due is not None or self._is_parked(key, record)
            host = self.bring_in(key, record, now, more=more)
        return host

    def set_crawl_delay(self, host: HostState, seconds: float) -> None:
        """The robots.txt of *host* wants *seconds* between fetches (0.0: no delay)."""
        host.record.crawl_delay = seconds
        self._apply_crawl_delay(host)
        self.workbench.offer(host)

    def _apply_crawl_delay(self, host: HostState) -> None:
        host.crawl_delay = crawl_delay(self.policy, host)
        host.concurrency = 1 if host.crawl_delay else self.policy.for_host(host.key).concurrency

    def retire(self, key: str) -> None:
        """Take a host without pending URLs off the waiting list, if it is not in memory."""
        if self.workbench.hosts.get(key) is None:
            self.waiting.leave(key, self.records.touch(key))

    def forget(self, key: str) -> None:
        """Remove an idle host without URLs from memory and waiting list, but not its record."""
        host = self.workbench.hosts.get(key)
        self.waiting.leave(key, self.records.touch(key))
        if host is not None:
            self._remove(host)
        self.records.forget(key)


_PORTION = 200  # hosts that are examined at a time


class ReleasedHosts:
    """Lets hosts on disk that are held back no longer wait for their own times.

    They are among the hosts that are due within `HELD`, those of an earlier process too.
    *revision* goes up when other hosts are held back than before.
    """

    def __init__(self, residents: Residents) -> None:
        self.revision = 0
        self._residents = residents
        self._examined = 0  # the revision of the pass under way
        self._left: list[tuple[float, float, str]] = []  # since, until, after which host

    @property
    def busy(self) -> bool:
        return bool(self._left) or self._examined != self.revision

    def step(self, wall: float) -> bool:
        """Examine a portion; whether there is more. A change starts another pass afterwards."""
        residents = self._residents
        records, waiting = residents.records, residents.waiting
        if not self._left and self.busy:
            self._examined = self.revision
            begins = (host_queues.EXCLUDED_BAND + wall, wall)
            # A second more: hosts that were held back just now are due exactly then.
            self._left = [(begin, begin + HELD + 1.0, "") for begin in begins]
        if self._left:
            since, until, after = self._left.pop()
            rows = residents.store.due(_PORTION, since, after, before=until)
            for _, key in rows:
                if not residents.held_back(key):
                    record = records.get(key)
                    if waiting.bring_forward(key, record, wall):
                        residents.store.put_record(key, record)
            if len(rows) == _PORTION:
                self._left.append((rows[-1][0], until, rows[-1][1]))
        return self.busy


_FAILED_AT_ONCE = 2_000  # URLs that fail in one step


class HostHealth:
    """Postpones hosts by their answers, or gives them up (`politeness.judge_host`).

    All pending URLs of a host that was given up fail, a part at a time; each goes to
    *release_holder*. After a restart the first visit of a dead host gives it up again.
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
        self.given_up: dict[str, Event] = {}
        """Hosts that were given up and still have pending URLs, and why."""

    def judge(
        self, host: HostState, event: Event, now: float, retry_after: float | None = None
    ) -> None:
        record: HostRecord = host.record
        back_off = self._residents.policy.back_off
        back_offs = host.back_offs or record.failures
        if not back_offs or now >= host.back_off_end:  # requests under way together fail as one
            back_offs += 1
        verdict = judge_host(event, record.failures, back_off, retry_after, back_offs)
        record.failures = verdict.failures
        if not verdict.failures:
            host.back_offs = 0
        if verdict.wait:
            host.back_offs, host.back_off_end = back_offs, now + verdict.wait
            self._workbench.postpone(host, now + verdict.wait, verdict.why)
            if event in NO_ANSWER:
                host.resolved_until = now  # its address may have changed
            self._records.touch(host.key)
        if verdict.dead and not record.dead:
            record.dead = Event.HOST_DEAD.value
            self._states.counters.dead_hosts += 1
            self.give_up(host.key, Event.HOST_DEAD, now)

    def no_address(self, host: HostState, event: Event, now: float) -> None:
        """The name of *host* has no address: give it up, or resolve it again later."""
        if event.outcome.state is State.FAILED:
            host.record.dead = event.value
            self.give_up(host.key, event, now)
            return
        host.back_off_end = min(host.back_off_end, now)  # a name may be asked for before that
        self.judge(host, event, now)
        if not host.record.dead:
            self._residents.unresolved.add(host)

    def postpone(self, host: HostState, until: float, why: str) -> None:
        self._workbench.postpone(host, until, why)
        self._records.touch(host.key)

    def give_up(self, key: str, event: Event, now: float) -> None:
        self.given_up[key] = event
        host = self._workbench.hosts.get(key)
        if host is not None:
            self._workbench.displace(host)
            self._residents.unresolved.drop(key)
        self._fail_pending(key, _FAILED_AT_ONCE, now)

    def cancel_giving_up(self, key: str) -> None:
        self.given_up.pop(key, None)
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
        left = _FAILED_AT_ONCE
        for key in list(self.given_up):
            left -= max(1, self._fail_pending(key, left, now))
            if left <= 0:
                break

    def _fail_pending(self, key: str, limit: int, now: float) -> int:
        event = self.given_up[key]
        fronts, failed = self._residents.fronts, 0
        while failed < limit:
            portion, host = min(limit - failed, 500), self._workbench.hosts.get(key)
            if host is None:
                entries = fronts.drain_disk(key, self._records.touch(key), portion)
            else:
                entries = fronts.drain(host, portion)
            if not entries:
                if not fronts.leased(key):
                    del self.given_up[key]
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


_UPDATED = 1_000  # hosts and addresses in memory that are updated at a time
_EXAMINED_ON_DISK = 200  # hosts on disk that are examined at a time


class PolicyUpdate:
    """Brings hosts and addresses up to date with the policy: before a visit, or in portions."""

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        self._policy = residents.policy
        self._workbench = residents.workbench
        self._revision = self._policy.revision
        self._hosts: list[HostState] = []
        self._addresses: list[AddressState] = []
        # Where to continue on disk; an earlier run may have had other rules.
        self._on_disk: tuple[float, str] | None = (host_queues.EXCLUDED_BAND, "")

    @property
    def busy(self) -> bool:
        behind = self._revision != self._policy.revision
        return behind or bool(self._hosts or self._addresses) or self._on_disk is not None

    def step(self, now: float) -> None:
        if self._revision != self._policy.revision:
            self._revision = self._policy.revision
            self._hosts = list(self._workbench.hosts.values())
            self._addresses = list(self._workbench.addresses.values())
            self._on_disk = (host_queues.EXCLUDED_BAND, "")
        left = _UPDATED
        while self._addresses and left:
            left -= 1
            self._update_address(self._addresses.pop(), now)
        while self._hosts and left:
            left -= 1
            host = self._hosts.pop()
            if self._workbench.hosts.get(host.key) is host:
                self._update_host(host, now)
                self.is_excluded(host, now)
        if self._on_disk is not None and left:
            self._on_disk = self.examine_excluded(*self._on_disk, _EXAMINED_ON_DISK, now)

    def examine_excluded(
        self, since: float, after: str, limit: int, now: float
    ) -> tuple[float, str] | None:
        """Examine *limit* hosts that wait on disk for a rule; return where to continue."""
        residents = self._residents
        since = max(since, host_queues.EXCLUDED_BAND)
        rows = residents.store.due(limit, since, after, before=host_queues.RESIDENT)
        for _, key in rows:
            record = residents.records.get(key)
            if residents.waiting.update_rule(key, record, residents.wall(now)):
                residents.store.put_record(key, record)
        return rows[-1] if len(rows) == limit else None

    def check(self, visit: Visit, now: float) -> bool:
        """Cancel a visit whose host is excluded or has an old pace; False then."""
        host, address = visit.host, visit.address
        revision = self._policy.revision
        behind = host.revision != revision or address.revision != revision
        if not behind and not self.is_excluded(host, now):
            return True
        self._workbench.cancel(visit)
        if behind:  # the next visit begins at once if the new pace allows it
            self._update_host(host, now)
            self._update_address(address, now)
        return False

    def _update_host(self, host: HostState, now: float) -> None:
        if host.revision == self._policy.revision:
            return
        host.revision = self._policy.revision
        pace = self._policy.for_host(host.key)
        if self._policy.start_delay:  # something measures its delay, never below the policy's
            pace = Pace(max(pace.delay, host.delay), pace.concurrency, pace.burst)
        host.crawl_delay = crawl_delay(self._policy, host)
        concurrency = 1 if host.crawl_delay else pace.concurrency
        before = host.next_fetch
        self._workbench.set_pace(host, Pace(pace.delay, concurrency, pace.burst), now)
        if host.next_fetch != before:
            self._residents.records.touch(host.key)

    def _update_address(self, address: AddressState, now: float) -> None:
        if address.revision != self._policy.revision:
            address.revision = self._policy.revision
            if address.numeric:
                pace = self._policy.for_address(address.numeric)
                self._workbench.set_address_pace(address, pace, now)

    def is_excluded(self, host: HostState, now: float) -> bool:
        """Whether a rule or a phase excludes *host* now; notes it at the host."""
        if host.exclusion is None and not self._policy.may_exclude:
            return False
        wall = now + self._residents.records.wall_offset
        exclusion = self._policy.exclusion_of_visit(host.key, host.connect_to, wall)
        if exclusion != host.exclusion:
            until = -math.inf if exclusion is None else now + (exclusion.until - wall)
            self._workbench.set_exclusion(host, exclusion, until)
            self._residents.records.touch(host.key)
        return exclusion is not None


_TURN = 16  # visits after which a host makes room for hosts on disk that are due
_GOING = 50  # hosts that make room at a time
_EXAMINED = 1_000  # hosts in memory that are examined for that at a time
_PER_HOST, _PER_HOST_CROWDED = 4e-4, 2e-4  # seconds between two looks at all hosts, for each host
_LEAVING = 200  # hosts that leave at a time when a window moves
_COMING = 25  # hosts that come at a time


class Rotation:
    """Moves *residents* out of memory and others in.

    Without a window, a host that has had some visits, or must wait, makes room for hosts that are
    due. With one, hosts leave together when the window moves. No step takes long.
    """

    def __init__(self, residents: Residents, policy_update: PolicyUpdate) -> None:
        self._residents = residents
        self._records = residents.records
        self._waiting = residents.waiting
        self._workbench = residents.workbench
        self._window = residents.window
        self._policy_update = policy_update
        self._candidates: list[HostState] = []  # that may have to make room
        self._looked = -math.inf
        self._leaving: list[HostState] | None = None  # the hosts that make room for a window

    def after_visit(self, host: HostState, now: float, *, visited: bool = True) -> None:
        """Refill the front, or make room for hosts on disk. Not *visited*: robots.txt is next."""
        host.turns += 1
        if self._window is not None:
            if host.more and not host.front:
                self._residents.fronts.refill(host)
            self._window.visit_over(host, visited=visited)
            self._advance(self._window, now)
            return
        # Also a host that seems to be empty: the page that is out may bring its next URL, forever.
        goes = host.turns >= _TURN
        if host.front or host.more:
            goes = goes or not host.front or host.ready_at() - now >= host_queues.FAR_AHEAD
        if goes and self._crowded(now) and self._may_leave(host):
            self._residents.leave(host, now)
            self.admit(now)
        elif host.more and not host.front:
            self._residents.fronts.refill(host)
            self._workbench.offer(host)

    def _advance(self, window: HostWindow, now: float) -> None:
        if self._leaving is None:
            if not window.row_over():
                return
            crowded = self._waiting.earliest <= self._residents.wall(now) + host_queues.FAR_AHEAD
            self._leaving = window.hosts()[::-1] if crowded else []
        for _ in range(min(_LEAVING, len(self._leaving))):
            host = self._leaving.pop()
            here = self._workbench.hosts.get(host.key) is host
            if here and not has_nothing_left(host) and self._may_leave(host):
                self._residents.leave(host, now)
        if not self._leaving:
            self._leaving = None
            window.moved()
            self.admit(now)

    def _crowded(self, now: float) -> bool:
        room_wanted = self._waiting.earliest <= now + self._records.wall_offset
        return room_wanted and self._residents.room <= 0

    @staticmethod
    def _may_leave(host: HostState) -> bool:
        return host.idle() and not any(entry.volatile for _, entry in host.front)

    def tick(self, now: float) -> None:
        self._residents.unresolved.tick()
        per_host = _PER_HOST_CROWDED if self._crowded(now) else _PER_HOST
        if not self._candidates and now - self._looked >= per_host * len(self._workbench.hosts):
            self._candidates = list(self._workbench.hosts.values())[::-1]
            self._looked = now
        for _ in self._workbench.forget_addresses(now):
            pass
        if self._window is not None:
            self._window.pass_over(now)
            self._advance(self._window, now)
        self.step(now)

    def step(self, now: float) -> bool:
        more = self._make_room(now)
        return self.admit(now) or more

    def admit(self, now: float) -> bool:
        """Bring in some hosts from disk; whether there may be more, and room."""
        residents, window = self._residents, self._window
        wall = now + self._records.wall_offset
        if self._leaving is not None and window is not None:
            self._advance(window, now)
            return True
        more = window is not None and window.step()
        more = residents.released.step(wall) or more
        due, late = self._waiting.due(min(_COMING, residents.room), wall), False
        for key in due:
            record = self._records.touch(key)
            if self._waiting.put_off(key, record, wall):
                late = True
            elif residents.held_back(key):
                late = True
                self._waiting.leave(key, record)
                residents.wait_on_disk(key, record, wall)
            else:
                residents.bring_in(key, record, now, more=True)
        return more or late or len(due) == _COMING

    def _make_room(self, now: float) -> bool:
        """Let idle hosts leave, and those that wait while others are due; whether to go on."""
        crowded, most, left = self._crowded(now), _GOING, self._candidates
        for _ in range(min(_EXAMINED, len(left))):
            host = left.pop()
            if self._workbench.hosts.get(host.key) is not host:
                continue
            if host.front or host.more:
                goes = self._has_to_wait(host, now, crowded=crowded) and self._may_leave(host)
            else:
                goes = (crowded or host.next_fetch <= now) and host.idle()
                goes = goes and not self._residents.fronts.leased(host.key)
            if goes:
                self._residents.leave(host, now)
                most -= 1
                if not most:
                    break
        return bool(left)

    def _has_to_wait(self, host: HostState, now: float, *, crowded: bool) -> bool:
        if crowded and self._residents.held_back(host.key):
            return True
        # A host whose phase is over leaves though there is room.
        over = self._residents.store.durable and (
            self._waiting.is_far(host.key, self._residents.wall(now))
            and self._policy_update.is_excluded(host, now)
        )
        return (over or crowded) and host.ready_at() - now >= host_queues.FAR_AHEAD

    def next_due_in(self, now: float) -> float | None:
        """Seconds until a host outside the workbench may be visited; None if none waits."""
        residents = self._residents
        waits = [residents.unresolved.next_in(now), self._waiting.next_in(residents.wall(now))]
        if self._window is not None:
            waits.append(self._window.next_in(now))
        if residents.released.busy:
            waits.append(0.0)
        known = [wait for wait in waits if wait is not None]
        return max(0.0, min(known)) if known else None
