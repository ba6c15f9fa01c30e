"""A job goes on where it was, however it ended (promise 2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.virtual_crawl import (
    HOST_DELAY,
    IP_DELAY,
    WALL,
    Crawl,
    Web,
    all_urls,
    copy_of,
    entry,
    trees,
)

from scrapy_spider_suite.crawl.queue import admission
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.frontier.entries import Flag
from scrapy_spider_suite.frontier.outcomes import Event, Pace, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.workbench import WaitCount
from scrapy_spider_suite.store import host_queues, residency
from scrapy_spider_suite.store import host_queues as hostrecords
from scrapy_spider_suite.store.host_queues import RESIDENT, DiskWaits, due_time
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import UrlState

MEMORY = 4 << 20


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bound so low that everything happens in a crawl of a few pages."""
    for module, name, value in (
        (host_queues, "_FRONT", 2), (hostrecords, "_CACHE", 1), (residency, "_TURN", 2),
        (residency, "_GOING", 2), (residency, "_COMING", 2),
        (admission, "_BACKLOG", 5), (admission, "_SPILL", 3),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


def resume(crawl: Crawl, folder: Path, *, after: float, unclean: bool) -> Crawl:
    """The next run on the store in *folder*, *after* seconds of which nobody knows."""
    wall = crawl.now + crawl.frontier.wall_offset + after
    store = RocksStore(folder / "store", memory=MEMORY)
    # Another process: its monotonic clock has nothing to do with the first one's.
    return Crawl(
        store, crawl.web, crawl.watch.policy, capacity=crawl.capacity,
        start=5_000.0, wall=wall, resume=True, unclean=unclean,
    )  # fmt: skip


def kill(crawl: Crawl, folder: Path) -> Path:
    """What a kill would leave: a copy of the files as they are, without a word to the store."""
    return copy_of(folder / "store", folder / "killed" / "store").parent


def carry_over(old: Crawl, new: Crawl, after: float) -> None:
    """Let the watch of a new run know when hosts and addresses were last used, by its clock."""
    shift = new.now - old.now - after
    for name in ("last_host", "last_address"):
        known = {key: when + shift for key, when in getattr(old.watch, name).items()}
        setattr(new.watch, name, known)


@pytest.mark.parametrize("capacity", [3, 1_000])
@pytest.mark.parametrize("after", [0.0, 1.0, 3600.0])
def test_after_a_clean_end(tmp_path: Path, capacity: int, after: float) -> None:
    """The rest is fetched, nothing twice, and the clocks of hosts and addresses have gone on."""
    web = trees(12, 8, 5)
    first = Crawl(RocksStore(tmp_path / "store", memory=MEMORY), web, capacity=capacity)
    first.seed("http://h0.t/0")
    first.run(fetches=30)
    while first.out:
        first._wait()
    first.frontier.close()
    first.frontier.store.close()
    second = resume(first, tmp_path, after=after, unclean=False)
    carry_over(first, second, after)
    second.seed("http://h0.t/0")
    second.run()
    assert sorted(first.urls + second.urls) == sorted(all_urls(web, 8))
    counters = second.frontier.counters
    assert (counters.pending, counters.done) == (0, 96)
    assert counters.sequence == 96


def test_leased_urls_are_pending_after_a_clean_end(tmp_path: Path) -> None:
    """A stop that cannot wait leaves them; they are fetched again."""
    first = Crawl(RocksStore(tmp_path / "store", memory=MEMORY), Web({"a.t": "10.0.0.1"}))
    first.seed(*(f"http://a.t/{n}" for n in range(5)))
    first._resolve()
    assert first.frontier.leases.acquire(0.0)
    first.frontier.close()
    first.frontier.store.close()
    second = resume(first, tmp_path, after=0.0, unclean=False)
    second.run()
    assert second.urls == [f"http://a.t/{n}" for n in range(5)]


@pytest.mark.parametrize("capacity", [3, 1_000])
def test_after_a_kill_everyone_counts_as_just_visited(tmp_path: Path, capacity: int) -> None:
    """No host and no address is visited sooner than its delay after the reopening."""
    web = trees(12, 8, 5)
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    first = Crawl(store, web, capacity=capacity, flush_always=True)
    first.seed("http://h0.t/0")
    first.run(fetches=30)
    second = resume(first, kill(first, tmp_path), after=100.0, unclean=True)
    second.run()
    opened = 5_000.0
    assert min(fetch.start for fetch in second.fetches) >= opened + max(HOST_DELAY, IP_DELAY)
    assert set(first.urls + second.urls) == all_urls(web, 8)
    again = [url for url, times in Counter(first.urls + second.urls).items() if times > 1]
    assert set(again) <= {fetch.entry.url for fetch in first.out}


def test_addresses_count_as_fetched_at_the_start(tmp_path: Path) -> None:
    """Another host on the same address waits for it too."""
    policy = Policy(host=Pace(0.0), address=Pace(60.0))
    web = Web({"a.t": "10.0.0.1", "b.t": "10.0.0.1"})
    first = Crawl(RocksStore(tmp_path / "store", memory=MEMORY), web, policy)
    first.seed("http://a.t/", "http://b.t/")
    first.run(fetches=1)
    first.frontier.close()
    first.frontier.store.close()
    second = resume(first, tmp_path, after=10.0, unclean=False)
    carry_over(first, second, 10.0)
    second.run()
    assert second.fetches[0].start == pytest.approx(5_000.0 + 60.0, abs=1.1)


def test_a_wish_to_wait_outlives_the_process(tmp_path: Path) -> None:
    """Retry-After: an hour from then, not from now; and the reason is not forgotten."""
    first = Crawl(RocksStore(tmp_path / "store", memory=MEMORY), Web({"a.t": "10.0.0.1"}))
    first.seed("http://a.t/")
    first._resolve()
    (fetch,) = first.frontier.leases.acquire(0.0)
    fetch.event = Event.UNAVAILABLE
    first.frontier.leases.release(fetch, 0.0, retry_after=3600.0)
    first.frontier.commit.settle([fetch], 0.0)
    first.frontier.close()
    first.frontier.store.close()
    second = resume(first, tmp_path, after=600.0, unclean=False)
    record = second.frontier.residents.records.touch("a.t")
    assert record.why == "Retry-After"
    second.run()
    assert second.fetches[0].start == pytest.approx(5_000.0 + 3_000.0, abs=1.1)


def test_a_clock_that_was_set_back_stops_nobody(tmp_path: Path) -> None:
    """Times that lie months ahead are not believed; the delay is kept all the same."""
    first = Crawl(RocksStore(tmp_path / "store", memory=MEMORY), Web({"a.t": "10.0.0.1"}))
    first.seed("http://a.t/1", "http://a.t/2")
    first.run(fetches=1)
    first.frontier.close()
    first.frontier.store.close()
    second = resume(first, tmp_path, after=-1e8, unclean=False)
    second.run()
    assert second.fetches[0].start - 5_000.0 == pytest.approx(HOST_DELAY, abs=1.1)


def test_sequences_are_not_used_twice(tmp_path: Path) -> None:
    """A key that is given twice would overwrite the row of a pending URL."""
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    first = Crawl(store, Web({"a.t": "10.0.0.1"}))
    # More than one batch's worth, written ahead of its time; the last batch never is.
    first.frontier.admission.schedule((entry(f"http://a.t/{n}") for n in range(15_500)), 0.0)
    second = resume(first, kill(first, tmp_path), after=0.0, unclean=True)
    written = second.frontier.counters.pending
    assert 0 < written < 15_500
    entries = [entry(f"http://a.t/new{n}") for n in range(100)]
    second.frontier.admission.schedule(entries, second.now)
    rows = second.frontier.store.rows("a.t", b"", 20_000)
    assert len(rows) == len({row.key for row in rows}) == written + 100


# A kill at every batch


class Copying(RocksStore):
    """A store that calls *written* after every batch."""

    written: Callable[[], None] = staticmethod(lambda: None)

    def flush(self) -> None:
        """See `RocksStore`."""
        waits = self.backlog
        super().flush()
        if waits:
            self.written()


class Snapshot:
    """What a kill right after one batch leaves: the folder, and who was out."""

    def __init__(self, crawl: Crawl, folder: Path) -> None:
        self.folder = folder
        self.fetched = set(crawl.urls)
        self.out = {fetch.entry.url for fetch in crawl.out}
        copy_of(crawl.frontier.store._path, folder / "store")  # type: ignore[attr-defined]


def crawl_with_snapshots(
    tmp_path: Path, web: Web, on_page: Callable[[Crawl], None] | None = None, **options: object
) -> list[Snapshot]:
    """Crawl *web* to its end and keep what every batch left."""
    store = Copying(tmp_path / "live" / "store", memory=MEMORY)
    crawl = Crawl(store, web, seats=6, **options)  # type: ignore[arg-type]
    if on_page is not None:
        on_page(crawl)
    snapshots: list[Snapshot] = []
    store.written = lambda: snapshots.append(
        Snapshot(crawl, tmp_path / f"after{len(snapshots):04}")
    )
    crawl.seed("http://h0.t/0")
    crawl.run()
    crawl.frontier.close()
    store.close()
    return snapshots


def done_in(folder: Path) -> set[str]:
    """What the store of a snapshot calls done, after it was found to agree with itself."""
    with StoreReader(folder) as reader:
        assert list(reader.check()) == []
        return {
            row.url
            for host, _ in reader.store.records()
            for row in reader.urls(host)
            if row.state.state is State.DONE
        }


def waits_in(crawl: Crawl, wall: float) -> set[WaitCount]:
    """How many hosts wait on disk, as they were counted when they came and went."""
    return set(crawl.frontier.residents.waiting.counts.counts(wall))


def counted_anew(crawl: Crawl, wall: float) -> set[WaitCount]:
    """The same by the hosts that there are."""
    records, store = crawl.frontier.residents.records, crawl.frontier.store
    waits = DiskWaits(MemoryStore())
    for when, host in store.due(100):
        if when < RESIDENT:
            waits.change(due_time(when), records.get(host), 1)
    return set(waits.counts(wall))


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("capacity", "think", "always"), [(2, 1.5, True), (100, 0.0, True), (2, 0.3, False)]
)
def test_a_kill_after_any_batch_loses_nothing(
    tmp_path: Path, capacity: int, think: float, always: bool
) -> None:
    """Resumed from there, all pages are fetched, and only those that were out are fetched twice.

    Where a batch is written only now and then, what was settled since is fetched again as well.
    """
    web = trees(3, 5, 2)
    snapshots = crawl_with_snapshots(
        tmp_path, web, capacity=capacity, think=think, flush_always=always
    )
    assert len(snapshots) > 15
    for snapshot in snapshots:
        done = done_in(snapshot.folder)
        store = RocksStore(snapshot.folder / "store", memory=MEMORY)
        second = Crawl(
            store, web, capacity=capacity, start=5_000.0, wall=WALL + 500.0, resume=True,
            unclean=True,
        )  # fmt: skip
        assert waits_in(second, WALL + 500.0) == counted_anew(second, WALL + 500.0)
        second.seed("http://h0.t/0")
        second.run()
        store.close()
        assert done <= snapshot.fetched
        assert sorted(second.urls) == sorted(all_urls(web, 5) - done)
        if always:
            assert set(second.urls) & snapshot.fetched <= snapshot.out


