"""Writes packs in a thread of its own; closes packs that a crash left open."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from scrapy_spider_suite.errors import PackRefusedError, PackWriteError
from scrapy_spider_suite.packs import pack_file, warc
from scrapy_spider_suite.packs.cdxj import RecordBundle, bundle_captures
from scrapy_spider_suite.packs.containers import Container, RecordPlace
from scrapy_spider_suite.packs.folder_index import build_index
from scrapy_spider_suite.packs.pack_file import Damage, PackFile, RecordGroup
from scrapy_spider_suite.packs.warc import Capture, CrawlInfo
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.runtime.files import lock_file

logger = logging.getLogger(__name__)

GROUP: Final = 1 << 17
"""Bytes of records that are compressed together; one page may have more."""
_IDS = 256
"""Ids that are cut from one read of entropy."""


class RecordLocation(NamedTuple):
    """The name of a pack, without folder and ``.open``, and a place in it."""

    filename: str
    place: RecordPlace


class Waiter(Protocol):
    def done(self) -> bool:
        """Whether it was notified."""

    def set_result(self, result: Any, /) -> None:
        """The records are on disk, at that `RecordLocation`."""

    def set_exception(self, exception: Exception, /) -> None:
        """The records are in no pack."""


@dataclass(slots=True)
class WriteJob:
    """Captures to write side by side. *size*: approximate bytes; 0 requests a flush."""

    captures: Sequence[Capture]
    future: Waiter
    size: int = 0
    time: float = 0.0
    end_pack: bool = False
    bundle: RecordBundle = field(init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan:
    """How packs are written."""

    folder: Path
    crawl: CrawlInfo
    agent: str  # ends a pack's name; writers of one folder have different agents
    form: str = "lzo"  # or ``gz``, ``zst``
    max_bytes: int = 1 << 30  # a pack is closed at that size,
    max_age: float = 3600.0  # or at that age in seconds (0: never)
    wait: float = 5.0  # seconds that a record waits for others to share its group
    power: bool = False  # sync each group, to survive a power failure


class GroupWriter:
    """The group and the pack that are being written. *closed* is called with each closed pack."""

    def __init__(self, plan: PackPlan, closed: Callable[[Path], object]) -> None:
        self._plan = plan
        self._closed = closed
        self.form = pack_file.make_container(plan.form)
        self._ids = warc.record_ids(_IDS)
        self._pack: PackFile | None = None
        # Full packs that could not be closed yet: the disk was full.
        self._ending: list[PackFile] = []
        self._waiting: list[WriteJob] = []
        self._bytes = 0
        self._due = 0.0
        self._serial = 0

    def add_job(self, job: WriteJob, now: float) -> None:
        try:
            job.bundle = bundle_captures(job.captures, self._ids)
        except Exception as error:  # whatever a capture holds
            what = f"{job.captures[-1].url:.200}: {error!r}"
            job.future.set_exception(PackRefusedError(what))
            return
        job.captures = ()
        size = sum(map(len, job.bundle.data))
        if self._waiting and self._bytes + size > GROUP:
            self.write(now)
        if not self._waiting:
            self._due = now + self._plan.wait
        self._waiting.append(job)
        self._bytes += size
        if self._bytes >= GROUP:
            self.write(now)

    def seconds_to_tick(self, now: float) -> float | None:
        """Return the seconds until `tick` has something to do, or None."""
        times = [self._due] if self._waiting else []
        if self._pack is not None and self._plan.max_age:
            times.append(self._pack.time + self._plan.max_age)
        if self._ending:
            times.append(now + self._plan.wait)
        return max(0.0, min(times) - now) if times else None

    def tick(self, now: float) -> None:
        """Write a group that has waited long enough; close a pack that is old enough."""
        # A clock that was set back must not keep records waiting.
        if self._waiting and not now < self._due <= now + self._plan.wait:
            self.write(now)
        self._rotate(now)

    def write(self, now: float) -> None:
        """Write the collected group and notify its waiters, also of a failure."""
        jobs, self._waiting, self._bytes = self._waiting, [], 0
        if not jobs:
            return
        try:
            pack = self._current(now)
            places = pack.append([job.bundle for job in jobs])
        except Exception as error:  # whoever waits must hear of whatever went wrong
            if isinstance(error, OSError):
                error = _write_error(self._plan.folder, error)
            for job in jobs:
                job.future.set_exception(error)
            if self._pack is not None and self._pack.broken:
                logger.error("%s is left as it is: it could not be repaired", self._pack.path)
                self._pack.abandon()
                self._pack = None
            return
        for job, place in zip(jobs, places, strict=True):
            job.future.set_result(RecordLocation(pack.path.name, place))
        self._rotate(now)

    def end_pack(self) -> OSError | None:
        """Close the pack, and those that could not be closed before; why some still cannot."""
        if self._pack is not None:
            self._ending.append(self._pack)
            self._pack = None
        return self._close_ending()

    def close(self, now: float) -> None:
        """Write everything and close all packs. Raises `PackWriteError`: some stay open."""
        self.write(now)
        error = self.end_pack()
        for pack in self._ending:
            pack.abandon()
        if error is not None:
            raise _write_error(self._plan.folder, error) from error

    def give_up(self, error: Exception) -> None:
        for job in self._waiting:
            job.future.set_exception(error)
        for pack in filter(None, [self._pack, *self._ending]):
            pack.abandon()

    def _current(self, now: float) -> PackFile:
        if self._pack is None:
            pack = self._create(now)
            info = warc.warcinfo(self._plan.crawl, pack.path.name, now)
            try:
                pack.append([RecordBundle([info], [])])
            except OSError:
                pack.discard()
                raise
            self._pack = pack
        return self._pack

    def _create(self, now: float) -> PackFile:
        plan = self._plan
        plan.folder.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
        while True:
            self._serial += 1
            name = pack_file.pack_name(plan.crawl.name, now, self._serial, plan.agent, plan.form)
            path = plan.folder / name
            # One that was uploaded has left its index.
            if not path.exists() and not pack_file.index_path(path).exists():
                with suppress(FileExistsError):
                    return PackFile(path, self.form, now, power=plan.power)

    def _rotate(self, now: float) -> None:
        pack, plan = self._pack, self._plan
        if pack and (pack.size >= plan.max_bytes or 0 < plan.max_age <= now - pack.time):
            self._pack = None
            self._ending.append(pack)
        if self._ending:
            self._close_ending()

    def _close_ending(self) -> OSError | None:
        failed = None
        for pack in list(self._ending):
            try:
                closed = pack.close_or_abandon()
            except OSError as error:
                failed = error
                continue
            self._ending.remove(pack)
            if not closed:
                continue
            try:
                self._closed(pack.path)
            except Exception:  # what others do with a closed pack must not stop the writing
                logger.exception("After closing %s", pack.path)
        return failed


def _write_error(folder: Path, error: OSError) -> PackWriteError:
    return PackWriteError(f"cannot write packs in {folder}: {error.strerror or error}",
                          error.errno or 0)  # fmt: skip


# What a kill leaves beside a pack that has its name already, or was recovered.
_LEFT = re.compile(rf"({pack_file.NAME})\.(?:cdxj\.(?:open|new|raw)|open\.new)")


class PackRecovery(NamedTuple):
    """*path*: the closed pack; None if it had no page and was removed. *cut*: bytes left out."""

    path: Path | None
    cut: int
    damage: list[Damage]


def recover_folder(folder: Path, agent: str = "") -> list[PackRecovery]:
    """Close open packs of *folder* that nobody writes, or an *agent*'s. Raises `OSError`."""
    ending = f"-{pack_file.plain_name(agent)}.warc." if agent else ".warc."
    opened = (path for path in sorted(folder.glob(f"*{pack_file.OPEN}"))
              if pack_file.is_pack(path) and ending in path.name)  # fmt: skip
    found = [each for each in map(recover_pack, opened) if each is not None]
    for path in folder.iterdir():
        left = _LEFT.fullmatch(path.name)
        if left and ending in path.name and not path.with_name(left[1] + pack_file.OPEN).exists():
            path.unlink(missing_ok=True)
    return found


