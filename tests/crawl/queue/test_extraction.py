"""Links that are read on demand: every page is reached all the same, and few wait (E4, E7)."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.virtual_crawl import Crawl, Web, all_urls, copy_of, entry, trees

from scrapy_spider_suite.crawl.queue import admission
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.frontier.outcomes import Event, Pace, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.packs.stored_pages import StoredPage
from scrapy_spider_suite.store import unread_pages as demands
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.store.seen_index import DROPPED, SIEVE_FOLDER, SieveIndex
from scrapy_spider_suite.store.unread_pages import PageDemand, UnreadPage

QUICK = Policy(host=Pace(0.0), address=Pace(0.0))


@dataclass
class Place:
    """Where a page of a web that is a function lies: under its URL."""

    url: str
    location: str = "a pack"

    def to_bytes(self) -> bytes:
        """As a row holds it."""
        return self.url.encode()


class OnDemand(Crawl):
    """Reads links as the crawl's `Extractor` does, in virtual time; *peak*: most URLs pending."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.peak = 0
        self.read: list[str] = []

    def follow(self, fetch: Fetch) -> None:
        """The page is stored; what it leads to is nobody's business yet."""
        fetch.stored = Place(fetch.entry.url)  # type: ignore[assignment]

    def _more(self) -> bool:
        return super()._more() or len(self.frontier.stored_links.waiting) > 0

    def _wait(self) -> None:
        self.peak = max(self.peak, self.frontier.pending - self.frontier.leases.out)
        pages = self.choose(starving=self._busy < self._seats)
        for page in pages:
            if self.frontier.stored_links.demand.wants(page):
                self.extract(page)
            else:
                self.frontier.stored_links.demand.finish(page)
        if not pages:
            super()._wait()

    def choose(self, *, starving: bool) -> list[UnreadPage]:
        """What is wanted now."""
        frontier, demand = self.frontier, self.frontier.stored_links.demand
        demand.sifted(frontier.states.in_sieve)
        return demand.choose(
            starving=starving, fetches=len(self.fetches),
            nothing_else=lambda: not (
                frontier.leases.out or frontier.states.in_sieve or frontier.pending
            ),
        )  # fmt: skip

    def extract(self, page: UnreadPage) -> None:
        """Its links become pending."""
        url = page.place.decode()
        assert url == page.entry.url
        self.read.append(url)
        fetch = Fetch(page.entry, None)
        fetch.links.extend(self.web.links(url))
        assert self.frontier.stored_links.finish(page, fetch, self.now)
        if self._flush_always:
            self.frontier.flush()


def peak_of(crawl: Crawl) -> int:
    """Run an eager *crawl* to its end; how many URLs were pending at most."""
    peak = 0
    while crawl.frontier.pending:
        crawl.run(fetches=len(crawl.fetches) + 1)
        peak = max(peak, crawl.frontier.pending - crawl.frontier.leases.out)
    return peak


def states(crawl: Crawl) -> dict[str, State]:
    """What the store says of every URL of the crawl's web."""
    crawl.frontier.flush()
    store = crawl.frontier.store
    assert isinstance(store, RocksStore)
    with StoreReader(store._path.parent) as reader:
        assert list(reader.check()) == []
        hosts = [name for name, _ in reader.store.records()]
        return {row.url: row.state.state for host in hosts for row in reader.urls(host)}


def store_in(folder: Path, *, sieve: bool = False) -> RocksStore:
    """A store, with a sieve beside it if that is wanted."""
    store = RocksStore(folder / "store", memory=4 << 20)
    if sieve:
        store.sieve = SieveIndex(folder / SIEVE_FOLDER, store.kv(DROPPED), capacity=64)
    return store


@pytest.mark.parametrize("policy", [QUICK, Policy(host=Pace(4.0), address=Pace(0.5))])
def test_the_same_pages_with_a_small_frontier(policy: Policy, tmp_path: Path) -> None:
    """Each page once, in either way; a tenth of the URLs wait at most. And no time is lost."""
    web, ends = trees(6, 150, 3), []
    expected = all_urls(web, 150)
    eager = Crawl(store_in(tmp_path / "eager"), web, policy)
    eager.seed("http://h0.t/0")
    peak = peak_of(eager)
    late = OnDemand(store_in(tmp_path / "late"), web, policy)
    late.seed("http://h0.t/0")
    late.run()
    for crawl in (eager, late):
        assert Counter(crawl.urls) == Counter(dict.fromkeys(expected, 1))
        assert states(crawl) == dict.fromkeys(expected, State.DONE)
        ends.append(crawl.now)
        crawl.frontier.store.close()
    assert late.peak <= peak / 10
    assert sorted(late.read) == sorted(expected)
    assert ends[1] <= 1.1 * ends[0] + 1


