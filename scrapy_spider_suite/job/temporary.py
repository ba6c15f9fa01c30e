"""The folder of a crawl without a job directory: gone after it, or with the next such crawl.

A process that is killed cannot remove its folder. So each folder has a file that its process holds
locked, and whoever makes one removes those whose lock is free.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Final

from scrapy_spider_suite.errors import SettingsError

PREFIX: Final = "scrapy-spider-suite-"
_LOCK: Final = "lock"


class TemporaryFolder:
    """A new folder *path* among the system's temporary ones, until `remove` or this process ends.

    Raises `SettingsError` where it cannot be made.
    """

    def __init__(self) -> None:
        try:
            self._make()
        except OSError as error:
            raise SettingsError(
                f"there is no temporary folder to crawl in ({error}): set JOBDIR, or TMPDIR"
            ) from error

    def _make(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        # Locked before it has its name: nobody may find it free.
        self._lock = (self.path / f"{_LOCK}.new").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.replace(self.path / f"{_LOCK}.new", self.path / _LOCK)

    def remove(self) -> None:
        """Remove the folder and what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _sweep(folder: Path) -> None:
    """Remove what processes of ours that have ended left in *folder*."""
    for path in folder.glob(f"{PREFIX}*"):
        if path.is_symlink():
            continue
        lock = _free_lock(path / _LOCK)
        if lock is not None:
            with lock:
                shutil.rmtree(path, ignore_errors=True)


def _free_lock(path: Path) -> IO[bytes] | None:
    """Take the lock of a folder, unless somebody has it, or it is none of ours."""
    try:
        lock = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    except OSError:
        return None
    try:
        if os.fstat(lock.fileno()).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
    except OSError:
        pass
    lock.close()
    return None
