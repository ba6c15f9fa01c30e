"""What a change of the overrides costs where an address serves 100,000 hosts (a CDN).

All hosts are in memory, with a page each, on one address or on a /16 of them::

    python benchmarks/overrides.py
    python benchmarks/overrides.py --hosts 10000

For each change: the CPU time of the longest single step (what would hold up the loop at once:
`acquire`, `wait`, a portion of the revision), the number of portions and the CPU time of all of
them. Then the time of a look-up among as many rules, and of reading them from a file.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import cycle

from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import Pace
from scrapy_spider_suite.frontier.policy import Overrides, Policy
from scrapy_spider_suite.runtime.event_loop import GcTuning
from scrapy_spider_suite.store.interface import MemoryStore

WALL = 1_800_000_000.0
CHANGES = (
    ("10.0.0.0/16 blocked=yes",),
    (),
    ("10.0.0.0/16 delay=5",),
    ("10.0.0.0/16 delay=0.1",),
    (".example.com blocked=yes",),
    (".example.com delay=60",),
    (".example.com delay=1",),
    ("10.0.0.0/16 hours=22-6",),
    (),
)


def rules(lines: tuple[str, ...]) -> Overrides:
    """The rules of some lines."""
    return Overrides.parse(lines, "rules")


def filled(hosts: int, addresses: int) -> Frontier:
    """A frontier with so many hosts on so many addresses."""
    policy = Policy(host=Pace(4.0), address=Pace(0.5))
    frontier = Frontier(MemoryStore(), policy, now=0.0, wall=WALL, capacity=hosts)
    frontier.admission.schedule(
        (Entry(f"h{n}.example.com", f"http://h{n}.example.com/") for n in range(hosts)), 0.0
    )
    numbers = cycle(range(addresses))
    for host in list(frontier.unresolved_hosts(0.0, hosts)):
        at = next(numbers)
        address = f"10.0.{at >> 8}.{at & 255}"
        frontier.set_address(host, address, address, 1e18, 0.0)
    while frontier.policy_update.busy:
        frontier.policy_update.step(0.0)
    return frontier


def timed(work: Callable[[], object]) -> float:
    """CPU seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


def change(frontier: Frontier, lines: tuple[str, ...], now: float) -> tuple[float, int, float]:
    """The longest step in seconds, the number of portions, and their time in all."""
    frontier.policy.update(overrides=rules(lines))
    steps = [timed(lambda: frontier.leases.acquire(now)), timed(lambda: frontier.leases.wait(now))]
    portions = 0
    while frontier.policy_update.busy:
        steps.append(timed(lambda: frontier.policy_update.step(now)))
        steps.append(timed(lambda: frontier.leases.acquire(now)))
        steps.append(timed(lambda: frontier.leases.wait(now)))
        portions += 1
    return max(steps), portions, sum(steps)


def look_ups(count: int) -> None:
    """Among many rules: hosts, domains and ranges."""
    lines = [f"h{n}.example.com delay=1" for n in range(count)]
    lines += [f".d{n}.example.org delay=1" for n in range(count // 10)]
    lines += [f"10.{n >> 8 & 255}.{n & 255}.0/{24 + n % 8} delay=1" for n in range(count // 10)]
    start = time.process_time()
    policy = Policy(overrides=rules(tuple(lines)))
    print(f"reading {len(lines)} rules: {time.process_time() - start:.2f} s")
    for name, work in (
        ("a host with a rule", lambda: policy.for_host("h7.example.com")),
        ("a host five labels deep, without", lambda: policy.for_host("a.b.c.example.net")),
        ("an address", lambda: policy.for_address("10.0.7.1")),
    ):
        took = timed(lambda work=work: [work() for _ in range(10_000)]) / 10_000
        print(f"{name}: {took * 1e6:.1f} us")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=100_000)
    options = parser.parse_args()
    for addresses in (1, min(options.hosts, 65_536)):
        frontier = filled(options.hosts, addresses)
        collector = GcTuning()  # as in a broad crawl
        collector.start()
        print(f"{options.hosts} hosts on {addresses} addresses")
        for number, lines in enumerate(CHANGES, 1):
            longest, portions, in_all = change(frontier, lines, 10.0 * number)
            print(
                f"  {' '.join(lines) or 'no rule':<28} longest step {longest * 1e3:5.1f} ms, "
                f"{portions} portions, {in_all:.2f} s in all"
            )
        collector.stop()
    look_ups(options.hosts)


if __name__ == "__main__":
    main()
