"""Links that go through the sieve: none is lost, none is fetched twice, wherever it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.virtual_crawl import WALL, Crawl, Web, all_urls, copy_of, entry, trees

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.entries import Flag, state_key
from scrapy_spider_suite.frontier.outcomes import Event, Pace, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.store.seen_index import DROPPED, SIEVE_FOLDER, SieveIndex
from scrapy_spider_suite.store.seen_transfer import SieveRows, url_of

PAGE = "http://a.t/page"
HOSTS = ["a.t", "b.t"]
QUICK = Policy(host=Pace(0.0), address=Pace(0.0))


def open_store(folder: Path, **options: Any) -> RocksStore:
    """The store in *folder*, with a sieve beside it."""
    store = RocksStore(folder / "store", memory=4 << 20)
    store.sieve = SieveIndex(folder / SIEVE_FOLDER, store.kv(DROPPED), **options)
    return store


def copy_job(folder: Path, to: Path) -> Path:
    """What a kill at this moment would leave of both."""
    copy_of(folder / "store", to / "store")
    copy_of(folder / SIEVE_FOLDER, to / SIEVE_FOLDER)
    return to


@pytest.fixture
def crawl(tmp_path: Path) -> Iterator[Crawl]:
    """A frontier whose links go through the sieve."""
    crawl = crawl_of(open_store(tmp_path, capacity=1024))
    yield crawl
    crawl.frontier.store.close()


def crawl_of(store: RocksStore, **options: Any) -> Crawl:
    """A crawl of two hosts without links of their own."""
    web = Web(dict.fromkeys(HOSTS, "10.0.0.1"))
    options = {"policy": QUICK, "sift": True} | options
    return Crawl(store, web, **options)


def rocks(crawl: Crawl) -> RocksStore:
    """The store of *crawl*."""
    assert isinstance(crawl.frontier.store, RocksStore)
    return crawl.frontier.store


def bring(crawl: Crawl, *urls: str, **facts: Any) -> None:
    """The links *urls* of a page, in its commit."""
    facts = {"referrer": PAGE, "depth": 1} | facts
    links = [entry(url, **facts) for url in urls]
    crawl.frontier.admission.schedule(links, crawl.now)
    crawl.frontier.flush()


def fetched(crawl: Crawl) -> list[str]:
    """What is fetched from now on, until nothing is left; each with status 200."""
    before = len(crawl.fetches)
    settle = crawl.frontier.commit.settle

    def with_status(leases: Any, now: float) -> None:
        for lease in leases:
            lease.status = 200
        settle(leases, now)

    crawl.frontier.commit.settle = with_status  # type: ignore[method-assign]
    crawl.run()
    crawl.frontier.commit.settle = settle  # type: ignore[method-assign]
    crawl.frontier.flush()
    return crawl.urls[before:]


def state_of(crawl: Crawl, url: str) -> UrlState | None:
    """What the store says."""
    data = rocks(crawl).state(entry(url).identity)
    return None if data is None else UrlState.from_bytes(data)


def numbers(*wanted: int) -> list[str]:
    """Some URLs of a host."""
    return [f"http://a.t/{n}" for n in wanted]


def test_new_links_wait_and_come_in_the_order_in_which_they_were_found(crawl: Crawl) -> None:
    """No row in the database until a flush; then those that are new, each once."""
    bring(crawl, *numbers(3, 1, 2))
    bring(crawl, *numbers(1, 4), priority=1)
    assert (crawl.frontier.pending, crawl.frontier.states.in_sieve) == (0, 5)
    assert not any(rocks(crawl).get("states", entry(url).identity) for url in numbers(1, 2, 3, 4))
    crawl.flush_sieve()
    assert (crawl.frontier.pending, crawl.frontier.states.in_sieve) == (4, 0)
    rows = rocks(crawl).rows("a.t", b"", 10)
    assert [row.url for row in rows] == numbers(4, 3, 1, 2)
    assert [(row.depth, row.referrer, row.priority) for row in rows][:2] == [
        (1, PAGE, 1), (1, PAGE, 0),
    ]  # fmt: skip


def test_known_links_are_dropped_without_the_cache(crawl: Crawl) -> None:
    """Each is counted as filtered once, whoever knew it: the sieve, or its own batch."""
    bring(crawl, *numbers(1, 2, 1))
    crawl.flush_sieve()
    bring(crawl, *numbers(2, 3, 3))
    crawl.flush_sieve()
    assert crawl.frontier.pending == 3
    assert crawl.frontier.counters.filtered == 3


def test_the_cache_stands_before_the_sieve(tmp_path: Path) -> None:
    """What it knows is not offered."""
    store = open_store(tmp_path)
    crawl = crawl_of(store, cache=1 << 16)
    bring(crawl, *numbers(1, 2))
    bring(crawl, *numbers(2, 1, 3))
    assert crawl.frontier.states.in_sieve == 3
    assert crawl.frontier.counters.filtered == 2
    store.close()


def test_what_ended_200_needs_no_row(crawl: Crawl) -> None:
    """It is done, and known as before: to links, and to whoever asks for its state."""
    bring(crawl, *numbers(1, 2))
    assert sorted(fetched(crawl)) == numbers(1, 2)
    assert not any(rocks(crawl).get("states", entry(url).identity) for url in numbers(1, 2))
    state = state_of(crawl, numbers(1)[0])
    assert state is not None
    assert (state.state, state.event, state.status) == (State.DONE, Event.SUCCESS, 200)
    assert crawl.frontier.states.known(entry(numbers(1)[0]).identity)
    bring(crawl, *numbers(1, 2))
    crawl.frontier.admission.schedule([entry(numbers(2)[0])], crawl.now)
    assert fetched(crawl) == []
    assert crawl.frontier.counters.done == 2


def test_what_has_something_to_say_keeps_its_row(crawl: Crawl) -> None:
    """A page that was not there is failed, and a link to it changes nothing."""
    crawl.web.event = lambda url, attempt: Event.CLIENT_ERROR
    bring(crawl, *numbers(1))
    crawl.run()
    assert rocks(crawl).get("states", entry(numbers(1)[0]).identity)
    bring(crawl, *numbers(1))
    crawl.run()
    assert len(crawl.urls) == crawl.frontier.counters.failed == 1


def test_what_failed_gets_its_second_chance(tmp_path: Path) -> None:
    """A link to it, long after, has it tried anew, though the cache and the sieve know it."""
    policy = Policy(
        host=Pace(0.0), address=Pace(0.0), retry_failed_after=100.0,
        retry_failed=frozenset({Event.CLIENT_ERROR}),
    )  # fmt: skip
    crawl = crawl_of(open_store(tmp_path), policy=policy, cache=1 << 16)
    crawl.web.event = lambda url, attempt: Event.CLIENT_ERROR
    bring(crawl, *numbers(1))
    crawl.run()
    bring(crawl, *numbers(1))
    crawl.run()
    assert crawl.urls == numbers(1)
    crawl.now += 200.0
    crawl.web.event = lambda url, attempt: Event.SUCCESS
    bring(crawl, *numbers(1))
    assert fetched(crawl) == numbers(1)
    assert (crawl.frontier.counters.done, crawl.frontier.counters.failed) == (1, 0)
    rocks(crawl).close()


@pytest.mark.parametrize("link_first", [False, True])
def test_a_seed_and_a_link_to_it(crawl: Crawl, link_first: bool) -> None:
    """It is looked up at once, and fetched once; later its row goes, when the sieve knows it."""
    seed = entry(numbers(1)[0], flags=Flag.START)
    if link_first:
        bring(crawl, *numbers(1))
    crawl.frontier.admission.schedule([seed], crawl.now)
    assert crawl.frontier.pending == 1
    assert fetched(crawl) == numbers(1)
    bring(crawl, *numbers(1))
    assert fetched(crawl) == []
    assert crawl.frontier.states.in_sieve == 0
    assert not rocks(crawl).get("states", seed.identity)
    assert state_of(crawl, seed.url) is not None


@pytest.mark.parametrize(
    "more",
    [
        {"flags": Flag.USER}, {"flags": Flag.SPECULATIVE}, {"hops": 1},
        {"payload": b"a request"}, {"referrer": ""}, {"flags": Flag.DONT_FILTER},
    ],
)
def test_what_is_more_than_a_link_is_looked_up_at_once(crawl: Crawl, more: Any) -> None:
    """Requests, redirects' targets, what an operator wants: few, and wanted now."""
    bring(crawl, *numbers(1), **more)
    assert (crawl.frontier.pending, crawl.frontier.states.in_sieve) == (1, 0)


