"""What the writer's thread does: collects records to groups and groups to packs, in one thread.

It knows no clock: times are handed in. `writer` runs it.

Closes packs that a crash left open: the torn end is cut off, the end marked.

The writer of packs: a thread of its own compresses and writes, others only hand in records.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from scrapy_spider_suite.errors import PackRefusedError, PackWriteError
from scrapy_spider_suite.packs.containers import RECORD_MAX, Container, RecordPlace
from scrapy_spider_suite.packs.folder_index import build_index
from scrapy_spider_suite.packs.pack_file import (
    OPEN,
    PackFile,
    closed_path,
    format_of,
    index_path,
    is_pack,
    make_container,
    pack_name,
    plain_name,
)
from scrapy_spider_suite.packs.scan import Damage, RecordGroup, first_group_offset, scan_from
from scrapy_spider_suite.packs.warc import (
    Capture,
    CrawlInfo,
    Record,
    estimated_size,
    make_records,
    warcinfo,
)
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.runtime.files import lock_file

logger = logging.getLogger(__name__)

GROUP: Final = 1 << 17
"""Bytes of records that are compressed together, unless one page has more.

lzop allows twice as many; then a page is read in 0.9 ms instead of 0.6, and takes 3 % less room.
"""
_SERIALS = 100_000


class RecordLocation(NamedTuple):
    """Where a record is: the name of a pack, without its folder and ``.open``, and the place."""

    filename: str
    place: RecordPlace


class Waiter(Protocol):
    """Who waits for records: a future, or what is told as one is, in the writer's thread."""

    def done(self) -> bool:
        """Whether it was told."""

    def set_result(self, result: Any, /) -> None:
        """They are on disk, at that `RecordLocation`."""

    def set_exception(self, exception: Exception, /) -> None:
        """They are in no pack."""


@dataclass(slots=True)
class WriteJob:
    """Records to be written together, or what they are to be made of, and who waits for that."""

    records: Sequence[Record]
    future: Waiter
    size: int = 0
    """Bytes, roughly; 0 for what is no more than a wish to have all written."""
    fetches: Sequence[Capture] = ()
    data: Sequence[bytes] = ()

    def make(self) -> None:
        """Have *data*, and the records if they are not there yet. Raises whatever is wrong."""
        if self.fetches:
            try:
                self.records = [record for each in self.fetches for record in make_records(each)]
            except Exception as error:
                raise PackRefusedError(f"{self.fetches[-1].url:.200}: {error!r}") from error
            self.fetches = ()
        self.data = [record.to_bytes() for record in self.records]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan:
    """How packs are written.

    Attributes:
        folder: where they lie; it is there.
        crawl: what a pack's first record says, and how its name begins.
        agent: how its name ends: two that write into one folder have different ones.
        form: ``lzo``, ``gz``, ``zst``.
        max_bytes: a pack is closed when it has as many bytes.
        max_age: or is as old, in seconds, 0 for never.
        wait: seconds that a record waits for others to share its group.
        power: whether what is written survives a power failure, too.
    """

    folder: Path
    crawl: CrawlInfo
    agent: str
    form: str = "lzo"
    max_bytes: int = 1 << 30
    max_age: float = 3600.0
    wait: float = 5.0
    power: bool = False


