"""The machine of a crawl: checks at the start, and a guard of its disks while it runs."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from scrapy.crawler import Crawler
from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage
from scrapy.settings import BaseSettings
from scrapy.utils.project import data_path

from scrapy_spider_suite.crawl.context import Crawl, Engine
from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.fetch.connections import idle_limit, raise_file_limit
from scrapy_spider_suite.runtime.refusal import DISK_ERROR
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.store.job_reader import read_status
from scrapy_spider_suite.store.rocks_store import RocksStore

logger = logging.getLogger(__name__)

ROOT = Path("/")


class MemoryLimit(NamedTuple):
    """A limit in bytes, and what sets it."""

    limit: int
    by: str


def memory_limit(root: Path = ROOT) -> MemoryLimit | None:
    """The least that control groups (version 2) and machine allow; None if neither is known."""
    found = [MemoryLimit(limit, "the control group") for limit in _group_limits(root)]
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemTotal" and value.split()[:1]:
            found.append(MemoryLimit(int(value.split()[0]) << 10, "the machine"))
    return min(found, default=None)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []


def _group_limits(root: Path) -> Iterator[int]:
    base = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        # In a container the path may be that outside, and what is inside be mounted at the base.
        group = base / line.rpartition(":")[2].lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(base):
                with suppress(OSError, ValueError):  # none there, or "max"
                    yield int((folder / "memory.max").read_text())


_ESCAPE = re.compile(r"\\([0-7]{3})")
_MEMORY = frozenset({"tmpfs", "ramfs"})
_NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs",
    "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs",
})  # fmt: skip


class Mount(NamedTuple):
    point: Path
    type: str


def find_mount(path: Path, root: Path = ROOT) -> Mount | None:
    """The mount that *path*, which need not exist yet, is on; None where that cannot be told."""
    real = path.resolve()
    found: Mount | None = None
    for line in _lines(root / "proc/self/mountinfo"):  # proc(5)
        here, _, there = line.partition(" - ")
        if len(fields := here.split(" ")) < 6:
            continue
        point = Path(_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        # A later mount at the same point hides an earlier one.
        deeper = found is None or len(point.parts) >= len(found.point.parts)
        if deeper and real.is_relative_to(point):
            found = Mount(point, there.partition(" ")[0])
    return found


SCRAPY_QUEUE: Final = "requests.queue"
_STATE, _INFO = "active.json", "info.json"
_NUMBER = 4  # bytes of a number in a LIFO queue, big-endian


def _queued_requests(folder: Path) -> Iterator[int]:
    """Yield the requests in each file of Scrapy's queue *folder*; after a kill too few."""
    for path in folder.rglob("*"):
        try:
            if path.name == _INFO:
                size = json.loads(path.read_bytes())["size"]
                yield size if isinstance(size, int) else 0
            elif path.is_file() and path.name != _STATE and not (path.parent / _INFO).exists():
                with path.open("rb") as file:
                    yield int.from_bytes(file.read(_NUMBER))
        except (OSError, ValueError, KeyError, TypeError):  # no queue of Scrapy's
            continue


_OTHER_FILES = 320  # files beside connections: the store keeps up to 256 open
_PROCESS = 192 << 20  # bytes for Python, Scrapy and their pages under way
_TABLE = ("max", "count")  # of nf_conntrack
_REMEMBERED = 120
"""Seconds for which a firewall follows a connection that was closed (nf_conntrack's TIME_WAIT)."""
_CLOCK = 60.0  # seconds that a clock may be set back without a word


def machine_findings(crawl: Crawl, root: Path = ROOT) -> Iterator[str]:
    """Yield a line for each fault; *root* is the parent of ``proc`` and ``sys``."""
    concurrency, job = crawl.settings.project.concurrent_requests, crawl.job
    on_disk = isinstance(crawl.store, RocksStore)
    yield from _check_files(concurrency)
    if on_disk:
        yield from _check_memory(2 * crawl.settings.memory, root)
    yield from _check_connections(concurrency, root)
    if job is not None:
        yield from _check_job_folder(job.path, root)
        yield from _check_clock(job.folder)
        if not job.resumed:  # else the run that began the job has said it
            yield from _check_queue(job.path)
    elif on_disk:
        yield from _check_temporary_folder(root)


