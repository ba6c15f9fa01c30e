"""Which hosts are in memory, and how much of their queues (workbench virtualisation, U13).

A host is *resident* (on the workbench, with a short front of its queue), or it waits on disk
in the ``due`` family under the time at which it may be visited, or it has nothing pending.
Resident hosts stand in ``due`` as well, under a time that never comes: after a kill that is
how they are found again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from scrapy_spider_suite.frontier.entries import LAST, Entry
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.workbench import HostState, Workbench
from scrapy_spider_suite.storage.clocks import AddressClocks, load_clock, note_clock
from scrapy_spider_suite.storage.fronts import Fronts, before
from scrapy_spider_suite.storage.records import HostRecord
from scrapy_spider_suite.storage.sliding import Sliding, bare
from scrapy_spider_suite.storage.store import Store
from scrapy_spider_suite.storage.waiting import AWAY, RESIDENT, WaitingList

_CACHE = 20_000
"""Records of hosts that are not resident, kept so that links to them need no look-up."""
_TURN = 16
"""Visits after which a host makes room for hosts on disk that are due."""
_GOING = 100
"""Hosts that make room at a time: each has its rows written, some 20 to 40 us."""
_LOOKED = 3_000
"""Hosts that are looked at for that at a time."""
_LEAVING = 500
"""Hosts that leave at a time when a window moves: each has its rows written, some 20 to 40 us."""
_COMING = 50
"""Hosts that come at a time: each has its rows read, some 60 to 140 us."""


class Residents:
    """Moves hosts and their fronts between the workbench and the store.

    *floor*, after an unclean end, is the moment at which every host and address counts as
    fetched (None otherwise).
    """

    def __init__(
        self, workbench: Workbench, store: Store, policy: Policy, capacity: int,
        floor: float | None, sliding: Sliding | None = None,
    ) -> None:  # fmt: skip
        self.fronts = Fronts(store)
        self.clocks = AddressClocks(workbench, store, policy, floor)
        self.without_address: dict[str, HostState] = {}
        self._asked_later: dict[str, HostState] = {}  # without address, and nothing to fetch yet
        self._workbench = workbench
        self._store = store
        self._policy = policy
        self._capacity = capacity
        self._floor = floor
        self._sliding = sliding
        self._looked_through: list[HostState] = []  # for who is to make room: those still to come
        self._leaving: list[HostState] | None = None  # while a window moves, who is to make room
        self._records: dict[str, HostRecord] = {}
        self._touched: dict[str, HostRecord] = {}
        self._waiting = WaitingList(store, policy)

    def open(self, now: float, wall: float) -> None:
        """Take over from an earlier run: its resident hosts are due, its clocks go on."""
        # A window begins with those that were in it.
        since = wall if self._sliding is None else 0.0
        rows = self._store.due(1_000, RESIDENT)
        while rows:
            for _, key in rows:
                record = self.touch(key)
                record.due = RESIDENT
                self._waiting.leave(key, record)
                self._waiting.add(key, record, wall, since)
            self.save_touched()
            rows = self._store.due(1_000, RESIDENT)
        self._waiting.earliest = 0.0
        self.clocks.load(now, wall)
        self.admit(now, wall)

    # Records

    def touch(self, key: str) -> HostRecord:
        """The record of a host, about to be changed; `save_touched` stores it."""
        record = self._touched[key] = self.record(key)
        return record

    def record(self, key: str) -> HostRecord:
        """The record of a host, to be looked at."""
        host = self._workbench.hosts.get(key)
        record: HostRecord = self._known(key) if host is None else host.record
        return record

    def _known(self, key: str) -> HostRecord:
        """The record of a host that is not resident."""
        # Touched ones first: the cache may have been emptied since.
        return self._touched.get(key) or self._records.get(key) or self._load(key)

    def left(self, key: str) -> int:
        """How many stored URLs of a host, resident or not, are still to be asked for."""
        host = self._workbench.hosts.get(key)
        record: HostRecord = self._known(key) if host is None else host.record
        return max(0, record.pending - self.fronts.leased(key))

    def _load(self, key: str) -> HostRecord:
        if len(self._records) >= _CACHE and self._store.durable:
            self._records.clear()
        record = self._store.record(key) or HostRecord()
        self._records[key] = record
        return record

    def save_touched(self) -> None:
        """Put the records that were touched into the store's next batch, each once."""
        for key, record in self._touched.items():
            host = self._workbench.hosts.get(key)
            if host is not None:
                self.fronts.set_head(host)
            self._store.put_record(key, record)
        self._touched.clear()

    # Coming and going

    def push(self, entry: Entry, record: HostRecord, now: float, wall: float) -> None:
        """A pending *entry* (its row is stored): into its host's front if it belongs there."""
        host = self._workbench.hosts.get(entry.host)
        if host is None:
            crowded = self._store.durable and self._room <= 0
            if (crowded or record.due is not None) and not entry.volatile:
                head = before(entry.key)
                record.head = head if record.due is None else min(record.head, head)
                if record.due is None:
                    self._wait_on_disk(entry.host, record, wall)
                elif not entry.key.startswith(LAST):
                    self._waiting.hurry(entry.host, record, wall)
                return
            more = record.due is not None
            host = self._bring_in(entry.host, record, now, wall, more=more, expected=True)
        elif self._sliding is not None and not self._sliding.has(host):
            if self._room <= 0 and not entry.volatile and host.idle():
                self._leave(host, wall, now)
                record.head = min(record.head, before(entry.key))
                return
            self._sliding.came(host, expected=True)
        if self.fronts.push(host, entry):
            if host.key in self._asked_later:
                self.without_address[host.key] = self._asked_later.pop(host.key)
            if host.bar is not None and host.bar.of_urls and not entry.key.startswith(LAST):
                self._workbench.set_bar(host, None, -math.inf)  # this one may not be barred
            self._workbench.offer(host)

    def _bring_in(
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
        self._records.pop(key, None)
        self._workbench.hosts[key] = host
        if self._store.durable:
            self._waiting.take_in(key, record)
            self._touched[key] = record
        if more:
            host.cursor, host.more = record.head, True
            self.fronts.refill(host)
        if self._sliding is not None:
            self._sliding.came(host, expected=expected)
        self.want_address(host)
        return host

    def _wait_on_disk(self, key: str, record: HostRecord, wall: float) -> None:
        self._waiting.add(key, record, wall)
        self._touched[key] = record

    def look_at_barred(
        self, since: float, after: str, limit: int, wall: float
    ) -> tuple[float, str] | None:
        """Look whether hosts that wait on disk for a rule still have to, *limit* at a time.

        Begins behind the host *after* of those that wait until *since*; returns where to go on,
        None at the end.
        """
        rows = self._waiting.barred(since, after, limit)
        for _, key in rows:
            record = self._known(key)
            if self._waiting.look_again(key, record, wall):
                self._touched[key] = record
        self.save_touched()
        return rows[-1] if len(rows) == limit else None

    def _leave(self, host: HostState, wall: float, now: float) -> None:
        """Take an idle host out of memory; what it has on disk waits there for its time."""
        record: HostRecord = host.record
        self.fronts.set_head(host)
        note_clock(host, wall - now)
        self._forget(host)
        self._records[host.key] = record
        self._touched[host.key] = record
        if not self._store.durable:
            return
        self._waiting.leave(host.key, record)
        if record.pending:
            self._wait_on_disk(host.key, record, wall)

    def _forget(self, host: HostState) -> None:
        self._workbench.forget(host)
        self.unwant_address(host.key)
        if self._sliding is not None:
            self._sliding.went(host.key)

    def visitor(self, key: str, now: float, wall: float) -> HostState:
        """The host of traffic that has no visit: its clock counts, resident or not."""
        host = self._workbench.hosts.get(key)
        if host is None:
            record = self.touch(key)
            host = self._bring_in(key, record, now, wall, more=record.due is not None)
            self.save_touched()
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

    def next_due_in(self, now: float, wall: float) -> float | None:
        """Seconds until a host outside the workbench may be visited; None if none waits."""
        waits = [host.ready_at() - now for host in self._asked_later.values() if host.front]
        held = None if self._sliding is None else self._sliding.next_in(now)
        waits += [wait for wait in (held, self._waiting.next_in(wall)) if wait is not None]
        return max(0.0, min(waits)) if waits else None

    # Turns

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
                self.fronts.refill(host)
            self._sliding.back(host, visited=visited)
            self._slide(now, wall)
            return
        # Also one that seems to be empty: the page that is out may bring its next one, for ever.
        goes = host.turns >= _TURN
        if host.front or host.more:
            goes = goes or not host.front or host.ready_at() - now >= AWAY
        if goes and self._crowded(wall) and self._may_leave(host):
            self._leave(host, wall, now)
            self.save_touched()
            self.admit(now, wall)
        elif host.more and not host.front:
            self.fronts.refill(host)
            self._workbench.offer(host)

    def _slide(self, now: float, wall: float) -> None:
        """Go on to the window's next row, or move it: others come into memory then."""
        if self._sliding is None:
            return
        if self._leaving is None:
            if not self._sliding.moves_on():
                return
            crowded = self._waiting.earliest <= wall + AWAY
            self._leaving = self._sliding.hosts()[::-1] if crowded else []
        self._move(self._sliding, self._leaving, now, wall)

    def _move(
        self, sliding: Sliding, leaving: list[HostState], now: float, wall: float
    ) -> None:
        """Have a portion of those leave that are *leaving*; the last one moves the window."""
        for _ in range(min(_LEAVING, len(leaving))):
            host = leaving.pop()
            here = self._workbench.hosts.get(host.key) is host
            if here and not bare(host) and self._may_leave(host):
                self._leave(host, wall, now)
        self.save_touched()
        if not leaving:
            self._leaving = None
            sliding.moved()
            self.admit(now, wall)

    @property
    def _room(self) -> int:
        """How many more hosts may come into memory."""
        room = self._capacity - len(self._workbench.hosts)
        return room if self._sliding is None else int(min(room, self._sliding.room))

    def _crowded(self, wall: float) -> bool:
        """Whether a host on disk is due for which there is no room."""
        return self._waiting.earliest <= wall and self._room <= 0

    @staticmethod
    def _may_leave(host: HostState) -> bool:
        """Volatile entries pin their host: they exist nowhere else."""
        return host.idle() and not any(entry.volatile for _, entry in host.front)

    # Giving up

    def drain(self, key: str, limit: int) -> list[Entry]:
        """Take some *limit* pending entries of a host, resident or not, out of its queue.

        None are left when none are returned (leased ones apart).
        """
        host = self._workbench.hosts.get(key)
        if host is None:
            return self.fronts.drain_disk(key, self.touch(key), limit)
        return self.fronts.drain(host, limit)

    def withdraw(self, key: str) -> None:
        """A host is not to be visited any more."""
        host = self._workbench.hosts.get(key)
        if host is not None:
            self._workbench.displace(host)
            self.unwant_address(key)

    def retire(self, key: str) -> None:
        """A host was given up: it needs no memory and no address any more."""
        host = self._workbench.hosts.get(key)
        if host is None:
            record = self.touch(key)
            self._waiting.leave(key, record)

    def resize(self, capacity: int) -> None:
        """Let *capacity* hosts be resident; those that are too many leave when they can."""
        self._capacity = capacity

    def look_up_again(self, now: float) -> None:
        """Have the names of all resident hosts looked up before their next visits.

        They may come to addresses of other names: those begin with the delay of a fresh fetch.
        """
        self.clocks.begin_anew(now)
        for host in self._workbench.hosts.values():
            host.resolved_until = min(host.resolved_until, now)

    def forget(self, key: str) -> None:
        """Drop a host that is idle and has nothing pending from memory and from the waiting list;
        its record is deleted by the caller."""
        host = self._workbench.hosts.get(key)
        record = self.touch(key)
        if record.due is not None:
            self._store.delete_due(record.due, key)
        if host is not None:
            self._forget(host)
        self._records.pop(key, None)
        self._touched.pop(key, None)

    # Addresses

    def want_address(self, host: HostState) -> None:
        """The host's name is to be resolved before it can be visited."""
        self._workbench.displace(host)
        self.without_address[host.key] = host

    def unwant_address(self, key: str) -> None:
        """The host's name needs no look-up any more."""
        self.without_address.pop(key, None)
        self._asked_later.pop(key, None)

    def wanting_address(self, now: float, limit: int) -> Iterator[HostState]:
        """Take up to *limit* hosts whose names may be resolved now, first come first served.

        Hosts that must wait or have nothing queued are put aside until the next tick.
        """
        while self.without_address and limit > 0:
            key = next(iter(self.without_address))
            host = self.without_address.pop(key)
            if host.front and host.ready_at() <= now + 1.0:
                limit -= 1
                yield host
            else:
                self.ask_later(host)

    def ask_later(self, host: HostState) -> None:
        """Put a host that has no address aside until the next tick."""
        self._asked_later[host.key] = host

    # Keeping house

    def tick(self, now: float, wall: float) -> None:
        """Drop hosts that have nothing left, and admit those that wait on disk."""
        self.without_address.update(self._asked_later)
        self._asked_later.clear()
        if not self._looked_through:
            self._looked_through = list(self._workbench.hosts.values())[::-1]
        for _ in self._workbench.forget_addresses(now):
            pass
        if self._sliding is not None:
            self._sliding.pass_over(now)
            self._slide(now, wall)
        self.go_on(now, wall)
        self.save_touched()

    def go_on(self, now: float, wall: float) -> bool:
        """Let some hosts make room, and bring some in; whether there may be more of either."""
        more = self._make_room(now, wall)
        return self.admit(now, wall) or more

    def admit(self, now: float, wall: float) -> bool:
        """Bring in some hosts that wait on disk; whether there may be more of them, and room."""
        if self._leaving is not None:
            self._slide(now, wall)
            return True
        going = self._sliding is not None and self._sliding.go_on()
        room = min(_COMING, self._room)
        due = self._waiting.due(room, wall)
        for key in due:
            self._bring_in(key, self.touch(key), now, wall, more=True)
        self.save_touched()
        return going or len(due) == _COMING

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
                goes = crowded and host.ready_at() - now >= AWAY and self._may_leave(host)
            else:
                goes = (crowded or host.next_fetch <= now) and host.idle()
                goes = goes and not self.fronts.leased(host.key)
            if goes:
                self._leave(host, wall, now)
                most -= 1
                if not most:
                    break
        return bool(left)

    def close(self, wall_offset: float) -> None:
        """Write the clocks of resident hosts and addresses; the hosts are due again."""
        for key, host in self._workbench.hosts.items():
            note_clock(host, wall_offset)
            self._touched[key] = host.record
        self.save_touched()
        self.clocks.save(wall_offset)
