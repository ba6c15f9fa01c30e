"""The links of a page in one batch, and one by one: the same rows, to the last byte."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.virtual_crawl import WALL, entry

from scrapy_spider_suite.crawl.queue import traps
from scrapy_spider_suite.crawl.queue.frontier import Frontier, QueueOptions
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.frontier.entries import (
    BREADTH_FIRST,
    BestFirst,
    BottomUp,
    Entry,
    Order,
)
from scrapy_spider_suite.frontier.outcomes import BackOff, Event, Pace
from scrapy_spider_suite.frontier.policy import Overrides, Policy
from scrapy_spider_suite.frontier.windows import Window
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.store.seen_transfer import LinkOrigin, keys_of
from scrapy_spider_suite.urls.traps import TrapLimits

HOSTS = ("a.farm.test", "b.farm.test", "c.test", "d.test", "e.test")
PATHS = ("1", "2", "shop/3", "shop/4", "shop/5", "p?x=1&y=2", "p?y=2&x=1", f"long/{'x' * 900}")
EVENTS = (Event.SUCCESS, Event.SUCCESS, Event.SERVER_ERROR, Event.TIMEOUT, Event.NO_SUCH_HOST)

pages = st.lists(
    st.builds("http://{}/{}".format, st.sampled_from(HOSTS), st.sampled_from(PATHS)), max_size=12
)
steps = st.lists(st.tuples(pages, st.sampled_from(EVENTS), st.booleans()), min_size=1, max_size=8)
policies = st.fixed_dictionaries({
    "host_max_pages": st.sampled_from([0, 0, 1]),
    "domain_max_pages": st.sampled_from([0, 0, 1]),
    "domain_max_hosts": st.sampled_from([0, 1]),
    "retry_failed_after": st.sampled_from([0.0, 30.0]),
    "traps": st.sampled_from([TrapLimits(), TrapLimits(permuted=1, prefix=50, sessions=3, same=3)]),
})  # fmt: skip
orders: st.SearchStrategy[Order] = st.sampled_from([
    BREADTH_FIRST, BREADTH_FIRST, BottomUp(), BestFirst(lambda entry: float(len(entry.url))),
])  # fmt: skip


class Side:
    """A frontier that gets what pages lead to in its own way."""

    def __init__(self, folder: Path, policy: Policy, capacity: int, options: QueueOptions) -> None:
        self.store = RocksStore(folder, memory=1 << 20)
        self.frontier = Frontier(
            self.store, policy, now=0.0, wall=WALL, capacity=capacity, options=options
        )

    def step(self, links: list[str], event: Event, now: float) -> str:
        """Commit a page with these *links*, if a host may be visited; else they come of no page."""
        frontier = self.frontier
        for host in frontier.unresolved_hosts(now, 100):
            if event is Event.NO_SUCH_HOST:
                frontier.health.no_address(host, event, now)
                break
            frontier.set_address(host, f"10.0.0.{len(host.key)}", host.key, 1e18, now)
        fetches = frontier.leases.acquire(now)
        if not fetches:
            self.give(LinkOrigin(1, "http://e.test/", referrer_policy=2), links, now)
            return ""
        (fetch,) = fetches
        assert fetch.visit is not None
        frontier.workbench.begin(fetch.visit.host, fetch.visit.address, now, visit=True)
        frontier.workbench.end(fetch.visit.host, fetch.visit.address, now, visit=True)
        fetch.event = event
        frontier.leases.release(fetch, now)
        self.lead(fetch, links, now)
        frontier.commit.settle([fetch], now)
        return fetch.entry.url

    def lead(self, fetch: Fetch, links: list[str], now: float) -> None:
        """The page of *fetch* leads to *links*."""
        fetch.links = links

    def give(self, origin: LinkOrigin, links: list[str], now: float) -> None:
        """Links of a page that is elsewhere."""
        self.frontier.admission.add_links([(origin, keys_of(links))], now)

    def rows(self) -> list[tuple[str, bytes, bytes]]:
        """Everything that is on disk after a flush."""
        self.frontier.flush()
        return list(self.store.every_row())


class OneByOne(Side):
    """Each link is an entry, and a batch of one."""

    def lead(self, fetch: Fetch, links: list[str], now: float) -> None:
        """They come with the commit, if the page is done or has failed."""
        page = fetch.entry
        fetch.children = [
            Entry(url.split("/")[2], url, depth=page.depth + 1, referrer=page.url) for url in links
        ]

    def give(self, origin: LinkOrigin, links: list[str], now: float) -> None:
        """In the order of the page."""
        for url in links:
            link = Entry(
                url.split("/")[2], url, depth=origin.depth, referrer=origin.referrer,
                referrer_policy=origin.referrer_policy,
            )  # fmt: skip
            self.frontier.admission.schedule([link], now)


def policy_of(fields: dict[str, Any]) -> Policy:
    """A policy for each side: none sees what the other is told."""
    return Policy(
        host=Pace(1.0), address=Pace(0.1), retry_times=0, retry_failed=frozenset(EVENTS),
        back_off=BackOff(base=1.0, longest=2.0, dead_after=2), **fields,
    )  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    steps, policies, orders, st.sampled_from([0, 1 << 12]), st.sampled_from([1, 2, 99]),
    st.sampled_from(["none", "none", "leaf"]),
)  # fmt: skip
def test_a_page_in_one_batch_gives_the_rows_of_its_links_one_by_one(
    steps: list[tuple[list[str], Event, bool]], fields: dict[str, Any], order: Order, cache: int,
    capacity: int, window: str,
) -> None:  # fmt: skip
    """Whatever the policy, the order, the window, the cache and the room in memory, after visits,
    failures, retries of what failed, hosts that were given up, and flushes in between.
    """
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(traps, "_FEW", 3)  # URLs of a host from which on crowded folders come last
        sides = [
            kind(
                Path(folder) / kind.__name__, policy_of(fields), capacity,
                QueueOptions(order, Window.from_settings(window, 2), cache),
            )
            for kind in (Side, OneByOne)
        ]  # fmt: skip
        for side in sides:
            side.frontier.admission.schedule([entry("http://c.test/")], 0.0)
        now = 0.0
        for links, event, flushes in steps:
            now += 20.0
            visited = {side.step(links, event, now) for side in sides}
            assert len(visited) == 1
            for side in sides:
                side.frontier.tick(now)
                if flushes:
                    side.frontier.flush()
        batch, single = (side.rows() for side in sides)
        assert batch == single
        for side in sides:
            side.store.close()


def test_a_request_is_a_batch_of_one(tmp_path: Path) -> None:
    """What is asked for twice at once is new once, unless it is not to be filtered."""
    side = Side(tmp_path / "store", policy_of({}), 10, QueueOptions(cache=1 << 12))
    url = "http://c.test/1"
    assert side.frontier.admission.schedule([entry(url), entry(url)], 0.0) == 1
    assert side.frontier.admission.add_links([(LinkOrigin(1, ""), keys_of([url] * 2))], 0.0) == 0
    assert side.frontier.counters.filtered == 3
    assert len(side.store.rows("c.test", b"", 9)) == 1


def test_of_a_page_that_leads_nowhere_new_nothing_is_written(tmp_path: Path) -> None:
    """Nor is a host's record packed."""
    side = Side(tmp_path / "store", policy_of({}), 10, QueueOptions(cache=1 << 12))
    links = keys_of(f"http://{host}/{path}" for host in HOSTS for path in PATHS)
    origin = LinkOrigin(1, "http://c.test/")
    assert side.frontier.admission.add_links([(origin, links)], 0.0) == len(links)
    side.frontier.flush()
    assert side.frontier.admission.add_links([(origin, links)], 0.0) == 0
    assert not side.store.backlog
    assert side.frontier.counters.filtered == len(links)


def test_a_visit_that_is_called_off_loses_no_row(tmp_path: Path) -> None:
    """While the rules of a host are looked at, its next URL is in no front: a kill afterwards must
    find it all the same.
    """
    side = Side(tmp_path / "store", policy_of({}), 10, QueueOptions())
    frontier = side.frontier
    frontier.admission.schedule([entry(f"http://c.test/{n}") for n in range(3)], 0.0)
    for host in frontier.unresolved_hosts(0.0, 9):
        frontier.set_address(host, "10.0.0.1", "10.0.0.1", 1e18, 0.0)
    frontier.flush()
    frontier.policy.update(overrides=Overrides.parse(["c.test blocked=yes"], "rules"))
    assert frontier.leases.acquire(0.0) == []
    frontier.flush()
    [row] = [row for family, _, row in side.store.every_row() if family == "hosts"]
    head = HostRecord.from_bytes(row).head
    assert len(side.store.rows("c.test", head, 9)) == 3
