"""The files of a store as they were before a run, for a run that is killed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.runtime.files import LOCK, lock


class Checkpoint:
    """The checkpoint of the store in *folder*, in a folder beside it, and the lock of both.

    Made before the store is opened: if the last run has not dropped its checkpoint, the store gets
    those files back. A file that never changes is linked, all others are copied.

    Raises `JobInUseError`, `StoreWriteError`.

    Attributes:
        restored: whether the store got files back.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder.with_name(f"{folder.name}.checkpoint")
        self._files, self._unfinished = self._path / "files", self._path / "unfinished"
        self._lock = lock(self._path)
        try:
            self.restored = self._restore()
        except OSError as error:
            self.close()
            raise StoreWriteError(f"{self._path}: {error.strerror}") from error

    def _restore(self) -> bool:
        shutil.rmtree(self._unfinished, ignore_errors=True)
        if not self._files.exists():
            return False
        shutil.rmtree(self._folder, ignore_errors=True)
        self._files.replace(self._folder)
        return True

    def save(self) -> None:
        """Keep the files as they are now, before anything is added. Raises `StoreWriteError`."""
        try:
            self._unfinished.mkdir()
            for path in self._folder.iterdir():
                if path.is_file() and path.name != LOCK:
                    _copy(path, self._unfinished / path.name)
            self._unfinished.replace(self._files)
        except OSError as error:
            raise StoreWriteError(f"{self._path}: {error.strerror}") from error

    def drop(self) -> None:
        """The run has ended in order: its files are those of the store."""
        if self._files.exists():
            self._files.replace(self._unfinished)  # at once, whenever the process is killed
            shutil.rmtree(self._unfinished, ignore_errors=True)

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._lock)


def _copy(path: Path, to: Path) -> None:
    if path.suffix == ".rows" or path.name.startswith("segment-"):  # never written to again
        try:
            to.hardlink_to(path)
            return
        except OSError:
            pass  # a file system without links
    shutil.copyfile(path, to)