def test_fetched_between_the_verdict_and_its_turn(crawl: Crawl) -> None:
    """New to the sieve, but done by the time its link is handed out: it is not fetched again."""
    sifter = crawl.frontier.states.sieve_queue
    assert sifter is not None
    crawl.frontier.admission.schedule([entry(numbers(1)[0], flags=Flag.START)], crawl.now)
    bring(crawl, *numbers(1))
    flush = sifter.begin()
    assert flush is not None
    flush.run()
    assert (crawl.frontier.pending, crawl.frontier.states.in_sieve) == (1, 1)
    assert fetched(crawl) == numbers(1)
    assert crawl.frontier.states.in_sieve == 0
    assert not rocks(crawl).get("states", entry(numbers(1)[0]).identity)


def test_a_long_page_comes_in_portions(crawl: Crawl) -> None:
    """No step of handing out takes many links."""
    bring(crawl, *numbers(*range(1_001)))
    sifter = crawl.frontier.states.sieve_queue
    assert sifter is not None
    flush = sifter.begin()
    assert flush is not None
    flush.run()
    sizes, before = [], 0
    for _ in crawl.frontier.admission.sift(crawl.now):
        sizes.append(crawl.frontier.pending - before)
        before += sizes[-1]
    assert sizes == [200] * 5 + [1]


