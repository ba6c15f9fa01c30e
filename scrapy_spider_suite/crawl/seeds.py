"""Lists of seeds, taken in while the crawl runs.

A list is read in a thread and scheduled in slices of 5 ms with a write each. Its position goes into
the same batch of the store as its seeds, or a later one: after a kill a line may be read twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

import msgpack  # type: ignore[import-untyped]
from scrapy import Request

from scrapy_spider_suite.crawl.context import Crawl, make_durable
from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.errors import SettingsError, StoreWriteError
from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.runtime.event_loop import TimeSlices, iterate_in_thread
from scrapy_spider_suite.runtime.files import TemporaryFolder
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.rocks_store import Store
from scrapy_spider_suite.store.url_states import make_seed_note
from scrapy_spider_suite.urls import url_lists
from scrapy_spider_suite.urls.normalize import host_of

logger = logging.getLogger(__name__)

ScheduleSeeds = Callable[[Sequence[url_lists.Seed]], int]
"""Makes seeds pending unless they are known; returns how many were new."""

_PIECE = 8  # lines between two looks at the clock
_KEPT = 10_000  # bad lines of a list that are kept; the others are counted
_SHOWN = 5
_LISTS, _BAD = "seed_lists", "bad_seeds"


@dataclass(slots=True)
class SeedCounts:
    lines: int = 0
    seeds: int = 0
    new: int = 0
    bad: int = 0
    first_bad: list[str] = field(default_factory=list)
    sent: int = 0  # to other agents


class SeedList:
    """Takes the text of the list *name*, in blocks, after `resume`; *lines* parses it."""

    def __init__(
        self, store: Store, plant: ScheduleSeeds, lines: url_lists.SeedLines, name: str
    ) -> None:
        self.at = 0  # bytes of the text that were taken, to the end of a line
        self.counts = SeedCounts()
        self.ended = False
        self._lists, self._bad = store.kv(_LISTS), bad_seed_table(store)
        self._plant = plant
        self._lines = lines
        self.name = name
        self._key = name.encode("utf-8", "replace")
        self._of: list[int] = []
        self._rest = b""
        self._left_out = 0  # bytes of the last line, which is too long, that are not in _rest
        self._waiting: deque[bytes] = deque()

    def resume(self, of: Sequence[int]) -> bool:
        """Continue from the stored position; False if there is none for the same file (*of*)."""
        self._of = list(of)
        data = self._lists.get(self._key)
        if data is None:
            return False
        kept = msgpack.unpackb(data)
        if kept["of"] != self._of:
            return False
        self.at, self.ended = kept["at"], kept["ended"]
        lines = self._lines
        lines.origin, lines.tag, lines.line = kept["lines"]
        self.counts = SeedCounts(**kept["counts"])
        return True

    def save(self) -> None:
        lines = self._lines
        kept = {
            "of": self._of, "at": self.at, "ended": self.ended,
            "lines": [lines.origin, lines.tag, lines.line],
            "counts": asdict(self.counts),
        }  # fmt: skip
        self._lists.put(self._key, msgpack.packb(kept))

    def forget(self) -> None:
        """Delete the position; the bad lines stay."""
        self._lists.delete(self._key)

    def feed(self, block: bytes) -> None:
        """Add the next *block* of the text; all earlier lines must be taken."""
        first, *more = block.split(b"\n")
        room = max(0, url_lists.LONGEST + 1 - len(self._rest))
        self._rest += first[:room]
        self._left_out += len(first) - len(first[:room])
        if more:
            self._waiting.extend((self._rest, *more[:-1]))
            self.at += self._left_out
            self._rest, self._left_out = more[-1], 0

    def end_of_text(self) -> None:
        if self._rest:
            self._waiting.append(self._rest)
            self._rest = b""

    @property
    def more(self) -> bool:
        return bool(self._waiting)

    def schedule_lines(self) -> None:
        seeds, lines = [], min(_PIECE, len(self._waiting))
        for _ in range(lines):
            raw = self._waiting.popleft()
            self.at += len(raw) + 1
            read = self._lines.read(raw)
            if isinstance(read, url_lists.Seed):
                seeds.append(read)
            elif read is not None:
                note_bad_seed(self._bad, self._key, self.counts, read)
        self.counts.lines += lines
        self.counts.seeds += len(seeds)
        if seeds:
            self.counts.new += self._plant(seeds)


def bad_seed_table(store: Store) -> KV:
    return store.kv(_BAD)


def note_bad_seed(kept: KV, key: bytes, counts: SeedCounts, bad: url_lists.BadLine) -> None:
    """Count *bad* in *counts*; keep it for the list *key*, if there is room."""
    if len(counts.first_bad) < _SHOWN:
        counts.first_bad.append(str(bad))
    if counts.bad < _KEPT:
        # By its number, so that a line that is seen twice is kept once.
        row = key + b"\0" + counts.bad.to_bytes(4, "big")
        kept.put(row, msgpack.packb([bad.origin, bad.line, bad.text, bad.why]))
    counts.bad += 1


def bad_seed_lines(store: Store) -> Iterator[url_lists.BadLine]:
    for _, value in bad_seed_table(store).items():
        yield url_lists.BadLine(*msgpack.unpackb(value))


def seed_scheduler(
    frontier: Frontier, now: Callable[[], float], priority: int = 0,
    given: Callable[[], bool] = lambda: True,
) -> ScheduleSeeds:  # fmt: skip
    """Returns a function that schedules seeds; *given* as in `Frontier.schedule`."""

    def plant(seeds: Sequence[url_lists.Seed]) -> int:
        entries = []
        for seed in seeds:
            entry = Entry(host_of(seed.url), seed.url, priority=priority, flags=Flag.START)
            entry.seed_note = make_seed_note(seed.tag, guessed=seed.guessed)
            entries.append(entry)
        return frontier.admission.schedule(entries, now(), given=given())

    return plant


_STATS = {"lines": "lines", "seeds": "taken", "new": "new", "bad": "bad"}  # the stat of each count
_TELL = 10.0  # seconds between two lines that say how far a list was read
_ROOM = 0.25  # seconds between two looks at whether fewer are pending
_IN_MEMORY = 10_000  # pending requests beyond which a crawl without a store takes no more seeds
_GIVEN = "the arguments"


class SeedIntake:
    def __init__(self, crawl: Crawl, plant: ScheduleSeeds | None = None) -> None:
        self._crawl = crawl
        self._plant = plant or seed_scheduler(crawl.frontier, crawl.now)
        self._turns = TimeSlices()
        self._folder: TemporaryFolder | None = None
        self._counted = SeedCounts()
        self._told = (0.0, 0)  # when, and after how many lines

    async def schedule_all(self, texts: Iterable[str]) -> list[str]:
        """Schedule the seeds that *texts* name; the errors of their lists. Or `SettingsError`."""
        sources = [(text, url_lists.Source.parse(text)) for text in texts]
        wrong, crawl = [], self._crawl
        given = [source for _, source in sources if source.kind == "seed"]
        if given:
            await self._schedule_given(given)
        for text, source in sources:
            if source.kind != "seed" and not crawl.stopping:
                crawl.seeds.unread.discard(text)
                try:
                    await self._read_list(source)
                except url_lists.READ_ERRORS as error:
                    why = url_lists.describe_read_error(error)
                    wrong.append(f"seeds: {source.name} cannot be read: {why}")
                    crawl.seeds.unread.add(text)
                    crawl.crawler.stats.inc_value("suite/seeds/unreadable")
        return wrong

    async def _schedule_given(self, sources: Sequence[url_lists.Source]) -> None:
        lines = (f"{s.name} #tag={s.tag}" if s.tag else s.name for s in sources)
        seed_list = self._seed_list(_GIVEN, "")
        self._begin(seed_list)
        seed_list.feed("\n".join(lines).encode())
        seed_list.end_of_text()
        await self._work(seed_list, None)
        seed_list.forget()
        if not self._crawl.stopping:
            self._say_end(seed_list)

    async def _read_list(self, source: url_lists.Source) -> None:
        seed_list = self._seed_list(source.name, source.tag)
        if source.kind == "remote":
            # Kept until it was read to its end; not downloaded again after that.
            path, of = self._place(source.name), [0, 0]
        else:
            path = Path(source.name)
            status = path.stat()
            of = [status.st_size, status.st_mtime_ns]
        resumed = seed_list.resume(of)
        if seed_list.ended:
            logger.info("%s: read to its end by an earlier run", source.name)
            return
        if source.kind == "remote" and not path.exists():
            await self._fetch(source.name, path)
        if resumed:
            lines = counted(seed_list.counts.lines, "line")
            logger.info("%s: goes on after %s", source.name, lines)
        self._begin(seed_list)
        async with aclosing(iterate_in_thread(lambda: _read(path, seed_list.at))) as blocks:
            async for block, share in blocks:
                seed_list.feed(block)
                await self._work(seed_list, share)
                if self._crawl.stopping:
                    return
        seed_list.end_of_text()
        await self._work(seed_list, 1.0)
        if self._crawl.stopping:
            return
        seed_list.ended = True
        seed_list.save()
        await make_durable(self._crawl)
        if source.kind == "remote":
            path.unlink(missing_ok=True)
        self._say_end(seed_list)

    def _seed_list(self, name: str, tag: str) -> SeedList:
        lines = url_lists.SeedLines(name, tag, normal=self._crawl.normalizer)
        return SeedList(self._crawl.store, self._plant, lines, name)

    def _place(self, url: str) -> Path:
        job = self._crawl.job
        if job is None:
            if self._folder is None:
                self._folder = own = TemporaryFolder()
                self._crawl.closers.append(lambda _: own.remove())
            folder = self._folder.path
        else:
            folder = job.folder
        return folder / f"seeds-{hashlib.sha256(url.encode()).hexdigest()[:16]}"

    async def _fetch(self, url: str, path: Path) -> None:
        agent = str(self._crawl.crawler.settings["USER_AGENT"])

        def fetch() -> Iterator[None]:
            url_lists.download(url, path, agent)
            yield None

        logger.info("%s: being downloaded", url)
        async with aclosing(iterate_in_thread(fetch)) as done:
            async for _ in done:
                logger.info("%s: %s bytes", url, f"{path.stat().st_size:,}")

    async def _work(self, seed_list: SeedList, share: float | None) -> None:
        crawl, turns = self._crawl, self._turns
        while seed_list.more and not crawl.stopping:
            seed_list.schedule_lines()
            if turns.is_over or not seed_list.more:
                seed_list.save()
                await make_durable(crawl)
                await turns.yield_turn()
                self._tell(seed_list, share)
                while self._is_full() and not crawl.stopping:
                    await asyncio.sleep(_ROOM)

    def _is_full(self) -> bool:
        crawl = self._crawl
        if crawl.agent is not None and not crawl.agent.outbox_has_room():
            return True
        return not crawl.store.durable and crawl.frontier.pending > _IN_MEMORY

    def _begin(self, seed_list: SeedList) -> None:
        self._counted = replace(seed_list.counts)
        self._told = time.monotonic(), seed_list.counts.lines

    def _count(self, seed_list: SeedList) -> None:
        counts, before = seed_list.counts, self._counted
        for name, stat in _STATS.items():
            new = getattr(counts, name) - getattr(before, name)
            self._crawl.crawler.stats.inc_value(f"suite/seeds/{stat}", new)
        self._counted = replace(counts)

    def _tell(self, seed_list: SeedList, share: float | None) -> None:
        now, (then, lines), counts = time.monotonic(), self._told, seed_list.counts
        if now < then + _TELL:
            return
        self._count(seed_list)
        rate = (counts.lines - lines) / (now - then)
        of_file = "" if share is None else f", {share:.1%} of the file"
        # Whole, so that the quiet log does not take one for a repetition of the last one.
        logger.info(
            f"{seed_list.name}: {counted(counts.seeds, 'seed')} of "
            f"{counted(counts.lines, 'line')}, {rate:,.0f}/s{of_file}"
        )
        self._told = now, counts.lines

    def _say_end(self, seed_list: SeedList) -> None:
        self._count(seed_list)
        counts = seed_list.counts
        seeds = counted(counts.seeds, "seed")
        logger.info("%s: %s, %s of them new", seed_list.name, seeds, f"{counts.new:,}")
        if counts.bad:
            logger.warning(
                "%s: %s left out, the first: %s; all of them: "
                "scrapy frontier report bad-seeds",
                seed_list.name,
                counted(counts.bad, "line is no seed and was", "lines are no seeds and were"),
                "; ".join(counts.first_bad),
            )  # fmt: skip


class SeedSource(Protocol):
    """Seeds that come while the crawl runs; *busy*: some are yet to become requests."""

    busy: bool

    def begin(self) -> None: ...
    def stop(self) -> None: ...


class CrawlSeeds:
    """SUITE_SEEDS of one crawl, and seeds of other sources.

    *enqueue* schedules one as a request, as in the spider profile.
    """

    def __init__(self, crawl: Crawl, enqueue: Callable[[Request, str], bool]) -> None:
        self._crawl = crawl
        self._enqueue = enqueue
        self._task: asyncio.Task[None] | None = None
        self._todo: list[str] = []
        self.sources: list[SeedSource] = []
        self.schedule: ScheduleSeeds = self._plant
        if crawl.settings.broad:
            given = lambda: not crawl.seeds.pushed  # noqa: E731
            self.schedule = seed_scheduler(crawl.frontier, crawl.now, given=given)

    @property
    def busy(self) -> bool:
        return self._reading or any(source.busy for source in self.sources)

    @property
    def _reading(self) -> bool:
        return self._task is not None and not self._task.done()

    def open(self, texts: Iterable[str]) -> None:
        self.begin(texts)
        for source in self.sources:
            source.begin()

    def begin(self, texts: Iterable[str]) -> None:
        self._todo.extend(texts)
        if self._todo and not self._reading:
            self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        for source in self.sources:
            source.stop()

    async def _run(self) -> None:
        crawl = self._crawl
        intake = SeedIntake(crawl, self.schedule)
        while self._todo and not crawl.stopping:
            text = self._todo.pop(0)
            try:
                wrong = await intake.schedule_all([text])
            except (SettingsError, StoreWriteError) as error:
                wrong = [str(error)]
                crawl.seeds.unread.add(text)
            for each in wrong:
                logger.error("%s; the crawl goes on without the rest of it", each)
        crawl.wake()

    def _plant(self, seeds: Sequence[url_lists.Seed]) -> int:
        new = 0
        for seed in seeds:
            request = Request(seed.url, meta={"is_start_request": True})
            new += self._enqueue(request, make_seed_note(seed.tag, guessed=seed.guessed))
        return new


def _read(path: Path, begin: int) -> Iterator[tuple[bytes, float | None]]:
    with url_lists.ListFile(path) as file:
        file.skip(begin)
        yield from file.blocks()
