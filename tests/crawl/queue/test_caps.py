"""Budgets of registered domains and of the job: never exceeded, and exact after any kind of end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from support.virtual_crawl import WALL, Crawl, Web, copy_of, entry

from scrapy_spider_suite.crawl.queue import admission
from scrapy_spider_suite.crawl.queue.frontier import UrlEdits
from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.outcomes import Event, Pace, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store import counters, host_queues, residency
from scrapy_spider_suite.store import host_queues as hostrecords
from scrapy_spider_suite.store.counters import Domain, domain_row
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksStore, Store
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.urls.hosts import registered_domain

Open = Callable[[], Store]
FAST = {"host": Pace(1.0), "address": Pace(0.0, 0)}


@pytest.fixture(params=["memory", "disk", "tiny"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Store:
    """An empty store, of each kind; *tiny* is one beside which hardly anything is in memory."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "tiny":
        make_tiny(monkeypatch)
    return RocksStore(tmp_path / "store", memory=4 << 20)


def make_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every bound be so low that all of them matter."""
    for module, name, value in (
        (host_queues, "_FRONT", 2), (hostrecords, "_CACHE", 1), (residency, "_TURN", 2),
        (residency, "_GOING", 2), (residency, "_COMING", 2),
        (admission, "_BACKLOG", 5), (counters, "_CACHE", 1),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


def farm(hosts: int) -> Web:
    """Hosts below one domain, which are visited all at once; each page leads to two hosts more."""

    def links(url: str) -> list[str]:
        number = int(url[8:].partition(".")[0])
        return [f"http://h{n % hosts}.farm.t/{url[-1]}" for n in (2 * number + 1, 2 * number + 2)]

    return Web({f"h{n}.farm.t": f"10.0.{n // 256}.{n % 256}" for n in range(hosts)}, links)


def pages_of(crawl: Crawl) -> Counter[str]:
    """How many pages were fetched of each domain."""
    done = (f for f in crawl.fetches if f.event is Event.SUCCESS)
    return Counter(registered_domain(fetch.host) for fetch in done)


def event_of(crawl: Crawl, url: str) -> Event | None:
    """What concluded a URL."""
    data = crawl.frontier.store.state(entry(url).identity)
    return None if data is None else UrlState.from_bytes(data).event


# Pages of a domain


@pytest.mark.parametrize("burst", [1, 20])
def test_pages_of_a_domain(store: Store, burst: int) -> None:
    """All its hosts together have so many, however many of them are visited at once."""
    policy = Policy(host=Pace(1.0, 1, burst), address=Pace(0.0, 0), domain_max_pages=50)
    hosts = [f"h{n}.{domain}.t" for n in range(20) for domain in ("a", "b")]
    web = Web({host: f"10.0.0.{n}" for n, host in enumerate([*hosts, "lone.t"])})
    crawl = Crawl(store, web, policy, think=1.5, capacity=9)
    crawl.seed(*(f"http://{host}/{n}" for host in web.addresses for n in range(30)))
    crawl.run()
    assert pages_of(crawl) == {"a.t": 50, "b.t": 50, "lone.t": 30}
    assert crawl.frontier.counters.events == {Event.SUCCESS: 130, Event.DOMAIN_BUDGET: 1100}
    crawl.frontier.admission.schedule([entry("http://new.a.t/")], crawl.now)
    assert event_of(crawl, "http://new.a.t/") is Event.DOMAIN_BUDGET
    assert domain_row(store, "any.a.t")[1].pages == 50


def test_failures_use_up_no_budget(store: Store) -> None:
    """The last pages on their way may fail: then others go in their place, and no more."""
    web = Web(
        {f"h{n}.a.t": f"10.0.0.{n}" for n in range(10)},
        event=lambda url, n: Event.CLIENT_ERROR if url[-1] in "13579" else Event.SUCCESS,
    )
    crawl = Crawl(store, web, Policy(**FAST, domain_max_pages=12))
    crawl.seed(*(f"http://{host}/{n}" for host in web.addresses for n in range(10)))
    crawl.run()
    assert crawl.frontier.counters.events[Event.SUCCESS] == 12
    assert crawl.frontier.counters.pending == 0


def test_a_raised_budget_goes_on(store: Store) -> None:
    """What comes then is taken; what has failed has failed."""
    crawl = Crawl(store, farm(40), Policy(**FAST, domain_max_pages=5))
    crawl.seed("http://h0.farm.t/0")
    crawl.run()
    assert len(crawl.fetches) == 5
    crawl.frontier.policy.update(domain_max_pages=8)
    crawl.seed(*(f"http://h0.farm.t/{n}" for n in range(1, 9)))
    crawl.run()
    assert len(crawl.fetches) == 8


def volatile(url: str) -> Entry:
    """A request that cannot be stored: the page that led there is not done before it."""
    return entry(url, flags=Flag.USER | Flag.VOLATILE, payload=object())


@pytest.mark.parametrize(
    ("caps", "event"),
    [({"host_max_pages": 1}, Event.BUDGET), ({"domain_max_pages": 1}, Event.DOMAIN_BUDGET)],
)
def test_nobody_waits_for_a_page_that_waits_for_him(
    tmp_path: Path, caps: dict[str, int], event: Event
) -> None:
    """A page may be held by a URL that is to come after it: that fails, and the page is done."""
    store = RocksStore(tmp_path / "store", memory=4 << 20)
    crawl = Crawl(store, farm(3), Policy(**FAST, **caps))
    brood = [volatile("http://h0.farm.t/child")]
    crawl.on_page = lambda fetch: crawl.frontier.admission.adopt(fetch, brood, crawl.now)
    crawl.seed("http://h0.farm.t/0")
    crawl.run(until=30.0)
    assert crawl.frontier.pending == crawl.frontier.commit.held == 0
    assert crawl.frontier.counters.events == {Event.SUCCESS: 1, event: 1}


def test_a_page_that_is_held_is_a_page_of_the_job(tmp_path: Path) -> None:
    """Else nothing could go on, and nothing would end."""
    store = RocksStore(tmp_path / "store", memory=4 << 20)
    crawl = Crawl(store, farm(3), Policy(**FAST, job_max_pages=1))
    crawl.on_page = lambda fetch: crawl.frontier.admission.adopt(
        fetch, [volatile("http://h1.farm.t/0")] if "h0" in fetch.entry.url else [], crawl.now
    )
    crawl.seed("http://h0.farm.t/0")
    crawl.run(until=30.0)
    assert (crawl.frontier.commit.held, crawl.frontier.counters.done) == (1, 0)
    crawl.frontier.policy.update(job_max_pages=2)
    crawl.run(until=60.0)
    assert (crawl.frontier.commit.held, crawl.frontier.counters.done) == (0, 2)


# Hosts of a domain


def test_a_wildcard_farm(store: Store) -> None:
    """5,000 hosts below one domain: the first 30 are visited, and the others cost no visit."""
    crawl = Crawl(store, farm(5_000), Policy(**FAST, domain_max_hosts=30), seats=16)
    crawl.seed("http://h0.farm.t/0")
    entries = [entry(f"http://h{n}.farm.t/9") for n in range(4_999, 0, -1)]
    crawl.frontier.admission.schedule(entries, 0.0)
    crawl.run()
    visited = {fetch.host for fetch in crawl.fetches}
    assert visited == {"h0.farm.t", *(f"h{n}.farm.t" for n in range(4_999, 4_970, -1))}
    events = crawl.frontier.counters.events
    assert events[Event.SUCCESS] == len(crawl.fetches) >= 30
    assert events[Event.DOMAIN_HOSTS] >= 4_970
    assert len(crawl.frontier.workbench.hosts) <= 30
    assert domain_row(store, "farm.t")[1] == Domain(30, len(crawl.fetches))


def test_pages_of_a_farm(store: Store) -> None:
    """The other cap bounds it as well: every host of it is given up as its turn comes."""
    crawl = Crawl(store, farm(600), Policy(**FAST, domain_max_pages=25), seats=16)
    crawl.seed(*(f"http://h{n}.farm.t/0" for n in range(600)))
    crawl.run(until=100.0)
    assert len(crawl.fetches) == 25
    assert crawl.frontier.pending == 0


def test_hosts_that_are_known_go_on(store: Store) -> None:
    """Their new URLs are taken; addresses and single labels are domains of their own."""
    hosts = ["a.x.t", "b.x.t", "192.0.2.1", "192.0.2.2", "intranet", "c.x.t", "x.t"]
    web = Web({host: f"10.0.0.{n}" for n, host in enumerate(hosts)})
    crawl = Crawl(store, web, Policy(**FAST, domain_max_hosts=2))
    for page in range(3):
        crawl.seed(*(f"http://{host}/{page}" for host in hosts))
        crawl.run()
    assert {fetch.host for fetch in crawl.fetches} == set(hosts[:5])
    assert len(crawl.fetches) == 15


# Pages of the job


@pytest.mark.parametrize("burst", [1, 20])
def test_pages_of_the_job(store: Store, burst: int) -> None:
    """Not one more is asked for than may be; the rest stays pending, and goes on when raised."""
    policy = Policy(host=Pace(1.0, 1, burst), address=Pace(0.0, 0), job_max_pages=33)
    web = Web({f"h{n}.t": f"10.0.0.{n}" for n in range(9)})
    crawl = Crawl(store, web, policy, think=2.0)
    crawl.seed(*(f"http://{host}/{n}" for host in web.addresses for n in range(30)))
    crawl.run(until=60.0)
    assert len(crawl.fetches) == 33
    assert crawl.frontier.pending == 270 - 33
    assert crawl.frontier.leases.acquire(crawl.now) == []
    assert crawl.frontier.leases.wait(crawl.now) is None
    policy.update(job_max_pages=0)
    crawl.run()
    assert len(crawl.fetches) == 270


# Exact, whatever happens


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("clean", [True, False], ids=["restart", "kill"])
def test_counts_are_exact_over_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, clean: bool
) -> None:
    """Ended at random moments, again and again: rows, states and hosts agree, and no cap is
    exceeded by what is done."""
    make_tiny(monkeypatch)
    random = Random(seed)
    policy = Policy(**FAST, domain_max_pages=17, domain_max_hosts=5)
    names = [f"h{n}.{domain}.t" for n in range(8) for domain in "abc"]
    urls = [f"http://{host}/{n}" for host in names for n in range(6)]
    web = Web(
        {host: f"10.0.0.{n}" for n, host in enumerate(names)}, lambda url: random.sample(urls, 8),
        lambda url, n: random.choice([Event.SUCCESS, Event.SUCCESS, Event.TIMEOUT]),
    )  # fmt: skip
    folder, now = tmp_path / "0", 0.0
    for life in range(1, 7):
        crawl = Crawl(
            RocksStore(folder / "store", memory=4 << 20), web, policy, capacity=4, start=now,
            wall=WALL + now, resume=life > 1, unclean=not clean, flush_always=True, seed=seed,
        )  # fmt: skip
        crawl.seed(*random.sample(urls, 5))
        crawl.run(fetches=random.randrange(3, 25), until=now + 500.0)
        now = crawl.now
        if clean:
            crawl.frontier.close()
        following = tmp_path / str(life)
        copy_of(folder / "store", following / "store")
        crawl.frontier.store.close()
        folder = following
        assert_exact(folder)


def assert_exact(folder: Path) -> None:
    """Count everything anew and compare."""
    with StoreReader(folder) as reader:
        assert list(reader.check()) == []
        totals: dict[str, Domain] = {}
        for host, record in reader.store.records():
            domain = registered_domain(host)
            hosts, pages = totals.get(domain, Domain())
            events = [row.state.event for row in reader.urls(host)]
            done = sum(row.state.state is State.DONE for row in reader.urls(host))
            totals[domain] = Domain(hosts + record.counted, pages + done)
            # Where all were refused, some may have been taken first.
            assert record.counted or set(events) <= {Event.DOMAIN_HOSTS, Event.DOMAIN_BUDGET}
        for domain, total in totals.items():
            assert domain_row(reader.store, domain)[1] == total
            assert total.hosts <= 5
            assert total.pages <= 17


def test_rework_keeps_to_the_caps(tmp_path: Path) -> None:
    """Fetched again, a page counts once; forgotten, it and its host no longer count; and nobody
    retries his way past the number of hosts."""
    store = RocksStore(tmp_path / "store", memory=4 << 20)
    crawl = Crawl(store, farm(9), Policy(**FAST, domain_max_hosts=3))
    crawl.seed("http://h0.farm.t/0")
    crawl.run()
    rework = UrlEdits(crawl.frontier, store)

    def again(url: str) -> bool:
        data = store.state(entry(url).identity)
        assert data is not None
        return rework.requeue(entry(url), UrlState.from_bytes(data), crawl.now)

    assert not again("http://h3.farm.t/0")
    assert event_of(crawl, "http://h3.farm.t/0") is Event.DOMAIN_HOSTS
    assert again("http://h0.farm.t/0")
    assert domain_row(store, "farm.t")[1] == Domain(3, 2)
    crawl.run()
    assert domain_row(store, "farm.t")[1] == Domain(3, 3)
    crawl.run(until=crawl.now + 100.0)
    for name, state in rework.urls("h0.farm.t", b"", 10):
        rework.forget_state("h0.farm.t", name, state)
    assert rework.forget_host("h0.farm.t", crawl.now)
    assert domain_row(store, "farm.t")[1] == Domain(2, 2)
    assert again("http://h3.farm.t/0")