class GroupWriter:
    """The group that is collected and the pack that is written.

    *closed* is called with the path of every pack that has got its name.
    """

    def __init__(
        self, plan: PackPlan, closed: Callable[[Path], None], form: Container | None = None
    ) -> None:
        self._plan = plan
        self._closed = closed
        self._form = form or make_container(plan.form)
        self._pack: PackFile | None = None
        # Full packs that could not be closed yet: the disk was full.
        self._ending: list[PackFile] = []
        self._late: set[Path] = set()  # those of them that were logged
        self._waiting: list[WriteJob] = []
        self._bytes = 0
        self._due = 0.0
        self._serial = 0

    def change(self, *, max_bytes: int, max_age: float, power: bool) -> None:
        """Go by another plan in this; *power* holds for packs that are begun from now on."""
        self._plan = replace(self._plan, max_bytes=max_bytes, max_age=max_age, power=power)

    def add_job(self, job: WriteJob, now: float) -> None:
        """Collect *job*. *now* in seconds since the epoch, as everywhere here."""
        try:
            job.make()
        except Exception as error:  # whoever waits must hear of whatever went wrong
            _fail([job], error)
            return
        size = sum(map(len, job.data))
        if self._waiting and self._bytes + size > GROUP:
            self.write(now)
        if not self._waiting:
            self._due = now + self._plan.wait
        self._waiting.append(job)
        self._bytes += size
        if self._bytes >= GROUP:
            self.write(now)

    def seconds_to_tick(self, now: float) -> float | None:
        """Return in how many seconds `tick` has something to do; None if it has nothing."""
        times = [self._due] if self._waiting else []
        if self._pack is not None and self._plan.max_age:
            times.append(self._pack.time + self._plan.max_age)
        if self._ending:
            times.append(now + self._plan.wait)
        return max(0.0, min(times) - now) if times else None

    def tick(self, now: float) -> None:
        """Write a group that has waited long enough, close a pack that is old enough."""
        # A clock that was set back must not keep records waiting.
        if self._waiting and not now < self._due <= now + self._plan.wait:
            self.write(now)
        self._rotate(now)
        if self._ending:
            self._close_ending()

    def write(self, now: float) -> None:
        """Write the group that was collected, and tell those who wait, of a failure too."""
        jobs, self._waiting, self._bytes = self._waiting, [], 0
        if not jobs:
            return
        group = [record for job in jobs for record in job.records]
        data = [part for job in jobs for part in job.data]
        try:
            pack = self._current(now)
            places = pack.append(group, data)
        except OSError as error:
            _fail(jobs, _write_error(self._plan.folder, error))
            self._drop_broken()
            return
        except Exception as error:  # whoever waits must hear of whatever went wrong
            _fail(jobs, error)
            return
        for job in jobs:
            location = RecordLocation(pack.path.name, places[0])
            places = places[len(job.records) :]
            job.future.set_result(location)
        self._rotate(now)

    def close(self, now: float) -> None:
        """Write everything and close all packs. Raises `PackWriteError`: some were left open."""
        self.write(now)
        if self._pack is not None:
            self._ending.append(self._pack)
            self._pack = None
        error = self._close_ending()
        for pack in self._ending:
            pack.abandon()
        self._ending.clear()
        if error is not None:
            raise _write_error(self._plan.folder, error) from error

    def give_up(self, error: Exception) -> None:
        """Tell those who wait that nothing will be written any more."""
        jobs, self._waiting = self._waiting, []
        _fail(jobs, error)
        for pack in filter(None, [self._pack, *self._ending]):
            pack.abandon()

    def _current(self, now: float) -> PackFile:
        """Return the pack that is written, a new one if there is none. Raises `OSError`."""
        if self._pack is None:
            pack = self._create(now)
            info = warcinfo(self._plan.crawl, pack.path.name, now)
            try:
                pack.append([info], [info.to_bytes()])
            except OSError:
                pack.discard()
                raise
            self._pack = pack
        return self._pack

    def _create(self, now: float) -> PackFile:
        plan = self._plan
        plan.folder.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
        while True:
            self._serial = self._serial % _SERIALS + 1
            name = pack_name(plan.crawl.name, now, self._serial, plan.agent, plan.form)
            path = plan.folder / name
            # One that was uploaded has left its index.
            if not path.exists() and not index_path(path).exists():
                try:
                    return PackFile(path, self._form, now, power=plan.power)
                except FileExistsError:
                    continue

    def _rotate(self, now: float) -> None:
        pack = self._pack
        if pack is None:
            return
        age = now - pack.time
        if pack.size >= self._plan.max_bytes or 0 < self._plan.max_age <= age:
            self._pack = None
            self._ending.append(pack)
            self._close_ending()

    def _close_ending(self) -> OSError | None:
        """Try to close the packs that are full; return why one of them could not be.

        One that is gone, or cannot be put right, is left to `recover_pack`.
        """
        failed = None
        for pack in list(self._ending):
            try:
                pack.close()
            except OSError as error:
                if isinstance(error, FileNotFoundError) or pack.broken:
                    self._ending.remove(pack)
                    _give_up(pack, error)
                    continue
                if pack.path not in self._late:
                    self._late.add(pack.path)
                    logger.warning("Cannot close %s yet: %s", pack.path, error)
                failed = error
                continue
            self._ending.remove(pack)
            self._late.discard(pack.path)
            self._tell(pack.path)
        return failed

    def _tell(self, path: Path) -> None:
        try:
            self._closed(path)
        except Exception:  # what others do with a closed pack must not stop the writing
            logger.exception("After closing %s", path)

    def _drop_broken(self) -> None:
        """Leave a pack that could not be put right to `recover_pack`."""
        if self._pack is not None and self._pack.broken:
            logger.error("%s is left as it is: it could not be repaired", self._pack.path)
            self._pack.abandon()
            self._pack = None


def _give_up(pack: PackFile, error: OSError) -> None:
    logger.error("%s is left as it is, if it is there: %s", pack.open_path, error)
    pack.abandon()


def _fail(jobs: Sequence[WriteJob], error: Exception) -> None:
    for job in jobs:
        job.future.set_exception(error)


def _write_error(folder: Path, error: OSError) -> PackWriteError:
    return PackWriteError(f"cannot write packs in {folder}: {error.strerror or error}",
                          error.errno or 0)  # fmt: skip


