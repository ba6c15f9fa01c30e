"""Windows over the hosts in memory, in virtual time; `Watch` checks politeness."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.virtual_crawl import WALL, Crawl, Web, all_urls, copy_of, trees

from scrapy_spider_suite.frontier.entries import BottomUp
from scrapy_spider_suite.frontier.outcomes import BackOff, Event, Pace
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.windows import Window
from scrapy_spider_suite.store.rocks_store import RocksStore

T = TypeVar("T")
FOUR = {f"www.example{n}.com": f"10.0.0.{n}" for n in range(1, 5)}
SOON = Policy(host=Pace(1.0), address=Pace(0.1))


def batched(items: list[T], n: int) -> list[list[T]]:
    """*items* in groups of *n*."""
    return [items[at : at + n] for at in range(0, len(items), n)]


@pytest.fixture
def crawl(tmp_path: Path) -> Callable[..., Crawl]:
    """Makes a crawl with a window on a store of its own."""

    def make(web: Web, window: Window | None, policy: Policy = SOON, **options: Any) -> Crawl:
        store = RocksStore(tmp_path / "store", memory=4 << 20)
        return Crawl(store, web, policy, window=window, **options)

    return make


def hosts_of(crawl: Crawl) -> list[str]:
    """Who was fetched from, in order, without what all names have in common."""
    return [fetch.host.removeprefix("www.example")[:1] for fetch in crawl.fetches]


def test_the_top_window_of_the_paper(crawl: Callable[..., Crawl]) -> None:
    """Tarantula, §5.2.1: four hosts, w = 2. First 1 and 2, then 3 and 4, then 1 and 2 (T15)."""
    running = crawl(Web(FOUR), Window(2, 1))
    running.seed(*(f"http://{host}/{page}" for page in range(3) for host in FOUR))
    running.run()
    pairs = [set(pair) for pair in batched(hosts_of(running), 2)]
    assert pairs == [{"1", "2"}, {"3", "4"}] * 3
    ends = [max(fetch.end for fetch in pair) for pair in batched(running.fetches, 2)]
    starts = [min(fetch.start for fetch in pair) for pair in batched(running.fetches, 2)]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))


def test_it_is_the_left_most_leaf_of_each_host(crawl: Callable[..., Crawl]) -> None:
    """With the order of the paper's tries."""
    running = crawl(Web(FOUR), Window(2, 1), order=BottomUp())
    paths = ["", "video/", "video/clips/", "video/clips/9", "a"]
    running.seed(*(f"http://{host}/{path}" for path in paths for host in FOUR))
    running.run()
    for n, path in enumerate(["a", "video/clips/9", "video/clips/", "video/", ""]):
        assert set(running.urls[4 * n : 4 * n + 4]) == {f"http://{host}/{path}" for host in FOUR}


def test_without_a_window_they_come_as_they_are_due(crawl: Callable[..., Crawl]) -> None:
    """All four at once: the tests before this one can fail."""
    running = crawl(Web(FOUR), None)
    running.seed(*(f"http://{host}/{page}" for page in range(3) for host in FOUR))
    running.run(until=1.0)
    assert set(hosts_of(running)) == {"1", "2", "3", "4"}


def test_the_leaf_window_goes_row_by_row(crawl: Callable[..., Crawl]) -> None:
    """One leaf of each host before any second one, though some hosts answer slowly (T16)."""
    web = Web(FOUR, seconds=(0.01, 3.0))
    running = crawl(web, Window.from_settings("leaf", 3), order=BottomUp())
    running.seed(*(f"http://{host}/{page}" for page in range(7) for host in FOUR))
    running.run()
    for n, row in enumerate(batched(running.urls, 4)):
        assert set(row) == {f"http://{host}/{n}" for host in FOUR}


def test_the_leaf_window_goes_to_and_fro(crawl: Callable[..., Crawl]) -> None:
    """What is found to its left it meets on its way back, from right to left (T16)."""
    links = {"/d": ["/b", "/c", "/g"], "/c": ["/a", "/x"]}
    web = Web({"a.t": "1.2.3.4"}, lambda url: [f"http://a.t{to}" for to in links.get(url[10:], ())])
    running = crawl(web, Window.from_settings("leaf", 2), order=BottomUp(alternating=True))
    running.seed("http://a.t/d", "http://a.t/e", "http://a.t/f")
    running.run()
    paths = [url[10:] for url in running.urls]
    assert paths == ["/d", "/e", "/f", "/g", "/c", "/b", "/a", "/x"]


@pytest.mark.parametrize("kind", ["top", "leaf"])
def test_every_page_is_fetched_once(crawl: Callable[..., Crawl], kind: str) -> None:
    """Of more hosts than the window or memory holds, found in the middle, with failing pages."""

    def event(url: str, attempt: int) -> Event:
        return Event.SERVER_ERROR if attempt == 1 and url.endswith("3") else Event.SUCCESS

    web = trees(20, 8, 9)
    web.event = event
    window, order = Window.from_settings(kind, 3), BottomUp(alternating=kind == "leaf")
    running = crawl(web, window, capacity=7, order=order)
    most, hosts = 0, running.frontier.workbench.hosts

    def page(fetch: Any) -> None:
        nonlocal most
        most = max(most, sum(bool(host.front) for host in hosts.values()))
        running.follow(fetch)

    running.on_page = page
    running.seed("http://h0.t/0")
    running.run()
    done = [fetch.url for fetch in running.fetches if fetch.event is Event.SUCCESS]
    assert len(done) == len(set(done))
    assert set(done) == all_urls(web, 8)
    assert most <= (3 if kind == "top" else 7)


KINDS = ["none", "top", "leaf"]


