"""The workbench: hosts by address by time (BUbiNG, §4 "The workbench"; U9).

A heap of addresses, each a heap of hosts, each with a short front of its queue.

Invariant: the recorded key of an address (or host) in a heap is a lower bound of the time
at which it may really be visited, and every address (host) that could be visited is in its
heap. So after the top has been brought up to date, the top may be visited if and only if
anything may be.

While a visit is out, its host and its address are off the heaps (unless the operator allowed
a concurrency above one). Traffic that has no visit (robots.txt, media, a component's own
downloads) shares the clocks: it is announced by `begin` and `end`, and a host for which such
traffic waits is not handed out before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace

from scrapy_spider_suite.frontier.policy import Bar
from scrapy_spider_suite.frontier.politeness import Pace
from scrapy_spider_suite.frontier.states import (
    FOREVER,
    SLACK,
    SPARE,
    AddressState,
    HostState,
    Visit,
)

_REPAIRS = 1_000
"""Records that are brought up to date before anyone else has a turn again: after a change of the
rules for an address of 100,000 hosts all of them may be behind."""


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
        """Take *host* off its address; it is not handed out until it is placed again."""
        address = host.address
        host.recorded = None
        if address is None:
            return
        host.address = None
        address.hosts -= 1
        address.sweep()

    def forget(self, host: HostState) -> None:
        """Drop a host that is idle from memory."""
        self.displace(host)
        host.front.clear()  # its record in its address's heap may outlive it
        del self.hosts[host.key]

    def forget_addresses(self, now: float) -> Iterator[AddressState]:
        """Drop the addresses that nobody uses and whose clock has run out, yielding each."""
        for address in list(self.addresses.values()):
            used = address.hosts or address.out or address.wire
            awaited = address.booked or address.waiting
            if not used and not awaited and address.next_fetch <= now:
                del self.addresses[address.key]
                yield address

    # Hand out and take back

    def offer(self, host: HostState) -> None:
        """Put *host* on the heaps if it could be visited; call after anything changed for it."""
        address = host.address
        if address is None or not host.front or not host.free():
            return
        if host.recorded is None and host.ready_at() < FOREVER:
            heappush(address.heap, self._record_host(host))
        self.offer_address(address)

    def offer_address(self, address: AddressState) -> None:
        """Put *address* on the heap if it could be visited; call after anything freed it."""
        if not address.heap or not address.free():
            return
        key = max(address.next_fetch, address.heap[0][0])
        if address.recorded is None or key < address.recorded:
            heappush(self._heap, self._record(key, address))
            if len(self._heap) > SPARE * len(self.addresses) + SLACK:
                self._sweep()

    def acquire(self, now: float) -> Visit | None:
        """Return leave to visit the host that has waited longest, or nothing before its time."""
        address = self._top()
        if address is None or address.recorded is None or address.recorded > now:
            return None
        heappop(self._heap)
        address.recorded = None
        host = heappop(address.heap)[2]
        host.recorded = None
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
        self.offer(host)
        self.offer_address(address)
        started = (host.next_fetch, address.next_fetch)
        return Visit(host, address, entries, host.intrusions, address.intrusions, clocks, started)

    def release(self, visit: Visit) -> None:
        """Take a visit back. The clocks were set when its transfers ended."""
        visit.host.out -= 1
        visit.address.out -= 1
        self.out -= 1
        self.offer(visit.host)
        self.offer_address(visit.address)

    def refund(self, visit: Visit) -> None:
        """Undo the clocks that *visit*, which touched no wire, started; later settings stay."""
        host, address = visit.host, visit.address
        if host.next_fetch == visit.started[0] > visit.clocks[0]:
            host.next_fetch, host.fetched = visit.clocks[:2]
            host.recorded = None  # it may have been put back with a later time
        if address.next_fetch == visit.started[1] > visit.clocks[2]:
            address.next_fetch, address.fetched = visit.clocks[2:]

    def cancel(self, visit: Visit) -> None:
        """Take back a visit that was acquired just now and does not go: no delay began to run."""
        self.reserve(visit)
        self.release(visit)

    def reserve(self, visit: Visit) -> None:
        """Put back what *visit*, acquired just now, has to fetch, and keep its place at its host
        and its address until `claim` or `release`.
        """
        for entry in visit.entries:
            heappush(visit.host.front, (entry.key, entry))
        visit.entries.clear()
        host, address = visit.host, visit.address
        host.next_fetch, host.fetched, address.next_fetch, address.fetched = visit.clocks
        host.recorded = None  # it may have been put back with a later time

    def claim(self, visit: Visit, now: float) -> Visit | None:
        """The visit for which *visit* kept a place; None if it cannot leave any more."""
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
        if host.next_fetch <= now + host.gap():
            host.why = ""  # what it waited for is over; a wish that came meanwhile stays
        if host.concurrency == 1:
            host.start_clock(now)
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
        """Let *host* have another pace; a wait that is nothing but its delay is measured anew."""
        ready_at = host.ready_at()
        if pace.concurrency > host.concurrency == 1 and host.out:
            host.start_clock(now)  # nobody knows any more when what is out began
        host.delay, host.concurrency, host.burst = pace.delay, pace.concurrency, pace.burst
        due = host.fetched + host.gap()
        host.next_fetch = max(host.next_fetch, due) if host.why else due
        self._moved(host, ready_at)

    def set_address_pace(self, address: AddressState, pace: Pace, now: float) -> None:
        """Let *address* have another pace, likewise."""
        if pace.concurrency != 1 == address.concurrency and address.out:
            address.start_clock(now)
        address.delay, address.concurrency = pace.delay, pace.concurrency
        address.next_fetch = address.fetched + address.delay
        self.offer_address(address)

    def set_bar(self, host: HostState, bar: Bar | None, until: float) -> None:
        """Keep *host* from being visited until *until*, whatever its clock says; None: no more."""
        ready_at = host.ready_at()
        host.bar, host.barred_until = bar, until
        self._moved(host, ready_at)

    def _moved(self, host: HostState, ready_at: float) -> None:
        """See to the invariant where a host, ready at *ready_at* before, may be ready sooner."""
        if host.ready_at() < ready_at and host.recorded_at > host.ready_at():
            host.recorded = None
            if host.address is not None:
                host.address.sweep()
        self.offer(host)

    # The heaps

    def _record(self, key: float, address: AddressState) -> tuple[float, int, AddressState]:
        """The one record of *address* that counts from now on."""
        self._tickets += 1
        address.recorded, address.ticket = key, self._tickets
        return key, self._tickets, address

    def _record_host(self, host: HostState) -> tuple[float, int, HostState]:
        """The one record of *host* that counts from now on."""
        self._tickets += 1
        host.recorded, host.recorded_at = self._tickets, host.ready_at()
        return host.recorded_at, self._tickets, host

    def _sweep(self) -> None:
        """Drop the records that do not count: an address that moves forward leaves one behind.

        It would lie there until its time, which for a host in back-off may be an hour.
        """
        # `_counts`, written out: a call for each of 100,000 addresses would hold everything up.
        self._heap = [
            item for item in self._heap
            if item[2].ticket == item[1] and item[2].recorded is not None
        ]  # fmt: skip
        heapify(self._heap)

    def _top(self) -> AddressState | None:
        """Bring the top up to date and return it: its recorded key is exact.

        None, and *behind*, if that takes longer than one turn: the next call goes on.
        """
        heap = self._heap
        for _ in range(_REPAIRS):
            self._behind = False
            if not heap:
                return None
            key, _, address = heap[0]
            if not _counts(heap[0]):
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
        """When *address* may be visited: the later of its clock and its first host's.

        *behind*, it is no later than that.
        """
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
                heapreplace(heap, self._record_host(host))
            else:
                return max(address.next_fetch, key)
        self._behind = True
        return max(address.next_fetch, heap[0][0]) if heap else None


def _counts(record: tuple[float, int, AddressState]) -> bool:
    """Whether a record in the workbench's heap is the one that counts for its address."""
    address = record[2]
    return address.recorded is not None and address.ticket == record[1]
