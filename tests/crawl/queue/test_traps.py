"""Traps in a frontier: a crawl of all six in virtual time, restarts, damage, bounds."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from support.trap_webs import BROAD, NAMES, TrapCrawl, seeds
from support.virtual_crawl import entry

from benchmarks.expected_pages import real_pages
from scrapy_spider_suite.crawl.queue import traps as grounds
from scrapy_spider_suite.crawl.queue.traps import Traps, TrapStats, pack, unpack
from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.entries import Flag, state_key
from scrapy_spider_suite.frontier.outcomes import Event, Pace, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.store.rocks_store import RocksStore, Store
from scrapy_spider_suite.store.rows import HostRecord, UrlState
from scrapy_spider_suite.urls.traps import HostTrapStats, Trap, TrapLimits, TrapRefusal

REAL = set(real_pages(lambda host: f"http://{host}"))
TIGHT = replace(BROAD, same=6, hosts=6, query=6)


def test_six_traps() -> None:
    """By the defaults of the broad profile: it ends, with every real page and few others."""
    crawl = TrapCrawl(MemoryStore(), BROAD, seats=32)
    crawl.seed(*seeds())
    crawl.run(fetches=5_000)
    assert crawl.frontier.pending == 0
    assert set(crawl.urls) >= REAL
    trapped = crawl.in_traps()
    assert set(trapped) == set(NAMES)
    assert max(trapped.values()) <= 150
    assert trapped.total() <= 320
    for trap in (Trap.SAME, Trap.QUERY, Trap.PERMUTED, Trap.SESSIONS, Trap.HOSTS):
        assert crawl.frontier.traps.met[trap]


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("calendar", "numbers"), ("facets", "query"), ("sessions", "sessions"), ("mirror", "same"),
        ("lost", "same"), ("farm", "hosts"),
    ],
)  # fmt: skip
def test_one_trap_and_one_limit(name: str, limit: str) -> None:
    """Each has the limit that ends it by itself; without limits it has no end."""
    given = {each: getattr(TIGHT, each) for each in (limit, *(["same"] * (limit == "numbers")))}
    for limits in (TrapLimits(**given), TrapLimits()):
        crawl = TrapCrawl(MemoryStore(), limits)
        crawl.seed(f"http://{name}-trap.test/")
        crawl.run(fetches=200)
        assert bool(crawl.frontier.pending) is not limits.any
        met = set(crawl.frontier.traps.met)
        if limit == "same":
            met.discard(Trap.NUMBERS)  # put last, before it was sure that they are all the same
        assert met == ({Trap(limit)} if limits.any else set())


def test_a_calendar_comes_last() -> None:
    """Its days differ in numbers alone: real pages that are found later come before them."""
    crawl = TrapCrawl(MemoryStore(), TrapLimits(same=6), seats=1)
    crawl.seed("http://calendar-trap.test/calendar/2026/6")
    crawl.run(fetches=150)
    assert not crawl.frontier.counters.failed
    assert crawl.frontier.traps.met[Trap.NUMBERS] > 100
    crawl.seed("http://calendar-trap.test/")
    before = len(crawl.urls)
    crawl.run(fetches=before + 60)
    later = crawl.urls[before:]
    real = [at for at, url in enumerate(later) if "/page/" in url]
    assert len(real) == 20
    assert max(real) < 60


def test_two_orders_of_one_query_are_fetched_once() -> None:
    """Half of the facets' combinations are others in another order."""
    for limits in (TrapLimits(query=150, permuted=1), TrapLimits(query=150)):
        crawl = TrapCrawl(MemoryStore(), limits)
        crawl.seed("http://facets-trap.test/")
        crawl.run(fetches=200)
        queries = ["&".join(sorted(url.partition("?")[2].split("&"))) for url in crawl.urls]
        pairs = [query for query in queries if "&" in query]
        assert (len(pairs) == len(set(pairs))) is bool(limits.permuted)


def test_the_disk_does_not_fill(tmp_path: Path) -> None:
    """What is refused leaves no row; what waited when a trap was found fails in its own."""
    store = RocksStore(tmp_path / "store", memory=4 << 20)
    crawl = TrapCrawl(store, TIGHT)
    crawl.seed(*seeds())
    crawl.run(fetches=5_000)
    crawl.frontier.close()
    counters, refused = crawl.frontier.counters, crawl.frontier.traps.met.total()
    known = sum(1 for host, _ in store.records() for _ in store.states(_prefix(host)))
    assert known == counters.done + counters.failed
    assert counters.failed == counters.events[Event.TRAP]
    assert refused > known
    assert set(crawl.urls) >= REAL
    store.close()


def _prefix(host: str) -> bytes:
    return state_key(host, "")