def _check_files(concurrency: int) -> Iterator[str]:
    files = raise_file_limit()
    idle = idle_limit(files)
    needed = concurrency + idle + _OTHER_FILES
    if files < needed:
        yield (
            f"open files: {files} are allowed, CONCURRENT_REQUESTS = {concurrency} and "
            f"{counted(idle, 'idle connection')} may need {needed}; raise the limit "
            "(ulimit -n, LimitNOFILE=)"
        )


def _check_memory(memory: int, root: Path) -> Iterator[str]:
    limit = memory_limit(root) if memory else None
    needed = memory + _PROCESS
    if limit is not None and limit.limit < needed:
        yield (
            f"memory: {limit.by} allows {display_bytes(limit.limit)}, this crawl may need "
            f"{display_bytes(needed)}; lower SUITE_MEMORY, or raise the limit"
        )


def _check_connections(concurrency: int, root: Path) -> Iterator[str]:
    folder, needed = root / "proc/sys/net/netfilter", concurrency * _REMEMBERED
    with suppress(OSError, ValueError):  # connections are not followed
        limit, used = (int((folder / f"nf_conntrack_{each}").read_text()) for each in _TABLE)
        if limit - used < needed:
            yield (
                f"connections: the firewall follows {used} of at most {limit}, and each for "
                f"{_REMEMBERED} s after its end; CONCURRENT_REQUESTS = {concurrency} may come to "
                f"{needed} more; raise net.netfilter.nf_conntrack_max"
            )


def _check_job_folder(path: Path, root: Path) -> Iterator[str]:
    mount = find_mount(path, root)
    if mount is not None and mount.type in _NETWORK:
        yield (
            f"JOBDIR = {str(path)!r} is on another machine ({mount.type} at {mount.point}): it is "
            "slow, and its locks and writes may not hold; use a local disk"
        )
    elif mount is not None and mount.type in _MEMORY:
        yield f"JOBDIR = {str(path)!r} is in memory ({mount.type}): it ends with the machine"


def _check_temporary_folder(root: Path) -> Iterator[str]:
    path = Path(tempfile.gettempdir())
    mount = find_mount(path, root)
    if mount is not None and mount.type in _MEMORY:
        yield (
            f"the temporary folder {path} is in memory ({mount.type}), and what "
            "waits to be fetched is kept there; set JOBDIR, or TMPDIR to a disk"
        )


def _check_clock(folder: Path) -> Iterator[str]:
    when = (read_status(folder) or {}).get("when")
    behind = when - time.time() if isinstance(when, int | float) else 0.0
    if behind > _CLOCK:
        yield (
            f"the clock is {behind:.0f} s behind the job's last write: hosts may wait that much "
            "longer, and times in the fetch log go back"
        )


def _check_queue(path: Path) -> Iterator[str]:
    left = sum(_queued_requests(path / SCRAPY_QUEUE))
    if left:
        yield (
            f"the job directory: {SCRAPY_QUEUE} holds {counted(left, 'request')} of Scrapy's own "
            "scheduler, pickled, which the suite does not read; finish that crawl with "
            "SUITE_ENABLED = False, or use another JOBDIR for this one"
        )


_COMPACTION = 25 * (64 << 20)
"""Most bytes that RocksDB merges at once: 25 files of the default size (max_compaction_bytes)."""
_SLACK = 1.1  # how much more than enough there has to be before it is enough again


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
    """Bytes that a store of *stored* bytes, with *memory* for its buffers, needs beside them."""
    # A merge writes before it removes its sources; the log grows to the size of the buffers.
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
        except OSError:  # writing there will fail with the reason
            continue
        before = systems.get(device, Shortage(path, free, least))
        systems[device] = before._replace(needed=before.needed + extra)
    factor = _SLACK if is_short else 1.0
    return next((each for each in systems.values() if each.free < each.needed * factor), None)


