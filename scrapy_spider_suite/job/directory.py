"""The job directory: who may use it, what is in it, and whether it may go on.

``JOBDIR/suite/`` holds ``lock`` (the process that uses it), ``job.json`` (data format, id, the
settings it was begun with), ``store/`` (RocksDB), ``seen/`` (URLs that are done) and ``sieve/``
(fingerprints of them). Everything in it is relative: a job directory can be moved.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy_spider_suite.errors import (
    JobDamagedError,
    JobError,
    JobFormatError,
    JobInUseError,
    JobSettingsError,
)
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.settings.declarations import Change, Kind
from scrapy_spider_suite.settings.project import uses_job
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.storage import inventory
from scrapy_spider_suite.storage.archive import FOLDER as ARCHIVE
from scrapy_spider_suite.storage.archive import Archive
from scrapy_spider_suite.storage.records import FORMAT
from scrapy_spider_suite.storage.rocks import RocksStore
from scrapy_spider_suite.storage.sieved import DROPPED, Sieved
from scrapy_spider_suite.storage.sieved import FOLDER as SIEVE
from scrapy_spider_suite.storage.untouched import lies_untouched

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_spider_suite.storage.kv import KV

logger = logging.getLogger(__name__)

FOLDER = "suite"
_CLEAN = b"clean"
_ARCHIVED, _SIEVED = b"archive", b"sieve"
_SHOWN = 200  # characters of a setting's value in an error


@dataclass(frozen=True, slots=True)
class JobFile:
    """What ``job.json`` says."""

    format: int
    id: str
    spider: str
    created: float
    settings: dict[str, Any]
    origin: str = ""
    """The id of the job of which this is a copy."""

    @classmethod
    def read(cls, folder: Path) -> JobFile | None:
        """Read ``job.json`` of *folder*, None if there is no job. Raises `JobError`s."""
        path = folder / "job.json"
        try:
            data = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise JobDamagedError(f"{path} cannot be read ({error}){_WAY_OUT}") from error
        if not isinstance(data, dict) or not isinstance(data.get("format"), int):
            raise JobDamagedError(f"{path} is no job description{_WAY_OUT}")
        if data["format"] > FORMAT:
            raise JobFormatError(
                f"{folder.parent} has data format {data['format']}, written by a newer release; "
                f"this one reads up to {FORMAT}: upgrade scrapy-spider-suite, or use another JOBDIR"
            )
        try:
            return cls(**data)
        except TypeError as error:
            raise JobDamagedError(f"{path} is no job description{_WAY_OUT}") from error

    def write(self, folder: Path) -> None:
        """Write ``job.json``, whole or not at all."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        files.replace(folder / "job.json", f"{json.dumps(fields, indent=1)}\n".encode())


_WAY_OUT = "; look at it with `scrapy frontier check`, or begin anew with another JOBDIR"


