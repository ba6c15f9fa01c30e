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

import math
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from scrapy_spider_suite.frontier.entries import Entry

FOREVER = math.inf
_SLACK = 16
"""A heap may hold so many records more than two for each that counts, before it is swept."""


class AddressState:
    """What is known of one address: its clock, and a heap of the hosts that live there.

    *concurrency* 0 means that the address sets no limit (hosts without an address of their
    own, and the spider profile, which never promised one).
    """

    __slots__ = (
        "booked", "concurrency", "delay", "heap", "hosts", "intrusions", "key", "next_fetch",
        "out", "recorded", "ticket", "waiting", "wire",
    )  # fmt: skip

    def __init__(self, key: str, delay: float, concurrency: int, next_fetch: float) -> None:
        self.key = key
        self.delay = delay
        self.concurrency = concurrency
        self.next_fetch = next_fetch
        self.heap: list[tuple[float, int, HostState]] = []
        self.hosts = 0  # resident hosts that live here
        self.booked = 0  # traffic without a visit that waits for its host, then goes here
        self.out = 0  # visits out, and traffic without a visit that is on the wire
        self.wire = 0  # transfers flowing
        self.waiting = 0  # traffic without a visit that waits for this address alone
        self.intrusions = 0  # how often traffic without a visit began here
        self.recorded: float | None = None  # its key in the workbench's heap
        self.ticket = 0  # of its one record there that counts

    def free(self) -> bool:
        """Whether another visit may leave for this address (its clock apart)."""
        return not self.waiting and (not self.concurrency or self.out < self.concurrency)


class HostState:
    """What is known of one resident host (a *visit state*): its clock and its queue's front."""

    __slots__ = (
        "address", "burst", "concurrency", "connect_to", "crawl_delay", "cursor", "delay",
        "front", "intrusions", "key", "more", "next_fetch", "out", "record", "recorded",
        "resolved_until", "turns", "waiting", "why", "wire",
    )  # fmt: skip

    def __init__(self, key: str, delay: float, concurrency: int, burst: int) -> None:
        self.key = key
        self.delay = delay
        self.concurrency = concurrency
        self.burst = burst
        self.crawl_delay = 0.0
        self.next_fetch = 0.0
        self.why = ""  # the rule that set next_fetch
        self.address: AddressState | None = None
        self.connect_to = ""  # the numeric address itself; "" if it has none of its own
        self.resolved_until = 0.0
        self.front: list[tuple[bytes, Entry]] = []  # a heap by queue key
        self.more = False  # rows beyond the front are on disk
        self.cursor = b""  # every row on disk up to this key is in the front, or out
        self.turns = 0  # visits since it came into memory
        self.out = 0
        self.wire = 0
        self.waiting = 0  # traffic without a visit that waits for this host
        self.intrusions = 0
        self.recorded: int | None = None  # its ticket in its address's heap
        self.record: Any = None  # the durable part, the owner's business

    def free(self) -> bool:
        """Whether another visit may leave for this host (its clock apart)."""
        return self.out < self.concurrency and not self.waiting

    def gap(self) -> float:
        """Seconds between two visits: the configured delay, or a longer Crawl-delay."""
        return max(self.delay, self.crawl_delay)

    def idle(self) -> bool:
        """Whether nothing is out, flowing or waiting for this host."""
        return not (self.out or self.wire or self.waiting)


@dataclass(slots=True)
class Visit:
    """Leave to fetch *entries*, one after the other, from *host* at *address*."""

    host: HostState
    address: AddressState
    entries: list[Entry]
    host_intrusions: int
    address_intrusions: int

    def undisturbed(self) -> bool:
        """Whether no traffic without a visit has used the wire since the visit began."""
        return (
            self.host.intrusions == self.host_intrusions
            and self.address.intrusions == self.address_intrusions
        )