def recover_pack(path: Path) -> PackRecovery | None:
    """Close the open pack *path*; None if a process is writing it. It is rewritten if there is
    damage between groups. Raises `OSError`: nothing has changed, or all but the name.
    """
    form = pack_file.make_container(pack_file.format_of(path))
    with path.open("r+b") as file:
        if not lock_file(file):
            return None
        kept: list[tuple[int, int]] = []
        damage: list[Damage] = []
        start = pack_file.first_group_offset(form, file)
        for found in pack_file.scan_from(form, file, start):
            if isinstance(found, RecordGroup):
                kept.append((found.offset, found.length))
            else:
                damage.append(found)
        size = file.seek(0, 2)
        if not kept:
            pack_file.index_path(path).unlink(missing_ok=True)
            path.unlink()
            files.sync_path(path.parent)
            return PackRecovery(None, size, damage)
        end = _remove_damage(path, file, form, start, kept)
    target = pack_file.closed_path(path)
    try:
        build_index(path, target)
    except OSError as error:  # a pack without an index is whole, and it can be made later
        logger.warning("No index for %s: %s", target, error)
    os.rename(path, target)
    pack_file.index_path(path).unlink(missing_ok=True)
    files.sync_path(path.parent)
    return PackRecovery(target, max(0, size - end), [part for part in damage if part.length])


