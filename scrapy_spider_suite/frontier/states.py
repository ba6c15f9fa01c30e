"""What the workbench knows of a host, of an address, and of a visit that is out."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from heapq import heapify
from typing import Any

from msgspec import Struct

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.policy import Bar

_untrack = ctypes.pythonapi.PyObject_GC_UnTrack
_untrack.restype = None

FOREVER = math.inf
LONG_AGO = -1e9
"""Monotonic seconds, long before any crawl began."""

SPARE, SLACK = 4, 16
"""A heap may hold so many records for each that counts, and so many more, before it is swept: a
sweep walks all of it, and no change of the rules should cause one."""


class AddressState:
    """What is known of one address: its clock, and a heap of the hosts that live there.

    *concurrency* 0 means that the address sets no limit (hosts without an address of their
    own, and the spider profile, which never promised one).
    """

    __slots__ = (
        "began", "booked", "concurrency", "delay", "departing", "fetched", "heap", "hosts",
        "intrusions", "key", "next_fetch", "numeric", "out", "recorded", "revision", "ticket",
        "waiting", "wire",
    )  # fmt: skip

    def __init__(self, key: str, delay: float, concurrency: int, next_fetch: float) -> None:
        self.key = key
        self.delay = delay
        self.concurrency = concurrency
        self.next_fetch = next_fetch
        self.fetched = LONG_AGO  # when its delay began to run
        self.began = LONG_AGO  # when the last transfer began
        self.numeric = ""  # the address by which its pace was chosen; "" for none
        self.revision = 0  # of the policy that chose it
        self.heap: list[tuple[float, int, HostState]] = []
        self.hosts = 0  # resident hosts that live here
        self.booked = 0  # traffic without a visit that waits for its host, then goes here
        self.out = 0  # visits out, and traffic without a visit that is on the wire
        self.wire = 0  # transfers flowing
        self.departing = 0  # those of which no byte is out yet, where that counts
        self.waiting = 0  # traffic without a visit that waits for this address alone
        self.intrusions = 0  # how often traffic without a visit began here
        self.recorded: float | None = None  # its key in the workbench's heap
        self.ticket = 0  # of its one record there that counts

    def start_clock(self, now: float) -> None:
        """Let the delay run from *now*."""
        self.fetched = now
        self.next_fetch = max(self.next_fetch, now + self.delay)

    def free(self) -> bool:
        """Whether another visit may leave for this address (its clock apart)."""
        return not self.waiting and (not self.concurrency or self.out < self.concurrency)

    def sweep(self) -> None:
        """Drop the records of hosts that do not count, where there are too many of them."""
        if len(self.heap) > SPARE * self.hosts + SLACK:
            self.heap = [item for item in self.heap if item[2].recorded == item[1]]
            heapify(self.heap)


class HostState(Struct, eq=False, gc=False):
    """What is known of one resident host (a *visit state*): its clock and its queue's front.

    As with entries, the garbage collector does not know it: who forgets a host takes it off its
    address. Nor does it know its front, which is one list for life: of 13,000 hosts in memory,
    with what is in them, they were most of what a collection had to walk.
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
    bar: Bar | None = None  # why it may not be visited whatever its clock says
    barred_until: float = 0.0
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
        """Whether another visit may leave for this host (its clock apart)."""
        return self.out < self.concurrency and not self.waiting and not self.held

    def gap(self) -> float:
        """Seconds between two visits: the configured delay, or a longer Crawl-delay."""
        return max(self.delay, self.crawl_delay)

    def start_clock(self, now: float) -> None:
        """Let the delay run from *now*."""
        self.fetched = now
        self.next_fetch = max(self.next_fetch, now + self.gap())

    def ready_at(self) -> float:
        """When it may be visited: its clock has run out, and no bar holds it any more."""
        return self.next_fetch if self.bar is None else max(self.next_fetch, self.barred_until)

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
        """Seconds until a transfer may begin: another visit may have begun after this one left.

        FOREVER while one is about to go out.
        """
        host, address, pause = self.host, self.address, 0.0
        if host.concurrency > 1:
            pause = FOREVER if host.departing else host.began + host.gap() - now
        if address.concurrency != 1:
            others = FOREVER if address.departing else address.began + address.delay - now
            pause = max(pause, others)
        return max(0.0, pause)
