"""A policy that changes while hosts and addresses are in memory, and hosts wait on disk for it.

Nothing is walked at once. Whoever's turn it is, is brought up to date before it goes; the others
follow in portions (`Reviser.go_on`), so that a shorter delay or a block that was lifted reaches
those, too, whose turn would come late or never.

Who is in memory while there is no room for all hosts: who leaves, and who comes from disk.

Without a window, a host that has had some visits, or must wait, makes room for those that are due.
With one they leave together, when the window moves. Either goes a portion at a time.
"""

from __future__ import annotations

import math
from operator import attrgetter

from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.politeness import Pace
from scrapy_spider_suite.frontier.windows import HostWindow, Window, has_nothing_left
from scrapy_spider_suite.frontier.workbench import AddressState, HostState, Visit, Workbench
from scrapy_spider_suite.store.host_queues import EXCLUDED_BAND, FAR_AHEAD
from scrapy_spider_suite.store.residency import ReleasedHosts, Residents

_PORTION = 1_000
"""Hosts and addresses in memory that are revised at a time (some 10 µs each)."""
_ON_DISK = 200
"""Hosts on disk that are looked at at a time (some 20 µs each)."""


class PolicyUpdate:
    """Keeps what was derived from *policy* in step with it."""

    def __init__(self, policy: Policy, workbench: Workbench, residents: Residents) -> None:
        self._policy = policy
        self._workbench = workbench
        self._residents = residents
        self._revision = policy.revision
        self._hosts: list[HostState] = []
        self._addresses: list[AddressState] = []
        # Where to go on; an earlier run may have had other rules.
        self._on_disk: tuple[float, str] | None = (EXCLUDED_BAND, "")

    @property
    def busy(self) -> bool:
        """Whether `go_on` has anything to do."""
        behind = self._revision != self._policy.revision
        return behind or bool(self._hosts or self._addresses) or self._on_disk is not None

    def go_on(self, now: float, wall: float) -> None:
        """Revise the next portion."""
        if self._revision != self._policy.revision:
            self._revision = self._policy.revision
            self._hosts = list(self._workbench.hosts.values())
            self._addresses = list(self._workbench.addresses.values())
            self._on_disk = (EXCLUDED_BAND, "")
        left = _PORTION
        while self._addresses and left:
            left -= 1
            self.revise_address(self._addresses.pop(), now)
        while self._hosts and left:
            left -= 1
            host = self._hosts.pop()
            if self._workbench.hosts.get(host.key) is host:
                self.revise(host, now)
                self.barred(host, now, wall)
        self._residents.records.save()
        if self._on_disk is not None and left:
            self._on_disk = self._residents.look_at_barred(*self._on_disk, _ON_DISK, wall)

    def holds_back(self, visit: Visit, now: float, wall: float) -> bool:
        """Take a visit back whose host is barred, or was to go by the pace of an older policy."""
        host, address = visit.host, visit.address
        revision = self._policy.revision
        behind = host.revision != revision or address.revision != revision
        if not behind and not self.barred(host, now, wall):
            return False
        self._workbench.cancel(visit)
        if behind:  # it goes at once if the new pace allows it
            self.revise(host, now)
            self.revise_address(address, now)
        return True

    def revise(self, host: HostState, now: float) -> None:
        """Let a resident *host* go by the pace that the policy has for it."""
        if host.revision == self._policy.revision:
            return
        host.revision = self._policy.revision
        pace = self._policy.of_host(host.key)
        if self._policy.start_delay:  # something measures its delay, never below the policy's
            pace = Pace(max(pace.delay, host.delay), pace.concurrency, pace.burst)
        host.crawl_delay = self._residents.crawl_delay(host)
        concurrency = 1 if host.crawl_delay else pace.concurrency
        before = host.next_fetch
        self._workbench.set_pace(host, Pace(pace.delay, concurrency, pace.burst), now)
        if host.next_fetch != before:
            self._residents.records.touch(host.key)

    def revise_address(self, address: AddressState, now: float) -> None:
        """Let an *address* go by the pace that the policy has for it."""
        if address.revision != self._policy.revision:
            address.revision = self._policy.revision
            if address.numeric:
                pace = self._policy.of_address(address.numeric)
                self._workbench.set_address_pace(address, pace, now)

    def out_of_phase(self, host: HostState, now: float, wall: float) -> bool:
        """Whether *host* waits for a phase that is far off, also if that was not noticed yet."""
        return self._residents.far(host.key, wall) and self.barred(host, now, wall)

    def barred(self, host: HostState, now: float, wall: float) -> bool:
        """Whether *host* may not be visited now, by rules for it or for its address."""
        bar = self._policy.bar_of_visit(host.key, host.connect_to, wall)
        if bar != host.bar:
            until = -math.inf if bar is None else now + (bar.until - wall)
            self._workbench.set_bar(host, bar, until)
            # Whoever looks at the job sees why.
            self._residents.records.touch(host.key)
            self._residents.records.save()
        return bar is not None


