"""URLs that nobody linked to: tried within bounds, marked as such, and given up where they miss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.virtual_crawl import Crawl, Web, entry

from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.crawl.queue.traps import MISSES_MAX, PRIORITY
from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.outcomes import Event, Health, Pace, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.store.rocks_store import RocksStore, Store
from scrapy_spider_suite.store.rows import UrlState, pack_row, unpack_row

H = "http://a.test"


class MiningCrawl(Crawl):
    """A crawl of pages of one host, some of which nobody links to."""

    def __init__(
        self, store: Store, kind: str, there: Callable[[str], bool], most: int = 1_000,
        **more: object,
    ) -> None:  # fmt: skip
        def event(url: str, attempt: int) -> Event:
            return Event.SUCCESS if there(url) else Event.CLIENT_ERROR

        web = Web({"a.test": "10.0.0.1"}, event=event)
        super().__init__(store, web, Policy(host=Pace(0.1)), **more)  # type: ignore[arg-type]
        self.kind, self.most = kind, most

    def follow(self, fetch: Fetch) -> None:
        """As the bulk path does."""
        miner = self.frontier.traps.miner
        fetch.children.extend(miner.mine(fetch.entry, self.kind, self.most, lambda url: True))

    def state(self, url: str) -> UrlState:
        """What is known of *url*."""
        return UrlState.from_bytes(self.frontier.store.state(entry(url).identity) or b"")


def test_bottom_up() -> None:
    """T13: from a leaf to the root, and nothing twice."""
    crawl = MiningCrawl(MemoryStore(), "ancestors", lambda url: True)
    crawl.seed(f"{H}/video/clips/", f"{H}/pics/page1.html")
    crawl.run()
    folders = [f"{H}/video/", f"{H}/", f"{H}/pics/"]
    assert crawl.urls == [f"{H}/video/clips/", f"{H}/pics/page1.html", *folders]
    assert crawl.frontier.traps.miner.found == {"tried": 3, "hits": 3}


def test_siblings_until_there_are_no_more() -> None:
    """T14: a gallery whose pages nobody links to; beyond its end two misses, one a side."""
    pages = {f"{H}/pics1/Page{n}.html" for n in range(1, 30)}
    crawl = MiningCrawl(MemoryStore(), "siblings", pages.__contains__)
    crawl.seed(f"{H}/pics1/Page12.html")
    crawl.run()
    assert pages <= set(crawl.urls)
    assert crawl.state(f"{H}/pics1/Page30.html").event is Event.NOT_THERE
    assert crawl.frontier.counters.events[Event.SUCCESS] == len(pages)


def test_misses_teach_where_to_stop() -> None:
    """Nothing more is tried in a folder after so many, and elsewhere it goes on."""
    pages = {f"{H}/x/{word}1.html" for word in "abcdefghijklmnopqrstuvwxyz"}
    there = pages | {f"{H}/more/{number}.html" for number in range(1, 9)}
    crawl = MiningCrawl(MemoryStore(), "siblings", there.__contains__)
    crawl.seed(*pages)
    crawl.run()
    assert len(crawl.fetches) == len(pages) + MISSES_MAX
    assert crawl.frontier.counters.events[Event.NOT_THERE] == MISSES_MAX
    assert crawl.frontier.counters.pending == 0
    waited = {f"{H}/x/{word}2.html" for word in "abcdefghijklmnopqrstuvwxyz"} - set(crawl.urls)
    assert len(waited) == len(pages) - MISSES_MAX
    crawl.seed(min(waited))
    crawl.run()
    assert crawl.urls[-1] == min(waited), "nothing is remembered of it: a link brings it"
    crawl.seed(f"{H}/more/3.html")
    crawl.run()
    assert there <= set(crawl.urls)


def test_so_many_of_a_host() -> None:
    """The bound holds over a restart, for it lies on the host's ground."""
    crawl = MiningCrawl(MemoryStore(), "both", lambda url: True, most=10)
    crawl.seed(f"{H}/p/1")
    crawl.run()
    assert len(crawl.fetches) == 11
    assert crawl.frontier.traps.miner.found["tried"] == 10


def test_the_bound_after_a_restart(tmp_path: Path) -> None:
    """What was tried and what was missed is known again."""
    store = RocksStore(tmp_path / "store", memory=4 << 20)
    crawl = MiningCrawl(store, "both", lambda url: True, most=10)
    crawl.seed(f"{H}/p/1")
    crawl.run(fetches=5)
    crawl.frontier.close()
    store.close()
    store = RocksStore(tmp_path / "store", memory=4 << 20)
    again = MiningCrawl(
        store, "both", lambda url: True, most=10, start=crawl.now, resume=True, unclean=True
    )
    again.run()
    assert 11 <= len(set(crawl.urls + again.urls)) <= 12  # what was out at the end is out again
    store.close()


def test_what_is_known_is_not_tried() -> None:
    """Neither as a guess, nor counted as one."""
    crawl = MiningCrawl(MemoryStore(), "ancestors", lambda url: True)
    crawl.seed(f"{H}/", f"{H}/a/", f"{H}/a/b/")
    crawl.run()
    assert len(crawl.fetches) == 3
    assert not crawl.frontier.traps.miner.found


def test_mined_urls_come_after_links() -> None:
    """They are a guess: what is known to be there goes first."""
    crawl = MiningCrawl(MemoryStore(), "ancestors", lambda url: True)
    crawl.seed(f"{H}/a/b/", f"{H}/1", f"{H}/2", f"{H}/3")
    crawl.run()
    assert set(crawl.urls[4:]) == {f"{H}/a/", f"{H}/"}
    assert set(crawl.urls[1:4]) == {f"{H}/1", f"{H}/2", f"{H}/3"}


@pytest.mark.parametrize("event", [Event.CLIENT_ERROR, Event.TOO_MANY_REQUESTS, Event.TIMEOUT])
def test_what_a_failure_of_a_mined_url_means(event: Event) -> None:
    """4xx is nobody's trouble; a host that is overloaded or away is that as ever."""
    mined = Fetch(Entry("a.test", f"{H}/x", flags=Flag.SPECULATIVE), None)
    linked = Fetch(Entry("a.test", f"{H}/x"), None)
    mined.event = linked.event = event
    expected = Event.NOT_THERE if event is Event.CLIENT_ERROR else event
    assert mined.verdict() is expected
    assert linked.verdict() is event
    assert Event.NOT_THERE.outcome.health is Health.WELL
    assert Event.NOT_THERE.outcome.state is State.FAILED


def test_the_flag_is_stored() -> None:
    """With the row, among all the others."""
    every = 255 & ~Flag.VOLATILE
    row = Entry("a.test", f"{H}/x", priority=PRIORITY, flags=every, referrer=f"{H}/y")
    again = unpack_row("a.test", b"\0" * 10, pack_row(row))
    assert again.flags == every
    assert again.flags & Flag.SPECULATIVE
    assert (again.priority, again.referrer) == (PRIORITY, f"{H}/y")
