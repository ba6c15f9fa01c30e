"""How a crawl grows with its agents, in virtual time: pages a second, and what they exchange.

    python benchmarks/agents.py            # 1, 2, 4 and 8 agents, 65,000 pages: some minutes
    python benchmarks/agents.py --small    # for CI: 1 and 2 agents, 1,300 pages

Each agent is a frontier with its queues, seen URLs and outbox, and as many transfers at a time as
all the others; transfers take 10 to 300 ms of virtual time, hosts are visited every 4 s. What one
finds for another is delivered twice a virtual second. The rate is that between the first tenth of
the pages and the sixth: before it the crawl has but one seed, after it hosts run out. *linear* is
the rate by agent over that of one agent (E12 reports 0.94 for one to three). Exit code 1 if a page
was fetched twice or not at all.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.virtual_agents import Agents
from support.virtual_crawl import all_urls, trees

from scrapy_spider_suite.cluster.assignment import ASSIGNMENTS, load_assignment
from scrapy_spider_suite.store.interface import MemoryStore

PAGES = 13
"""Of each host."""


def rate(agents: Agents) -> float:
    """Pages a virtual second, all agents together."""
    ends = sorted(fetch.end for crawl in agents.crawls.values() for fetch in crawl.fetches)
    first, last = len(ends) // 10, len(ends) * 6 // 10
    return (last - first) / (ends[last] - ends[first])


def crawl(name: str, count: int, hosts: int, seats: int) -> Agents:
    """A crawl by *count* agents; exits if it is not what one agent would have fetched."""
    web = trees(hosts, PAGES, addresses=hosts * 100)
    agents = Agents(
        web, load_assignment(name), [MemoryStore() for _ in range(count)], seats=seats,
        cache=1 << 20,
    )  # fmt: skip
    agents.each(lambda crawl: crawl.seed("http://h0.t/0"))
    agents.run()
    if Counter(agents.urls) != Counter(dict.fromkeys(all_urls(web, PAGES), 1)):
        sys.exit(f"{count} agents by {name}: not each page once")
    return agents


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="two agents, 1,300 pages")
    options = parser.parse_args()
    hosts, seats, counts = (100, 2, (1, 2)) if options.small else (5_000, 16, (1, 2, 4, 8))
    print(f"{hosts * PAGES:,} pages of {hosts:,} hosts, {seats} transfers at a time by agent")
    for name in ASSIGNMENTS:
        one = 0.0
        for count in counts:
            agents = crawl(name, count, hosts, seats)
            pages, seconds = len(agents.urls), rate(agents)
            one = one or seconds
            print(
                f"{name:12} {count} agents: {seconds:7.1f} pages/s, linear "
                f"{seconds / one / count:.3f}; {agents.links / pages:.2f} URLs in "
                f"{agents.rows / pages:.3f} rows exchanged by page", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
