"""URLs below a blocked prefix wait at the end of their queue; the others of the host go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.virtual_crawl import WALL, entry

from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.frontier.outcomes import Event, Pace
from scrapy_spider_suite.frontier.policy import Block, Policy, Rule
from scrapy_spider_suite.frontier.workbench import Visit
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.store.rocks_store import RocksStore, Store
from scrapy_spider_suite.urls.host_patterns import HostPattern

DELAY = 1.0
A, B = (HostPattern.parse(f"http://h.test/{name}/") for name in "ab")


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Either kind of store."""
    store: Store = MemoryStore() if request.param == "memory" else RocksStore(tmp_path / "store")
    yield store
    store.close()


class Crawl:
    """One host, fetched as its delay allows."""

    def __init__(self, store: Store, burst: int = 1) -> None:
        self.policy = Policy(host=Pace(DELAY, burst=burst), address=Pace(0.0, 0))
        self.now = 0.0
        self.frontier = Frontier(store, self.policy, now=0.0, wall=WALL, capacity=10)

    def block(self, subject: HostPattern) -> None:
        """Block *subject*."""
        self.policy.blocks.put(subject, Block(Rule(str(subject), "a test"), "noise"))
        self.policy.revision += 1

    def unblock(self, subject: HostPattern) -> None:
        """Let it be visited again."""
        assert self.policy.blocks.remove(subject)
        self.policy.revision += 1

    def fetched(self, seconds: float) -> list[str]:
        """The paths that are fetched in so many seconds."""
        found: list[str] = []
        for _ in range(int(seconds / DELAY * 4)):
            self.now += DELAY / 4
            frontier, now = self.frontier, self.now
            if frontier.policy_update.busy:
                frontier.policy_update.step(now)
            for host in list(frontier.unresolved_hosts(now, 10)):
                frontier.set_address(host, "192.0.2.1", "192.0.2.1", now + 1e6, now)
            found += self._visit(now)
            frontier.tick(now)
        return found

    def _visit(self, now: float) -> list[str]:
        frontier, found = self.frontier, []
        while fetches := frontier.leases.acquire(now):
            for fetch in fetches:
                visit = fetch.visit
                assert visit is not None
                frontier.workbench.begin(visit.host, visit.address, now, visit=True)
                frontier.workbench.end(visit.host, visit.address, now, visit=True)
                fetch.event = Event.SUCCESS
                found.append(fetch.entry.url.removeprefix("http://h.test"))
            for fetch in fetches[1:]:
                fetch.visit = None
            for fetch in fetches:
                frontier.leases.release(fetch, now)
                frontier.commit.settle([fetch], now)
        return found


def paths(name: str, number: int) -> list[str]:
    """So many paths below */name/*."""
    return [f"/{name}/{n}" for n in range(number)]


def schedule(crawl: Crawl, found: list[str]) -> None:
    """Make them pending."""
    crawl.frontier.admission.schedule([entry(f"http://h.test{path}") for path in found], crawl.now)


@pytest.mark.parametrize("burst", [1, 3])
def test_the_others_go_on(store: Store, burst: int) -> None:
    """What is not below the prefix is fetched; then the host waits; unblocked, the rest comes."""
    crawl = Crawl(store, burst)
    mixed = [path for pair in zip(paths("a", 30), paths("b", 30), strict=True) for path in pair]
    schedule(crawl, mixed)
    crawl.block(A)
    assert crawl.fetched(40) == paths("b", 30)
    assert crawl.frontier.counters.pending == 30
    [host] = crawl.frontier.workbench.hosts.values()
    assert host.exclusion is not None
    assert str(host.exclusion) == "blocked (http://h.test/a/, a test): noise"
    assert crawl.frontier.leases.next_visit_in(crawl.now) == float("inf")
    crawl.unblock(A)
    assert sorted(crawl.fetched(40)) == sorted(paths("a", 30))
    assert crawl.frontier.counters.pending == 0


def test_something_new_is_fetched_although_the_host_waits(store: Store) -> None:
    """What comes later need not be below the prefix."""
    crawl = Crawl(store)
    schedule(crawl, paths("a", 20))
    crawl.block(A)
    assert crawl.fetched(5) == []
    schedule(crawl, ["/b/new", "/a/new"])
    assert crawl.fetched(5) == ["/b/new"]
    assert crawl.frontier.counters.pending == 21


def test_nothing_is_kept_of_a_block_that_was_lifted(store: Store) -> None:
    """What is known of its URLs goes with the first visit under other rules."""
    crawl = Crawl(store)
    schedule(crawl, paths("a", 3))
    crawl.block(A)
    crawl.fetched(5)
    blocked = crawl.frontier.leases.blocked
    assert list(blocked.passes) == ["h.test"]
    crawl.unblock(A)
    crawl.fetched(5)
    assert blocked.passes == {}


def test_two_prefixes_one_of_which_is_lifted(store: Store) -> None:
    """What is free again is found behind what is not."""
    crawl = Crawl(store)
    schedule(crawl, paths("a", 20) + paths("b", 20))
    crawl.block(A)
    crawl.block(B)
    assert crawl.fetched(5) == []
    crawl.unblock(B)
    assert crawl.fetched(30) == paths("b", 20)
    assert crawl.frontier.counters.pending == 20


def test_a_long_queue_is_put_aside_in_portions(store: Store) -> None:
    """No call of acquire goes over all of it."""
    crawl = Crawl(store)
    schedule(crawl, [*paths("a", 3_000), "/b/last"])
    crawl.block(A)
    looks: list[int] = []
    check = crawl.frontier.leases.blocked.check

    def counted(visit: Visit, now: float) -> bool:
        looks[-1] += 1
        return check(visit, now)

    crawl.frontier.leases.blocked.check = counted  # type: ignore[method-assign]
    acquire = crawl.frontier.leases.acquire

    def counting(now: float) -> list[object]:
        looks.append(0)
        return acquire(now)  # type: ignore[return-value]

    crawl.frontier.leases.acquire = counting  # type: ignore[method-assign, assignment]
    assert crawl.fetched(5) == ["/b/last"]
    assert max(looks) <= 500
