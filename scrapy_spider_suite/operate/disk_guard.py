"""Pauses a crawl while the disks that it writes to are full."""

from __future__ import annotations

import errno
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage
from scrapy.utils.project import data_path

from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.runtime.refusal import DISK_ERROR
from scrapy_spider_suite.store.rocks_store import RocksStore

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

    from scrapy_spider_suite.crawl.context import Crawl, Engine

logger = logging.getLogger(__name__)

_COMPACTION = 25 * (64 << 20)
"""Most bytes that RocksDB merges at once: 25 files of the default size (max_compaction_bytes)."""
_SLACK = 1.1
"""How much more than enough there has to be before it is enough again."""


class WatchedFolder(NamedTuple):
    """A folder that is written to; *extra* are bytes that it may need for a while."""

    path: Path
    extra: int = 0


class FreeSpace(NamedTuple):
    """The file system that holds a folder, and its free bytes."""

    device: int
    free: int


class Shortage(NamedTuple):
    """A file system has fewer free bytes than are needed there."""

    path: Path
    free: int
    needed: int


def free_space(path: Path) -> FreeSpace:
    """Look at the file system of *path*. Raises `OSError`."""
    system = os.statvfs(path)
    return FreeSpace(os.stat(path).st_dev, system.f_bavail * system.f_frsize)


def headroom(stored: int, memory: int) -> int:
    """Bytes that a store of *stored* bytes, with *memory* for its buffers, needs beside them.

    A merge writes its result before it removes what it was made from, and the log of what is still
    in memory grows to as much as the buffers hold.
    """
    return min(stored, _COMPACTION) + memory


def shortage(
    folders: Iterable[WatchedFolder],
    least: int,
    *,
    is_short: bool = False,
    look: Callable[[Path], FreeSpace] = free_space,
) -> Shortage | None:
    """The first file system of *folders* with less than *least* bytes and the extras free.

    What *is_short* already has to get somewhat more, so that a crawl does not stop and go. What
    cannot be looked at is passed over: writing to it will say what is wrong.
    """
    systems: dict[int, Shortage] = {}
    for folder in folders:
        try:
            found = look(folder.path)
        except OSError:
            continue
        before = systems.get(found.device, Shortage(folder.path, found.free, least))
        systems[found.device] = before._replace(needed=before.needed + folder.extra)
    factor = _SLACK if is_short else 1.0
    for each in systems.values():
        if each.free < each.needed * factor:
            return each
    return None


def in_units(count: int) -> str:
    """*count* bytes for a person to read, rounded down: ``1.9G``."""
    for unit, size in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if count >= size:
            return f"{count * 10 // size / 10:g}{unit}"
    return f"{count} bytes"


DISK = "the disk"
"""Why the scheduler is paused, among its other reasons."""
_LOOK = 1.0
"""Seconds between two looks at the disks."""
_RETRY = 5.0
"""Seconds between two attempts to write."""
_GIVE_UP = 900.0
"""Seconds for which a disk may fail to write although it has room."""
_CALM = 60.0
"""Seconds without a failure after which the next one is another."""
_ROOM = 1 << 20
"""Bytes free below which a disk is full, whatever SUITE_MIN_FREE says."""
_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))
"""What a failure says that ends as soon as there is room, which may take as long as it likes."""
_PAUSES = "%s: the crawl pauses until %s; nothing is lost"