class Job:
    """A job directory in use by this process. Raises the `JobError`s on opening."""

    def __init__(self, path: Path, settings: SuiteSettings, spider: str) -> None:
        self.path = path
        self.folder = path / FOLDER
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = self._take_lock()
        except OSError as error:
            raise JobError(f"JOBDIR = {str(path)!r} cannot be used: {error.strerror}") from error
        try:
            self.file, old = self._resume_or_begin(settings, spider)
            self._refuse_damage(begun=old is not None)
            self.store = RocksStore(
                self.folder / "store",
                memory=max(16 << 20, settings.workbench_memory),
                power_safe=settings.sync == "power",
            )
            self.resumed = self.store.meta.get(b"id") is not None
            if self.resumed and old is None:
                raise JobDamagedError(f"{self.folder / 'job.json'} is missing{_WAY_OUT}")
            self._open_beside(settings)
        except BaseException:
            self._lock.close()
            raise
        inventory.forget(self.folder / "store")
        if old is not None and old.format < FORMAT:
            logger.warning(
                "%s had data format %d and has %d now: older releases open it no more",
                path, old.format, FORMAT,
            )  # fmt: skip
        # Only now: whoever was killed before left nothing that looks like a job.
        self.file.write(self.folder)
        self.unclean = self.resumed and self.store.meta.get(_CLEAN) is None
        self.store.meta.put(b"id", self.file.id.encode())
        self.store.meta.delete(_CLEAN)
        self.store.flush()

    def _take_lock(self) -> IO[str]:
        lock = (self.folder / "lock").open("a+")
        for pause in (0.0, 0.05):  # `scrapy frontier status` holds it for a moment
            time.sleep(pause)
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
        else:
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            lock.close()
            raise JobInUseError(
                f"JOBDIR = {str(self.path)!r} is in use by {holder}: wait for it to end, or use "
                "another JOBDIR"
            )
        lock.truncate(0)
        lock.write(f"process {os.getpid()}")
        lock.flush()
        return lock

    def _resume_or_begin(
        self, settings: SuiteSettings, spider: str
    ) -> tuple[JobFile, JobFile | None]:
        """The description of the job from now on, and the one that was there."""
        stored = settings.as_stored()
        old = JobFile.read(self.folder)
        if old is None:
            return JobFile(FORMAT, uuid.uuid4().hex, spider, time.time(), stored), None
        if old.spider != spider:
            raise JobSettingsError(
                f"JOBDIR = {str(self.path)!r} belongs to spider {old.spider!r}, not {spider!r}: "
                "give every spider a directory of its own"
            )
        _compare(old, settings, self.folder)
        return JobFile(FORMAT, old.id, spider, old.created, stored, old.origin), old

    def _refuse_damage(self, *, begun: bool) -> None:
        """Look at the files while nothing has been opened: the database mends by forgetting."""
        store = self.folder / "store"
        if not begun and inventory.holds_data(store):
            raise JobDamagedError(f"{self.folder / 'job.json'} is missing{_WAY_OUT}")
        if begun and (damage := inventory.damage(store)):
            raise JobDamagedError(f"the store in {store} is damaged: {damage}{_WAY_OUT}")

    def _open_beside(self, settings: SuiteSettings) -> None:
        try:
            self.open_seen(settings)
        except BaseException:
            self.store.close()
            raise

    def open_seen(self, settings: SuiteSettings) -> None:
        """Have archive and sieve, as far as they are not open: those that were begun, which are
        there to stay, and the one that SUITE_SEEN asks for.

        What of them cannot be read is said, the rest serves. Raises `JobError`s.
        """
        store, damaged = self.store, list[str]()
        if store.archive is None:
            store.archive = self._archive(wanted=settings.seen == "trie")
            if store.archive is not None:
                store.meta.put(_ARCHIVED, b"1")
                damaged += store.archive.urls.damaged.values()
        if store.sieve is None:
            store.sieve = self._sieve(settings)
            if store.sieve is not None:
                store.meta.put(_SIEVED, b"1")
                damaged += store.sieve.statistics().damaged
        for damage in damaged:
            logger.error(
                "%s: the URLs in it count as new until `scrapy seen check --repair -j %s` has "
                "mended it", damage, self.path,
            )  # fmt: skip

    def _archive(self, *, wanted: bool) -> Archive | None:
        folder = self.folder / ARCHIVE
        archive = Archive.if_any(folder)
        if archive is None and self.store.meta.get(_ARCHIVED) is not None:
            raise JobDamagedError(f"{folder}, the archive of seen URLs, is missing{_WAY_OUT}")
        return Archive(folder) if archive is None and wanted else archive

    def _sieve(self, settings: SuiteSettings) -> Sieved | None:
        folder, dropped = self.folder / SIEVE, self.store.kv(DROPPED)
        if not Sieved.exists(folder):
            if self.store.meta.get(_SIEVED) is not None:
                raise JobDamagedError(f"{folder}, the sieve of seen URLs, is missing{_WAY_OUT}")
            if settings.seen != "sieve":
                return None
        bits, capacity = int(settings.sieve_bits), settings.sieve_waiting
        return Sieved(folder, dropped, bits=bits, capacity=capacity)

    def close(self) -> None:
        """Mark the end as clean and let go of the directory."""
        try:
            self.store.meta.put(_CLEAN, b"1")
            self.store.close()
            inventory.take(self.folder / "store")
        finally:
            self._lock.close()


def _compare(old: JobFile, settings: SuiteSettings, folder: Path) -> None:
    """Log what changed since the last run; refuse what must not change, unless nothing is there."""
    changes = settings.diff(old.settings)
    fixed = [change for change in changes if change.kind is Kind.FIXED]
    if fixed and not lies_untouched(folder):
        listed = ", ".join(f"{c.name} was {_cut(c.old)} and is {_cut(c.new)}" for c in fixed)
        raise JobSettingsError(
            f"a job cannot change this once it has begun: {listed}; set it back, or use another "
            "JOBDIR",
            [change.name for change in fixed],
        )
    for change in changes:
        if not _renames(change, settings):
            logger.info("%s was %r, from now on %r", change.name, change.old, change.new)


def _renames(change: Change, settings: SuiteSettings) -> bool:
    """Whether it gives a LAN other agents, which is refused once the job says whose it is."""
    if change.name != "SUITE_AGENTS" or settings.cluster != "lan":
        return False
    old, new = (
        {str(agent).partition("=")[0].strip() for agent in agents}
        for agents in (change.old, change.new) if isinstance(agents, list | tuple)
    )  # fmt: skip
    return old != new


def _cut(value: object) -> str:
    """*value* for an error line: a list of a thousand rules is none."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


_jobs: WeakKeyDictionary[Crawler, Job] = WeakKeyDictionary()


def job_of(crawler: Crawler) -> Job | None:
    """The job of *crawler*, opened when first asked for; None without JOBDIR.

    Commands that only look at a page (shell, fetch, view, parse, check) have none either.
    Raises the `JobError`s.
    """
    if crawler in _jobs:
        return _jobs[crawler]
    if not uses_job(crawler):
        return None
    settings = suite_settings(crawler)
    job = Job(Path(str(settings.project.jobdir)), settings, crawler.spidercls.name)
    _jobs[crawler] = job
    return job


def job_begun(crawler: Crawler) -> bool:
    """Whether *crawler* is to resume a job, which need not be open yet."""
    return uses_job(crawler) and (Path(crawler.settings["JOBDIR"]) / FOLDER / "job.json").exists()


def close_job(crawler: Crawler) -> None:
    """Let go of the job of *crawler*, if it has one."""
    job = _jobs.pop(crawler, None)
    if job is not None:
        job.close()


def job_kv(crawler: Crawler, name: str) -> KV | None:
    """A persistent mapping for the component *name*; None without a job."""
    job = job_of(crawler)
    return None if job is None else job.store.kv(name)
