"""How soon a set of visits can be over at best, and how soon the workbench is over with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from scrapy_spider_suite.frontier.entries import Entry, order_key
from scrapy_spider_suite.frontier.workbench import AddressState, HostState, Visit, Workbench


@dataclass(frozen=True)
class Load:
    """What is to be fetched: *services* are the seconds of each URL of each host, in order."""

    addresses: dict[str, str]
    services: dict[str, list[float]]
    host_delay: float
    ip_delay: float


def lower_bound(load: Load) -> float:
    """No schedule ends before this.

    The URLs of a host, and those of an address, go one after the other with a delay between each
    two; so the longest of those chains is a bound. It is the optimum where one chain dominates.
    """
    by_address: dict[str, list[float]] = defaultdict(list)
    chains = []
    for host, services in load.services.items():
        by_address[load.addresses[host]] += services
        chains.append(sum(services) + load.host_delay * (len(services) - 1))
    for services in by_address.values():
        chains.append(sum(services) + load.ip_delay * (len(services) - 1))
    return max(chains)


def optimum(load: Load) -> float:
    """The end of the best schedule, by trying all (for a handful of URLs on one address)."""
    orders = _orders({host: len(services) for host, services in load.services.items()})
    return min(_end(load, order) for order in orders)


def _orders(left: dict[str, int]) -> Iterator[list[str]]:
    if not any(left.values()):
        yield []
    for host, number in left.items():
        if number:
            for rest in _orders({**left, host: number - 1}):
                yield [host, *rest]


def _end(load: Load, order: list[str]) -> float:
    """When a single address is done that takes its hosts' URLs in this order, each at once."""
    free: dict[str, float] = defaultdict(float)
    at: dict[str, int] = defaultdict(int)
    clock = end = 0.0
    for host in order:
        start = max(clock, free[host])
        end = start + load.services[host][at[host]]
        at[host] += 1
        clock, free[host] = end + load.ip_delay, end + load.host_delay
    return end


def makespan(load: Load) -> float:
    """When the workbench is done, with as many connections as it asks for."""
    bench = Workbench()
    left = _fill(bench, load)
    flowing: list[tuple[float, int, Visit]] = []
    numbers, now, end = count(), 0.0, 0.0
    while left:
        visit = bench.acquire(now)
        if visit is not None:
            left -= 1
            bench.begin(visit.host, visit.address, now, visit=True)
            end = max(end, now + visit.entries[0].payload)
            heappush(flowing, (now + visit.entries[0].payload, next(numbers), visit))
            continue
        wait = bench.wait(now)
        times = [] if wait is None else [now + wait]
        now = min([*times, flowing[0][0]] if flowing else times)
        while flowing and flowing[0][0] <= now:
            visit = heappop(flowing)[2]
            bench.end(visit.host, visit.address, now, visit=True)
            bench.release(visit)
    return end


def _fill(bench: Workbench, load: Load) -> int:
    sequence = 0
    for host, services in load.services.items():
        state = bench.hosts[host] = HostState(host, load.host_delay, 1, 1)
        where = load.addresses[host]
        address = bench.addresses.get(where)
        if address is None:
            address = bench.addresses[where] = AddressState(where, load.ip_delay, 1, 0.0)
        for seconds in services:
            sequence += 1
            key = order_key(0, sequence)
            heappush(state.front, (key, Entry(host, "", b"", payload=seconds, key=key)))
        bench.place(state, address)
    return sequence