def test_a_host_that_must_wait_holds_up_nobody(crawl: Callable[..., Crawl]) -> None:
    """In back-off for minutes, or without a name: it is passed over, and comes last."""
    policy = Policy(
        host=Pace(1.0), address=Pace(0.1), back_off=BackOff(base=300.0, longest=300.0, dead_after=9)
    )

    def event(url: str, attempt: int) -> Event:
        return Event.UNAVAILABLE if "example1." in url and attempt == 1 else Event.SUCCESS

    def names(host: str, attempt: int) -> Event | None:
        return Event.DNS if "example2." in host and attempt < 3 else None

    web = Web(FOUR, event=event, names=names)
    running = crawl(web, Window(2, 1), policy)
    running.seed(*(f"http://{host}/{page}" for page in range(5) for host in FOUR))
    running.run()
    well = [f.end for f in running.fetches if f.host[11] in "34"]
    assert max(well) < 60.0
    assert sum(fetch.event is Event.SUCCESS for fetch in running.fetches) == 20


def test_the_place_of_the_window_outlives_a_kill(tmp_path: Path) -> None:
    """Who was not visited yet is due before who was."""
    store = RocksStore(tmp_path / "store", memory=4 << 20)
    running = Crawl(store, Web(FOUR), SOON, window=Window(2, 1), flush_always=True)
    running.seed(*(f"http://{host}/{page}" for page in range(2) for host in FOUR))
    running.run(fetches=2)
    assert set(hosts_of(running)) == {"1", "2"}
    running.frontier.flush()
    killed = RocksStore(copy_of(tmp_path / "store", tmp_path / "copy"), memory=4 << 20)
    again = Crawl(
        killed, Web(FOUR), SOON, window=Window(2, 1), start=5.0, wall=WALL + running.now + 5.0,
        resume=True, unclean=True,
    )  # fmt: skip
    again.run(fetches=2)
    assert set(hosts_of(again)) == {"3", "4"}
    again.run()
    left = {f"http://{host}/{page}" for page in range(2) for host in FOUR} - set(running.urls)
    assert set(again.urls) >= left


def test_pages_under_way_hold_up_nobody(crawl: Callable[..., Crawl]) -> None:
    """A host of which all is under way is in no place of the window until that brings more."""
    web = trees(6, 5, 6)
    running = crawl(web, Window(1, 1), think=3.0, order=BottomUp())
    running.seed(*(f"http://{host}/0" for host in web.addresses))
    running.run()
    assert set(running.urls) == all_urls(web, 5)
    waits = [after.start - before.end for before, after in pairwise(running.fetches)]
    assert max(waits[:5]) < 0.1  # the first six hosts, one after the other
    assert running.fetches[-1].end < 9.0  # 7.2 without a window


def test_traffic_without_a_visit_takes_no_place(crawl: Callable[..., Crawl]) -> None:
    """The host of an image comes into memory, and nobody waits for it."""
    running = crawl(Web(FOUR | {"images.t": "10.0.0.9"}), Window(2, 1))
    running.frontier.residents.visitor("images.t", 0.0)
    running.seed(*(f"http://{host}/" for host in FOUR))
    running.run()
    assert [set(pair) for pair in batched(hosts_of(running), 2)] == [{"1", "2"}, {"3", "4"}]
    assert running.now < 1.0


def test_a_host_that_is_given_up_holds_up_nobody(crawl: Callable[..., Crawl]) -> None:
    """However long it takes to fail all that was queued of it."""
    policy = Policy(host=Pace(1.0), address=Pace(0.1), back_off=BackOff(1.0, 2.0, dead_after=1))
    web = Web(FOUR, event=lambda url, n: Event.REFUSED if "example1." in url else Event.SUCCESS)
    running = crawl(web, Window(2, 1), policy)
    running.seed(*(f"http://{host}/{n}" for n in range(3) for host in FOUR))
    running.run()
    counters = running.frontier.counters
    assert (counters.done, counters.failed) == (9, 3)
    assert running.now < 10.0


def test_robots_do_not_use_up_a_turn(crawl: Callable[..., Crawl]) -> None:
    """A visit that is put back to ask for robots.txt first was none."""
    running = crawl(Web(FOUR), Window(1, 1))
    running.seed(*(f"http://{host}/" for host in FOUR))
    running._resolve()
    [fetch] = running.frontier.leases.acquire(0.0)
    running.frontier.commit.put_back(fetch, 0.1)
    assert hosts_of(running) == []
    running.run()
    assert hosts_of(running) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("kind", ["top", "leaf"])
def test_a_window_moves_in_portions(
    crawl: Callable[..., Crawl], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """However many hosts are in it, a step takes no more than a few; each is visited as ever."""
    monkeypatch.setattr("scrapy_spider_suite.store.residency._LEAVING", 3)
    monkeypatch.setattr("scrapy_spider_suite.frontier.windows._PORTION", 2)
    web = trees(40, 6, 40)
    window = Window.from_settings(kind, 12)
    running = crawl(web, window, capacity=12, order=BottomUp(alternating=True))
    frontier, portions, moving = running.frontier, list[int](), list[bool]()
    move, leave = frontier.rotation._advance, frontier.residents.leave

    def moves(*args: Any) -> None:
        portions.append(0)
        moving.append(True)
        move(*args)
        moving.clear()

    def leaves(*args: Any) -> None:
        if moving:
            portions[-1] += 1
        leave(*args)

    monkeypatch.setattr(frontier.rotation, "_advance", moves)
    monkeypatch.setattr(frontier.residents, "leave", leaves)
    running.seed(*(f"http://{host}/0" for host in web.addresses))
    running.run()
    assert sorted(running.urls) == sorted(all_urls(web, 6))
    assert max(portions) == 3
    assert portions.count(3) > 3, "places with more hosts than that"
