"""Pauses a crawl while the disks that it writes to are full."""

from __future__ import annotations

import errno
import logging
import math
import os
from collections.abc import Iterable, Iterator
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


class Shortage(NamedTuple):
    """A file system has fewer free bytes than are needed there."""

    path: Path
    free: int
    needed: int


def free_space(path: Path) -> tuple[int, int]:
    """Return the device of *path*, and its free bytes. Raises `OSError`."""
    system = os.statvfs(path)
    return os.stat(path).st_dev, system.f_bavail * system.f_frsize


def headroom(stored: int, memory: int) -> int:
    """Bytes that a store of *stored* bytes, with *memory* for its buffers, needs beside them.

    A merge writes its result before it removes its sources. The log grows to the size of the
    buffers.
    """
    return min(stored, _COMPACTION) + memory


def shortage(
    folders: Iterable[tuple[Path, int]], least: int, *, is_short: bool = False
) -> Shortage | None:
    """The first file system of *folders* without *least* bytes free.

    The bytes beside a folder, which it may need for a while, are needed in addition. If the crawl
    *is_short* already, more is needed, so that it does not stop and go. Unreadable folders are
    passed over: writing to them will fail with the reason.
    """
    systems: dict[int, Shortage] = {}
    for path, extra in folders:
        try:
            device, free = free_space(path)
        except OSError:
            continue
        before = systems.get(device, Shortage(path, free, least))
        systems[device] = before._replace(needed=before.needed + extra)
    factor = _SLACK if is_short else 1.0
    return next((each for each in systems.values() if each.free < each.needed * factor), None)


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
        paused: the crawl is paused: a write has failed, or there is too little room.
        stuck: a write has failed.
    """

    def __init__(self, crawl: Crawl, scheduler: Engine) -> None:
        self._crawl = crawl
        self._scheduler = scheduler
        self._next = crawl.now()
        self.paused = False
        self._failing_since: float | None = None
        self._failed_at = -math.inf
        log = crawl.crawler.settings["LOG_FILE"]
        self._log_folders = [Path(log).absolute().parent] if log else []
        self._component_folders = component_folders(crawl.crawler.settings)
        self.stuck = False

    def hold(self, why: str) -> None:
        """A write has failed because of *why*: pause, and try again every few seconds."""
        self.stuck = True
        self._next = self._crawl.now() + _RETRY
        self._pause(why, full=_is_full(why))
        self._failed(why)

    def _failed(self, why: str) -> None:
        """Count how long writing has failed; stop the crawl in the end."""
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
        """Look at the disks, and try to write again, when it is time for that."""
        if now < self._next:
            return
        self._next = now + (_RETRY if self.stuck else _LOOK)
        least = self._crawl.settings.min_free
        short = shortage(self._folders(), least, is_short=self.paused) if least else None
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

    def _folders(self) -> Iterator[tuple[Path, int]]:
        """The folders that are written to, and the bytes that each may need for a while."""
        crawl, settings = self._crawl, self._crawl.settings
        extra = 0
        if isinstance(crawl.store, RocksStore):
            extra = headroom(crawl.store.size(), settings.memory)
        job = crawl.temporary if crawl.job is None else crawl.job.folder
        if job is not None:
            yield job, extra
        own = (settings.fetch_log, settings.packs_dir, settings.items_dir)
        for folder in (
            *self._log_folders, *(each for each in own if isinstance(each, Path)),
            *feed_folders(crawl.crawler), *self._component_folders,
        ):  # fmt: skip
            yield folder, 0

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
        return shortage([(folder, 0) for folder, _ in self._folders()], _ROOM) is None

    def _pause(self, why: str, *, full: bool) -> None:
        if not self.paused:
            self.paused = True
            logger.error(_PAUSES, why, "there is room" if full else "it can be written again")
            self._crawl.crawler.stats.inc_value("suite/disk/pauses")
            self._scheduler.pause(DISK)

    def _go_on(self, why: str) -> None:
        if self.paused:
            self.paused = False
            logger.info("%s: the crawl goes on", why)
            self._scheduler.unpause(DISK)


def _is_full(why: str) -> bool:
    return any(text in why for text in _FULL)


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