STEPS = ("offered", "begun", "decided", "handed out in part", "handed out")


@pytest.mark.parametrize("moment", STEPS)
def test_killed_at(moment: str, crawl: Crawl, tmp_path: Path) -> None:
    """Every link is pending after it, once; also those that were offered during the flush."""
    sifter = crawl.frontier.states.sieve_queue
    assert sifter is not None
    bring(crawl, *numbers(*range(300)))
    crawl.flush_sieve()
    bring(crawl, *numbers(*range(200, 700)))
    at = STEPS.index(moment)
    if at >= 1:
        flush = sifter.begin()
        assert flush is not None
        flush.step()
        bring(crawl, *numbers(*range(600, 800)))
        if at >= 2:
            flush.run()
        steps = crawl.frontier.admission.sift(crawl.now)
        for _ in range({3: 1, 4: 99}.get(at, 0)):
            next(steps, None)
        crawl.frontier.flush()
    store = open_store(copy_job(tmp_path, tmp_path / "killed"))
    again = crawl_of(store, resume=True, unclean=True)
    wanted = numbers(*range(800 if at else 700))
    assert again.frontier.states.in_sieve + again.frontier.pending >= len(wanted)
    assert sorted(fetched(again)) == sorted(wanted)
    store.close()
    with StoreReader(tmp_path / "killed") as reader:
        assert list(reader.check()) == []


