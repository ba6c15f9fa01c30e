"""The files of item packs that a crawl has open, and how far each is committed."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.packs.item_file import FORMATS, KIND, ItemFile, Pile, recover_items
from scrapy_spider_suite.packs.pack_file import OPEN, pack_name
from scrapy_spider_suite.signals import item_pack_closed

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.commitlog import CommitLog
    from scrapy_spider_suite.store.interface import KV

logger = logging.getLogger(__name__)

ROWS: Final = "items"
"""The mapping of a job's store that has a row for each file that is open, from before it is there
until it has its name: the folder, and how many bytes of it belong to pages that are done."""


class ItemFiles:
    """Writes items in *folder*, one block after the other, in a thread of its own.

    With *recover*, files that a kill left open are closed first, cut to what was committed; those
    of another job, which alone knows what that is, are left as they are. Raises `OSError`.

    Stats: ``suite/items/closed``, ``suite/items/recovered``, ``suite/items/cut_bytes``,
    ``suite/items/missing_bytes``.
    """

    def __init__(self, log: CommitLog, folder: Path, *, recover: bool = True) -> None:
        settings = log.settings
        self._log = log
        self._folder = folder
        self._stats = log.crawler.stats
        self._crawl = settings.crawl_name or _spider(log)
        self._agent = settings.agent_name or socket.gethostname()
        self._format = settings.items_format
        self._form = FORMATS[self._format]()
        self._rows: KV | None = None
        if log.core is not None and log.core.job is not None:
            self._rows = log.core.store.kv(ROWS)
        self._file: ItemFile | None = None
        self._full: list[ItemFile] = []
        self._late: set[Path] = set()  # files that could not be closed at once, as was logged
        self._serial = 0
        folder.mkdir(parents=True, exist_ok=True)
        if recover:
            self._recover()
        self._thread = ThreadPoolExecutor(1, "items")

    async def write(self, piles: Sequence[Pile]) -> None:
        """Write *piles*; they are not committed yet. Raises `OSError`: nothing of them is there."""
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
        """All that was written belongs to pages that become done in the same batch of the store."""
        if self._file is not None:
            self._put(self._file.path.name, self._file.size)

    def rotate(self) -> None:
        """Begin another file with the next block, if this one is large or old enough."""
        file, settings = self._file, self._log.settings
        if file is None:
            return
        age = time.time() - file.time
        if file.size >= settings.packs_size or 0 < settings.packs_age <= age:
            self._full.append(file)
            self._file = None

    @property
    def full(self) -> bool:
        """Whether files wait for `close_full`."""
        return bool(self._full)

    async def close_full(self) -> None:
        """Give full files their names, once their rows are on disk. What fails is tried again.

        Not if a file is no longer there: it has its row, so that the next run of the job closes it
        should it be there again.
        """
        for file in list(self._full):
            if not self._durable():
                return
            try:
                await self._run(file.close)
            except OSError as error:
                if isinstance(error, FileNotFoundError) or file.broken:
                    self._full.remove(file)
                    self._give_up(file, error)
                elif file.path not in self._late:
                    self._late.add(file.path)
                    logger.warning("Cannot close %s yet: %s", file.open_path, error)
            else:
                self._full.remove(file)
                self._closed(file)

    def _give_up(self, file: ItemFile, error: OSError) -> None:
        logger.error("%s is left as it is, if it is there: %s", file.open_path, error)
        file.abandon()

    async def close(self) -> None:
        """Close everything; what cannot be closed now, the next run of the job closes."""
        if self._file is not None:
            self._full.append(self._file)
            self._file = None
        await self.close_full()
        for file in self._full:
            file.abandon()
        self._thread.shutdown()

    async def _begin(self) -> ItemFile:
        """Begin a file. First its row: else nobody would know what it is after a kill."""
        now = time.time()
        while True:
            self._serial += 1
            name = pack_name(
                self._crawl, now, self._serial, self._agent, self._format, kind=KIND
            )
            path = self._folder / name
            if not path.exists() and not path.with_name(name + OPEN).exists():
                break
        self._put(name, 0)
        if not self._durable():
            raise OSError("the job cannot be written")
        file: ItemFile = await self._run(self._create, path, now)
        return file

    def _create(self, path: Path, now: float) -> ItemFile:
        path.parent.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
        return ItemFile(path, self._form, now, power=self._log.settings.sync == "power")

    def _closed(self, file: ItemFile) -> None:
        if self._rows is not None:
            self._rows.delete(file.path.name.encode())
        if file.named:
            self._stats.inc_value("suite/items/closed")
            crawler = self._log.crawler
            crawler.signals.send_catch_log(item_pack_closed, path=file.path, spider=crawler.spider)

    def _put(self, name: str, size: int) -> None:
        if self._rows is not None:
            folder = str(self._folder.absolute())
            self._rows.put(name.encode(), msgpack.packb((folder, size)))

    def _durable(self) -> bool:
        """Write the batch of the store; whether that could be done."""
        core = self._log.core
        if core is None:
            return True
        core.write()
        return not core.store.dirty

    async def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    # After a kill

    def _recover(self) -> None:
        rows = self._rows
        if rows is None:
            return
        for key, value in list(rows.items()):
            name = key.decode()
            folder, size = msgpack.unpackb(value)
            found = [each / (name + OPEN) for each in (self._folder, Path(folder))]
            path = next((each for each in found if each.exists()), None)
            if path is not None and not self._recovered(path, size):
                continue
            rows.delete(key)

    def _recovered(self, path: Path, size: int) -> bool:
        recovered = recover_items(path, size)
        if recovered is None:
            logger.warning("%s is written by another process, and left to it", path)
            return False
        self._stats.inc_value("suite/items/recovered")
        self._stats.inc_value("suite/items/cut_bytes", recovered.cut)
        if recovered.missing:
            self._stats.inc_value("suite/items/missing_bytes", recovered.missing)
            logger.error(
                "%s has lost %d bytes that were written (SUITE_SYNC = 'power' has them survive a "
                "power failure)", path, recovered.missing,
            )  # fmt: skip
        return True


def _spider(log: CommitLog) -> str:
    spider = log.crawler.spider
    return "" if spider is None else spider.name
