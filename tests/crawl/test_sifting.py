"""When the sieve of a crawl is flushed, and that it stands in nobody's way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.virtual_crawl import WALL, entry

from scrapy_spider_suite.crawl.maintenance import Maintenance, SieveFlusher
from scrapy_spider_suite.crawl.queue.frontier import Frontier, QueueOptions
from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.frontier.outcomes import Pace
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.seen_index import DROPPED, SIEVE_FOLDER, SieveIndex
from scrapy_spider_suite.store.seen_transfer import SieveRows


class Crawl:
    """A crawl as far as the flusher is concerned, at a *time* of its own; runs in a loop."""

    def __init__(self, folder: Path) -> None:
        self.time = 0.0
        self.woken = 0
        self.store = RocksStore(folder / "store", memory=4 << 20)
        self.store.sieve = SieveIndex(folder / SIEVE_FOLDER, self.store.kv(DROPPED), capacity=1024)
        policy = Policy(host=Pace(0.0), address=Pace(0.0))
        self.frontier = Frontier(
            self.store, policy, now=0.0, wall=WALL, capacity=10, options=QueueOptions(sift=True)
        )
        self.crawl: Any = SimpleNamespace(
            now=lambda: self.time, store=self.store, frontier=self.frontier,
        )

    def flusher(self) -> SieveFlusher:
        """A new one, in the loop that runs."""
        visits: Any = SimpleNamespace(outside=0)
        return SieveFlusher(self.crawl, visits, self.frontier.flush, self.wake)

    def wake(self) -> None:
        """Of the scheduler."""
        self.woken += 1

    def bring(self, first: int, last: int) -> None:
        """Links of a page."""
        urls = [f"http://a.t/{n}" for n in range(first, last)]
        entries = [entry(url, referrer="http://a.t/") for url in urls]
        self.frontier.admission.schedule(entries, self.time)

    async def until(self, true: Callable[[], bool]) -> None:
        """Let the loop run until something is so."""
        async with asyncio.timeout(20):
            while not true():
                await asyncio.sleep(0.001)

    @property
    def flushes(self) -> int:
        """How many there were."""
        assert self.store.sieve is not None
        return self.store.sieve.sieve.flushes


@pytest.fixture
def crawl(tmp_path: Path) -> Iterator[Crawl]:
    """One with nothing to do."""
    crawl = Crawl(tmp_path)
    yield crawl
    crawl.store.close()


def test_when_it_is_full_or_the_crawl_starves(crawl: Crawl) -> None:
    """Not before; and while others are pending, not again at once."""

    async def run() -> None:
        flusher, frontier = crawl.flusher(), crawl.frontier
        crawl.bring(0, 10)
        flusher.poll(starving=False)
        assert crawl.flushes == 0
        flusher.poll(starving=True)
        await crawl.until(lambda: frontier.pending == 10 and not frontier.states.in_sieve)
        assert crawl.woken > 0
        crawl.bring(10, 20)
        crawl.time = flusher._not_before - 0.001
        flusher._not_before = crawl.time + 1.0
        flusher.poll(starving=True)
        assert frontier.states.in_sieve == 10
        crawl.time += 1.1
        flusher.poll(starving=True)
        await crawl.until(lambda: frontier.pending == 20)
        crawl.time += 1e6
        crawl.bring(20, 1100)
        flusher.poll(starving=False)
        await crawl.until(lambda: frontier.pending == 1100)
        assert crawl.flushes == 3
        flusher.stop()

    asyncio.run(run())


def test_with_nothing_else_to_wait_for_it_comes_at_once(crawl: Crawl) -> None:
    """However short a time ago the last one was."""

    async def run() -> None:
        flusher = crawl.flusher()
        flusher._not_before = 1e9
        crawl.bring(0, 10)
        flusher.poll(starving=True)
        await crawl.until(lambda: crawl.frontier.pending == 10)
        flusher.stop()

    asyncio.run(run())


@pytest.mark.parametrize("error", [StoreWriteError, MemoryError])
def test_a_flush_that_fails(
    error: type[Exception], crawl: Crawl, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """It is said once, tried again in time, and nothing is lost, whatever the reason."""

    def full() -> None:
        raise error("No space left on device")

    async def run() -> None:
        flusher = crawl.flusher()
        crawl.bring(0, 10)
        with monkeypatch.context() as patch:
            patch.setattr(crawl.store, "sync_log", full)
            for _ in range(3):
                flusher.poll(starving=True)
                await crawl.until(lambda: not flusher._busy)
                flusher.poll(starving=True)
                assert not flusher._busy
                crawl.time += 6.0
        assert crawl.frontier.states.in_sieve == 10
        flusher.poll(starving=True)
        await crawl.until(lambda: crawl.frontier.pending == 10)
        flusher.stop()

    asyncio.run(run())
    assert len([each for each in caplog.messages if "No space left" in each]) == 1


def test_a_waiting_row_that_nobody_can_read(crawl: Crawl) -> None:
    """Condemns the store: the crawl ends, rather than wait for links that never come."""

    async def run() -> None:
        flusher = crawl.flusher()
        crawl.bring(0, 10)
        crawl.frontier.flush()
        [(number, _)] = SieveRows(crawl.store).items(0)
        SieveRows(crawl.store).put(number, b"\xc1")
        flusher.poll(starving=True)
        await crawl.until(lambda: crawl.store.damage != "")
        flusher.stop()

    asyncio.run(run())
    assert "links that wait for the sieve cannot be read" in crawl.store.damage


def test_a_file_of_the_sieve_that_is_gone(crawl: Crawl, tmp_path: Path) -> None:
    """Is named, and ends the crawl: it does not come back as room on a disk does."""

    async def run() -> None:
        flusher = crawl.flusher()
        crawl.bring(0, 10)
        flusher.poll(starving=True)
        await crawl.until(lambda: crawl.frontier.pending == 10 and not flusher._busy)
        [rows] = (tmp_path / SIEVE_FOLDER).glob("*.rows")
        rows.unlink()
        crawl.bring(10, 20)
        flusher._not_before = 0.0
        flusher.poll(starving=True)
        await crawl.until(lambda: crawl.store.damage != "")
        flusher.stop()
        assert crawl.store.damage == f"{rows} is missing"

    asyncio.run(run())


def test_stopped_in_the_middle(crawl: Crawl, tmp_path: Path) -> None:
    """What waited waits on, and the next run hands out what this one has decided."""

    async def run() -> None:
        flusher, frontier = crawl.flusher(), crawl.frontier
        crawl.bring(0, 1000)
        flusher.poll(starving=True)
        flusher.stop()
        frontier.flush()
        assert frontier.pending + frontier.states.in_sieve == 1000
        later = crawl.flusher()
        later.poll(starving=True)
        await crawl.until(lambda: frontier.pending == 1000)
        assert not frontier.states.in_sieve
        later.stop()

    asyncio.run(run())


@pytest.mark.parametrize(("paused", "steps"), [(True, 0), (False, 1)])
def test_nothing_is_archived_and_no_flush_begins_while_a_disk_is_full(
    paused: bool, steps: int
) -> None:
    """`SUITE_MIN_FREE` holds for them, too."""
    asked: list[str] = []

    def archived(*, moving: bool) -> bool:
        asked.append("archive")
        return False

    maintenance: Any = SimpleNamespace(
        _archiver=SimpleNamespace(step=archived),
        _engine=SimpleNamespace(closing=False),
        _parts=SimpleNamespace(
            deferred_links=SimpleNamespace(poll=lambda *, starving: asked.append("stored pages")),
        ),
        _disk=SimpleNamespace(paused=paused, stuck=False),
        _crawl=SimpleNamespace(settings=SimpleNamespace(seen_store="trie")),
        _flusher=SimpleNamespace(poll=lambda *, starving: asked.append("sieve")),
    )  # fmt: skip
    Maintenance._archive(maintenance)
    Maintenance.sift(maintenance, starving=True)
    assert asked == ["archive", "sieve", "stored pages"][: 3 * steps]