def test_every_write_is_where_a_kill_may_come(tmp_path: Path) -> None:
    """A crawl of a web, killed after each batch: nothing is lost; twice comes what was out."""
    web = trees(6, 5, 3)
    store = open_store(tmp_path / "0", capacity=8)
    crawl = Crawl(store, web, sift=True, flush_always=True)
    crawl.seed("http://h0.t/0")
    out: Counter[str] = Counter()
    fetches: list[str] = []
    for life in range(1, 12):
        crawl.run(fetches=3)
        if life % 2 and crawl.frontier.states.in_sieve:
            crawl.flush_sieve()
        fetches += crawl.urls
        out.update(lease.entry.url for lease in crawl.out)
        folder = copy_job(tmp_path / str(life - 1), tmp_path / str(life))
        store.close()
        store = open_store(folder, capacity=8)
        crawl = Crawl(
            store, web, sift=True, flush_always=True, resume=True, unclean=True,
            start=1_000.0 * life, wall=WALL + 1_000.0 * life,
        )  # fmt: skip
    crawl.run()
    fetches += crawl.urls
    assert set(fetches) == all_urls(web, 5)
    assert Counter(fetches) - Counter(set(fetches)) <= out
    store.close()


def test_missing_rows_are_named(crawl: Crawl, tmp_path: Path) -> None:
    """Without them the numbers would say of one link what holds of another."""
    bring(crawl, *numbers(1, 2))
    bring(crawl, *numbers(3))
    SieveRows(rocks(crawl)).delete(0)
    crawl.frontier.flush()
    store = open_store(copy_job(tmp_path, tmp_path / "copy"))
    with pytest.raises(JobDamagedError, match="missing at 2"):
        crawl_of(store)
    with StoreReader(tmp_path / "copy") as reader:
        assert list(reader.check()) == ["links that wait for the sieve are missing from 0 to 2"]
    SieveRows(store).put(2, b"\xc1")
    with pytest.raises(JobDamagedError, match="cannot be read"):
        crawl_of(store)
    store.close()


def test_a_reader_beside_the_crawl(crawl: Crawl, tmp_path: Path) -> None:
    """It sees what waits, and what is done."""
    bring(crawl, *numbers(1, 2))
    fetched(crawl)
    bring(crawl, *numbers(2, 3), depth=7)
    with StoreReader(tmp_path) as reader:
        assert reader.in_sieve() == 2
        waits = reader.sifted(state_key("a.t", numbers(3)[0]))
        assert waits is not None
        assert (waits.url, waits.depth) == (numbers(3)[0], 7)
        assert reader.sifted(state_key("a.t", numbers(4)[0])) is None
        assert reader.store.state(state_key("a.t", numbers(1)[0])) is not None
        assert list(reader.check()) == []


def test_another_setting_in_the_next_run(crawl: Crawl, tmp_path: Path) -> None:
    """What waits is ended, the sieve goes on to know what it knew; links are looked up."""
    bring(crawl, *numbers(1))
    fetched(crawl)
    bring(crawl, *numbers(1, 2))
    store = open_store(copy_job(tmp_path, tmp_path / "next"))
    after = crawl_of(store, resume=True, sift=False)
    bring(after, *numbers(1, 2, 3))
    assert after.frontier.pending == 2
    assert sorted(fetched(after)) == numbers(2, 3)
    assert after.frontier.states.in_sieve == 0
    assert store.get("states", entry(numbers(3)[0]).identity)
    store.close()


def test_a_dropped_host_is_known_no_more(crawl: Crawl, tmp_path: Path) -> None:
    """Neither what was fetched, nor what waits; others are untouched, after a restart too."""
    store, sifter = rocks(crawl), crawl.frontier.states.sieve_queue
    assert store.sieve is not None
    assert sifter is not None
    bring(crawl, *numbers(1), "http://b.t/1")
    fetched(crawl)
    bring(crawl, *numbers(2, 3), "http://b.t/2")
    assert sum(sifter.forget("a.t", lambda url: url.endswith("2"), 1)) == 1
    store.sieve.forget_host("a.t")
    crawl.frontier.flush()
    again = crawl_of(open_store(copy_job(tmp_path, tmp_path / "copy")), resume=True)
    for each in (crawl, again):
        assert state_of(each, numbers(1)[0]) is None
        assert state_of(each, "http://b.t/1") is not None
        assert sorted(fetched(each)) == [*numbers(3), "http://b.t/2"]
        bring(each, *numbers(1, 2), "http://b.t/1")
        assert fetched(each) == numbers(1, 2)
        bring(each, *numbers(1, 2))
        assert fetched(each) == []
    rocks(again).close()


