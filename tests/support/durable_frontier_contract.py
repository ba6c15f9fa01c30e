"""The contract of a frontier whose store keeps rows: beyond that of every frontier."""

from __future__ import annotations

from typing import Any

import pytest

from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.outcomes import Event, Pace, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.rocks_store import Store
from scrapy_spider_suite.store.rows import PENDING
from support.frontier_contract import FrontierContract, state_of
from support.virtual_crawl import Crawl, Web, all_urls, entry, trees


def volatile(url: str) -> Entry:
    """A request that cannot be stored."""
    return entry(url, flags=Flag.USER | Flag.VOLATILE, payload=object())


class DurableFrontierContract(FrontierContract):
    """What a frontier does if its store keeps rows."""

    def test_many_children_are_stored_early(self, store: Store) -> None:
        """A page with more links than memory should hold; it is still not done before its time."""
        crawl = self.one_host(store)
        crawl.seed("http://a.t/1")
        crawl._resolve()
        (fetch,) = crawl.frontier.leases.acquire(0.0)
        for n in range(1_500):
            child = entry(f"http://a.t/child{n}", flags=Flag.USER)
            crawl.frontier.admission.adopt(fetch, [child], 0.0)
        assert crawl.frontier.counters.pending > 1_000
        assert len(fetch.children) < 1_000
        assert state_of(crawl.frontier, "http://a.t/1").state is State.PENDING

    def test_children_wait_for_their_page(self, store: Store) -> None:
        """They become pending in its commit."""
        crawl = self.one_host(store)
        crawl.seed("http://a.t/1")
        crawl._resolve()
        (fetch,) = crawl.frontier.leases.acquire(0.0)
        crawl.frontier.admission.adopt(fetch, [entry("http://a.t/2", flags=Flag.USER)], 0.0)
        assert not crawl.frontier.states.known(entry("http://a.t/2").identity)
        fetch.event = Event.SUCCESS
        crawl.frontier.commit.settle([fetch], 0.0)
        assert state_of(crawl.frontier, "http://a.t/2").state is State.PENDING

    def adopting(self, crawl: Crawl, brood: dict[str, list[Entry]]) -> None:
        """Let pages bring the entries that *brood* names, as a spider's callback would."""
        crawl.on_page = lambda fetch: crawl.frontier.admission.adopt(
            fetch, brood.get(fetch.entry.url, []), crawl.now
        )

    def test_volatile_children_keep_their_page_undone(self, store: Store) -> None:
        """After a kill it is the only way back to them."""
        crawl = self.one_host(store)
        self.adopting(crawl, {"http://a.t/1": [volatile("http://a.t/2"), volatile("http://a.t/3")]})
        crawl.seed("http://a.t/1")
        crawl.run(fetches=2)
        assert state_of(crawl.frontier, "http://a.t/1").state is State.PENDING
        crawl.run()
        for n in (1, 2, 3):
            assert state_of(crawl.frontier, f"http://a.t/{n}").state is State.DONE
        assert sorted(crawl.urls) == [f"http://a.t/{n}" for n in (1, 2, 3)]

    def test_volatile_urls_are_deduplicated(self, store: Store) -> None:
        """A ring of pages that cannot be stored comes to an end."""
        crawl = self.one_host(store)
        ring = {f"http://a.t/{n}": [volatile(f"http://a.t/{(n + 1) % 5}")] for n in range(5)}
        self.adopting(crawl, ring)
        crawl.frontier.admission.schedule([volatile("http://a.t/0")], 0.0)
        crawl.run(until=1_000.0)
        assert crawl.frontier.pending == 0
        assert len(crawl.urls) == 5

    def test_a_volatile_child_that_is_refused_holds_nobody(self, store: Store) -> None:
        """It is known already, or its host is dead: its page must not wait for it for ever."""
        web = Web({"a.t": "10.0.0.1", "b.t": "10.0.0.2"},
                  names=lambda host, n: Event.NO_SUCH_HOST if host == "dead.t" else None)
        crawl = self.crawl(store, web)
        crawl.seed("http://dead.t/", "http://a.t/known")
        crawl.run()
        brood = [volatile("http://a.t/known"), volatile("http://dead.t/2"), volatile("http://b.t/")]
        self.adopting(crawl, {"http://a.t/1": brood})
        crawl.seed("http://a.t/1")
        crawl.run(until=crawl.now + 100.0)
        assert state_of(crawl.frontier, "http://a.t/1").state is State.DONE
        assert crawl.frontier.pending == 0

    def test_a_long_chain_of_volatile_pages(self, store: Store) -> None:
        """A listing of thousands of pages, each the volatile child of the one before."""
        policy = Policy(host=Pace(0.0), address=Pace(0.0))
        crawl = self.one_host(store, policy=policy)
        last = 1_500
        crawl.on_page = lambda fetch: crawl.frontier.admission.adopt(
            fetch, [volatile(f"http://a.t/{int(fetch.entry.url[11:]) + 1}")]
            if not fetch.entry.url.endswith(f"/{last}") else [], crawl.now,
        )  # fmt: skip
        crawl.seed("http://a.t/0")
        crawl.run(fetches=last)
        assert state_of(crawl.frontier, "http://a.t/0").state is State.PENDING
        crawl.run()
        assert state_of(crawl.frontier, "http://a.t/0").state is State.DONE
        assert len(crawl.urls) == last + 1

    def test_a_dead_host_lets_go_of_volatile_children(self, store: Store) -> None:
        """They fail with it, and their pages are done."""
        web = Web({"a.t": "10.0.0.1"},
                  names=lambda host, n: Event.NO_SUCH_HOST if host == "dead.t" else None)
        crawl = self.crawl(store, web)
        brood = [volatile(f"http://dead.t/{n}") for n in range(40)]
        self.adopting(crawl, {"http://a.t/1": brood})
        crawl.seed("http://a.t/1")
        crawl.run(until=1_000.0)
        assert crawl.frontier.pending == 0
        assert state_of(crawl.frontier, "http://a.t/1").state is State.DONE

    # A store that cannot write

    def test_a_full_disk_loses_nothing(
        self, store: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only `flush` says so; what was to be written is kept until it can be."""
        web = trees(10, 8, 5)
        crawl = self.crawl(store, web)
        crawl.seed("http://h0.t/0")
        crawl.run(fetches=10)
        frontier = crawl.frontier
        real = store.flush

        def full() -> None:
            raise StoreWriteError("no space left")

        monkeypatch.setattr(store, "flush", full)
        store.put_state(b"key", PENDING)
        with pytest.raises(StoreWriteError):
            frontier.flush()
        monkeypatch.setattr(frontier, "flush", lambda: None)  # the crawl pauses, fetches end
        crawl.run(fetches=30)
        monkeypatch.undo()
        assert store.flush == real
        frontier.flush()
        crawl.run()
        assert sorted(crawl.urls) == sorted(all_urls(web, 8))
        frontier.flush()
        assert Counters.load(store).done == 80
