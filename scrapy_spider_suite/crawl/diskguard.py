"""A crawl pauses while the disks that it writes to are full, or nearly so, and goes on after.

One state for both: what cannot be written is kept in memory and tried again, and what is nearly
full is not filled further, since a store needs room to make room.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage

from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.guards.room import Folder, Shortage, headroom, in_units, shortage
from scrapy_spider_suite.storage.rocks import RocksStore

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_spider_suite.crawl.core import CrawlCore
    from scrapy_spider_suite.scheduler import FrontierScheduler

logger = logging.getLogger(__name__)

DISK = "the disk"
"""Why the scheduler is paused, among its other reasons."""
_LOOK = 1.0
"""Seconds between two looks at the disks."""
_RETRY = 5.0
"""Seconds between two attempts to write."""
_PAUSES = "%s: the crawl pauses until there is room; nothing is lost"


class DiskGuard:
    """One per crawl; see the module. *stuck* is whether a write has failed."""

    def __init__(self, core: CrawlCore, scheduler: FrontierScheduler) -> None:
        self._core = core
        self._scheduler = scheduler
        self._next = core.now()
        self._paused = False
        self._log_folder = _log_folder(core)
        self.stuck = False

    def hold(self, why: str) -> None:
        """Nothing can be written: send nothing more, and try again every few seconds."""
        self.stuck = True
        self._next = self._core.now() + _RETRY
        self._pause(why)

    def pulse(self, now: float) -> None:
        """Look at the disks, and whether writing works again, when it is time for that."""
        if now < self._next:
            return
        self._next = now + (_RETRY if self.stuck else _LOOK)
        short = self.shortage()
        if short is not None:
            self._pause(
                f"{short.path} has {in_units(short.free)} free, SUITE_MIN_FREE and what the store "
                f"may need for a while come to {in_units(short.needed)}"
            )
        elif not self.stuck:
            self._go_on("there is room again")
        elif self._writes():
            self.stuck = False
            self._go_on("writing works again")

    def shortage(self) -> Shortage | None:
        """What has too little room, None if all is well or nobody asked."""
        least = self._core.settings.min_free
        return shortage(self._folders(), least, is_short=self._paused) if least else None

    def _folders(self) -> list[Folder]:
        core, found = self._core, []
        extra = 0
        if isinstance(core.store, RocksStore):
            extra = headroom(core.store.size(), core.settings.workbench_memory)
        if core.job is not None:
            found.append(Folder(core.job.folder, extra))
        elif core.temporary is not None:
            found.append(Folder(core.temporary, extra))
        if self._log_folder is not None:
            found.append(Folder(self._log_folder))
        if isinstance(core.settings.fetch_log, Path):
            found.append(Folder(core.settings.fetch_log))
        return [*found, *map(Folder, feed_folders(core.crawler))]

    def _writes(self) -> bool:
        try:
            self._core.store.recover()
            self._core.frontier.flush()
        except StoreWriteError:
            return False
        return True

    def _pause(self, why: str) -> None:
        if not self._paused:
            self._paused = True
            logger.error(_PAUSES, why)
            self._core.crawler.stats.inc_value("suite/disk/pauses")
            self._scheduler.pause(DISK)

    def _go_on(self, why: str) -> None:
        if self._paused:
            self._paused = False
            logger.info("%s: the crawl goes on", why)
            self._scheduler.unpause(DISK)


def _log_folder(core: CrawlCore) -> Path | None:
    file = core.crawler.settings["LOG_FILE"]
    return Path(file).absolute().parent if file else None


def feed_folders(crawler: Crawler) -> list[Path]:
    """Where the local feeds of *crawler* lie; those that are no files, as /dev/stdout, left out."""
    exporter = crawler.get_extension(FeedExporter)
    storages = () if exporter is None else (slot.storage for slot in exporter.slots)
    paths = [Path(each.path).absolute() for each in storages if isinstance(each, FileFeedStorage)]
    return [path.parent for path in paths if path.is_file() or not path.exists()]


def temporary_folder() -> Path | None:
    """Where temporary files go; None if there is no such place."""
    try:
        return Path(tempfile.gettempdir())
    except OSError:
        return None