def test_a_restart_knows_the_traps(tmp_path: Path) -> None:
    """What was closed stays closed, and what is asked for by name is fetched all the same."""
    store = RocksStore(tmp_path / "store", memory=4 << 20)
    crawl = TrapCrawl(store, TIGHT)
    crawl.seed(*seeds())
    crawl.run(fetches=5_000)
    crawl.frontier.close()
    store.close()
    store = RocksStore(tmp_path / "store", memory=4 << 20)
    again = TrapCrawl(store, TIGHT, start=crawl.now, resume=True)
    inside = {
        "http://lost-trap.test/lost/more": Trap.SAME,
        "http://unheard-of.farm-trap.test/": Trap.HOSTS,
        "http://facets-trap.test/search?size=small&sort=name": Trap.QUERY,
    }
    for value in ("size=small", "sort=name"):  # the values are learned anew
        url = f"http://facets-trap.test/search?{value}"
        assert again.frontier.traps.closed(list(inside)[2], "facets-trap.test") is None
        again.frontier.traps.learn_page(url, "facets-trap.test", b"<p>What there is", [], pages=9)
    for url, trap in inside.items():
        refusal = again.frontier.traps.refuses(url, url.split("/")[2], 2026)
        assert refusal is not None
        assert refusal.trap is trap
    assert again.frontier.traps.closed("http://farm-trap.test/", "farm-trap.test") is None
    urls = list(inside)
    again.frontier.admission.schedule([entry(urls[0], flags=Flag.START), entry(urls[1])], again.now)
    again.run(fetches=20)
    assert again.urls == urls[:1]
    state = UrlState.from_bytes(store.state(entry(urls[1]).identity) or b"")
    assert (state.state, state.event) == (State.FAILED, Event.TRAP)
    store.close()


def test_switched_off_while_it_runs() -> None:
    """0 lets everything through again, what was closed too."""
    crawl = TrapCrawl(MemoryStore(), TIGHT)
    crawl.seed("http://lost-trap.test/")
    crawl.run(fetches=500)
    assert crawl.frontier.traps.closed("http://lost-trap.test/lost/x", "lost-trap.test")
    crawl.frontier.policy.update(traps=replace(TIGHT, same=0))
    assert crawl.frontier.traps.closed("http://lost-trap.test/lost/x", "lost-trap.test") is None


