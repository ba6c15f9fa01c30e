"""A consistent copy of a job directory, of a job that is being crawled too.

The store's part is made by whoever uses the job (`control.snapshotting`) and taken away from
here; all else is copied. What a crawl takes in once (lists of seeds) is copied before the store,
so that nothing can be missing from both; logs after it, so that they tell of all that it holds.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.job.directory import FOLDER, JobFile
from scrapy_spider_suite.monitor.fetchfiles import FOLDER as FETCHES
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.storage import inventory
from scrapy_spider_suite.storage.archive import FOLDER as ARCHIVE
from scrapy_spider_suite.storage.sieved import FOLDER as SIEVE

_AFTER = (FETCHES, "audit.jsonl", "chronicle.jsonl")
_NOT_COPIED = (
    "store", ARCHIVE, SIEVE, "actions", "lock", "job.json", "job.json.new", "files.json",
    "files.json.new", "status.json", "status.json.new", "stacks.txt",
)  # fmt: skip
"""What is made anew in a copy, or belongs to a process."""
_ATTEMPTS = 5


def check_target(jobdir: Path, target: Path) -> None:
    """Raise `JobError` unless a copy of *jobdir* can be made as *target*."""
    if os.path.lexists(target):
        raise JobError(f"{target} exists: name a directory that does not exist yet")
    parent = target.absolute().parent
    if not parent.is_dir():
        raise JobError(f"there is no directory {parent}")
    if parent.resolve().is_relative_to(jobdir.resolve()):
        raise JobError(f"{target} lies in the job directory itself")


def take(jobdir: Path, target: Path, store: Callable[[], Path]) -> JobFile:
    """Copy *jobdir* to *target*, whole or not at all; *store* has its store copied, and says where.

    Returns the description of the copy: a job of its own, with another id. Raises `JobError`.
    """
    check_target(jobdir, target)
    try:
        with _partial(target) as new:
            return _fill(jobdir, new, store)
    except OSError as error:
        raise JobError(f"{target} cannot be written: {error.strerror or error}") from error


@contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """A folder beside *target* that becomes it; it is removed if that fails."""
    new = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    new.mkdir()
    try:
        yield new
        # What has come there meanwhile is not replaced: a directory with something in it, a file.
        os.rename(new, target)
        files.sync(target.absolute().parent)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _fill(jobdir: Path, new: Path, store: Callable[[], Path]) -> JobFile:
    old, folder = jobdir / FOLDER, new / FOLDER
    folder.mkdir()
    names = [name for name in os.listdir(old) if name not in _NOT_COPIED]
    for name in set(names).difference(_AFTER):
        _copy(old / name, folder / name)
    _move(store(), folder / "store")
    for name in (ARCHIVE, SIEVE):
        if (beside := folder / "store" / name).is_dir():
            os.rename(beside, folder / name)
    for name in set(names).intersection(_AFTER):
        _copy_at_rest(old / name, folder / name)
    for name in os.listdir(jobdir):
        if name != FOLDER:
            _copy(jobdir / name, new / name)
    inventory.take(folder / "store")
    described = JobFile.read(old)
    if described is None:
        raise JobError(f"{jobdir} holds no job of scrapy-spider-suite")
    described = replace(described, id=uuid.uuid4().hex, origin=described.id)
    described.write(folder)
    for path in (folder, new):
        files.sync(path)
    return described


def _move(store: Path, to: Path) -> None:
    """Take the copied *store* away: by a rename, or file by file to another file system."""
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
    """Copy *path*, again if files in it were renamed meanwhile."""
    for _ in range(_ATTEMPTS):
        names = _names(path)
        _copy(path, to)
        if _names(path) == names:
            return
        shutil.rmtree(to, ignore_errors=True)
    _copy(path, to)


def _names(path: Path) -> list[str]:
    return sorted(os.listdir(path)) if path.is_dir() else []


def _copy(path: Path, to: Path) -> None:
    """Copy a file or folder to the medium; links stay links, and what is neither is left out."""
    with suppress(FileNotFoundError):  # it went meanwhile
        if path.is_symlink():
            to.symlink_to(os.readlink(path))
        elif path.is_dir():
            to.mkdir()
            for name in os.listdir(path):
                _copy(path / name, to / name)
        elif path.is_file():
            shutil.copy2(path, to)
        else:
            return
        if not to.is_symlink():
            files.sync(to)
