"""Items into files of compressed JSON lines, each exactly once, whatever kills the crawl.

The items of a page are written last, when the page is certain to be done. The pages of a block are
done in the batch of the store that commits the size of the file. After a kill the rest is cut off:
its pages are fetched again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgpack  # type: ignore[import-untyped]
from twisted.python.failure import Failure

from scrapy_spider_suite.crawl.context import write_changes
from scrapy_spider_suite.crawl.sinks.page_packs import BACKLOG_MAX, prepare_folder
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.items import ItemLines, PageItem
from scrapy_spider_suite.packs import item_file
from scrapy_spider_suite.packs.item_file import ItemBuffer, ItemFile
from scrapy_spider_suite.packs.pack_file import OPEN, pack_name
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.signals import item_not_exported, item_pack_closed

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.queue.leases import Fetch
    from scrapy_spider_suite.crawl.sinks.commit_log import CommitLog
    from scrapy_spider_suite.store.interface import KV

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

ITEM_FILES_TABLE: Final = "items"
"""A mapping of the job's store: a row for each open file, from before it is there until it has its
name, with the folder and the bytes of pages that are done."""


class ItemFiles:
    """Writes items in *folder*, in a thread. First closes files of this job that a kill left open,
    cut to what was committed. Raises `OSError`.
    """

    def __init__(self, log: CommitLog, folder: Path) -> None:
        settings = log.settings
        self._log = log
        self._folder = folder
        self._stats = log.crawler.stats
        spider = log.crawler.spider
        self._crawl = settings.crawl_name or ("" if spider is None else spider.name)
        self._agent = settings.agent_name or socket.gethostname()
        self._rows: KV | None = None
        if log.crawl is not None and log.crawl.job is not None:
            self._rows = log.crawl.store.kv(ITEM_FILES_TABLE)
        self._file: ItemFile | None = None
        self.full: list[ItemFile] = []
        self._serial = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._recover()
        self._thread = ThreadPoolExecutor(1, "items")

    async def write(self, piles: Sequence[ItemBuffer]) -> None:
        """Write *piles*, uncommitted. Raises `OSError`: nothing of them is written."""
        file = self._file
        if file is None:
            file = self._file = await self._begin()
        try:
            await self._run(file.append, chain.from_iterable(pile.lines() for pile in piles))
        except BaseException:
            if file.broken:
                logger.error("%s is left as it is: it could not be repaired", file.open_path)
                self._file = None
            raise

    def commit(self) -> None:
        if self._file is not None:
            self._put_row(self._file.path.name, self._file.size)

    def rotate(self) -> None:
        file, settings = self._file, self._log.settings
        if file is not None and (
            file.size >= settings.packs_size or 0 < settings.packs_age <= time.time() - file.time
        ):
            self.full.append(file)
            self._file = None

    async def close_full(self) -> None:
        """Rename full files whose rows are on disk. Failures are tried again."""
        for file in list(self.full):
            if not self._durable():
                return
            try:
                closed = await self._run(file.close_or_abandon)
            except OSError:
                continue
            self.full.remove(file)
            if closed and self._rows is not None:
                self._rows.delete(file.path.name.encode())
            if file.named:
                self._stats.inc_value("suite/items/closed")
                self._log.crawler.signals.send_catch_log(
                    item_pack_closed, path=file.path, spider=self._log.crawler.spider
                )

    async def close(self) -> None:
        """Close everything; on failure the next run of the job does."""
        if self._file is not None:
            self.full.append(self._file)
            self._file = None
        await self.close_full()
        for file in self.full:
            file.abandon()
        self._thread.shutdown()

    async def _begin(self) -> ItemFile:
        now, taken = time.time(), True
        while taken:
            self._serial += 1
            name = pack_name(self._crawl, now, self._serial, self._agent, "gz", "jsonl")
            path = self._folder / name
            taken = path.exists() or path.with_name(name + OPEN).exists()
        self._put_row(name, 0)
        if not self._durable():
            raise OSError("the job cannot be written")
        self._folder.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
        power = self._log.settings.commit_survives == "power"
        return await self._run(partial(ItemFile, path, now, power=power))

    def _put_row(self, name: str, size: int) -> None:
        if self._rows is not None:
            folder = str(self._folder.absolute())
            self._rows.put(name.encode(), msgpack.packb((folder, size)))

    def _durable(self) -> bool:
        crawl = self._log.crawl
        if crawl is None:
            return True
        write_changes(crawl)
        return not crawl.store.backlog

    async def _run(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _recover(self) -> None:
        rows = self._rows
        if rows is None:
            return
        for key, value in list(rows.items()):
            name = key.decode()
            folder, size = msgpack.unpackb(value)
            found = [each / (name + OPEN) for each in (self._folder, Path(folder))]
            path = next((each for each in found if each.exists()), None)
            if path is not None:
                recovered = item_file.recover_items(path, size)
                if recovered is None:
                    logger.warning("%s is written by another process, and left to it", path)
                    continue
                self._stats.inc_value("suite/items/recovered")
                cut, missing = recovered
                self._stats.inc_value("suite/items/cut_bytes", cut)
                if missing:
                    self._stats.inc_value("suite/items/missing_bytes", missing)
                    logger.error(
                        "%s has lost %d bytes that were written (SUITE_COMMIT_SURVIVES = 'power' "
                        "has them survive a power failure)", path, missing,
                    )  # fmt: skip
            rows.delete(key)


_WAIT: Final = 1.0  # seconds that items wait for others to share their block
_ITEMS: Final = "items"  # why the crawl is paused while too many wait


class _ItemJob(NamedTuple):
    pile: ItemBuffer
    fetch: Fetch | None


class ItemPacks:
    """A sink (see `commit_log`): items into packs in *folder*, as the settings of *log* say now.
    Raises `SettingsError`: the folder cannot be written.
    """

    def __init__(self, log: CommitLog, folder: Path) -> None:
        self._log = log
        self._folder = folder
        self._stats = log.crawler.stats
        self._lines = ItemLines()
        self._waiting: list[_ItemJob] = []
        self._bytes = 0  # of what waits
        self._due = 0.0
        self._behind = False
        self._task: asyncio.Task[None] | None = None
        prepare_folder("items_dir", folder)
        try:
            self._files = ItemFiles(log, folder)
        except OSError as error:
            raise SettingsError(f"SUITE_ITEMS_DIR = {str(folder)!r}: {error}") from error

    def add_item(self, item: Any, response: Any, spider: Any) -> None:
        if isinstance(item, PageItem):
            return  # packs are for pages
        try:
            line = self._lines.line(item)
        except Exception as error:  # whatever an item is serialised with may fail
            self._stats.inc_value("suite/items/refused")
            logger.error("An item of %s cannot be written as JSON: %r", response, error)
            self._log.crawler.signals.send_catch_log(
                item_not_exported, item=item, response=response, spider=spider,
                failure=Failure(),  # type: ignore[no-untyped-call]
            )  # fmt: skip
            return
        fetch = self._log.lease_of(getattr(response, "request", None))
        if fetch is None:
            last = self._waiting[-1] if self._waiting else None
            if last is None or last.fetch is not None or last.pile.size >= item_file.BLOCK:
                last = _ItemJob(ItemBuffer(), None)
                self._append(last)
            last.pile.add(line)
            self._add_bytes(len(line))
            return
        if fetch.items is None:
            fetch.items = ItemBuffer(self._folder)
        try:
            fetch.items.add(line)
        except OSError as error:
            self._stats.inc_value("suite/items/failed")
            fetch.faults.add(Event.DISK_FULL)
            self._pause(error)

    def settled(self, fetch: Fetch) -> None:
        if fetch.items is not None:
            fetch.holds += 1
            fetch.last = self._write_last

    def _write_last(self, fetch: Fetch, pile: ItemBuffer) -> None:
        crawl = self._log.crawl
        state = State.DONE if crawl is None else fetch.fate(crawl.frontier.policy.retry_times)[0]
        if state is State.PENDING or Event.PIPELINE_ERROR in fetch.faults:
            self._stats.inc_value("suite/items/dropped", pile.items)
            pile.close()
            self._log.written([fetch])
        else:
            self._append(_ItemJob(pile, fetch))

    def _append(self, job: _ItemJob) -> None:
        if not self._waiting:
            self._due = asyncio.get_running_loop().time() + _WAIT
        self._waiting.append(job)
        self._add_bytes(job.pile.size)

    def _add_bytes(self, size: int) -> None:
        self._bytes += size
        if self._bytes >= item_file.BLOCK:
            self._begin()

    def pulse(self) -> None:
        """Write items that have waited for long, or for which the crawl waits."""
        behind = self._bytes > (BACKLOG_MAX // 2 if self._behind else BACKLOG_MAX)
        if behind:  # said anew each time: another one may have taken it back
            self._log.pause(_ITEMS)
        elif self._behind:
            self._log.unpause(_ITEMS)
        self._behind = behind
        if not self._writing:
            self._files.rotate()
        late = asyncio.get_running_loop().time() >= self._due
        if self._files.full or (self._waiting and (late or self._log.waits or behind)):
            self._begin()

    @property
    def _writing(self) -> bool:
        return self._task is not None and not self._task.done()

    def _begin(self) -> None:
        if not self._writing:
            self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._waiting:
            if not await self._write():
                return
            if self._bytes < item_file.BLOCK:
                break
        await self._files.close_full()

    async def _write(self) -> bool:
        jobs, self._waiting, self._bytes = self._waiting, [], 0
        try:
            await self._files.write([job.pile for job in jobs])
        except Exception as error:  # whoever waits must hear of whatever went wrong
            self._failed(jobs, error)
            return False
        # From here on nothing else has a turn: the row and the pages are of one batch.
        self._files.commit()
        self._log.written(job.fetch for job in jobs if job.fetch is not None)
        self._files.rotate()
        for job in jobs:
            self._stats.inc_value("suite/items/written", job.pile.items)
            self._stats.inc_value("suite/items/bytes", job.pile.size)
            job.pile.close()
        return True

    def _failed(self, jobs: list[_ItemJob], error: Exception) -> None:
        self._stats.inc_value("suite/items/failed", sum(job.pile.items for job in jobs))
        loose = [job for job in jobs if job.fetch is None]
        held = [job.fetch for job in jobs if job.fetch is not None]
        for job in jobs:
            if job.fetch is not None:
                job.fetch.faults.add(Event.DISK_FULL)
                job.pile.close()
        self._waiting[:0] = loose
        self._bytes += sum(job.pile.size for job in loose)
        self._due = asyncio.get_running_loop().time() + _WAIT
        self._pause(error)
        self._log.written(held)

    def _pause(self, error: Exception) -> None:
        self._log.pause_until_writable(f"cannot write items in {self._folder}: {error}")

    async def finish(self) -> None:
        """Write everything. Pages whose items cannot be written are fetched again."""
        if self._task is not None and self._writing:
            await self._task
        while self._waiting and await self._write():
            pass
        if lost := sum(job.pile.items for job in self._waiting):
            logger.error("%s lost: writing failed", counted(lost, "item is", "items are"))

    async def close(self) -> None:
        await self._files.close()