@pytest.mark.parametrize("budget", [0, 400])
def test_a_folder_that_has_had_its_share_comes_last(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is refused: when the others are done, what is left of the budget is its own."""
    monkeypatch.setattr("scrapy_spider_suite.crawl.queue.traps._FEW", 200)
    crawl = TrapCrawl(MemoryStore(), TrapLimits(prefix=50))
    crawl.frontier.policy.update(host=Pace(0.1), host_max_pages=budget)
    crawl.on_page = lambda fetch: None
    big = [f"http://mirror-trap.test/big/{n}" for n in range(500)]
    small = [f"http://mirror-trap.test/small/{n}" for n in range(150)]
    crawl.seed(*big, *small)
    crawl.run(fetches=2_000)
    last = max(crawl.urls.index(url) for url in small)
    assert last < (360 if budget else 560)
    assert len(crawl.fetches) == (budget or 650)
    assert set(small) <= set(crawl.urls)
    assert crawl.frontier.traps.met[Trap.PREFIX] >= 99


def test_links_that_were_taken_away_say_nothing_about_queries() -> None:
    """Of nofollow the page has no links; where it ends, there is nothing without end."""
    store = MemoryStore()
    known = set[bytes]()
    traps = Traps(store, Policy(traps=TrapLimits(query=2)), TrapStats(store), known.__contains__)
    more = [f"http://a.test/s?x={n}&y=1" for n in range(3)]
    elsewhere = "http://a.test/page"

    def closed_by(links: list[str]) -> bool:
        for number in range(20):
            url = f"http://a.test/s?x={number % 4}&y={number // 4}"
            traps.learn_page(url, "a.test", b"<p>A page", links, pages=9)
        return traps.closed("http://a.test/s?x=1&y=2", "a.test") is not None

    assert not closed_by([])
    assert not closed_by(more[:1]), "the canonical of a page with nofollow"
    assert not closed_by([*more, elsewhere])
    known.add(state_key("a.test", elsewhere))
    assert closed_by([*more, elsewhere])


@pytest.mark.parametrize("durable", [False, True])
def test_a_queue_in_a_trap_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, durable: bool
) -> None:
    """It goes at once, as far as it lies there, and its host waits behind the others."""
    monkeypatch.setattr("scrapy_spider_suite.crawl.queue.leases._REFUSALS", 1)
    store: Store = RocksStore(tmp_path / "store", memory=4 << 20) if durable else MemoryStore()
    crawl = TrapCrawl(store, TrapLimits(same=3))
    crawl.on_page = lambda fetch: None
    trapped = [f"http://lost-trap.test/lost/{n}" for n in range(900)]
    crawl.seed("http://mirror-trap.test/page/1.html", *trapped, "http://lost-trap.test/page/2.html")
    ground = HostTrapStats()
    for url in trapped[:3]:
        ground.count_page(url, 3, same=True)
    crawl.frontier.traps.stats.change("lost-trap.test", ground)
    fetches, turns = crawl.frontier.leases, list[float]()
    acquire = fetches.acquire
    monkeypatch.setattr(fetches, "acquire", lambda now: turns.append(now) or acquire(now))
    crawl.run(fetches=20)
    assert len(turns) < 20
    assert sorted(crawl.urls) == [
        "http://lost-trap.test/page/2.html", "http://mirror-trap.test/page/1.html",
    ]  # fmt: skip
    assert crawl.frontier.traps.met == {Trap.SAME: 900}
    assert crawl.frontier.counters.failed == 900
    assert crawl.frontier.pending == 0
    if isinstance(store, RocksStore):
        store.close()


# Rows


def filled(seed: int = 1) -> HostTrapStats:
    """A ground with something of everything."""
    draw, ground = random.Random(seed), HostTrapStats()
    for _ in range(20):
        ground.counts.setdefault(draw.choice(["same", "below"]), {})[draw.getrandbits(64)] = 7
        ground.closed[draw.getrandbits(64)] = draw.choice(list(Trap))
    ground.mined = 7
    return ground


def test_rows() -> None:
    """A ground comes back as it was."""
    ground, again = filled(), unpack("a.test", pack(filled()))
    for name in HostTrapStats.__slots__:
        assert getattr(ground, name) == getattr(again, name)


@pytest.mark.parametrize(
    "row", [b"", b"\xc1", b"junk", pack(filled())[:-3], b"\x90", b"\x94\x01\x02\x03\x04"]
)
def test_damaged_rows(row: bytes) -> None:
    """One clear error, which names the host."""
    with pytest.raises(JobDamagedError, match=r"a\.test"):
        unpack("a.test", row)


def test_grounds_come_and_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With hardly any in memory they are what they would be with all of them."""
    monkeypatch.setattr(grounds, "_MOST", 2)
    monkeypatch.setattr(grounds, "_CACHE", 2)
    store = RocksStore(tmp_path / "store", memory=4 << 20)
    kept, draw = TrapStats(store), random.Random(3)
    expected: dict[str, int] = {}
    for _ in range(300):
        host = f"h{draw.randrange(9)}.test"
        if draw.random() < 0.1:
            kept.forget(host)
            expected.pop(host, None)
        elif draw.random() < 0.7:
            change = draw.choice((1, 1, -2))  # of many nothing is left, for a while
            kept.learn(host).add("same", "/", change)
            expected[host] = max(0, expected.get(host, 0) + change)
        found = kept.get(host)
        assert (found.count("same", "/") if found else 0) == expected.get(host, 0)
    kept.save()
    store.flush()
    store.close()
    store = RocksStore(tmp_path / "store", memory=4 << 20)
    again = TrapStats(store)
    assert {host: again.learn(host).count("same", "/") for host in expected} == expected
    store.close()


def test_farms_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten, on disk as well."""
    monkeypatch.setattr("scrapy_spider_suite.crawl.queue.traps._DOMAINS_MAX", 3)
    store = MemoryStore()
    policy = Policy(traps=TrapLimits(hosts=2))

    def traps() -> Traps:
        return Traps(store, policy, TrapStats(store), lambda identity: False)

    ours = traps()
    body = b"<p>This domain is for sale, and has been for quite some time now.</p>"
    for farm in range(5):
        for number in range(4):
            host = f"h{number}.farm{farm}.test"
            ours.learn_page(f"http://{host}/", host, body, (), pages=0)
    for each in (ours, traps()):
        found = [each.closed(f"http://x.farm{n}.test/", f"x.farm{n}.test") for n in range(5)]
        assert found == [None, None, *(TrapRefusal(Trap.HOSTS, f"farm{n}.test") for n in (2, 3, 4))]
    record = HostRecord()
    record.attempts = 1
    store.put_record("x.farm4.test", record)
    assert ours.closed("http://x.farm4.test/", "x.farm4.test") is None, "it was visited before"


def test_what_somebody_else_has_compared() -> None:
    """Pages that repeat others of their host are evidence, however unlike they look."""
    for repeats in (True, False):
        store = MemoryStore()
        policy = Policy(traps=TrapLimits(same=6))
        traps = Traps(store, policy, TrapStats(store), lambda identity: False)
        for number in range(40):
            url = f"http://a.test/same/{number}"
            letters = random.Random(number)
            words = ["".join(letters.choices("abcdefgh", k=5)) for _ in range(60)]
            body = f"<p>{' '.join(words)}".encode()
            traps.learn_page(url, "a.test", body, (), pages=9, repeats=repeats)
        assert (traps.closed("http://a.test/same/99", "a.test") is not None) is repeats