# What a kill leaves beside a pack that has its name already, or was recovered.
_LEFT = re.compile(r"(.+\.warc\.(?:lzo|gz|zst))\.(?:cdxj\.(?:open|new|raw)|open\.new)")


class PackRecovery(NamedTuple):
    """What became of a pack.

    *path*: its name now; None if no page was in it, and it was removed. *kept*: bytes of it that
    are in the pack still. *cut*: bytes that are not, at its end and where *damage* lay between
    whole groups. *records*: how many are in it.
    """

    path: Path | None
    kept: int
    cut: int
    records: int
    damage: list[Damage]


def recover_folder(folder: Path, agent: str = "") -> list[PackRecovery]:
    """Close every open pack in *folder* that nobody writes, or only those of an *agent*.

    Raises `OSError`.
    """
    ending = f"-{plain_name(agent)}.warc." if agent else ".warc."
    found = []
    for path in sorted(folder.glob(f"*{OPEN}")):
        if is_pack(path) and ending in path.name:
            recovery = recover_pack(path)
            if recovery is not None:
                found.append(recovery)
    for path in folder.iterdir():
        left = _LEFT.fullmatch(path.name)
        if left and ending in path.name and not path.with_name(left[1] + OPEN).exists():
            path.unlink(missing_ok=True)
    return found


def recover_pack(path: Path, limit: int = RECORD_MAX) -> PackRecovery | None:
    """Close the open pack *path*; None if a process is writing it.

    What is whole stays as it is, in its place, unless something before it is damaged (a power
    failure does that): then the pack is written anew without it. *limit*: bytes of the largest
    record. Raises `OSError` (the disk is full: nothing has changed, or all but the name).
    """
    form = make_container(format_of(path))
    with path.open("r+b") as file:
        if not lock_file(file):
            return None
        kept: list[tuple[int, int]] = []
        damage: list[Damage] = []
        make_records = 0
        start = first_group_offset(form, file)
        for found in scan_from(form, file, start, limit):
            if isinstance(found, RecordGroup):
                kept.append((found.offset, found.length))
                make_records += len(found.places)
            else:
                damage.append(found)
        size = file.seek(0, 2)
        if not kept:
            _remove(path)
            return PackRecovery(None, 0, size, 0, damage)
        end = _put_right(path, file, form, start, kept)
    target = closed_path(path)
    try:
        build_index(path, target)
    except OSError as error:  # a pack without an index is whole, and it can be made later
        logger.warning("No index for %s: %s", target, error)
    os.rename(path, target)
    index_path(path).unlink(missing_ok=True)
    files.sync_path(path.parent)
    lost = [part for part in damage if part.length]
    return PackRecovery(target, end, max(0, size - end), make_records, lost)


def _put_right(
    path: Path, file: BinaryIO, form: Container, start: int, kept: list[tuple[int, int]]
) -> int:
    """Leave *kept* in the pack and nothing else, and mark its end; return how long it is."""
    file.seek(0)
    header = file.read(start) or form.begin(closed_path(path).name.rpartition(".")[0], 0)
    file.seek(0)
    sound = file.read(len(header)) == header
    end = len(header)
    for offset, length in kept:
        if offset != end or not sound:
            return _rewrite(path, file, header, form.end(), kept)
        end += length
    file.truncate(end)
    file.seek(end)
    file.write(form.end())
    file.flush()
    os.fsync(file.fileno())
    return end


def _rewrite(
    path: Path, file: BinaryIO, header: bytes, ending: bytes, kept: list[tuple[int, int]]
) -> int:
    with files.replacing_file(path) as new, new.open("wb") as out:
        out.write(header)
        for offset, length in kept:
            file.seek(offset)
            _copy(file, out, length)
        size = out.tell()
        out.write(ending)
    return size


def _copy(source: BinaryIO, target: BinaryIO, length: int) -> None:
    while length:
        data = source.read(min(length, 1 << 20))
        target.write(data)
        length -= len(data)


def _remove(path: Path) -> None:
    index_path(path).unlink(missing_ok=True)
    path.unlink()
    files.sync_path(path.parent)


