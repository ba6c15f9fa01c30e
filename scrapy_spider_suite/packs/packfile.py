"""One pack while it is written: groups of records at its end, an index beside it, all or nothing.

A group is in the pack wholly or not at all: when the disk is full, what was written of it is cut
off again. The pack is locked (flock), so that nobody takes it for one that a crash left behind.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from scrapy_spider_suite import durable
from scrapy_spider_suite.packs import cdxj
from scrapy_spider_suite.packs.container import Container, Place
from scrapy_spider_suite.packs.formats import OPEN, final
from scrapy_spider_suite.packs.sorting import sort_lines
from scrapy_spider_suite.packs.warc import Record

INDEX = ".cdxj"


def index_path(pack: Path) -> Path:
    """Return where the index of *pack* lies: ``.cdxj.open`` while it is written."""
    if pack.name.endswith(OPEN):
        return pack.with_name(f"{final(pack).name}{INDEX}{OPEN}")
    return pack.with_name(f"{pack.name}{INDEX}")


class PackFile:
    """An open pack. *path* is what it will be called; raises `OSError` where that is not said.

    *power*: `append` returns when the group is on the medium, not only with the system.
    """

    def __init__(self, path: Path, form: Container, time: float, *, power: bool = False) -> None:
        self.path = path
        self.time = time
        self._open = path.with_name(path.name + OPEN)
        self._form = form
        self._power = power
        self._index_whole = True
        self._ended = self._named = False
        self._file: BinaryIO = self._open.open("xb", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._index: BinaryIO = index_path(self._open).open("wb", buffering=0)
            start = form.begin(path.name.rpartition(".")[0], int(time))
            self._write(self._file, start)
            if power:
                durable.sync(path.parent)
        except OSError:
            self._file.close()
            self._open.unlink(missing_ok=True)
            raise
        self.size = len(start)

    def append(self, records: Sequence[Record], data: Sequence[bytes]) -> list[Place]:
        """Add *records*, which are *data* as bytes, as one group; return the place of each.

        Raises `OSError`: nothing of them is in the pack, and it can be appended to again, unless
        the pack had to be given up (`broken`).
        """
        group, places = self._form.encode(data)
        places = [place._replace(offset=place.offset + self.size) for place in places]
        try:
            self._write(self._file, group)
            if self._power:
                os.fsync(self._file.fileno())
        except OSError:
            self._undo(self._file, self.size)
            raise
        if not os.fstat(self._file.fileno()).st_nlink:
            self._file.close()
            raise OSError(errno.ENOENT, f"{self._open.name} was deleted while it was written")
        self.size += len(group)
        self._note(records, places)
        return places

    @property
    def broken(self) -> bool:
        """Whether it was deleted, or a failed write could not be taken back: `recover` closes it.
        """
        return self._file.closed

    def close(self) -> None:
        """Write the end mark and the sorted index, and give the pack its name. Raises `OSError`.

        May be called again after it failed.
        """
        if not self._ended:
            try:
                self._write(self._file, self._form.end())
                os.fsync(self._file.fileno())
            except OSError:
                self._undo(self._file, self.size)
                raise
            self._ended = True
        notes, index = index_path(self._open), index_path(self.path)
        if self._index_whole and not self._named:
            try:
                sort_lines(notes, index)
            except OSError:  # a pack without an index is whole: `index.build` makes one
                index.unlink(missing_ok=True)
        if not self._named:
            os.rename(self._open, self.path)
            self._named = True
        durable.sync(self.path.parent)
        notes.unlink(missing_ok=True)
        self.abandon()

    def abandon(self) -> None:
        """Leave the pack as it is, for `recover`."""
        self._file.close()
        self._index.close()

    def discard(self) -> None:
        """Remove the pack: nothing is in it."""
        self.abandon()
        index_path(self._open).unlink(missing_ok=True)
        self._open.unlink(missing_ok=True)

    def _note(self, records: Sequence[Record], places: list[Place]) -> None:
        """Add the lines of the index; it can be made again, so the pages are safe without."""
        if not self._index_whole:
            return
        found = cdxj.entries(list(zip(records, places, strict=True)), self.path.name)
        size = os.fstat(self._index.fileno()).st_size
        try:
            self._write(self._index, b"".join(entry.line() + b"\n" for entry in found))
        except OSError:
            self._index_whole = False
            self._undo(self._index, size)

    def _write(self, file: BinaryIO, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]

    def _undo(self, file: BinaryIO, size: int) -> None:
        try:
            file.truncate(size)
            file.seek(size)
        except OSError:
            file.close()
