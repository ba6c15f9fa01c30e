"""Polite crawls of an in-vitro web, and what its log says of them: for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scrapy_spider_suite.testing import Arrival, FakeWebConfig, Ready
from support.best_schedule import optimal_seconds, seconds_of
from support.crawls import web_settings

TOLERANCE = 0.002
"""Seconds that the server's clock readings may be off: it logs an end after it has sent it."""
_REFUSALS = 1
_KINDS = 20
"""Of so many hosts one asks for a Crawl-delay, and two begin with 429 or 503."""
_REFUSING = (7, 16)  # with a Retry-After that is a date, and one in seconds


@dataclass(frozen=True)
class Size:
    """How large a web, and how polite a crawl. Delays are seconds."""

    hosts: int
    addresses: int
    pages: int
    host_delay: float
    ip_delay: float
    keeps_crawl_delay: bool = True  # Scrapy's own robots middleware does not

    @property
    def crawl_delay(self) -> float:
        """What some robots.txt ask for."""
        return 2 * self.host_delay

    @property
    def retry_after(self) -> float:
        """What some hosts ask for at first."""
        return max(1.0, 1.5 * self.host_delay)

    def web(self, log: Path, **knobs: Any) -> FakeWebConfig:
        """A web with redirects, Crawl-delays, refusals and addresses that several hosts share."""
        special: dict[int, dict[str, float]] = {}
        fewer = max(1, self.pages // 3)
        for host in range(self.hosts):
            if host % _KINDS == 3:
                special[host] = {
                    "crawl_delay": self.crawl_delay, "pages": fewer, "robots_status": 200,
                }  # fmt: skip
            elif host % _KINDS in _REFUSING:
                special[host] = {"retry_after_requests": _REFUSALS, "pages": fewer}
        for host, traits in knobs.pop("overrides", {}).items():
            special.setdefault(host, {}).update(traits)
        config = FakeWebConfig(
            hosts=self.hosts, addresses=self.addresses, pages=self.pages, seeds=self.hosts,
            degree=8, redirects=0.1, robots_missing=0.3, latency=0.02, jitter=0.01,
            retry_after_delay=self.retry_after, page_size=3000, overrides=special, log=log,
            seeds_file=log.with_suffix(".seeds"),
        )  # fmt: skip
        return replace(config, **knobs)

    def gallery(self, images: int) -> dict[int, dict[str, float]]:
        """Overrides for a web whose host 0 shows *images* images and has an address to itself.

        (A few more: some of its pages are redirects and show none.)
        """
        traits: dict[int, dict[str, float]] = {
            host: {"address": host % (self.addresses - 1)} for host in range(self.hosts)
        }
        traits[0] = {"address": self.addresses - 1, "images": -(-images // (self.pages - 2))}
        return traits

    def settings(self, ready: Ready, **settings: Any) -> dict[str, Any]:
        """Settings for a crawl of that web."""
        return web_settings(
            ready.dns_port,
            **{
                "SUITE_HOST_DELAY": self.host_delay,
                "SUITE_IP_DELAY": self.ip_delay,
                "SUITE_BACKOFF_BASE": self.host_delay,
                **settings,
            },
        )

    # What the log says

    def pause(self, arrival: Arrival) -> float:
        """The least pause of its host after *arrival* (without the back-off, which grows)."""
        index = _index(arrival.host)
        slow = self.keeps_crawl_delay and index % _KINDS == 3
        wait = self.crawl_delay if slow else self.host_delay
        if arrival.status in (429, 503) and index % _KINDS in _REFUSING:
            # A date counts from when the request came.
            wait = max(wait, self.retry_after - (arrival.end - arrival.start))
        return wait

    def too_early(self, arrivals: Iterable[Arrival]) -> list[str]:
        """Every request that came sooner than promised: by host, and by address."""
        known = list(arrivals)
        found = [
            f"{host}: {gap:.4f} s after {before.status} {before.path}, then {after.path}"
            for host, before, after, gap in _pairs(known, lambda each: each.host)
            if gap < self.pause(before) - TOLERANCE
        ]
        for address, before, after, gap in _pairs(known, lambda each: each.address):
            if gap < self.ip_delay - TOLERANCE:
                found.append(f"{address}: {gap:.4f} s between {before.host} and {after.host}")
        return found

    def efficiency(self, arrivals: Iterable[Arrival], starved: float = 0.0) -> float:
        """The time of an optimal schedule of the same fetches over the time that they took.

        Less *starved*, the seconds in which the crawler could have gone on but had no core.
        """
        known = list(arrivals)
        return optimal_seconds(known, self.pause, self.ip_delay) / (seconds_of(known) - starved)


SMALL = Size(hosts=20, addresses=6, pages=10, host_delay=0.6, ip_delay=0.03)
FULL = Size(hosts=1000, addresses=300, pages=16, host_delay=4.0, ip_delay=0.3)


def pages_of(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """Those that were no robots.txt and no image."""
    return [
        each for each in arrivals if each.path != "/robots.txt" and not each.path.startswith("/img")
    ]


def elsewhere(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """Those that did not go to the host with the images."""
    return [each for each in arrivals if _index(each.host) != 0]


def _index(host: str) -> int:
    return int(host[1:7])


def _pairs(
    arrivals: list[Arrival], key: Callable[[Arrival], str]
) -> Iterable[tuple[str, Arrival, Arrival, float]]:
    """For each key: a request, the answer that ended last before it, and the time between."""
    latest: dict[str, Arrival] = {}
    for arrival in sorted(arrivals):
        name = key(arrival)
        before = latest.get(name)
        if before is not None:
            yield name, before, arrival, arrival.start - before.end
        if before is None or arrival.end > before.end:
            latest[name] = arrival