class DiskGuard:
    """One per crawl; see the module.

    Attributes:
        stuck: whether a write has failed.
    """

    def __init__(self, crawl: Crawl, scheduler: Engine) -> None:
        self._crawl = crawl
        self._scheduler = scheduler
        self._next = crawl.now()
        self._paused = False
        self._failing_since: float | None = None
        self._failed_at = -math.inf
        self._log_folder = _log_folder(crawl)
        self._component_folders = component_folders(crawl.crawler.settings)
        self.stuck = False

    @property
    def paused(self) -> bool:
        """Whether the crawl is paused, since a write has failed or there is too little room."""
        return self._paused

    def hold(self, why: str) -> None:
        """Nothing can be written: send nothing more, and try again every few seconds."""
        self.stuck = True
        self._next = self._crawl.now() + _RETRY
        self._pause(why, full=_is_full(why))
        self._failed(why)

    def _failed(self, why: str) -> None:
        """Count how long writing has failed; in the end, so does the crawl."""
        now = self._crawl.now()
        if self._failing_since is None or now - self._failed_at > _CALM:
            self._failing_since = now
        self._failed_at = now
        if _is_full(why):
            self._failing_since = None
        elif now - self._failing_since >= _GIVE_UP and not self._scheduler.closing:
            logger.critical(
                "nothing could be written for %.0f minutes although there is room (%s): the crawl "
                "ends; see to the disk, and start it again", _GIVE_UP / 60, why,
            )  # fmt: skip
            self._scheduler.stop(DISK_ERROR)

    def pulse(self, now: float) -> None:
        """Look at the disks, and whether writing works again, when it is time for that."""
        if now < self._next:
            return
        self._next = now + (_RETRY if self.stuck else _LOOK)
        short = self.shortage()
        if short is not None:
            self._failing_since = None
            self._pause(
                f"{short.path} has {in_units(short.free)} free, SUITE_MIN_FREE and what the store "
                f"may need for a while come to {in_units(short.needed)}", full=True,
            )  # fmt: skip
        elif not self.stuck:
            self._go_on("there is room again")
        elif self._writes() and self._has_room():
            self.stuck = False
            self._go_on("writing works again")

    def shortage(self) -> Shortage | None:
        """What has too little room, None if all is well or nobody asked."""
        least = self._crawl.settings.min_free
        return shortage(self._folders(), least, is_short=self._paused) if least else None

    def _folders(self) -> list[WatchedFolder]:
        crawl, found = self._crawl, []
        extra = 0
        if isinstance(crawl.store, RocksStore):
            extra = headroom(crawl.store.size(), crawl.settings.memory)
        if crawl.job is not None:
            found.append(WatchedFolder(crawl.job.folder, extra))
        elif crawl.temporary is not None:
            found.append(WatchedFolder(crawl.temporary, extra))
        if self._log_folder is not None:
            found.append(WatchedFolder(self._log_folder))
        if isinstance(crawl.settings.fetch_log, Path):
            found.append(WatchedFolder(crawl.settings.fetch_log))
        for folder in (crawl.settings.packs_dir, crawl.settings.items_dir):
            if folder is not None:
                found.append(WatchedFolder(folder))
        others = (*feed_folders(crawl.crawler), *self._component_folders)
        return [*found, *map(WatchedFolder, others)]

    def _writes(self) -> bool:
        try:
            self._crawl.store.recover()
            self._crawl.frontier.flush()
        except StoreWriteError as error:
            self._failed(str(error))
            return False
        return True

    def _has_room(self) -> bool:
        """Whether no disk is full: that of packs may be another one than the store's."""
        return shortage([WatchedFolder(folder.path) for folder in self._folders()], _ROOM) is None

    def _pause(self, why: str, *, full: bool) -> None:
        if not self._paused:
            self._paused = True
            logger.error(_PAUSES, why, "there is room" if full else "it can be written again")
            self._crawl.crawler.stats.inc_value("suite/disk/pauses")
            self._scheduler.pause(DISK)

    def _go_on(self, why: str) -> None:
        if self._paused:
            self._paused = False
            logger.info("%s: the crawl goes on", why)
            self._scheduler.unpause(DISK)


def _is_full(why: str) -> bool:
    return any(text in why for text in _FULL)


def _log_folder(crawl: Crawl) -> Path | None:
    file = crawl.crawler.settings["LOG_FILE"]
    return Path(file).absolute().parent if file else None


def feed_folders(crawler: Crawler) -> list[Path]:
    """Where the local feeds of *crawler* lie; those that are no files, as /dev/stdout, left out."""
    exporter = crawler.get_extension(FeedExporter)
    storages = () if exporter is None else (slot.storage for slot in exporter.slots)
    paths = [Path(each.path).absolute() for each in storages if isinstance(each, FileFeedStorage)]
    return [path.parent for path in paths if path.is_file() or not path.exists()]


def component_folders(settings: BaseSettings) -> list[Path]:
    """Where Scrapy's media pipelines and its HTTP cache put files, if that is here."""
    stores = (str(settings[name] or "") for name in ("FILES_STORE", "IMAGES_STORE"))
    found = [store.removeprefix("file://") for store in stores if store]
    local = [Path(store).absolute() for store in found if "://" not in store]
    if settings.getbool("HTTPCACHE_ENABLED"):
        local.append(Path(data_path(settings["HTTPCACHE_DIR"])).absolute())
    return local


def temporary_folder() -> Path | None:
    """Where temporary files go; None if there is no such place."""
    try:
        return Path(tempfile.gettempdir())
    except OSError:
        return None
