"""A file that grows by groups, each in it wholly or not at all, under a name that says it is open.

When the disk is full, what was written of a group is cut off again. The file is locked (flock), so
that nobody takes it for one that a crash left behind.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from io import BytesIO, FileIO
from pathlib import Path
from typing import BinaryIO

from scrapy_spider_suite.packs.formats import OPEN
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.runtime.files import locked


class GroupFile:
    """See the module. *path* is what it will be called, ``.open`` apart; *start* begins it.

    *time*: when it was begun. *power*: what was written is on the medium, not only with the system.
    Raises `OSError`, `FileExistsError` among them.
    """

    def __init__(self, path: Path, time: float, start: bytes = b"", *, power: bool = False) -> None:
        self.path = path
        self.time = time
        self.open_path = path.with_name(path.name + OPEN)
        self._power = power
        self._ended = self._named = False
        self._file: BinaryIO = self.open_path.open("xb", buffering=0)
        try:
            locked(self._file)
            write_all(self._file, start)
            if power:
                files.sync(path.parent)
        except OSError:
            self._file.close()
            self.open_path.unlink(missing_ok=True)
            raise
        self.size = len(start)

    def add(self, parts: Iterable[bytes]) -> None:
        """Add *parts* as one group. Raises `OSError`: nothing of them is in the file, and it can be
        added to again, unless it had to be given up (`broken`). So does whatever *parts* raise.
        """
        size = self.size
        try:
            for part in parts:
                write_all(self._file, part)
                size += len(part)
            if self._power:
                os.fsync(self._file.fileno())
        except BaseException:
            cut(self._file, self.size)
            raise
        if not os.fstat(self._file.fileno()).st_nlink:
            self._file.close()
            raise OSError(errno.ENOENT, f"{self.open_path.name} was deleted while it was written")
        self.size = size

    @property
    def broken(self) -> bool:
        """Whether it was deleted, or a failed write could not be taken back."""
        return self._file.closed

    def end(self, mark: bytes = b"") -> None:
        """Write the end *mark*, and have all of it on the medium. Raises `OSError`.

        May be called again, after it failed and after it did not.
        """
        if self._ended:
            return
        try:
            write_all(self._file, mark)
            os.fsync(self._file.fileno())
        except OSError:
            cut(self._file, self.size)
            raise
        self._ended = True

    def name(self) -> None:
        """Give the file its name, once. Raises `OSError`."""
        if not self._named:
            os.rename(self.open_path, self.path)
            self._named = True
        files.sync(self.path.parent)

    @property
    def named(self) -> bool:
        """Whether the file has its name."""
        return self._named

    def abandon(self) -> None:
        """Leave the file as it is."""
        self._file.close()

    def discard(self) -> None:
        """Remove the file: nothing is in it."""
        self.abandon()
        self.open_path.unlink(missing_ok=True)


def write_all(file: BinaryIO | BytesIO | FileIO, data: bytes) -> None:
    """Write all of *data* to the unbuffered *file*. Raises `OSError`."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def cut(file: BinaryIO, size: int) -> None:
    """Cut *file* to *size* bytes; close it where that cannot be done."""
    try:
        file.truncate(size)
        file.seek(size)
    except OSError:
        file.close()
