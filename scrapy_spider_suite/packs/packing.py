"""What the writer's thread does: collects records to groups and groups to packs, in one thread.

It knows no clock: times are handed in. `writer` runs it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from scrapy_spider_suite.errors import PackRefusedError, PackWriteError
from scrapy_spider_suite.packs.container import Container, Place
from scrapy_spider_suite.packs.formats import container, pack_name
from scrapy_spider_suite.packs.packfile import PackFile, index_path
from scrapy_spider_suite.packs.pages import Crawl, Fetch, records, warcinfo
from scrapy_spider_suite.packs.warc import Record

logger = logging.getLogger(__name__)

GROUP: Final = 1 << 17
"""Bytes of records that are compressed together, unless one page has more.

lzop allows twice as many; then a page is read in 0.9 ms instead of 0.6, and takes 3 % less room.
"""
_SERIALS = 100_000


class Location(NamedTuple):
    """Where a record is: the name of a pack, without its folder and ``.open``, and the place."""

    filename: str
    place: Place


class Waiter(Protocol):
    """Who waits for records: a future, or what is told as one is, in the writer's thread."""

    def done(self) -> bool:
        """Whether it was told."""

    def set_result(self, result: Any, /) -> None:
        """They are on disk, at that `Location`."""

    def set_exception(self, exception: Exception, /) -> None:
        """They are in no pack."""


@dataclass(slots=True)
class Job:
    """Records to be written together, or what they are to be made of, and who waits for that."""

    records: Sequence[Record]
    future: Waiter
    size: int = 0
    """Bytes, roughly; 0 for what is no more than a wish to have all written."""
    fetches: Sequence[Fetch] = ()
    data: Sequence[bytes] = ()

    def make(self) -> None:
        """Have *data*, and the records if they are not there yet. Raises whatever is wrong."""
        if self.fetches:
            try:
                self.records = [record for each in self.fetches for record in records(each)]
            except Exception as error:
                raise PackRefusedError(f"{self.fetches[-1].url:.200}: {error!r}") from error
            self.fetches = ()
        self.data = [record.to_bytes() for record in self.records]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
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
    crawl: Crawl
    agent: str
    form: str = "lzo"
    max_bytes: int = 1 << 30
    max_age: float = 3600.0
    wait: float = 5.0
    power: bool = False


class Packing:
    """The group that is collected and the pack that is written.

    *closed* is called with the path of every pack that has got its name.
    """

    def __init__(
        self, plan: Plan, closed: Callable[[Path], None], form: Container | None = None
    ) -> None:
        self._plan = plan
        self._closed = closed
        self._form = form or container(plan.form)
        self._pack: PackFile | None = None
        # Full packs that could not be closed yet: the disk was full.
        self._ending: list[PackFile] = []
        self._late: set[Path] = set()  # those of them that were logged
        self._waiting: list[Job] = []
        self._bytes = 0
        self._due = 0.0
        self._serial = 0

    def change(self, *, max_bytes: int, max_age: float, power: bool) -> None:
        """Go by another plan in this; *power* holds for packs that are begun from now on."""
        self._plan = replace(self._plan, max_bytes=max_bytes, max_age=max_age, power=power)

    def take(self, job: Job, now: float) -> None:
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

    def patience(self, now: float) -> float | None:
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
            location = Location(pack.path.name, places[0])
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

        One that is gone, or cannot be put right, is left to `recover`.
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
        """Leave a pack that could not be put right to `recover`."""
        if self._pack is not None and self._pack.broken:
            logger.error("%s is left as it is: it could not be repaired", self._pack.path)
            self._pack.abandon()
            self._pack = None


def _give_up(pack: PackFile, error: OSError) -> None:
    logger.error("%s is left as it is, if it is there: %s", pack.open_path, error)
    pack.abandon()


def _fail(jobs: Sequence[Job], error: Exception) -> None:
    for job in jobs:
        job.future.set_exception(error)


def _write_error(folder: Path, error: OSError) -> PackWriteError:
    return PackWriteError(f"cannot write packs in {folder}: {error.strerror or error}",
                          error.errno or 0)  # fmt: skip
