"""A crawl in phases: on one agent, and on several that share hosts (KSpider)."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from support.virtual_agents import Agents
from support.virtual_crawl import HOST_DELAY, POLICY, WALL, Crawl, Web, all_urls, trees

from scrapy_spider_suite.cluster.assignment import load_assignment
from scrapy_spider_suite.frontier.outcomes import BackOff, Event
from scrapy_spider_suite.frontier.policy import Phases
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.store.rocks_store import RocksStore

HOSTS, PAGES = 12, 70
SECONDS, GUARD = 20.0, 5.0
"""A transfer takes 0.3 s at most, and a host rests for 4 s."""


def test_hosts_are_visited_in_their_phase_alone(tmp_path: Path) -> None:
    """And are on disk while it is far off (K8)."""
    phases = Phases(6, 2 * SECONDS)
    web = trees(HOSTS, PAGES, 200)
    store = RocksStore(tmp_path / "store")
    crawl = Crawl(store, web, replace(POLICY, phases=phases))
    crawl.seed("http://h0.t/0")
    most, turn = 0, int(WALL // phases.seconds)
    while crawl.frontier.pending:
        # A while into a phase, those of the one before have gone, and those of the next not come.
        turn += 1
        crawl.run(until=(turn + 0.2) * phases.seconds - WALL)
        wall = crawl.now + WALL
        here = [host.key for host in crawl.frontier.workbench.hosts.values() if host.front]
        assert [host for host in here if phases.opens(host, wall) > wall] == []
        most = max(most, len(here))
    assert Counter(crawl.urls) == Counter(dict.fromkeys(all_urls(web, PAGES), 1))
    for fetch in crawl.fetches:
        assert phases.opens(fetch.host, fetch.start + WALL) == fetch.start + WALL
    assert 0 < most < HOSTS / 2
    store.close()


def test_a_phase_that_comes_shortens_no_back_off(tmp_path: Path) -> None:
    """A host that has to wait for longer waits on, on disk, too."""
    store = RocksStore(tmp_path / "store")
    web = Web({"a.t": "10.0.0.1"}, event=lambda url, n: [Event.TIMEOUT, Event.SUCCESS][n > 1])
    policy = replace(POLICY, phases=Phases(2, SECONDS * 2), back_off=BackOff(300.0, 300.0))
    crawl = Crawl(store, web, policy)
    crawl.seed("http://a.t/0")
    crawl.run()
    first, second = crawl.fetches
    assert second.start - first.end >= 300.0
    store.close()


def test_who_missed_a_phase_comes_first_in_the_next(tmp_path: Path) -> None:
    """With less room than a phase has hosts: none is brought into memory out of its phase."""
    hosts, phases = [f"h{n}.t" for n in range(24)], Phases(2, 3 * SECONDS)
    store = RocksStore(tmp_path / "store")
    web = Web({host: f"10.0.0.{n}" for n, host in enumerate(hosts)})
    crawl = Crawl(store, web, replace(POLICY, phases=phases), capacity=4)
    crawl.seed(*(f"http://{host}/{page}" for page in range(50) for host in hosts))
    for turn in range(8):
        begin = (WALL // phases.seconds + turn + 1) * phases.seconds
        crawl.run(until=begin + phases.seconds / 2 - WALL)
        here = crawl.frontier.workbench.hosts
        assert here
        assert all(phases.opens(host, crawl.now + WALL) <= crawl.now + WALL for host in here)
    assert {fetch.host for fetch in crawl.fetches} == {*hosts}
    store.close()


def test_agents_that_share_hosts_never_meet() -> None:
    """By url-sum each host is everybody's: the phases keep them apart, for more than 20 swaps."""
    web = trees(HOSTS, PAGES, 10_000)
    agents = Agents(
        web, load_assignment("url-sum"), [MemoryStore() for _ in range(3)],
        policies=[replace(POLICY, phases=Phases(4, SECONDS, GUARD, node)) for node in range(3)],
    )  # fmt: skip
    agents.each(lambda crawl: crawl.seed("http://h0.t/0"))
    agents.run()
    assert Counter(agents.urls) == Counter(dict.fromkeys(all_urls(web, PAGES), 1))
    assert agents.now > 20 * SECONDS
    of_host = defaultdict(list)
    for name, crawl in agents.crawls.items():
        for fetch in crawl.fetches:
            of_host[fetch.host].append((fetch.start, fetch.end, name))
    met = 0
    for fetches in of_host.values():
        for before, after in pairwise(sorted(fetches)):
            assert after[0] - before[1] >= HOST_DELAY - 1e-9
            met += before[2] != after[2]
    assert met > HOSTS
