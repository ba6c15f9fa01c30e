"""Temporary folders that go with their process, or with the next that makes one.

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

_LOCK: Final = "lock"


class LockedFolder:
    """A new folder *path* among the system's temporary ones, until `remove` or this process ends.

    Its name begins with *prefix*, as those do that are swept before. Raises `OSError`.
    """

    def __init__(self, prefix: str) -> None:
        _sweep(Path(tempfile.gettempdir()), prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        # Locked before it has its name: nobody may find it free.
        self._lock = (self.path / f"{_LOCK}.new").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.replace(self.path / f"{_LOCK}.new", self.path / _LOCK)

    def remove(self) -> None:
        """Remove the folder and what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _sweep(folder: Path, prefix: str) -> None:
    """Remove what processes of ours that have ended left in *folder*."""
    for path in folder.glob(f"{prefix}*"):
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
