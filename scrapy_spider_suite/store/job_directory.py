"""The job directory: lock, description, history, file inventory, and a consistent copy.

``JOBDIR/suite/`` holds the files named below. All paths in it are relative: it can be moved.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import msgspec

from scrapy_spider_suite.errors import (
    JobDamagedError,
    JobError,
    JobFormatError,
    JobInUseError,
    JobSettingsError,
)
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.settings.declarations import SettingKind
from scrapy_spider_suite.settings.project import uses_job
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.store.interface import CookieJars
from scrapy_spider_suite.store.job_reader import is_fresh
from scrapy_spider_suite.store.rocks_store import STORE_FOLDER, FamilyKV, RocksStore, open_seen
from scrapy_spider_suite.store.rows import FORMAT
from scrapy_spider_suite.store.seen_index import ARCHIVE_FOLDER, SIEVE_FOLDER

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_spider_suite.store.interface import KV

logger = logging.getLogger(__name__)

HISTORY_FILE: Final = "chronicle.jsonl"


def digest_of(settings: Mapping[str, object]) -> str:
    """The digest of *settings*, as ``sha256:`` and hexadecimal digits."""
    text = json.dumps(settings, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


class JobHistory:
    def __init__(self, folder: Path) -> None:
        self.path = folder / HISTORY_FILE

    def rows(self) -> Iterator[dict[str, Any]]:
        return files.read_json_lines(self.path)

    def append(self, *rows: dict[str, Any]) -> None:
        files.append_json_lines(self.path, *rows)

    def last(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The settings, and the texts of the filters by stage, that held at the last begin."""
        settings, filters = dict[str, Any](), dict[str, str]()
        for row in self.rows():
            if row.get("event") == "settings":
                settings = row
            elif row.get("event") == "filter":
                filters[str(row.get("stage"))] = str(row.get("text", ""))
        return settings, filters


_NAME = "files.json"
_COMPARED = ("*.sst", "MANIFEST-*", "CURRENT")


def holds_data(store: Path) -> bool:
    return any(store.glob("*.sst")) or any(log.stat().st_size for log in store.glob("*.log"))


def note_files(store: Path) -> None:
    sizes = {path.name: path.stat().st_size for glob in _COMPARED for path in store.glob(glob)}
    files.replace_file(store.parent / _NAME, f"{json.dumps(sizes)}\n".encode())


def forget_files(store: Path) -> None:
    (store.parent / _NAME).unlink(missing_ok=True)


