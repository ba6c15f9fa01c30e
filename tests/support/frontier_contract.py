"""The contract of the frontier: what it does whatever its store is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.frontier.entries import Flag
from scrapy_spider_suite.frontier.outcomes import BackOff, Event, Pace, State
from scrapy_spider_suite.frontier.policy import Overrides, Policy
from scrapy_spider_suite.store.rocks_store import Store
from scrapy_spider_suite.store.rows import UrlState
from support.virtual_crawl import POLICY, Crawl, Visited, Web, all_urls, entry, trees

IMPATIENT = BackOff(base=1.0, longest=8.0, dead_after=3)


def visits(crawl: Crawl) -> dict[int, list[Visited]]:
    """The transfers of each visit."""
    found: dict[int, list[Visited]] = {}
    for fetch in crawl.fetches:
        found.setdefault(fetch.visit, []).append(fetch)
    return found


def per_host(crawl: Crawl) -> dict[str, list[Visited]]:
    """The transfers of each host, in order."""
    found: dict[str, list[Visited]] = {}
    for fetch in crawl.fetches:
        found.setdefault(fetch.host, []).append(fetch)
    return found


def state_of(frontier: Frontier, url: str) -> UrlState:
    """What the store says of a bulk link."""
    data = frontier.store.state(entry(url).identity)
    assert data is not None, f"{url} is unknown"
    return UrlState.from_bytes(data)


class FrontierContract(ABC):
    """What a frontier does whatever its store is, and however little fits into memory."""

    capacity = 1_000
    given_up = 12_000
    """Rows of a host that is given up."""

    @abstractmethod
    def open(self, path: Path) -> Store:
        """Open the store at *path*."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        """An empty store."""
        return self.open(tmp_path / "store")

    def crawl(self, store: Store, web: Web, policy: Policy = POLICY, **options: Any) -> Crawl:
        """A crawl of *web* that has not begun."""
        options.setdefault("capacity", self.capacity)
        return Crawl(store, web, policy, **options)

    def one_host(self, store: Store, web: Web | None = None, **options: Any) -> Crawl:
        """A crawl of host ``a.t`` alone."""
        return self.crawl(store, web or Web({"a.t": "10.0.0.1"}), **options)

    # Nothing lost, nothing twice, politely

    @pytest.mark.parametrize("think", [0.0, 2.0])
    def test_every_page_is_fetched_once(self, store: Store, think: float) -> None:
        """All pages that links lead to, however many links lead there; `Watch` sees the gaps."""
        web = trees(40, 12, 15)
        crawl = self.crawl(store, web, think=think)
        crawl.seed("http://h0.t/0")
        crawl.run()
        assert len(crawl.urls) == len(set(crawl.urls))
        assert set(crawl.urls) == all_urls(web, 12)
        counters = crawl.frontier.counters
        assert (counters.pending, counters.done, counters.failed) == (0, 480, 0)
        assert counters.events == {Event.SUCCESS: 480}
        assert crawl.frontier.statistics().leased == 0

    def test_breadth_first_per_host(self, store: Store) -> None:
        """The URLs of a host leave in the order in which they came (U4)."""
        crawl = self.crawl(store, trees(20, 40, 7))
        crawl.seed("http://h0.t/0")
        crawl.run()
        for fetches in per_host(crawl).values():
            assert [f.key for f in fetches] == sorted(f.key for f in fetches)
            assert fetches[0].url.endswith("/0")

    def test_depths_are_those_of_the_first_link(self, store: Store) -> None:
        """A link is one deeper than its page, and names it."""
        web = Web({"a.t": "10.0.0.1"}, lambda url: ["http://a.t/2"] if url.endswith("/1") else [])
        crawl = self.one_host(store, web)
        seen = {}

        def page(fetch: Fetch) -> None:
            seen[fetch.entry.url] = fetch.entry
            crawl.follow(fetch)

        crawl.on_page = page
        crawl.seed("http://a.t/1")
        crawl.run()
        child = seen["http://a.t/2"]
        assert (child.depth, child.referrer) == (1, "http://a.t/1")

    def test_priorities(self, store: Store) -> None:
        """High ones first, also those that come later than a front full of others."""
        crawl = self.one_host(store)
        crawl.frontier.admission.schedule([entry(f"http://a.t/{n}") for n in range(50)], 0.0)
        schedule = crawl.frontier.admission.schedule
        schedule([entry(f"http://a.t/high{n}", priority=9) for n in range(50)], 0.0)
        schedule([entry(f"http://a.t/low{n}", priority=-9) for n in range(50)], 0.0)
        crawl.run()
        expected = [f"http://a.t/{kind}{n}" for kind in ("high", "", "low") for n in range(50)]
        assert crawl.urls == expected

    def test_hosts_take_turns(self, store: Store) -> None:
        """On one address, whoever was visited longest ago goes next (E2)."""
        web = Web({f"h{n}.t": "10.0.0.1" for n in range(5)})
        crawl = self.crawl(store, web, Policy(host=Pace(1.0), address=Pace(0.5)), capacity=1_000)
        crawl.seed(*(f"http://h{n}.t/{page}" for n in range(5) for page in range(10)))
        crawl.run()
        turns = [fetch.host for fetch in crawl.fetches]
        assert all(turns[i : i + 5] == turns[:5] for i in range(0, 50, 5))

    def test_a_burst_is_one_visit(self, store: Store) -> None:
        """Up to 20 URLs one after the other, then the delay (K16)."""
        policy = Policy(host=Pace(4.0, 1, 20), address=Pace(0.5))
        crawl = self.one_host(store, policy=policy)
        crawl.seed(*(f"http://a.t/{n}" for n in range(100)))
        crawl.run()
        sizes = [len(fetches) for fetches in visits(crawl).values()]
        assert sum(sizes) == 100
        assert max(sizes) == 20
        assert sorted(crawl.urls) == sorted(set(crawl.urls))

    # Limits

    @pytest.mark.parametrize("burst", [1, 20])
    def test_page_budget(self, store: Store, burst: int) -> None:
        """A host's pages stop at its budget; what is left fails and says why."""
        policy = Policy(
            host=Pace(4.0, 1, burst), address=Pace(0.5), host_max_pages=7,
            overrides=Overrides.parse(["b.t max_pages=0"], "x"),
        )  # fmt: skip
        web = Web({"a.t": "10.0.0.1", "b.t": "10.0.0.2"})
        crawl = self.crawl(store, web, policy)
        crawl.seed(*(f"http://{host}/{n}" for host in web.addresses for n in range(30)))
        crawl.run()
        assert {host: len(f) for host, f in per_host(crawl).items()} == {"a.t": 7, "b.t": 30}
        assert crawl.frontier.counters.events == {Event.SUCCESS: 37, Event.BUDGET: 23}
        crawl.frontier.admission.schedule([entry("http://a.t/late")], crawl.now)
        assert state_of(crawl.frontier, "http://a.t/late").event is Event.BUDGET

    def test_failures_use_up_no_budget(self, store: Store) -> None:
        """Pages that could not be had are no pages."""
        web = Web(
            {"a.t": "10.0.0.1"},
            event=lambda url, n: Event.CLIENT_ERROR if url[-1] in "13579" else Event.SUCCESS,
        )
        policy = Policy(host=Pace(1.0), address=Pace(0.5), host_max_pages=7)
        crawl = self.one_host(store, web, policy=policy)
        crawl.seed(*(f"http://a.t/{n}" for n in range(30)))
        crawl.run()
        events = crawl.frontier.counters.events
        assert events[Event.SUCCESS] == 7
        assert events[Event.CLIENT_ERROR] + events[Event.BUDGET] == 23

    @pytest.mark.parametrize("flags", [0, Flag.USER])
    def test_retries(self, store: Store, flags: int) -> None:
        """The frontier's own URLs are tried again, a spider's only by Scrapy's middleware."""
        web = Web({"a.t": "10.0.0.1"}, event=lambda url, n: Event.SERVER_ERROR)
        policy = Policy(host=Pace(1.0), address=Pace(0.5), retry_times=3)
        crawl = self.one_host(store, web, policy=policy)
        crawl.frontier.admission.schedule([entry("http://a.t/1", flags=flags)], 0.0)
        crawl.run()
        times = 1 if flags else 4
        assert len(crawl.urls) == times
        state = state_of(crawl.frontier, "http://a.t/1")
        assert (state.state, state.event) == (State.FAILED, Event.SERVER_ERROR)
        assert state.attempts == times
        assert crawl.frontier.counters.retried == times - 1

    def test_a_retry_comes_after_the_others(self, store: Store) -> None:
        """A URL that failed must not keep its host's other URLs waiting."""
        web = Web(
            {"a.t": "10.0.0.1"},
            event=lambda url, n: Event.DATA_LOSS if (url[-1], n) == ("0", 1) else Event.SUCCESS,
        )
        crawl = self.one_host(store, web)
        crawl.seed(*(f"http://a.t/{n}" for n in range(4)))
        crawl.run(fetches=1)
        state = state_of(crawl.frontier, "http://a.t/0")
        assert (state.state, state.event, state.attempts) == (State.PENDING, Event.DATA_LOSS, 1)
        crawl.run()
        assert [url[-1] for url in crawl.urls] == ["0", "1", "2", "3", "0"]

    # Waiting

    def test_back_off_keeps_a_host_waiting(self, store: Store) -> None:
        """1, 2, 4, 8, 8 seconds after answers of 503; then everything is well."""
        web = Web(
            {"a.t": "10.0.0.1"}, seconds=(0.0, 0.0),
            event=lambda url, n: Event.UNAVAILABLE if n < 6 else Event.SUCCESS,
        )  # fmt: skip
        policy = Policy(host=Pace(0.0), address=Pace(0.0), retry_times=9, back_off=IMPATIENT)
        crawl = self.one_host(store, web, policy=policy)
        crawl.seed("http://a.t/1")
        crawl.run()
        gaps = [b.start - a.end for a, b in pairwise(crawl.fetches)]
        assert gaps == pytest.approx([1, 2, 4, 8, 8], abs=0.01)

    def test_retry_after_is_waited_for(self, store: Store) -> None:
        """To the second, with an eviction in between or not."""
        crawl = self.one_host(store, Web({"a.t": "10.0.0.1", "b.t": "10.0.0.2"}))
        crawl.seed("http://a.t/1", "http://b.t/1", "http://b.t/2", "http://b.t/3")
        crawl.frontier.tick(0.0)
        crawl._resolve()
        (fetch,) = self.lease_of(crawl, "a.t")
        fetch.event = Event.TOO_MANY_REQUESTS
        crawl.frontier.leases.release(fetch, crawl.now, retry_after=100.0)
        crawl.frontier.commit.settle([fetch], crawl.now)
        asked = crawl.now
        crawl.run()
        again = next(fetch for fetch in crawl.fetches if fetch.host == "a.t")
        assert again.start - asked == pytest.approx(100.0, abs=1.1)
        assert again.start - asked >= 100.0

    def lease_of(self, crawl: Crawl, host: str) -> list[Fetch]:
        """Acquire until *host* has its turn; the others go back."""
        for _ in range(1_000):
            for fetch in crawl.frontier.leases.acquire(crawl.now):
                if fetch.entry.host == host:
                    return [fetch]
                crawl.frontier.commit.put_back(fetch, crawl.now)
            crawl.now += 1.0
            crawl.frontier.tick(crawl.now)
            crawl._resolve()
        raise AssertionError(f"{host} never had its turn")

    def test_put_back_changes_nothing(self, store: Store) -> None:
        """Same place in the queue, no attempt, no delay."""
        crawl = self.one_host(store)
        crawl.seed(*(f"http://a.t/{n}" for n in range(40)))
        crawl._resolve()
        for _ in range(3):
            (fetch,) = crawl.frontier.leases.acquire(0.0)
            assert fetch.entry.url == "http://a.t/0"
            crawl.frontier.commit.put_back(fetch, 0.0)
        assert crawl.frontier.counters.pending == 40
        assert crawl.frontier.statistics().leased == 0
        crawl.run()
        assert crawl.urls == [f"http://a.t/{n}" for n in range(40)]
        record = crawl.frontier.residents.records.touch("a.t")
        assert record.attempts == 40

    def test_put_back_behind_a_cut_front_is_not_doubled(self, store: Store) -> None:
        """The row of what is out lies beyond the cursor when more important URLs come."""
        crawl = self.one_host(store)
        crawl.seed("http://a.t/first")
        crawl._resolve()
        (fetch,) = crawl.frontier.leases.acquire(0.0)
        others = [entry(f"http://a.t/{n}", priority=5) for n in range(60)]
        crawl.frontier.admission.schedule(others, 0.0)
        crawl.frontier.commit.put_back(fetch, 0.0)
        crawl.run()
        assert crawl.urls == [f"http://a.t/{n}" for n in range(60)] + ["http://a.t/first"]

    # Giving up

    @pytest.mark.parametrize("event", [Event.NO_SUCH_HOST, Event.PRIVATE_ADDRESS])
    def test_a_host_without_an_address_is_given_up(self, store: Store, event: Event) -> None:
        """All that is pending fails of it, and what comes later too."""
        web = Web({"b.t": "10.0.0.2"}, names=lambda host, n: event if host == "a.t" else None)
        crawl = self.crawl(store, web)
        crawl.seed(*(f"http://a.t/{n}" for n in range(50)), "http://b.t/")
        crawl.run()
        assert crawl.urls == ["http://b.t/"]
        assert state_of(crawl.frontier, "http://a.t/49").event is event
        crawl.frontier.admission.schedule([entry("http://a.t/late")], crawl.now)
        assert state_of(crawl.frontier, "http://a.t/late").event is event
        assert crawl.frontier.counters.failed == 51
        assert crawl.frontier.counters.pending == 0

    def test_name_servers_that_do_not_answer_are_asked_again(self, store: Store) -> None:
        """With back-off; the URLs wait."""
        web = Web({"a.t": "10.0.0.1"}, names=lambda host, n: Event.DNS if n < 3 else None)
        crawl = self.one_host(store, web)
        crawl.seed("http://a.t/1")
        crawl.run()
        assert crawl.urls == ["http://a.t/1"]
        # 5 s and 10 s, and each question is asked up to a second ahead of its time.
        assert 13.0 <= crawl.now <= 17.0

    def test_a_dead_host_is_given_up(self, store: Store) -> None:
        """After failed connections in a row; whoever is under way fails with it."""
        web = Web({"a.t": "10.0.0.1"}, event=lambda url, n: Event.TIMEOUT)
        policy = Policy(host=Pace(1.0), address=Pace(0.5), back_off=IMPATIENT)
        crawl = self.one_host(store, web, policy=policy, think=3.0)
        crawl.seed(*(f"http://a.t/{n}" for n in range(100)))
        crawl.run()
        assert len(crawl.fetches) == 3
        assert crawl.frontier.counters.dead_hosts == 1
        assert crawl.frontier.counters.events == {Event.HOST_DEAD: 100}

    def test_giving_up_takes_its_time(self, store: Store) -> None:
        """Many rows are dropped a part at a time, so that nothing stands still meanwhile."""
        rows = self.given_up
        web = Web({"b.t": "10.0.0.1"},
                  names=lambda host, n: Event.NO_SUCH_HOST if host == "a.t" else None)  # fmt: skip
        crawl = self.crawl(store, web)
        crawl.frontier.admission.schedule((entry(f"http://a.t/{n}") for n in range(rows)), 0.0)
        crawl.frontier.admission.schedule((entry(f"http://b.t/{n}") for n in range(3)), 0.0)
        failed = [0]
        while crawl.frontier.counters.failed < rows:
            crawl.run(until=crawl.now + 0.5)
            failed.append(crawl.frontier.counters.failed)
        steps = [b - a for a, b in pairwise(failed)]
        assert max(steps) <= 5_000
        assert crawl.now <= 10 + rows / 2_000
        crawl.frontier.tick(crawl.now)
        assert crawl.frontier.statistics().abandoning == 0

    # What must be durable first

    def test_holds(self, store: Store) -> None:
        """A page is done when nothing holds it; its links need not wait."""
        crawl = self.one_host(store)
        crawl.seed("http://a.t/1")
        held: list[Fetch] = []

        def hold(fetch: Fetch) -> None:
            if fetch.entry.url == "http://a.t/1":
                fetch.holds += 2
                fetch.links.append("http://a.t/2")
                held.append(fetch)

        crawl.on_page = hold
        crawl.run(until=20.0)
        assert crawl.urls == ["http://a.t/1", "http://a.t/2"]
        assert state_of(crawl.frontier, "http://a.t/1").state is State.PENDING
        crawl.frontier.commit.unhold([held[0]], crawl.now)
        assert crawl.frontier.pending == 1
        crawl.frontier.commit.unhold([held[0]], crawl.now)
        assert state_of(crawl.frontier, "http://a.t/1").state is State.DONE
        assert crawl.frontier.pending == 0

    def test_interrupted_pages_are_pending_and_bring_nothing(self, store: Store) -> None:
        """A sink that could not write undoes its page, not its host."""
        crawl = self.one_host(store)
        crawl.seed("http://a.t/1")
        tries: list[str] = []

        def page(fetch: Fetch) -> None:
            tries.append(fetch.entry.url)
            fetch.links.append(f"http://a.t/from{len(tries)}")
            if len(tries) == 1:
                fetch.faults.add(Event.INTERRUPTED)

        crawl.on_page = page
        crawl.run(fetches=2)
        assert tries == ["http://a.t/1", "http://a.t/1"]
        assert not crawl.frontier.states.known(entry("http://a.t/from1").identity)