_TURN = 16
"""Visits after which a host makes room for hosts on disk that are due."""
_GOING = 50
"""Hosts that make room at a time: each has its rows written, some 20 to 40 us."""
_LOOKED = 1_000
"""Hosts that are looked at for that at a time, some 1 to 2 us each."""
_LEAVING = 200
"""Hosts that leave at a time when a window moves: each has its rows written, some 20 to 40 us."""
_COMING = 25
"""Hosts that come at a time: each has its rows read, some 60 to 140 us."""


class Rotation:
    """Has *residents* leave and come; with a window as *sliding* says."""

    def __init__(
        self, residents: Residents, workbench: Workbench, reviser: PolicyUpdate,
        sliding: HostWindow | None = None,
    ) -> None:  # fmt: skip
        self._residents = residents
        self._records = residents.records
        self._fronts = residents.fronts
        self._waiting = residents.waiting
        self._workbench = workbench
        self._reviser = reviser
        self._freed = ReleasedHosts(residents)
        self._sliding = sliding
        self._former: HostWindow | None = None  # releases the hosts of a window that is gone
        self._looked_through: list[HostState] = []  # for who is to make room: those still to come
        self._leaving: list[HostState] | None = None  # while a window moves, who is to make room

    def slide(self, window: Window | None) -> None:
        """Have another *window* over the hosts, or none.

        Those in memory are in its first place; who has no room there leaves, a portion at a time.
        """
        former, hosts = self._sliding, list(self._workbench.hosts.values())
        self._sliding = self._residents.sliding = self._leaving = None
        if window is not None:
            self._sliding = self._residents.sliding = HostWindow(window, self._workbench)
            # Who had its turn in the place before is the first to leave.
            self._leaving = self._sliding.take_over(sorted(hosts, key=attrgetter("held")))
        elif former is not None:
            self._former = former
            former.let_go(hosts)

    # Visits

    def hold(self, host: HostState) -> None:
        """A visit of *host* begins: with a window it is the only one in its row."""
        host.held = self._sliding is not None

    def settle_down(
        self, host: HostState, now: float, wall: float, *, visited: bool = True
    ) -> None:
        """After a visit: refill the front, or make room for hosts that wait on disk.

        It has not *visited* its host if that has to be asked for its robots.txt first.
        """
        host.turns += 1
        if self._sliding is not None:
            if host.more and not host.front:
                self._fronts.refill(host)
            self._sliding.back(host, visited=visited)
            self._slide(now, wall)
            return
        # Also one that seems to be empty: the page that is out may bring its next one, for ever.
        goes = host.turns >= _TURN
        if host.front or host.more:
            goes = goes or not host.front or host.ready_at() - now >= FAR_AHEAD
        if goes and self._crowded(wall) and self._may_leave(host):
            self._residents.leave(host, wall, now)
            self._records.save()
            self.admit(now, wall)
        elif host.more and not host.front:
            self._fronts.refill(host)
            self._workbench.offer(host)

    def _slide(self, now: float, wall: float) -> None:
        """Go on to the window's next row, or move it: others come into memory then."""
        if self._sliding is None:
            return
        if self._leaving is None:
            if not self._sliding.moves_on():
                return
            crowded = self._waiting.earliest <= wall + FAR_AHEAD
            self._leaving = self._sliding.hosts()[::-1] if crowded else []
        self._move(self._sliding, self._leaving, now, wall)

    def _move(
        self, sliding: HostWindow, leaving: list[HostState], now: float, wall: float
    ) -> None:
        """Have a portion of those leave that are *leaving*; the last one moves the window."""
        for _ in range(min(_LEAVING, len(leaving))):
            host = leaving.pop()
            here = self._workbench.hosts.get(host.key) is host
            if here and not has_nothing_left(host) and self._may_leave(host):
                self._residents.leave(host, wall, now)
        self._records.save()
        if not leaving:
            self._leaving = None
            sliding.moved()
            self.admit(now, wall)

    def _crowded(self, wall: float) -> bool:
        """Whether a host on disk is due for which there is no room."""
        return self._waiting.earliest <= wall and self._residents.room <= 0

    @staticmethod
    def _may_leave(host: HostState) -> bool:
        """Volatile entries pin their host: they exist nowhere else."""
        return host.idle() and not any(entry.volatile for _, entry in host.front)

    # Keeping house

    def tick(self, now: float, wall: float) -> None:
        """Drop hosts that have nothing left, and admit those that wait on disk."""
        self._residents.unresolved.tick()
        if not self._looked_through:
            self._looked_through = list(self._workbench.hosts.values())[::-1]
        for _ in self._workbench.forget_addresses(now):
            pass
        if self._sliding is not None:
            self._sliding.pass_over(now)
            self._slide(now, wall)
        self.go_on(now, wall)
        self._records.save()

    def go_on(self, now: float, wall: float) -> bool:
        """Let some hosts make room, and bring some in; whether there may be more of either."""
        more = self._make_room(now, wall)
        return self.admit(now, wall) or more

    def admit(self, now: float, wall: float) -> bool:
        """Bring in some hosts that wait on disk; whether there may be more of them, and room."""
        if self._leaving is not None:
            self._slide(now, wall)
            return True
        sliding = self._sliding or self._former
        going = sliding is not None and sliding.go_on()
        going = self._freed.go_on(wall) or going
        room = min(_COMING, self._residents.room)
        due, late = self._waiting.due(room, wall), False
        for key in due:
            record = self._records.touch(key)
            if self._residents.put_off(key, record, wall):
                late = True
            else:
                self._residents.bring_in(key, record, now, wall, more=True)
        self._records.save()
        return going or late or len(due) == _COMING

    def _make_room(self, now: float, wall: float) -> bool:
        """Let hosts go that have nothing left, or must wait while others are due on disk.

        A portion of those in memory is looked at; whether there are more of them.
        """
        crowded, most, left = self._crowded(wall), _GOING, self._looked_through
        for _ in range(min(_LOOKED, len(left))):
            host = left.pop()
            if self._workbench.hosts.get(host.key) is not host:
                continue
            if host.front or host.more:
                goes = self._has_to_wait(host, now, wall, crowded=crowded) and self._may_leave(host)
            else:
                goes = (crowded or host.next_fetch <= now) and host.idle()
                goes = goes and not self._fronts.leased(host.key)
            if goes:
                self._residents.leave(host, wall, now)
                most -= 1
                if not most:
                    break
        return bool(left)

    def _has_to_wait(self, host: HostState, now: float, wall: float, *, crowded: bool) -> bool:
        """Whether a host with something to fetch waits so long that it should do so on disk."""
        if crowded and self._residents.held_back(host.key):
            return True
        # One whose phase is over leaves though there is room (K8).
        over = self._residents.on_disk and self._reviser.out_of_phase(host, now, wall)
        return (over or crowded) and host.ready_at() - now >= FAR_AHEAD

    def next_due_in(self, now: float, wall: float) -> float | None:
        """Seconds until a host outside the workbench may be visited; None if none waits."""
        waits = [self._residents.unresolved.next_in(now), self._waiting.next_in(wall)]
        if self._sliding is not None:
            waits.append(self._sliding.next_in(now))
        if self._freed.at_work:
            waits.append(0.0)
        known = [wait for wait in waits if wait is not None]
        return max(0.0, min(known)) if known else None
