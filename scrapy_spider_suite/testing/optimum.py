"""How fast a polite crawl can be: an optimal schedule of what the server's log says was fetched.

The fetches of each host, in the order and with the service times in which they were answered,
are scheduled again in virtual time: a host begins its next fetch no sooner than its delay after
its last has ended, an address likewise. What a crawler needs beyond that is time it wasted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scrapy_spider_suite.testing.arrivals import Arrival

Pause = Callable[[Arrival], float]
"""Seconds that a host must be left alone after the end of a fetch."""


@dataclass(slots=True)
class _Chain:
    """The fetches of one host that are still to be made, the next one last.

    *steps* are pairs of service time and pause after it; *left* is the time that they need at
    least; *ready* is when the next one may begin.
    """

    steps: list[tuple[float, float]]
    left: float
    ready: float = 0.0


def optimum(arrivals: Iterable[Arrival], pause: Pause, address_delay: float) -> float:
    """Seconds from the first request to the last answer in an optimal schedule of *arrivals*.

    Addresses are independent of each other, so the slowest one counts. At each the host that has
    most left goes first among those that may be visited; that is optimal whenever a single host,
    or the address itself, is what takes the time.
    """
    chains: dict[str, dict[str, list[Arrival]]] = {}
    for arrival in sorted(arrivals):
        chains.setdefault(arrival.address, {}).setdefault(arrival.host, []).append(arrival)
    return max((_schedule(each, pause, address_delay) for each in chains.values()), default=0.0)


def span(arrivals: Iterable[Arrival]) -> float:
    """Seconds from the first request to the last answer, as it was."""
    known = list(arrivals)
    return max(each.end for each in known) - min(each.start for each in known)


def _chain(fetches: list[Arrival], pause: Pause) -> _Chain:
    steps = [(each.end - each.start, pause(each)) for each in reversed(fetches)]
    return _Chain(steps, sum(map(sum, steps)) - steps[0][1])


def _schedule(hosts: dict[str, list[Arrival]], pause: Pause, delay: float) -> float:
    """Virtual time at which the last fetch at one address ends."""
    waiting = [_chain(fetches, pause) for fetches in hosts.values()]
    free = now = 0.0
    while waiting:
        now = max(free, min(chain.ready for chain in waiting))
        ready = [chain for chain in waiting if chain.ready <= now]
        chain = max(ready, key=lambda each: each.left)
        service, rest = chain.steps.pop()
        now += service
        chain.left -= service + rest
        chain.ready, free = now + rest, now + delay
        if not chain.steps:
            waiting.remove(chain)
    return now