def test_a_chain_over_hosts_that_are_all_idle(tmp_path: Path) -> None:
    """A page of another host leads on where a host has nothing left: the oldest are read then."""
    addresses = {f"h{n}.t": "10.0.0.1" for n in range(30)}

    def links(url: str) -> list[str]:
        number, page = int(url[8:].split(".")[0]), int(url.rsplit("/", 1)[1])
        if page < 9:  # its own host has nothing new to say after the first page
            return [f"http://h{number}.t/{n}" for n in range(10)]
        return [f"http://h{number + 1}.t/0"] if number < 29 else []

    crawl = OnDemand(store_in(tmp_path), Web(addresses, links), QUICK)
    crawl.seed("http://h0.t/0")
    crawl.run()
    assert Counter(crawl.urls) == Counter(dict.fromkeys(all_urls(crawl.web, 10), 1))
    crawl.frontier.store.close()


def test_room_that_is_always_free_does_not_have_all_read_at_once(tmp_path: Path) -> None:
    """Two slow hosts of many pages never fill the places of a crawl: its frontier stays small."""
    web = trees(2, 900, 2)
    crawl = OnDemand(store_in(tmp_path), web, seats=64)
    crawl.seed("http://h0.t/0")
    crawl.run(fetches=400)
    frontier = crawl.frontier
    assert crawl.peak < 100
    assert len(frontier.stored_links.waiting) > 200
    store = frontier.store
    store.close()


def test_with_a_sieve(tmp_path: Path) -> None:
    """Links wait for the sieve, and a host whose links do is not read on for that."""
    web = trees(5, 30, 5)
    crawl = OnDemand(store_in(tmp_path, sieve=True), web, QUICK, sift=True)
    crawl.seed("http://h0.t/0")
    crawl.run()
    assert Counter(crawl.urls) == Counter(dict.fromkeys(all_urls(web, 30), 1))
    crawl.frontier.store.close()


# Ends


graphs = st.dictionaries(
    st.integers(0, 39), st.lists(st.integers(0, 39), max_size=6), min_size=5, max_size=40
)


def web_of(graph: dict[int, list[int]], hosts: int = 5) -> tuple[Web, set[str]]:
    """A web of *graph*, and what of it can be reached from its first page."""
    urls = [f"http://h{n % hosts}.t/{n}" for n in range(40)]
    by_url = {urls[n]: [urls[to] for to in graph.get(n, [])] for n in range(40)}
    reached, front = {urls[0]}, [urls[0]]
    while front:
        front = [to for url in front for to in by_url[url] if to not in reached]
        reached.update(front)
    return Web({f"h{n}.t": "10.0.0.1" for n in range(hosts)}, by_url.__getitem__), reached


@settings(max_examples=6, deadline=None)
@given(graph=graphs, steps=st.lists(st.integers(1, 8), max_size=3), sieve=st.booleans())
def test_ends_of_all_kinds_lose_nothing_and_double_nothing(
    graph: dict[int, list[int]], steps: list[int], sieve: bool
) -> None:
    """Killed after some fetches, again and again: what was written goes on where it was."""
    web, reached = web_of(graph)
    folder, fetched = Path(tempfile.mkdtemp(prefix="extraction-")), Counter[str]()
    numbers, resume = count(), False
    try:
        for fetches in (*steps, 1_000):
            here = folder / str(next(numbers))
            if resume:
                for name in ("store", *([SIEVE_FOLDER] if sieve else [])):
                    copy_of(folder / "killed" / name, here / name)
                shutil.rmtree(folder / "killed")
            store = store_in(here, sieve=sieve)
            crawl = OnDemand(
                store, web, QUICK, sift=sieve, resume=resume, unclean=resume, flush_always=True
            )
            crawl.seed("http://h0.t/0")
            crawl.run(fetches=fetches)
            crawl.frontier.flush()
            for name in ("store", *([SIEVE_FOLDER] if sieve else [])):
                copy_of(here / name, folder / "killed" / name)
            resume = True
            fetched.update(crawl.urls)
            out = {fetch.entry.url for fetch in crawl.out}
            fetched.subtract(url for url in out if url in crawl.urls)
            if fetches == 1_000:
                assert states(crawl) == dict.fromkeys(reached, State.DONE)
            store.close()
    finally:
        shutil.rmtree(folder)
    assert fetched == Counter(dict.fromkeys(reached, 1))


def test_a_kill_after_any_batch(tmp_path: Path) -> None:
    """Also between the batches of one page, of which there are many here: none loses a link."""
    web, reached = web_of({n: [(3 * n + 1) % 40, (3 * n + 2) % 40, n + 1] for n in range(39)}, 3)
    copies: list[Path] = []
    store = store_in(tmp_path / "first")
    crawl = OnDemand(store, web, QUICK, flush_always=True)
    flush: Callable[[], None] = store.flush

    def flush_and_copy() -> None:
        flush()
        if next(batches) % 7 == 0 and len(copies) < 10:
            copies.append(copy_of(store._path, tmp_path / str(len(copies)) / "store").parent)

    batches = count()
    with (
        mock.patch.object(admission, "_BACKLOG", 2),
        mock.patch.object(store, "flush", flush_and_copy),
    ):
        crawl.seed("http://h0.t/0")
        crawl.run()
    store.close()
    assert len(copies) == 10
    for folder in copies:
        again = OnDemand(store_in(folder), web, QUICK, resume=True, unclean=True)
        again.seed("http://h0.t/0")
        again.run()
        assert states(again) == dict.fromkeys(reached, State.DONE)
        again.frontier.store.close()


