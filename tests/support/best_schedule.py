"""The best possible schedule of the fetches in an arrival log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scrapy_spider_suite.testing import Arrival

Pause = Callable[[Arrival], float]
"""Seconds that a host must rest after a fetch."""


@dataclass(slots=True)
class _Chain:
    steps: list[tuple[float, float]]
    left: float
    ready: float = 0.0


def optimal_seconds(arrivals: Iterable[Arrival], pause: Pause, address_delay: float) -> float:
    """Return the duration of an optimal schedule of *arrivals*.

    The slowest address counts; there the ready host with most work left goes first.
    """
    chains: dict[str, dict[str, list[Arrival]]] = {}
    for arrival in sorted(arrivals):
        chains.setdefault(arrival.address, {}).setdefault(arrival.host, []).append(arrival)
    return max((_schedule(each, pause, address_delay) for each in chains.values()), default=0.0)


def seconds_of(arrivals: Iterable[Arrival]) -> float:
    """Return the seconds from the first request to the last answer."""
    known = list(arrivals)
    return max(each.end for each in known) - min(each.start for each in known)


def _chain(fetches: list[Arrival], pause: Pause) -> _Chain:
    steps = [(each.end - each.start, pause(each)) for each in reversed(fetches)]
    return _Chain(steps, sum(map(sum, steps)) - steps[0][1])


def _schedule(hosts: dict[str, list[Arrival]], pause: Pause, delay: float) -> float:
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