def test_a_copy_is_of_one_moment(crawl: Crawl, tmp_path: Path) -> None:
    """While it is made no flush begins; the copy goes on as the job does."""
    store, sifter = rocks(crawl), crawl.frontier.states.sieve_queue
    assert store.sieve is not None
    assert sifter is not None
    bring(crawl, *numbers(1, 2))
    fetched(crawl)
    bring(crawl, *numbers(2, 3))
    assert store.sieve.lock()
    assert not store.sieve.lock()
    assert sifter.begin() is None
    store.checkpoint(tmp_path / "copy")
    store.sieve.unlock()
    assert fetched(crawl) == numbers(3)
    copy = RocksStore(tmp_path / "copy", memory=4 << 20)
    copy.sieve = SieveIndex(tmp_path / "copy" / SIEVE_FOLDER, copy.kv(DROPPED))
    assert copy.sieve is not None
    again = crawl_of(copy, resume=True)
    assert fetched(again) == numbers(3)
    copy.close()


def test_a_copy_waits_for_the_end_of_a_flush(crawl: Crawl) -> None:
    """Its verdict would be in the copy of the sieve, and its links in that of the store no more."""
    store, sifter = rocks(crawl), crawl.frontier.states.sieve_queue
    assert store.sieve is not None
    assert sifter is not None
    bring(crawl, *numbers(1))
    flush = sifter.begin()
    assert flush is not None
    assert not store.sieve.lock()
    flush.run()
    assert store.sieve.lock()


def test_mined_and_linked_since(crawl: Crawl) -> None:
    """What a link led to is fetched, whatever the miner has learnt: no other link brings it."""
    mined = entry(numbers(1)[0], flags=Flag.SPECULATIVE, referrer=PAGE)
    crawl.frontier.admission.schedule([mined], crawl.now)
    crawl.frontier.traps.miner.gave_up = lambda each: bool(  # type: ignore[method-assign]
        each.flags & Flag.SPECULATIVE
    )
    bring(crawl, *numbers(1))
    crawl.flush_sieve()
    assert fetched(crawl) == numbers(1)


def test_sixty_four_bits(tmp_path: Path) -> None:
    """Opened again with the width of its files."""
    store = open_store(tmp_path, bits=64)
    crawl = crawl_of(store)
    bring(crawl, *numbers(1))
    fetched(crawl)
    store.close()
    store = RocksStore(tmp_path / "store", memory=4 << 20)
    store.sieve = SieveIndex(tmp_path / SIEVE_FOLDER, store.kv(DROPPED))
    assert store.sieve is not None
    assert store.sieve.width == 8
    assert store.state(entry(numbers(1)[0]).identity) is not None
    assert Counters.load(store).done == 1
    store.close()


def test_of_pages_in_bulk(crawl: Crawl) -> None:
    """No row is written of the links of a lease until they are new."""
    crawl.web.links = lambda url: numbers(1, 2, 3) if url.endswith("/0") else []
    crawl.seed(*numbers(0))
    made: list[str] = []
    take = crawl.frontier.states.add_link

    def counted(key: bytes, *rest: Any) -> bytes:
        made.append(url_of(key))
        return take(key, *rest)

    crawl.frontier.states.add_link = counted  # type: ignore[method-assign]
    crawl.run()
    assert sorted(crawl.urls) == numbers(0, 1, 2, 3)
    assert made == numbers(1, 2, 3)