# Hosts in demand


def fetched(folder: Path, urls: list[str], *, sieve: bool = False) -> OnDemand:
    """A crawl that has fetched *urls*, and has read none of them."""
    hosts = dict.fromkeys((url[7:].partition("/")[0] for url in urls), "10.0.0.1")
    crawl = OnDemand(store_in(folder, sieve=sieve), Web(hosts, lambda url: []), QUICK)
    crawl.seed(*urls)
    with mock.patch.object(crawl, "choose", return_value=[]):
        crawl.run(until=100.0)
    assert len(crawl.frontier.stored_links.waiting) == len(urls)
    return crawl


def chosen(demand: PageDemand) -> list[UnreadPage]:
    """What hosts are in demand for."""
    return demand.choose(starving=False, fetches=0, nothing_else=lambda: False)


def test_hosts_of_an_earlier_run_are_in_demand(tmp_path: Path) -> None:
    """All of those whose pages wait, a portion at a time; and few are looked at at once."""
    urls = [f"http://h{n}.t/{page}" for n in range(30) for page in range(2)]
    crawl, looked = fetched(tmp_path, urls), Counter[str]()

    def left(host: str) -> int:
        looked[host] += 1
        return 0

    found: list[str] = []
    with mock.patch.object(demands, "_EXAMINED", 7):
        demand = PageDemand(crawl.frontier.stored_links.waiting, left)
        while pages := chosen(demand):
            assert len(pages) <= 7
            assert looked.total() <= 14
            looked.clear()
            found += [page.entry.host for page in pages]
    assert sorted(found) == sorted({url[7:].partition("/")[0] for url in urls})
    crawl.frontier.store.close()


def test_hosts_whose_links_have_left_the_sieve_are_in_demand_again(tmp_path: Path) -> None:
    """While they are in it no more of the host is read."""
    crawl = fetched(tmp_path, ["http://h0.t/0", "http://h0.t/1", "http://h0.t/2"])
    waiting = crawl.frontier.stored_links.waiting
    demand = PageDemand(waiting, lambda host: 0)
    demand.sifted(1)
    for after in (2, 0):
        [page] = chosen(demand)
        waiting.remove(page)
        demand.finish(page)
        assert chosen(demand) == []
        demand.sifted(after + 5)
        assert chosen(demand) == []
        demand.sifted(after)
    assert len(chosen(demand)) == 1
    crawl.frontier.store.close()


# Pages that are gone


def test_what_could_not_be_written_waits_for_nothing(tmp_path: Path) -> None:
    """The disk was full, and then its host was given up: the page has failed, as others have."""
    crawl = OnDemand(store_in(tmp_path), Web({"h0.t": "10.0.0.1"}), QUICK)
    fetch = Fetch(entry("http://h0.t/0"), None)
    fetch.stored = StoredPage("http://h0.t/0", 1e9)
    crawl.frontier.stored_links.concluded(fetch, Event.HOST_DEAD)
    assert len(crawl.frontier.stored_links.waiting) == 0
    crawl.frontier.store.close()


def test_given_up_and_dropped(tmp_path: Path) -> None:
    """The last word on a page whose links cannot be had; nothing becomes of one that was dropped.
    """
    crawl = OnDemand(store_in(tmp_path), Web({"h0.t": "10.0.0.1"}, lambda url: []), QUICK)
    urls = [f"http://h0.t/{n}" for n in range(3)]
    crawl.seed(*urls)
    with mock.patch.object(crawl, "choose", return_value=[]):
        crawl.run(until=10.0)
    extraction, wall = crawl.frontier.stored_links, crawl.now + crawl.frontier.wall_offset
    first, second, third = extraction.demand.of_all(3)
    assert extraction.give_up(first, Event.UNREADABLE, wall)
    assert not extraction.give_up(first, Event.UNREADABLE, wall)
    assert sum(extraction.waiting.forget("h0.t", lambda url: url == urls[1], 10)) == 1
    fetch = Fetch(second.entry, None)
    fetch.links.append("http://h0.t/new")
    assert not crawl.frontier.stored_links.finish(second, fetch, crawl.now)
    assert not crawl.frontier.states.known(entry("http://h0.t/new").identity)
    assert crawl.frontier.stored_links.finish(third, Fetch(third.entry, None), crawl.now)
    assert states(crawl) == dict(zip(urls, [State.FAILED, State.DONE, State.DONE], strict=True))
    data = crawl.frontier.store.state(first.entry.identity)
    assert data is not None
    assert UrlState.from_bytes(data).event is Event.UNREADABLE
    assert (crawl.frontier.counters.done, crawl.frontier.counters.failed) == (2, 1)
    assert not len(extraction.waiting)
    crawl.frontier.store.close()