def display_bytes(count: int) -> str:
    """*count* bytes for a person to read, rounded down: ``1.9G``."""
    for unit, size in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if count >= size:
            return f"{count * 10 // size / 10:g}{unit}"
    return f"{count} bytes"


DISK = "the disk"  # why the scheduler is paused, among its other reasons
_LOOK = 1.0  # seconds between two looks at the disks
_RETRY = 5.0  # seconds between two attempts to write
_GIVE_UP = 900.0  # seconds for which a disk may fail to write although it has room
_CALM = 60.0  # seconds without a failure after which the next one is another
_ROOM = 1 << 20  # bytes free below which a disk is full, whatever SUITE_MIN_FREE says
_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))
"""Messages of failures that end as soon as there is room: they may last for ever."""
_PAUSES = "%s: the crawl pauses until %s; nothing is lost"


class DiskGuard:
    def __init__(self, crawl: Crawl, scheduler: Engine) -> None:
        self._crawl = crawl
        self._scheduler = scheduler
        self._next = crawl.now()
        self.paused = False  # because a write has failed, or there is too little room
        self.stuck = False  # a write has failed
        self._failing_since: float | None = None
        self._failed_at = -math.inf
        log = crawl.crawler.settings["LOG_FILE"]
        self._fixed_folders = [Path(log).absolute().parent] if log else []
        self._fixed_folders += component_folders(crawl.crawler.settings)

    def pause_for(self, why: str) -> None:
        """A write has failed because of *why*: pause, and try again every few seconds."""
        self.stuck = True
        self._next = self._crawl.now() + _RETRY
        self._pause(why, full=_is_full(why))
        self._failed(why)

    def _failed(self, why: str) -> None:
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
        if now < self._next:
            return
        self._next = now + (_RETRY if self.stuck else _LOOK)
        least = self._crawl.settings.min_free
        short = shortage(self._folders(), least, is_short=self.paused) if least else None
        if short is not None:
            self._failing_since = None
            self._pause(
                f"{short.path} has {display_bytes(short.free)} free, SUITE_MIN_FREE and what the "
                f"store may need for a while come to {display_bytes(short.needed)}", full=True,
            )  # fmt: skip
        elif not self.stuck:
            self._go_on("there is room again")
        # No disk may be full: that of packs may be another one than the store's.
        elif self._writes() and shortage([(path, 0) for path, _ in self._folders()], _ROOM) is None:
            self.stuck = False
            self._go_on("writing works again")

    def _folders(self) -> Iterator[tuple[Path, int]]:
        crawl, settings = self._crawl, self._crawl.settings
        extra = 0
        if isinstance(crawl.store, RocksStore):
            extra = headroom(crawl.store.size(), settings.memory)
        if crawl.job is not None:
            yield crawl.job.folder, extra
        elif isinstance(crawl.store, RocksStore):
            yield Path(tempfile.gettempdir()), extra
        own = (settings.fetch_log, settings.packs_dir, settings.items_dir)
        for folder in (
            *self._fixed_folders, *(each for each in own if isinstance(each, Path)),
            *feed_folders(crawl.crawler),
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
    """The folders of the local feeds of *crawler*, but for devices such as /dev/stdout."""
    exporter = crawler.get_extension(FeedExporter)
    storages = () if exporter is None else (slot.storage for slot in exporter.slots)
    paths = [Path(each.path).absolute() for each in storages if isinstance(each, FileFeedStorage)]
    return [path.parent for path in paths if path.is_file() or not path.exists()]


def component_folders(settings: BaseSettings) -> list[Path]:
    """The local folders of Scrapy's media pipelines and its HTTP cache."""
    stores = (str(settings[name] or "") for name in ("FILES_STORE", "IMAGES_STORE"))
    found = [store.removeprefix("file://") for store in stores if store]
    local = [Path(store).absolute() for store in found if "://" not in store]
    if settings.getbool("HTTPCACHE_ENABLED"):
        local.append(Path(data_path(settings["HTTPCACHE_DIR"])).absolute())
    return local