def _remove_damage(
    path: Path, file: BinaryIO, form: Container, start: int, kept: list[tuple[int, int]]
) -> int:
    file.seek(0)
    header = file.read(start) or form.begin(pack_file.closed_path(path).name.rpartition(".")[0], 0)
    file.seek(0)
    sound = file.read(len(header)) == header
    end = len(header) + sum(length for _, length in kept)
    if sound and kept[0][0] == len(header) and sum(kept[-1]) == end:
        file.truncate(end)
        file.seek(end)
        file.write(form.end())
        file.flush()
        os.fsync(file.fileno())
        return end
    with files.replacing_file(path) as new, new.open("wb") as out:
        out.write(header)
        for offset, length in kept:
            file.seek(offset)
            out.write(file.read(length))
        out.write(form.end())
    return end


class PackWriter:
    """Writes packs as *plan* says; usable from several threads.

    Its thread first closes packs that a crash left open: *recovery*. *closed* is called in the
    thread for each closed pack. *backlog*: approximate bytes of records that wait for the thread.
    Raises `PackError` (no such format) and `OSError`.
    """

    def __init__(
        self, plan: PackPlan, *, closed: Callable[[Path], object] = lambda path: None,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._groups = GroupWriter(plan, closed)
        plan.folder.mkdir(parents=True, exist_ok=True)
        self.recovery: Future[list[PackRecovery]] = Future()
        self.backlog = 0
        self._plan = plan
        self._clock = clock
        self._jobs: deque[WriteJob] = deque()
        self._due = False  # the thread has to go through the jobs
        self._changed = threading.Condition()
        self._ending = False
        self._error: Exception | None = None
        logger.info("Packs in %s: %s", plan.folder, self._groups.form.compression)
        self._thread = threading.Thread(target=self._run, name="packs", daemon=True)
        self._thread.start()

    def append(self, captures: Sequence[Capture], waiter: Waiter) -> None:
        """Write the records of *captures* side by side; never waits. In the writer's thread,
        *waiter* gets the location of the first, once they are on disk, or a `PackWriteError` or
        `PackRefusedError`: they are in no pack. Raises `PackWriteError`: the writer is closed.
        """
        self._put(WriteJob(captures, waiter, sum([warc.estimated_size(each) for each in captures])))

    def flush(self, *, end_pack: bool = False) -> Future[None]:
        """Write the collected records now, with *end_pack* as the last ones of their pack; the
        future is set when they are written. It has the error of a pack that could not be closed.
        """
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()  # nobody cancels it
        self._put(WriteJob((), future, end_pack=end_pack))
        return future

    def close(self) -> None:
        """Write everything and end the thread. Raises `PackWriteError`: a pack stays open."""
        with self._changed:
            self._ending = self._due = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _put(self, job: WriteJob) -> None:
        with self._changed:
            if self._ending:
                raise PackWriteError("the writer of packs is closed")
            job.time = self._clock()
            self._jobs.append(job)
            self.backlog += job.size
            # To wake the thread costs more than to make a page's records: it wakes for a group.
            if self.backlog >= GROUP or not job.size:
                self._due = True
                self._changed.notify_all()
            elif len(self._jobs) == 1:
                self._changed.notify_all()  # it looks when the first one has waited long enough

    def _run(self) -> None:
        job: WriteJob | None = None
        try:
            self.recovery.set_result(recover_folder(self._plan.folder, self._plan.agent))
        except Exception as error:  # what is there stays as it is, whatever is wrong with it
            self.recovery.set_exception(error)
        try:
            while not self._ending or self._jobs:  # in this order: nothing comes once it ends
                now = self._clock()
                job = self._next(now)
                if job is None:
                    self._groups.tick(self._clock())
                elif job.size:
                    self._groups.add_job(job, job.time)
                else:
                    self._groups.write(now)
                    open_for = self._groups.end_pack() if job.end_pack else None
                    if open_for is None:
                        job.future.set_result(None)
                    else:
                        job.future.set_exception(open_for)
            self._groups.close(self._clock())
        except Exception as error:  # nobody may wait for a thread that has ended
            self._error = error
            self._give_up(error, job)

    def _next(self, now: float) -> WriteJob | None:
        with self._changed:
            if not self._due:
                self._due = not self._changed.wait(self._seconds_to_wait(now)) or self._due
            if not self._due or not self._jobs:
                self._due = self._ending
                return None
            job = self._jobs.popleft()
            self.backlog -= job.size
            return job

    def _seconds_to_wait(self, now: float) -> float | None:
        seconds = self._groups.seconds_to_tick(now)
        if not self._jobs:
            return seconds
        first = max(0.0, min(self._jobs[0].time, now) + self._plan.wait - now)
        return first if seconds is None else min(first, seconds)

    def _give_up(self, error: Exception, last: WriteJob | None) -> None:
        self._groups.give_up(error)
        with self._changed:
            self._ending = True
            for job in [*filter(None, [last]), *self._jobs]:
                if not job.future.done():
                    job.future.set_exception(error)
            self._jobs.clear()
            self._changed.notify_all()
