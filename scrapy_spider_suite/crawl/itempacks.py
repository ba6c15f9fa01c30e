"""Items into files of compressed JSON lines, each exactly once whatever kills the crawl.

The items of a page come together, and last of all: when nothing else of it is to be awaited, and
it is known that it will be done. So all pages of a block are done in the batch that says how far
the file is committed, and what lies beyond that after a kill is cut off: it is of pages that are
fetched again.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twisted.python.failure import Failure

from scrapy_spider_suite.crawl.itemfiles import ItemFiles
from scrapy_spider_suite.crawl.packing import BEHIND
from scrapy_spider_suite.crawl.packplan import prepare_folder
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.items import ItemLines, PageItem
from scrapy_spider_suite.packs.item_file import BLOCK, Pile
from scrapy_spider_suite.signals import item_not_exported
from scrapy_spider_suite.wording import counted

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.commitlog import CommitLog
    from scrapy_spider_suite.storage.leases import Lease

logger = logging.getLogger(__name__)

_WAIT: Final = 1.0
"""Seconds that items wait for others to share their block."""
_ITEMS: Final = "items"
"""Why the crawl is paused while too many wait."""


class _Job(NamedTuple):
    """Items to be written, and the page that waits for that, if there is one."""

    pile: Pile
    lease: Lease | None


class ItemPacking:
    """A sink (see `commitlog`): items into packs in *folder*, as the settings of *log* say now.

    *recover*: close first what a kill has left open.

    Stats: ``suite/items/written``, ``suite/items/bytes``, ``suite/items/refused``,
    ``suite/items/failed``, ``suite/items/dropped``, and those of `ItemFiles`.

    Raises `SettingsError`: the folder cannot be written.
    """

    def __init__(self, log: CommitLog, folder: Path, *, recover: bool = True) -> None:
        self._log = log
        self._folder = folder
        self._stats = log.crawler.stats
        self._lines = ItemLines()
        self._waiting: list[_Job] = []
        self._bytes = 0  # of what waits
        self._due = 0.0
        self._held = 0  # pages whose items wait for all else of them
        self._behind = False
        self._task: asyncio.Task[None] | None = None
        prepare_folder("items_dir", folder)
        try:
            self._files = ItemFiles(log, folder, recover=recover)
        except OSError as error:
            raise SettingsError(f"SUITE_ITEMS_DIR = {str(folder)!r}: {error}") from error

    # In

    def take(self, item: Any, response: Any, spider: Any) -> None:
        """*item* has been through all pipelines; see Scrapy's signal ``item_scraped``."""
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
        lease = self._log.lease_of(getattr(response, "request", None))
        if lease is None:
            self._put(line)
        else:
            self._keep(line, lease)

    def _put(self, line: bytes) -> None:
        """Collect *line*, of no page: in memory, since nobody would fetch it again."""
        last = self._waiting[-1] if self._waiting else None
        if last is None or last.lease is not None or last.pile.size >= BLOCK:
            last = _Job(Pile(), None)
            self._collect(last)
        last.pile.add(line)
        self._more(len(line))

    def _keep(self, line: bytes, lease: Lease) -> None:
        """Keep *line* until the page of *lease* is done, or have that fetched again."""
        if lease.items is None:
            lease.items = Pile(self._folder)
        try:
            lease.items.add(line)
        except OSError as error:
            self._stats.inc_value("suite/items/failed")
            lease.faults.add(Event.DISK_FULL)
            self._cannot_write(error)

    def settled(self, lease: Lease) -> None:
        """Nothing more will come of the page of *lease*: if it has items, it waits for them."""
        if lease.items is not None:
            lease.holds += 1
            lease.last = self._last
            self._held += 1

    def _last(self, lease: Lease, pile: Pile) -> None:
        """Only the items of *lease* are left to be written, if its page is not fetched again."""
        self._held -= 1
        core = self._log.core
        state = State.DONE if core is None else lease.fate(core.frontier.policy.retry_times)[0]
        if state is State.PENDING or Event.PIPELINE_ERROR in lease.faults:
            self._stats.inc_value("suite/items/dropped", pile.items)
            pile.close()
            self._log.written([lease])
        else:
            self._collect(_Job(pile, lease))

    def _collect(self, job: _Job) -> None:
        if not self._waiting:
            self._due = asyncio.get_running_loop().time() + _WAIT
        self._waiting.append(job)
        self._more(job.pile.size)

    def _more(self, size: int) -> None:
        self._bytes += size
        if self._bytes >= BLOCK:
            self._begin()

    # Out

    def pulse(self) -> None:
        """Once a second: write what has waited for long, or what everybody waits for."""
        behind = self._bytes > (BEHIND // 2 if self._behind else BEHIND)
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
    def busy(self) -> bool:
        """See `switching`."""
        return bool(self._held or self._waiting)

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
            if self._bytes < BLOCK:
                break
        await self._files.close_full()

    async def _write(self) -> bool:
        """Write what waits; whether that could be done."""
        jobs, self._waiting, self._bytes = self._waiting, [], 0
        try:
            await self._files.write([job.pile for job in jobs])
        except Exception as error:  # whoever waits must hear of whatever went wrong
            self._failed(jobs, error)
            return False
        # From here on nothing else has a turn: the row and the pages are of one batch.
        self._files.commit()
        self._log.written(job.lease for job in jobs if job.lease is not None)
        self._files.rotate()
        for job in jobs:
            self._stats.inc_value("suite/items/written", job.pile.items)
            self._stats.inc_value("suite/items/bytes", job.pile.size)
            job.pile.close()
        return True

    def _failed(self, jobs: list[_Job], error: Exception) -> None:
        """Pages are fetched again; items of none are tried again."""
        self._stats.inc_value("suite/items/failed", sum(job.pile.items for job in jobs))
        loose = [job for job in jobs if job.lease is None]
        held = [job.lease for job in jobs if job.lease is not None]
        for job in jobs:
            if job.lease is not None:
                job.lease.faults.add(Event.DISK_FULL)
                job.pile.close()
        self._waiting[:0] = loose
        self._bytes += sum(job.pile.size for job in loose)
        self._due = asyncio.get_running_loop().time() + _WAIT
        self._cannot_write(error)
        self._log.written(held)

    def _cannot_write(self, error: Exception) -> None:
        self._log.hold_still(f"cannot write items in {self._folder}: {error}")

    async def finish(self) -> None:
        """Have everything written. Pages whose items cannot be written are fetched again."""
        if self._task is not None and self._writing:
            await self._task
        while self._waiting and await self._write():
            pass
        if lost := sum(job.pile.items for job in self._waiting):
            logger.error("%s lost: writing failed", counted(lost, "item is", "items are"))

    async def close(self) -> None:
        """Close the files; what cannot be closed now, the next run of the job closes."""
        await self._files.close()