def brood_of(crawl: Crawl) -> None:
    """Let odd pages be requests that cannot be stored, and some pages be held for a while."""

    def page(fetch: Fetch) -> None:
        for link in crawl.web.links(fetch.entry.url):
            child = entry(link, flags=Flag.USER)
            if int(link.rpartition("/")[2]) % 2:
                child.flags |= Flag.VOLATILE
                child.payload = object()
            crawl.frontier.admission.adopt(fetch, [child], crawl.now)
        if fetch.entry.url.endswith("/2"):
            fetch.holds += 1
            crawl._later(2.5, lambda: crawl.frontier.commit.unhold([fetch], crawl.now))

    crawl.on_page = page


@pytest.mark.usefixtures("tiny")
def test_a_kill_after_any_batch_loses_no_volatile_url(tmp_path: Path) -> None:
    """Pages are done only when what cannot be stored is: the way to it is never lost."""
    web = trees(3, 5, 2)
    snapshots = crawl_with_snapshots(
        tmp_path, web, brood_of, capacity=2, think=0.4, flush_always=True
    )
    for snapshot in snapshots:
        done = done_in(snapshot.folder)
        store = RocksStore(snapshot.folder / "store", memory=MEMORY)
        second = Crawl(
            store, web, capacity=2, start=5_000.0, wall=WALL + 500.0, resume=True, unclean=True
        )
        brood_of(second)
        second.seed("http://h0.t/0")
        second.run()
        store.close()
        assert second.frontier.pending == 0
        assert set(second.urls) | done == all_urls(web, 5)
        assert not set(second.urls) & done
        assert max(Counter(second.urls).values(), default=1) == 1