class Workbench:
    """Decides which host may be visited next. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.hosts: dict[str, HostState] = {}
        self.addresses: dict[str, AddressState] = {}
        self.out = 0
        self._heap: list[tuple[float, int, AddressState]] = []
        self._tickets = 0

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
        if len(address.heap) > 2 * address.hosts + _SLACK:
            address.heap = [item for item in address.heap if item[2].recorded == item[1]]
            heapify(address.heap)

    def forget(self, host: HostState) -> None:
        """Drop a host that is idle from memory."""
        self.displace(host)
        host.front = []  # its record in its address's heap may outlive it
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
        if host.recorded is None:
            self._tickets += 1
            host.recorded = self._tickets
            heappush(address.heap, (host.next_fetch, self._tickets, host))
        self.offer_address(address)

    def offer_address(self, address: AddressState) -> None:
        """Put *address* on the heap if it could be visited; call after anything freed it."""
        if not address.heap or not address.free():
            return
        key = max(address.next_fetch, address.heap[0][0])
        if address.recorded is None or key < address.recorded:
            heappush(self._heap, self._record(key, address))
            if len(self._heap) > 2 * len(self.addresses) + _SLACK:
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
        host.out += 1
        address.out += 1
        self.out += 1
        calm = not host.crawl_delay and host.next_fetch <= now and not host.why
        entries = [heappop(host.front)[1]]
        while calm and host.front and len(entries) < host.burst:
            entries.append(heappop(host.front)[1])
        # Where several visits may be out, the delay runs between their starts.
        if host.concurrency > 1:
            host.next_fetch = max(host.next_fetch, now + host.gap())
        if address.concurrency != 1:
            address.next_fetch = max(address.next_fetch, now + address.delay)
        self.offer(host)
        self.offer_address(address)
        return Visit(host, address, entries, host.intrusions, address.intrusions)

    def release(self, visit: Visit) -> None:
        """Take a visit back. The clocks were set when its transfers ended."""
        visit.host.out -= 1
        visit.address.out -= 1
        self.out -= 1
        self.offer(visit.host)
        self.offer_address(visit.address)

    def wait(self, now: float) -> float | None:
        """Seconds until `acquire` has something, 0.0 for at once, None if nothing is queued."""
        address = self._top()
        if address is None or address.recorded is None:
            return None
        return max(0.0, address.recorded - now)

    # The wire

    def pause_needed(self, host: HostState, address: AddressState, now: float) -> float:
        """Seconds for which the wire to *host* is closed: 0.0 if open, FOREVER if in use."""
        if host.wire >= host.concurrency:
            return FOREVER
        if address.concurrency and address.wire >= address.concurrency:
            return FOREVER
        return max(0.0, host.next_fetch - now, address.next_fetch - now)

    def begin(self, host: HostState, address: AddressState, now: float, *, visit: bool) -> None:
        """Bytes begin to flow; without a *visit*, host and address are taken off the heaps."""
        host.wire += 1
        address.wire += 1
        if visit:
            return
        host.out += 1
        address.out += 1
        host.intrusions += 1
        address.intrusions += 1
        if host.concurrency > 1:
            host.next_fetch = max(host.next_fetch, now + host.gap())
        if address.concurrency != 1:
            address.next_fetch = max(address.next_fetch, now + address.delay)

    def end(self, host: HostState, address: AddressState, now: float, *, visit: bool) -> None:
        """The transfer ended at *now*: the delays run from here (promise 1)."""
        host.wire -= 1
        address.wire -= 1
        if host.next_fetch <= now + host.gap():
            host.why = ""  # what it waited for is over; a wish that came meanwhile stays
        if host.concurrency == 1:
            host.next_fetch = max(host.next_fetch, now + host.gap())
        if address.concurrency == 1:
            address.next_fetch = max(address.next_fetch, now + address.delay)
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

    # The heaps

    def _record(self, key: float, address: AddressState) -> tuple[float, int, AddressState]:
        """The one record of *address* that counts from now on."""
        self._tickets += 1
        address.recorded, address.ticket = key, self._tickets
        return key, self._tickets, address

    def _sweep(self) -> None:
        """Drop the records that do not count: an address that moves forward leaves one behind.

        It would lie there until its time, which for a host in back-off may be an hour.
        """
        self._heap = [item for item in self._heap if _counts(item)]
        heapify(self._heap)

    def _top(self) -> AddressState | None:
        """Bring the top up to date and return it: its recorded key is exact."""
        heap = self._heap
        while heap:
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
            else:
                return address
        return None

    def _key_of(self, address: AddressState) -> float | None:
        """When *address* may be visited: the later of its clock and its first host's."""
        if not address.free():
            return None
        heap = address.heap
        while heap:
            key, ticket, host = heap[0]
            if host.recorded != ticket or host.address is not address:
                heappop(heap)
            elif not host.front or not host.free():
                host.recorded = None
                heappop(heap)
            elif host.next_fetch > key:
                self._tickets += 1
                host.recorded = self._tickets
                heapreplace(heap, (host.next_fetch, self._tickets, host))
            else:
                return max(address.next_fetch, key)
        return None


def _counts(record: tuple[float, int, AddressState]) -> bool:
    """Whether a record in the workbench's heap is the one that counts for its address."""
    address = record[2]
    return address.recorded is not None and address.ticket == record[1]
