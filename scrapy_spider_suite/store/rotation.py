"""Which hosts leave memory and which come from disk, while there is no room for all of them.

Without a window, a host that has had some visits, or must wait, makes room for hosts that are due.
With one, hosts leave together when the window moves. Also: a policy that changes while hosts are
in memory and on disk. All of it is done in portions, so that no step takes long.
"""

from __future__ import annotations

import math

from scrapy_spider_suite.frontier.politeness import Pace
from scrapy_spider_suite.frontier.windows import HostWindow, has_nothing_left
from scrapy_spider_suite.frontier.workbench import AddressState, HostState, Visit
from scrapy_spider_suite.store.host_queues import EXCLUDED_BAND, FAR_AHEAD
from scrapy_spider_suite.store.residency import Residents, crawl_delay
from scrapy_spider_suite.store.rows import HostRecord

_PORTION = 1_000
"""Hosts and addresses in memory that are updated at a time."""
_ON_DISK = 200
"""Hosts on disk that are examined at a time."""


class PolicyUpdate:
    """Brings hosts and addresses up to date with the policy.

    A host is updated before its visit, all others in portions (`step`): a shorter delay or a lifted
    block reaches them, too.
    """

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        self._policy = residents.policy
        self._workbench = residents.workbench
        self._revision = self._policy.revision
        self._hosts: list[HostState] = []
        self._addresses: list[AddressState] = []
        # Where to continue; an earlier run may have had other rules.
        self._on_disk: tuple[float, str] | None = (EXCLUDED_BAND, "")

    @property
    def busy(self) -> bool:
        behind = self._revision != self._policy.revision
        return behind or bool(self._hosts or self._addresses) or self._on_disk is not None

    def step(self, now: float) -> None:
        if self._revision != self._policy.revision:
            self._revision = self._policy.revision
            self._hosts = list(self._workbench.hosts.values())
            self._addresses = list(self._workbench.addresses.values())
            self._on_disk = (EXCLUDED_BAND, "")
        left = _PORTION
        while self._addresses and left:
            left -= 1
            self._update_address(self._addresses.pop(), now)
        while self._hosts and left:
            left -= 1
            host = self._hosts.pop()
            if self._workbench.hosts.get(host.key) is host:
                self._update_host(host, now)
                self.is_excluded(host, now)
        self._residents.records.save()
        if self._on_disk is not None and left:
            self._on_disk = self.examine_excluded(*self._on_disk, _ON_DISK, now)

    def examine_excluded(
        self, since: float, after: str, limit: int, now: float
    ) -> tuple[float, str] | None:
        """Examine *limit* hosts that wait on disk for a rule, behind *after* at *since*.

        Returns where to continue, None at the end.
        """
        residents = self._residents
        wall = now + residents.records.wall_offset
        rows = residents.waiting.excluded(since, after, limit)
        for _, key in rows:
            record = residents.records.get(key)
            if residents.waiting.update_rule(key, record, wall):
                residents.records.changed(key, record)
        residents.records.save()
        return rows[-1] if len(rows) == limit else None

    def check(self, visit: Visit, now: float) -> bool:
        """Cancel a visit whose host is excluded or has an old pace; False then."""
        host, address = visit.host, visit.address
        revision = self._policy.revision
        behind = host.revision != revision or address.revision != revision
        if not behind and not self.is_excluded(host, now):
            return True
        self._workbench.cancel(visit)
        if behind:  # it leaves at once if the new pace allows it
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

    def out_of_phase(self, host: HostState, now: float) -> bool:
        """Whether *host* waits for a phase that is far off; sets its exclusion."""
        residents = self._residents
        far = residents.waiting.is_far(host.key, now + residents.records.wall_offset)
        return far and self.is_excluded(host, now)

    def is_excluded(self, host: HostState, now: float) -> bool:
        wall = now + self._residents.records.wall_offset
        exclusion = self._policy.exclusion_of_visit(host.key, host.connect_to, wall)
        if exclusion != host.exclusion:
            until = -math.inf if exclusion is None else now + (exclusion.until - wall)
            self._workbench.set_exclusion(host, exclusion, until)
            # Readers of the job see why.
            self._residents.records.touch(host.key)
            self._residents.records.save()
        return exclusion is not None


_TURN = 16
"""Visits after which a host makes room for hosts on disk that are due."""
_GOING = 50
"""Hosts that make room at a time."""
_EXAMINED = 1_000
"""Hosts that are examined for that at a time."""
_LEAVING = 200
"""Hosts that leave at a time when a window moves."""
_COMING = 25
"""Hosts that come at a time."""


