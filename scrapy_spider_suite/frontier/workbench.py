"""The workbench: hosts by address by time (BUbiNG, §4 "The workbench").

A heap of addresses, each a heap of hosts, each with a short front of its queue. Invariant: the
recorded key of an address (or host) in a heap is a lower bound of the time at which it may be
visited, and every address (host) that could be visited is in its heap. So, once the top has been
brought up to date, the top may be visited if and only if anything may be.
Traffic without a visit (robots.txt, media) shares the clocks: `begin` and `end` announce it.
"""

from __future__ import annotations

import ctypes
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from msgspec import Struct

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import Pace
from scrapy_spider_suite.frontier.policy import Exclusion

_untrack = ctypes.pythonapi.PyObject_GC_UnTrack
_untrack.restype = None

FOREVER = math.inf
LONG_AGO = -1e9  # monotonic seconds, long before any crawl began

SPARE, SLACK = 4, 16
"""Records in a heap for each that counts, and in addition, before the heap is swept."""


class AddressState(Struct, eq=False):
    """The clock of one address (*concurrency* 0: no limit), and a heap of its hosts."""

    key: str
    delay: float
    concurrency: int
    next_fetch: float
    fetched: float = LONG_AGO  # when its delay began to run
    began: float = LONG_AGO  # when the last transfer began
    numeric: str = ""  # the address by which its pace was chosen; "" for none
    revision: int = 0  # of the policy that chose it
    heap: list[tuple[float, int, HostState]] = []
    hosts: int = 0  # resident hosts that live here
    booked: int = 0  # traffic without a visit that waits for its host, then goes here
    out: int = 0  # visits out, and traffic without a visit that is on the wire
    wire: int = 0  # transfers flowing
    departing: int = 0  # those of which no byte is out yet, where that counts
    waiting: int = 0  # traffic without a visit that waits for this address alone
    intrusions: int = 0  # how often traffic without a visit began here
    recorded: float | None = None  # its key in the workbench's heap
    ticket: int = 0  # of its one record there that counts

    def start_clock(self, now: float) -> None:
        self.fetched = now
        self.next_fetch = max(self.next_fetch, now + self.delay)

    def free(self) -> bool:
        return not self.waiting and (not self.concurrency or self.out < self.concurrency)

    def sweep(self) -> None:
        """Drop records that do not count, where there are too many of them."""
        if len(self.heap) > SPARE * self.hosts + SLACK:
            self.heap = [item for item in self.heap if item[2].recorded == item[1]]
            heapify(self.heap)


class HostState(Struct, eq=False, gc=False):
    """One resident host (a *visit state*): its clock and its queue's front.

    The garbage collector knows neither the host nor its front: collections would walk them all.
    """

    key: str
    delay: float
    concurrency: int
    burst: int
    crawl_delay: float = 0.0
    next_fetch: float = 0.0
    fetched: float = LONG_AGO  # when its delay began to run
    began: float = LONG_AGO  # when the last transfer began
    why: str = ""  # the rule that set next_fetch
    back_offs: int = 0  # in a row, since it came into memory
    back_off_end: float = 0.0  # of the last one
    exclusion: Exclusion | None = None  # why it may not be visited whatever its clock says
    excluded_until: float = 0.0
    revision: int = 0  # of the policy that chose its pace
    address: AddressState | None = None
    connect_to: str = ""  # the numeric address itself; "" if it has none of its own
    resolved_until: float = 0.0
    front: list[tuple[bytes, Entry]] = []  # a heap by queue key; each host has its own
    more: bool = False  # rows beyond the front are on disk
    cursor: bytes = b""  # every row on disk up to this key is in the front, or out
    turns: int = 0  # visits since it came into memory
    held: bool = False  # it had its turn in this row of a sliding window
    out: int = 0
    wire: int = 0
    departing: int = 0  # as of an address
    waiting: int = 0  # traffic without a visit that waits for this host
    intrusions: int = 0
    recorded: int | None = None  # its ticket in its address's heap
    recorded_at: float = 0.0  # its key there
    record: Any = None  # the durable part, the owner's business

    def __post_init__(self) -> None:
        _untrack(ctypes.py_object(self.front))

    def free(self) -> bool:
        return self.out < self.concurrency and not self.waiting and not self.held

    def gap(self) -> float:
        """Seconds between two visits: the configured delay, or a longer Crawl-delay."""
        return max(self.delay, self.crawl_delay)

    def start_clock(self, now: float) -> None:
        self.fetched = now
        self.next_fetch = max(self.next_fetch, now + self.gap())

    def ready_at(self) -> float:
        """When it may be visited: the later of its clock and its exclusion."""
        if self.exclusion is None:
            return self.next_fetch
        return max(self.next_fetch, self.excluded_until)

    def idle(self) -> bool:
        return not (self.out or self.wire or self.waiting)