def find_damage(store: Path) -> str | None:
    """The damage of the files of *store*; None without any, or after an unclean end."""
    if not (store / "CURRENT").is_file():
        return "CURRENT is missing" if holds_data(store) else None
    try:
        sizes = msgspec.json.decode((store.parent / _NAME).read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return f"{_NAME} cannot be read"
    for name, size in sizes.items():
        path = store / Path(name).name
        if not path.is_file():
            return f"{path.name} is missing"
        if path.stat().st_size != size:
            return f"{path.name} has {path.stat().st_size} bytes, and had {size}"
    return None


FOLDER = "suite"
LOCK_FILE = "lock"
_CLEAN = b"clean"
_ARCHIVED, _SIEVED = b"archive", b"sieve"


@dataclass(frozen=True, slots=True)
class JobFile:
    format: int
    id: str
    spider: str
    created: float
    settings: dict[str, Any]
    origin: str = ""  # the id of the job of which this is a copy

    @classmethod
    def require(cls, folder: Path) -> JobFile:
        """Read ``job.json`` of *folder*. Raises `JobError`s, also if there is no job."""
        job = cls.read(folder)
        if job is None:
            raise JobError(f"{folder.parent} holds no job of scrapy-spider-suite")
        return job

    @classmethod
    def read(cls, folder: Path) -> JobFile | None:
        """Read ``job.json`` of *folder*, None if there is no job. Raises `JobError`s."""
        path = folder / "job.json"
        try:
            data = json.loads(path.read_text())
            if (found := data["format"]) == FORMAT:
                return cls(**data)
            advice = "upgrade scrapy-spider-suite, or " if found > FORMAT else ""
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise JobDamagedError(f"{path} cannot be read ({error}){_WAY_OUT}") from error
        # An upgrade of an older format hooks in here, before anything is opened.
        raise JobFormatError(
            f"{folder.parent} has data format {found}, and this release reads {FORMAT}"
            f": {advice}use another JOBDIR"
        )

    def write(self, folder: Path) -> None:
        fields = {name: getattr(self, name) for name in self.__slots__}
        files.replace_file(folder / "job.json", f"{json.dumps(fields, indent=1)}\n".encode())


_WAY_OUT = "; look at it with `scrapy frontier check`, or begin anew with another JOBDIR"


class Job:
    """A job directory in use by this process. Raises the `JobError`s on opening."""

    cookies: CookieJars | None = None  # while a crawl with cookies runs

    def __init__(self, path: Path, settings: SuiteSettings, spider: str) -> None:
        self.path = path
        self.folder = path / FOLDER
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = self._lock_folder()
        except OSError as error:
            raise JobError(f"JOBDIR = {str(path)!r} cannot be used: {error.strerror}") from error
        path = self.folder / STORE_FOLDER
        self.emptied = settings.cluster == "shared-queue"
        """What is known lies in the shared queue: nothing of an earlier process is used."""
        try:
            if self.emptied:
                for name in (STORE_FOLDER, ARCHIVE_FOLDER, SIEVE_FOLDER):
                    shutil.rmtree(self.folder / name, ignore_errors=True)
                forget_files(path)
            self.file, old = self._resume_or_begin(settings, spider)
            if old is None and holds_data(path):
                raise JobDamagedError(f"{self.folder / 'job.json'} is missing{_WAY_OUT}")
            if old is not None and (damage := find_damage(path)):
                raise JobDamagedError(f"the store in {path} is damaged: {damage}{_WAY_OUT}")
            memory, power_safe = max(16 << 20, settings.memory), settings.commit_survives == "power"
            self.store = RocksStore(path, memory=memory, power_safe=power_safe)
            self._meta = FamilyKV(self.store, "meta")
            self.resumed = self._meta.get(b"id") is not None
            try:
                if self.resumed and old is None:
                    raise JobDamagedError(f"{self.folder / 'job.json'} is missing{_WAY_OUT}")
                self.open_seen(settings)
            except BaseException:
                self.store.close()
                raise
        except BaseException:
            self._lock.close()
            raise
        forget_files(path)
        # Only now: a start that was killed before left nothing that looks like a job.
        self.file.write(self.folder)
        self.unclean = self.resumed and self._meta.get(_CLEAN) is None
        self._meta.put(b"id", self.file.id.encode())
        self._meta.delete(_CLEAN)
        self.store.flush()

    def _lock_folder(self) -> IO[str]:
        lock = (self.folder / LOCK_FILE).open("a+")
        for pause in (0.0, 0.05):  # `scrapy frontier status` holds it for a moment
            time.sleep(pause)
            if files.lock_file(lock):
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

    def open_seen(self, settings: SuiteSettings) -> None:
        """Open archive and sieve, if there or wanted; log unreadable parts. Raises `JobError`s."""
        store, meta, damaged = self.store, self._meta, list[str]()
        for key, folder, name in (
            (_ARCHIVED, ARCHIVE_FOLDER, "archive"), (_SIEVED, SIEVE_FOLDER, "sieve"),
        ):  # fmt: skip
            path = self.folder / folder
            if meta.get(key) is not None and not path.exists():
                raise JobDamagedError(f"{path}, the {name} of seen URLs, is missing{_WAY_OUT}")
        known = store.archive, store.sieve
        open_seen(
            store, self.folder, wanted=settings.seen_store, bits=int(settings.sieve_bits),
            capacity=settings.sieve_waiting,
        )  # fmt: skip
        if store.archive is not None and known[0] is None:
            meta.put(_ARCHIVED, b"1")
            damaged += store.archive.urls.damaged.values()
        if store.sieve is not None and known[1] is None:
            meta.put(_SIEVED, b"1")
            damaged += store.sieve.sieve.parts.damaged.values()
        for damage in damaged:
            logger.error(
                "%s: the URLs in it count as new until `scrapy frontier check --repair -j %s` has "
                "mended it", damage, self.path,
            )  # fmt: skip

    def close(self) -> None:
        try:
            self._meta.put(_CLEAN, b"1")
            self.store.close()
            note_files(self.folder / "store")
        finally:
            self._lock.close()


def _compare(old: JobFile, settings: SuiteSettings, folder: Path) -> None:
    changes = settings.diff(old.settings)
    fixed = [change for change in changes if change.kind is SettingKind.FIXED]
    if fixed and (find_damage(folder / "store") or not is_fresh(folder)):
        listed = ", ".join(f"{c.name} was {_cut(c.old)} and is {_cut(c.new)}" for c in fixed)
        raise JobSettingsError(
            f"a job cannot change this once it has begun: {listed}; set it back, or use another "
            "JOBDIR"
        )
    for change in changes:
        logger.info("%s was %r, from now on %r", change.name, change.old, change.new)


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


_jobs: WeakKeyDictionary[Crawler, Job] = WeakKeyDictionary()


def job_of(crawler: Crawler) -> Job | None:
    """The job of *crawler*, opened at the first call; None without one. Raises `JobError`s."""
    if crawler not in _jobs and uses_job(crawler):
        settings = suite_settings(crawler)
        path = Path(str(settings.project.jobdir))
        _jobs[crawler] = Job(path, settings, crawler.spidercls.name)
    return _jobs.get(crawler)


def job_begun(crawler: Crawler) -> bool:
    """Whether *crawler* resumes a job; opens nothing."""
    return uses_job(crawler) and (Path(crawler.settings["JOBDIR"]) / FOLDER / "job.json").exists()


def close_job(crawler: Crawler) -> None:
    job = _jobs.pop(crawler, None)
    if job is not None:
        job.close()


def job_kv(crawler: Crawler, name: str) -> KV | None:
    """A persistent mapping for the component *name*; None without a job."""
    job = job_of(crawler)
    return None if job is None else job.store.kv(name)


_AFTER = ("fetches", "series", "audit.jsonl", "chronicle.jsonl")
_NOT_COPIED = (
    STORE_FOLDER, ARCHIVE_FOLDER, SIEVE_FOLDER, "actions", LOCK_FILE, "job.json", "job.json.new",
    "files.json", "files.json.new", "status.json", "status.json.new", "stacks.txt",
)  # fmt: skip
"""Files that are made anew in a copy, or belong to a process."""
_ATTEMPTS = 5


def check_target(jobdir: Path, target: Path) -> None:
    if os.path.lexists(target):
        raise JobError(f"{target} exists: name a directory that does not exist yet")
    parent = target.absolute().parent
    if not parent.is_dir():
        raise JobError(f"there is no directory {parent}")
    if parent.resolve().is_relative_to(jobdir.resolve()):
        raise JobError(f"{target} lies in the job directory itself")


def copy_job(jobdir: Path, target: Path, store: Callable[[], Path]) -> JobFile:
    """Copy *jobdir* to *target*, whole or not at all; *store* copies the store, returns its path.

    Returns the description of the copy, which has another id. Raises `JobError`.
    """
    check_target(jobdir, target)
    new = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        new.mkdir()
        copied = _fill(jobdir, new, store)
        # A file or a full directory that has come there meanwhile is not replaced.
        os.rename(new, target)
        files.sync_path(target.absolute().parent)
    except OSError as error:
        raise JobError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return copied


def _fill(jobdir: Path, new: Path, store: Callable[[], Path]) -> JobFile:
    old, folder = jobdir / FOLDER, new / FOLDER
    folder.mkdir()
    names = [name for name in os.listdir(old) if name not in _NOT_COPIED]
    for name in set(names).difference(_AFTER):
        _copy(old / name, folder / name)
    _move(store(), folder / "store")
    for name in (ARCHIVE_FOLDER, SIEVE_FOLDER):
        if (beside := folder / "store" / name).is_dir():
            os.rename(beside, folder / name)
    for name in set(names).intersection(_AFTER):
        _copy_at_rest(old / name, folder / name)
    for name in os.listdir(jobdir):
        if name != FOLDER:
            _copy(jobdir / name, new / name)
    note_files(folder / "store")
    described = JobFile.require(old)
    described = replace(described, id=uuid.uuid4().hex, origin=described.id)
    described.write(folder)
    for path in (folder, new):
        files.sync_path(path)
    return described


def _move(store: Path, to: Path) -> None:
    try:
        os.rename(store, to)
        return
    except OSError:
        if not store.is_dir():
            raise
    size = sum(path.stat().st_size for path in store.rglob("*"))
    free = shutil.disk_usage(to.parent).free
    try:
        if size > free:
            raise JobError(f"there are {free:,} bytes free for a copy of {size:,} bytes and more")
        _copy(store, to)
    finally:
        shutil.rmtree(store, ignore_errors=True)


def _copy_at_rest(path: Path, to: Path) -> None:
    def names() -> set[str]:
        return {*os.listdir(path)} if path.is_dir() else set()

    for _ in range(_ATTEMPTS):
        before = names()
        _copy(path, to)
        if names() == before:
            return
        shutil.rmtree(to, ignore_errors=True)
    _copy(path, to)


def _copy(path: Path, to: Path) -> None:
    with suppress(FileNotFoundError):  # deleted meanwhile
        if path.is_symlink():
            to.symlink_to(os.readlink(path))
        elif path.is_dir():
            to.mkdir()
            for name in os.listdir(path):
                _copy(path / name, to / name)
        elif path.is_file():
            files.copy_file(path, to)
        else:
            return
        if not to.is_symlink():
            files.sync_path(to)