def test_failures_and_retries_survive(tmp_path: Path) -> None:
    """How often a URL was tried, and a host failed, is not forgotten."""
    web = Web({"a.t": "10.0.0.1"}, event=lambda url, n: Event.UNAVAILABLE)
    policy = Policy(host=Pace(1.0), address=Pace(0.5), retry_times=3)
    first = Crawl(RocksStore(tmp_path / "store", memory=MEMORY), web, policy)
    first.seed("http://a.t/")
    first.run(fetches=2)
    first.frontier.close()
    first.frontier.store.close()
    second = resume(first, tmp_path, after=0.0, unclean=False)
    assert second.frontier.residents.records.touch("a.t").failures == 2
    second.run()
    assert len(second.urls) == 2
    data = second.frontier.store.state(entry("http://a.t/").identity)
    assert data is not None
    assert UrlState.from_bytes(data).attempts == 4


def test_giving_up_goes_on_after_a_kill(tmp_path: Path) -> None:
    """What was pending for a dead host still fails of it."""
    web = Web({}, names=lambda host, n: Event.NO_SUCH_HOST)
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    first = Crawl(store, web)
    first.frontier.admission.schedule((entry(f"http://a.t/{n}") for n in range(6_000)), 0.0)
    first.run(until=0.5)
    first.frontier.flush()
    assert first.frontier.counters.failed < 6_000
    second = resume(first, kill(first, tmp_path), after=0.0, unclean=True)
    second.run(until=6_000.0)
    assert second.frontier.counters.failed == 6_000
    assert second.frontier.pending == 0