class PackWriter:
    """Writes packs as *plan* says. Usable from several threads.

    Packs that a crash left open in the folder are closed first (`recover_folder`), in the writer's
    thread: *recovery* will have what it found, or why it failed (then they are left as they are).
    *closed* is called for every pack that is complete, in the writer's thread.
    *backlog_max*: bytes of records that may wait to be compressed. *container*: another way to
    write the format of the plan. Without *recover* nothing is closed first: another writer of this
    process, that is not closed yet, has the same plan.

    Raises `PackError` (no such format), `OSError` (the folder cannot be read).
    """

    def __init__(
        self,
        plan: PackPlan,
        *,
        closed: Callable[[Path], None] = lambda path: None,
        backlog_max: float = 64 << 20,
        clock: Callable[[], float] = time.time,
        container: Container | None = None,
        recover: bool = True,
    ) -> None:
        self._groups = GroupWriter(plan, closed, container)
        plan.folder.mkdir(parents=True, exist_ok=True)
        self.recovery: Future[list[PackRecovery]] = Future()
        if not recover:
            self.recovery.set_result([])
        self._plan = plan
        self._clock = clock
        self._jobs: deque[WriteJob] = deque()
        self._backlog = 0
        self._backlog_max = backlog_max
        self._changed = threading.Condition()
        self._ending = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="packs", daemon=True)
        self._thread.start()

    @property
    def recovered(self) -> list[PackRecovery]:
        """What became of packs that were left open, once they are closed. Raises `OSError`."""
        return self.recovery.result()

    @property
    def backlog(self) -> int:
        """Bytes of records that wait to be compressed, roughly; they may not be made yet."""
        return self._backlog

    def append(self, records: Sequence[Record], *, wait: bool = True) -> Future[RecordLocation]:
        """Have *records* written side by side; the future has the place of the first of them.

        It is set, in the writer's thread, when they are on disk (``Plan.power``: on the medium), or
        to a `PackWriteError`: then nothing of them is in a pack, and they may be handed in again.
        While too much is waiting, this call waits too, or, without *wait*, raises `PackWriteError`.
        """
        if not records:
            raise ValueError("no records")
        future: Future[RecordLocation] = Future()
        future.set_running_or_notify_cancel()  # what is written is written
        with self._changed:
            while self._backlog > self._backlog_max and not self._ending:
                if not wait:
                    raise PackWriteError("too many pages wait to be written")
                self._changed.wait()
            size = sum([len(record.block) + 600 for record in records])
            self._put(WriteJob(records, future, size))
        return future

    def append_captures(self, captures: Sequence[Capture], waiter: Waiter) -> None:
        """Have records made of *captures*, in the writer's thread, and written side by side.

        *waiter* is told there as a future of `append` is, or of a `PackRefusedError`. This call
        never waits. Raises `PackWriteError`: the writer is closed.
        """
        size = sum([estimated_size(fetch) for fetch in captures])
        with self._changed:
            self._put(WriteJob((), waiter, size, captures))

    def change(self, *, max_bytes: int, max_age: float, power: bool) -> None:
        """Go by another `PackPlan` in this, at once; *power* holds from the next pack on."""
        with self._changed:
            self._groups.change(max_bytes=max_bytes, max_age=max_age, power=power)
            self._changed.notify_all()

    def flush(self) -> Future[None]:
        """Have what was handed in written now; the future is set when it is."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        with self._changed:
            self._put(WriteJob((), future))
        return future

    def close(self) -> None:
        """Write everything, close the pack, end the thread.

        Raises `PackWriteError`: a pack could not be closed; the next writer recovers it.
        """
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _put(self, job: WriteJob) -> None:
        if self._ending:
            raise PackWriteError("the writer of packs is closed")
        self._jobs.append(job)
        self._backlog += job.size
        self._changed.notify_all()

    def _run(self) -> None:
        job: WriteJob | None = None
        if not self.recovery.done():
            self._recover()
        try:
            while not self._ended():
                now = self._clock()
                job = self._next(now)
                if job is not None and job.size:
                    self._groups.add_job(job, now)
                elif job is not None:
                    self._groups.write(now)
                    job.future.set_result(None)
                self._groups.tick(self._clock())
            self._groups.close(self._clock())
        except Exception as error:  # nobody may wait for a thread that has ended
            self._error = error
            self._give_up(error, job)

    def _recover(self) -> None:
        try:
            found = recover_folder(self._plan.folder, self._plan.agent)
        except Exception as error:  # what is there stays as it is, whatever is wrong with it
            self.recovery.set_exception(error)
        else:
            self.recovery.set_result(found)

    def _ended(self) -> bool:
        with self._changed:
            return self._ending and not self._jobs

    def _next(self, now: float) -> WriteJob | None:
        """Return the next job, or None when there is something else to do."""
        with self._changed:
            if not self._jobs and not self._ending:
                self._changed.wait(self._groups.seconds_to_tick(now))
            if not self._jobs:
                return None
            job = self._jobs.popleft()
            self._backlog -= job.size
            self._changed.notify_all()
            return job

    def _give_up(self, error: Exception, last: WriteJob | None) -> None:
        self._groups.give_up(error)
        with self._changed:
            self._ending = True
            for job in [*filter(None, [last]), *self._jobs]:
                if not job.future.done():
                    job.future.set_exception(error)
            self._jobs.clear()
            self._changed.notify_all()