class Rotation:
    """Has *residents* leave and come; with a window as the window says."""

    def __init__(self, residents: Residents, policy_update: PolicyUpdate) -> None:
        self._residents = residents
        self._records = residents.records
        self._fronts = residents.fronts
        self._waiting = residents.waiting
        self._workbench = residents.workbench
        self._window = residents.window
        self._policy_update = policy_update
        self._candidates: list[HostState] = []  # that may have to make room
        self._leaving: list[HostState] | None = None  # while a window moves, who makes room

    def _wall(self, now: float) -> float:
        return now + self._records.wall_offset

    # Visits

    def begin_visit(self, host: HostState) -> None:
        host.held = self._window is not None

    def after_visit(self, host: HostState, now: float, *, visited: bool = True) -> None:
        """Refill the front, or make room for hosts on disk. Not *visited*: robots.txt comes first.
        """
        host.turns += 1
        if self._window is not None:
            if host.more and not host.front:
                self._fronts.refill(host)
            self._window.visit_over(host, visited=visited)
            self._advance(self._window, now)
            return
        # Also a host that seems to be empty: the page that is out may bring its next URL, forever.
        goes = host.turns >= _TURN
        if host.front or host.more:
            goes = goes or not host.front or host.ready_at() - now >= FAR_AHEAD
        if goes and self._crowded(now) and self._may_leave(host):
            self._residents.leave(host, now)
            self._records.save()
            self.admit(now)
        elif host.more and not host.front:
            self._fronts.refill(host)
            self._workbench.offer(host)

    def _advance(self, window: HostWindow, now: float) -> None:
        if self._leaving is None:
            if not window.row_over():
                return
            crowded = self._waiting.earliest <= self._wall(now) + FAR_AHEAD
            self._leaving = window.hosts()[::-1] if crowded else []
        self._move(window, self._leaving, now)

    def _move(self, window: HostWindow, leaving: list[HostState], now: float) -> None:
        for _ in range(min(_LEAVING, len(leaving))):
            host = leaving.pop()
            here = self._workbench.hosts.get(host.key) is host
            if here and not has_nothing_left(host) and self._may_leave(host):
                self._residents.leave(host, now)
        self._records.save()
        if not leaving:
            self._leaving = None
            window.moved()
            self.admit(now)

    def _crowded(self, now: float) -> bool:
        return self._waiting.earliest <= self._wall(now) and self._residents.room <= 0

    @staticmethod
    def _may_leave(host: HostState) -> bool:
        return host.idle() and not any(entry.volatile for _, entry in host.front)

    # Housekeeping

    def tick(self, now: float) -> None:
        self._residents.unresolved.tick()
        if not self._candidates:
            self._candidates = list(self._workbench.hosts.values())[::-1]
        for _ in self._workbench.forget_addresses(now):
            pass
        if self._window is not None:
            self._window.pass_over(now)
            self._advance(self._window, now)
        self.step(now)
        self._records.save()

    def step(self, now: float) -> bool:
        more = self._make_room(now)
        return self.admit(now) or more

    def admit(self, now: float) -> bool:
        """Bring in some hosts from disk; whether there may be more, and room."""
        residents, window, wall = self._residents, self._window, self._wall(now)
        if self._leaving is not None and window is not None:
            self._advance(window, now)
            return True
        more = window is not None and window.step()
        more = residents.released.step(wall) or more
        due, late = self._waiting.due(min(_COMING, residents.room), wall), False
        for key in due:
            record = self._records.touch(key)
            if self._put_off(key, record, wall):
                late = True
            else:
                residents.bring_in(key, record, now, more=True)
        self._records.save()
        return more or late or len(due) == _COMING

    def _put_off(self, key: str, record: HostRecord, wall: float) -> bool:
        if self._waiting.put_off(key, record, wall):
            return True
        if not self._residents.held_back(key):
            return False
        self._waiting.leave(key, record)
        self._residents.wait_on_disk(key, record, wall)
        return True

    def _make_room(self, now: float) -> bool:
        """Let hosts leave that have nothing left, or must wait while others are due on disk.

        A portion of the hosts in memory is examined; whether there are more of them.
        """
        crowded, most, left = self._crowded(now), _GOING, self._candidates
        for _ in range(min(_EXAMINED, len(left))):
            host = left.pop()
            if self._workbench.hosts.get(host.key) is not host:
                continue
            if host.front or host.more:
                goes = self._has_to_wait(host, now, crowded=crowded) and self._may_leave(host)
            else:
                goes = (crowded or host.next_fetch <= now) and host.idle()
                goes = goes and not self._fronts.leased(host.key)
            if goes:
                self._residents.leave(host, now)
                most -= 1
                if not most:
                    break
        return bool(left)

    def _has_to_wait(self, host: HostState, now: float, *, crowded: bool) -> bool:
        if crowded and self._residents.held_back(host.key):
            return True
        # A host whose phase is over leaves though there is room (K8).
        over = self._residents.store.durable and self._policy_update.out_of_phase(host, now)
        return (over or crowded) and host.ready_at() - now >= FAR_AHEAD

    def next_due_in(self, now: float) -> float | None:
        """Seconds until a host outside the workbench may be visited; None if none waits."""
        residents = self._residents
        waits = [residents.unresolved.next_in(now), self._waiting.next_in(self._wall(now))]
        if self._window is not None:
            waits.append(self._window.next_in(now))
        if residents.released.busy:
            waits.append(0.0)
        known = [wait for wait in waits if wait is not None]
        return max(0.0, min(known)) if known else None