class Visit(Struct, eq=False):
    """Leave to fetch *entries*, one after the other, from *host* at *address*."""

    host: HostState
    address: AddressState
    entries: list[Entry]
    host_intrusions: int
    address_intrusions: int
    clocks: tuple[float, float, float, float]  # as they were before it left
    started: tuple[float, float]  # when host and address may be visited again, as it left
    wired: bool = False  # it has touched the wire

    def undisturbed(self) -> bool:
        """Whether no traffic without a visit has used the wire since the visit began."""
        return (
            self.host.intrusions == self.host_intrusions
            and self.address.intrusions == self.address_intrusions
        )

    def pause_to_begin(self, now: float) -> float:
        """Seconds until a transfer may begin; FOREVER while another is about to go out."""
        host, address, pause = self.host, self.address, 0.0
        if host.concurrency > 1:
            pause = FOREVER if host.departing else host.began + host.gap() - now
        if address.concurrency != 1:
            others = FOREVER if address.departing else address.began + address.delay - now
            pause = max(pause, others)
        return max(0.0, pause)


_REPAIRS = 1_000  # records brought up to date before anyone else has a turn again


class Workbench:
    """Decides which host may be visited next. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.hosts: dict[str, HostState] = {}
        self.addresses: dict[str, AddressState] = {}
        self.out = 0
        self._heap: list[tuple[float, int, AddressState]] = []
        self._tickets = 0
        self._behind = False  # the top could not be brought up to date in one go

    # Who lives where

    def place(self, host: HostState, address: AddressState) -> None:
        """Let *host* live at *address* from now on (it must not be out)."""
        self.displace(host)
        host.address = address
        address.hosts += 1
        self.offer(host)

    def displace(self, host: HostState) -> None:
        """Take *host* off its address; it is not handed out until `place`."""
        address = host.address
        host.recorded = None
        if address is None:
            return
        host.address = None
        address.hosts -= 1
        address.sweep()

    def forget(self, host: HostState) -> None:
        self.displace(host)
        host.front.clear()  # its record in its address's heap may outlive it
        del self.hosts[host.key]

    def forget_addresses(self, now: float) -> Iterator[AddressState]:
        """Drop unused addresses whose clock has run out, yielding each."""
        for address in list(self.addresses.values()):
            used = address.hosts or address.out or address.wire
            awaited = address.booked or address.waiting
            if not used and not awaited and address.next_fetch <= now:
                del self.addresses[address.key]
                yield address

    # Hand out and take back

    def offer(self, host: HostState) -> None:
        """Put *host* and its address on the heaps if they may be; call after any change of it."""
        address = host.address
        if address is None:
            return
        if host.recorded is None and host.front and host.free():
            ready_at = host.ready_at()
            if ready_at < FOREVER:
                heappush(address.heap, self._record_host(host, ready_at))
        self.offer_address(address)

    def offer_address(self, address: AddressState) -> None:
        """Put *address* on the heap if it could be visited; call after it was freed."""
        if not address.heap or not address.free():
            return
        key = max(address.next_fetch, address.heap[0][0])
        if address.recorded is None or key < address.recorded:
            heappush(self._heap, self._record(key, address))
            if len(self._heap) > SPARE * len(self.addresses) + SLACK:
                self._heap = [
                    item for item in self._heap
                    if item[2].ticket == item[1] and item[2].recorded is not None
                ]  # fmt: skip
                heapify(self._heap)

    def acquire(self, now: float) -> Visit | None:
        """A visit of the host that has waited longest; None before its time."""
        address = self._top()
        if address is None or address.recorded is None or address.recorded > now:
            return None
        heappop(self._heap)
        address.recorded = None
        host = heappop(address.heap)[2]
        host.recorded = None
        return self._leave(host, address, now)

    def acquire_host(self, key: str, now: float) -> Visit | None:
        """A visit of the host *key*; None before its time."""
        host = self.hosts.get(key)
        address = None if host is None else host.address
        if host is None or address is None or not (host.front and host.free() and address.free()):
            return None
        if max(host.ready_at(), address.next_fetch) > now:
            return None
        host.recorded = address.recorded = None
        return self._leave(host, address, now)

    def _leave(self, host: HostState, address: AddressState, now: float) -> Visit:
        clocks = (host.next_fetch, host.fetched, address.next_fetch, address.fetched)
        host.out += 1
        address.out += 1
        self.out += 1
        calm = not host.crawl_delay and host.next_fetch <= now and not host.why
        entries = [heappop(host.front)[1]]
        while calm and host.front and len(entries) < host.burst:
            entries.append(heappop(host.front)[1])
        # Where several visits may be out, the delay runs between their starts.
        if host.concurrency > 1:
            host.start_clock(now)
        if address.concurrency != 1:
            address.start_clock(now)
        if host.out < host.concurrency:
            self.offer(host)
        else:
            self.offer_address(address)
        started = (host.next_fetch, address.next_fetch)
        return Visit(host, address, entries, host.intrusions, address.intrusions, clocks, started)

    def release(self, visit: Visit) -> None:
        """Take a visit back. The clocks were set when its transfers ended."""
        host, address = visit.host, visit.address
        host.out -= 1
        address.out -= 1
        self.out -= 1
        self.offer(host)
        if host.address is not address:
            self.offer_address(address)

    def refund(self, visit: Visit) -> None:
        """Undo the clocks that *visit* started without touching the wire; later settings stay."""
        host, address = visit.host, visit.address
        if host.next_fetch == visit.started[0] > visit.clocks[0]:
            host.next_fetch, host.fetched = visit.clocks[:2]
            host.recorded = None  # it may have been put back with a later time
        if address.next_fetch == visit.started[1] > visit.clocks[2]:
            address.next_fetch, address.fetched = visit.clocks[2:]

    def cancel(self, visit: Visit) -> None:
        """Return a visit that was acquired just now: no delay began to run."""
        self.reserve(visit)
        self.release(visit)

    def reserve(self, visit: Visit) -> None:
        """Return the entries of *visit* and keep its place until `claim` or `release`."""
        for entry in visit.entries:
            heappush(visit.host.front, (entry.key, entry))
        visit.entries.clear()
        host, address = visit.host, visit.address
        host.next_fetch, host.fetched, address.next_fetch, address.fetched = visit.clocks
        host.recorded = None  # it may have been put back with a later time

    def claim(self, visit: Visit, now: float) -> Visit | None:
        """The visit for which *visit* kept a place; None if it cannot leave."""
        host, address = visit.host, visit.address
        host.out -= 1
        address.out -= 1
        self.out -= 1
        free = host.address is address and host.front and host.free() and address.free()
        if free and max(host.ready_at(), address.next_fetch) <= now:
            host.recorded = address.recorded = None
            return self._leave(host, address, now)
        self.offer(host)
        self.offer_address(address)
        return None

    def wait(self, now: float) -> float | None:
        """Seconds until `acquire` has something, 0.0 for at once, None if nothing is queued."""
        address = self._top()
        if address is None or address.recorded is None:
            return 0.0 if self._behind else None
        return max(0.0, address.recorded - now)

    # The wire

    def ready_hosts(self, now: float) -> int:
        hosts = self.hosts.values()
        return sum(1 for host in hosts if host.front and host.free() and host.next_fetch <= now)

    def pause_needed(self, host: HostState, address: AddressState, now: float) -> float:
        """Seconds for which the wire to *host* is closed: 0.0 if open, FOREVER if in use."""
        if host.wire >= host.concurrency:
            return FOREVER
        if address.concurrency and address.wire >= address.concurrency:
            return FOREVER
        if (host.departing and host.concurrency > 1) or (
            address.departing and address.concurrency != 1
        ):
            return FOREVER
        return max(0.0, host.next_fetch - now, address.next_fetch - now)

    def begin(self, host: HostState, address: AddressState, now: float, *, visit: bool) -> None:
        """Bytes begin to flow; without a *visit*, host and address are taken off the heaps."""
        host.wire += 1
        address.wire += 1
        host.began = address.began = now
        if host.concurrency > 1:
            host.start_clock(now)
        if address.concurrency != 1:
            address.start_clock(now)
        if visit:
            return
        host.out += 1
        address.out += 1
        host.intrusions += 1
        address.intrusions += 1

    def end(self, host: HostState, address: AddressState, now: float, *, visit: bool) -> None:
        """The transfer ended at *now*: the delays run from here (promise 1)."""
        host.wire -= 1
        address.wire -= 1
        due = now + host.gap()
        if host.next_fetch <= due:
            host.why = ""  # what it waited for is over; a wish that came meanwhile stays
        if host.concurrency == 1:
            host.fetched, host.next_fetch = now, max(host.next_fetch, due)
        if address.concurrency == 1:
            address.start_clock(now)
        if not visit:
            host.out -= 1
            address.out -= 1
            self.offer(host)
            self.offer_address(address)

    def postpone(self, host: HostState, until: float, why: str) -> None:
        """Keep *host* waiting until *until* at least, for the reason *why*."""
        if until > host.next_fetch:
            host.next_fetch = until
            host.why = why

    # Another policy

    def set_pace(self, host: HostState, pace: Pace, now: float) -> None:
        ready_at = host.ready_at()
        if pace.concurrency > host.concurrency == 1 and host.out:
            host.start_clock(now)  # nobody knows any more when what is out began
        host.delay, host.concurrency, host.burst = pace.delay, pace.concurrency, pace.burst
        due = host.fetched + host.gap()
        host.next_fetch = max(host.next_fetch, due) if host.why else due
        self._moved(host, ready_at)

    def set_address_pace(self, address: AddressState, pace: Pace, now: float) -> None:
        if pace.concurrency != 1 == address.concurrency and address.out:
            address.start_clock(now)
        address.delay, address.concurrency = pace.delay, pace.concurrency
        address.next_fetch = address.fetched + address.delay
        self.offer_address(address)

    def set_exclusion(self, host: HostState, exclusion: Exclusion | None, until: float) -> None:
        ready_at = host.ready_at()
        host.exclusion, host.excluded_until = exclusion, until
        self._moved(host, ready_at)

    def _moved(self, host: HostState, ready_at: float) -> None:
        if host.ready_at() < ready_at and host.recorded_at > host.ready_at():
            host.recorded = None
            if host.address is not None:
                host.address.sweep()
        self.offer(host)

    # The heaps

    def _record(self, key: float, address: AddressState) -> tuple[float, int, AddressState]:
        self._tickets += 1
        address.recorded, address.ticket = key, self._tickets
        return key, self._tickets, address

    def _record_host(self, host: HostState, ready_at: float) -> tuple[float, int, HostState]:
        self._tickets += 1
        host.recorded, host.recorded_at = self._tickets, ready_at
        return ready_at, self._tickets, host

    def _top(self) -> AddressState | None:
        """The top, brought up to date; None, and *behind*, if that takes longer than one turn."""
        heap = self._heap
        for _ in range(_REPAIRS):
            self._behind = False
            if not heap:
                return None
            key, ticket, address = heap[0]
            if address.recorded is None or address.ticket != ticket:
                heappop(heap)  # an earlier record of an address that has moved since
                continue
            real = self._key_of(address)
            if real is None:
                address.recorded = None
                heappop(heap)
            elif real > key:
                heapreplace(heap, self._record(real, address))
            elif not self._behind:
                return address
            if self._behind:
                return None
        self._behind = True
        return None

    def _key_of(self, address: AddressState) -> float | None:
        """When *address* may be visited; a lower bound if *behind*."""
        if not address.free():
            return None
        heap = address.heap
        for _ in range(_REPAIRS):
            if not heap:
                return None
            key, ticket, host = heap[0]
            if host.recorded != ticket or host.address is not address:
                heappop(heap)
            elif not host.front or not host.free() or (ready_at := host.ready_at()) == FOREVER:
                host.recorded = None
                heappop(heap)
            elif ready_at > key:
                heapreplace(heap, self._record_host(host, ready_at))
            else:
                return max(address.next_fetch, key)
        self._behind = True
        return max(address.next_fetch, heap[0][0]) if heap else None


_AHEAD = 1.0  # seconds before its time at which the name of a host is looked up


class UnresolvedHosts:
    """First come, first served; hosts that must wait, or have nothing queued, are *later*."""

    def __init__(self, workbench: Workbench) -> None:
        self.later: dict[str, HostState] = {}
        self._workbench = workbench
        # To find its first key, a dict walks over all keys that were deleted before that.
        self._wanted = OrderedDict[str, HostState]()

    def __len__(self) -> int:
        return len(self._wanted)

    def add(self, host: HostState) -> None:
        self._workbench.displace(host)
        self._wanted[host.key] = host

    def drop(self, key: str) -> None:
        self._wanted.pop(key, None)
        self.later.pop(key, None)

    def due(self, now: float, limit: int) -> Iterator[HostState]:
        while self._wanted and limit > 0:
            _, host = self._wanted.popitem(last=False)
            if host.front and host.ready_at() <= now + _AHEAD:
                limit -= 1
                yield host
            else:
                self.defer(host)

    def defer(self, host: HostState) -> None:
        self.later[host.key] = host

    def expedite(self, key: str) -> None:
        self._wanted[key] = self.later.pop(key)

    def tick(self) -> None:
        self._wanted.update(self.later)
        self.later.clear()

    def next_in(self, now: float) -> float | None:
        return min(
            (host.ready_at() - now for host in self.later.values() if host.front), default=None
        )


class Departure:
    """The departure of one transfer: from `hold` to `gone` no other begins where it goes."""

    __slots__ = ("_address", "_freed", "_held", "_host")

    def __init__(self, host: HostState, address: AddressState, freed: Callable[[], None]) -> None:
        self._host = host
        self._address = address
        self._freed = freed
        self._held = False

    def hold(self) -> None:
        if not self._held:
            self._held = True
            self._host.departing += 1
            self._address.departing += 1

    def gone(self, now: float) -> None:
        self.release()
        for place in (self._host, self._address):
            if place.concurrency != 1:
                place.began = now
                place.start_clock(now)
        self._freed()

    def release(self) -> None:
        """Let others begin; idempotent."""
        if self._held:
            self._held = False
            self._host.departing -= 1
            self._address.departing -= 1


def departure(
    host: HostState, address: AddressState, freed: Callable[[], None]
) -> Departure | None:
    """The departure of a transfer to *host* at *address*; None where delays do not run from starts.
    """
    by_host = host.concurrency > 1 and host.gap()
    by_address = address.concurrency != 1 and address.delay
    return Departure(host, address, freed) if by_host or by_address else None


class WaitReason(StrEnum):
    ROBOTS = "robots.txt unavailable"
    RETRY_AFTER = "Retry-After"
    BACK_OFF = "back-off"
    CRAWL_DELAY = "Crawl-delay"
    HOST_DELAY = "host delay"
    ADDRESS = "address delay"
    NAME = "name look-up"
    BLOCKED = "blocked"
    HOURS = "outside its hours"
    PHASE = "not in its phase"
    AGENTS = "others fetch there, too"
    ELSEWHERE = "held by another agent"
    WINDOW = "next row of the window"
    MEMORY = "room in memory"
    OTHER = "other reasons"
    READY = "ready"  # it does not wait: it is visited as soon as the crawl has a place for it


_BEGINNINGS = {
    "status ": WaitReason.BACK_OFF,
    "kept from before": WaitReason.HOST_DELAY,
    **{reason.value: reason for reason in WaitReason},
}


@dataclass(frozen=True, slots=True)
class WaitCount:
    """*hosts* wait for *reason*, the first until *next_visit* (wall); None: for something else."""

    reason: WaitReason
    hosts: int
    next_visit: float | None = None


def reason_of_words(words: str) -> WaitReason:
    """The reason that *words*, stored with a host's clock, stand for; "" is the host's delay."""
    if not words:
        return WaitReason.HOST_DELAY
    for beginning, reason in _BEGINNINGS.items():
        if words.startswith(beginning):
            return reason
    return WaitReason.OTHER


def wait_of(host: HostState, now: float) -> tuple[WaitReason, float] | None:
    """Why *host* in memory waits, and until when; None: it has nothing to fetch, or is visited."""
    if host.out or not (host.front or host.more):
        return None
    until, address = host.ready_at(), host.address
    if until > now:
        if host.exclusion is not None and host.excluded_until >= host.next_fetch:
            return reason_of_words(host.exclusion.why), until
        return reason_of_words(reason_of_clock(host)), until
    if address is None:
        return WaitReason.NAME, now
    if host.held:
        return WaitReason.WINDOW, now
    if address.next_fetch > now or not address.free():
        return WaitReason.ADDRESS, max(now, address.next_fetch)
    return WaitReason.READY, now


def reason_of_clock(host: HostState) -> str:
    """Why the clock of *host* says what it says, in words; "": its ordinary delay."""
    return host.why or ("Crawl-delay" if host.crawl_delay > host.delay else "")


def add_up(counts: Iterable[WaitCount]) -> list[WaitCount]:
    """*counts* as one for each reason, the most hosts first."""
    hosts: dict[WaitReason, int] = {}
    earliest: dict[WaitReason, float] = {}
    for each in counts:
        until = FOREVER if each.next_visit is None else each.next_visit
        hosts[each.reason] = hosts.get(each.reason, 0) + each.hosts
        earliest[each.reason] = min(earliest.get(each.reason, FOREVER), until)
    order = sorted(hosts, key=lambda reason: (-hosts[reason], reason))
    return [
        WaitCount(each, hosts[each], earliest[each] if earliest[each] < FOREVER else None)
        for each in order
    ]
