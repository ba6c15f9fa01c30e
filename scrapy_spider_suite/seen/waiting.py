"""The log of what waits for a sieve: appended, read again in its order, dropped from its beginning.

One file for what came between two flushes; its name is the number of its first item. A record is
its length, which of text and bytes it is, xxh32 of it, and itself. What a kill cut short is cut off
when the log is opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from struct import Struct

import xxhash

from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.seen.identity import decode, encode
from scrapy_spider_suite.seen.sortedfile import write_all

_HEAD = Struct("<II")  # length * 2 + is text, xxh32
_READ = 1 << 20

Item = str | bytes


class WaitingLog:
    """The log in *folder*; items are numbered through.

    *decided* is the number after the last item that has been decided about.

    Attributes:
        first: the number of the first item that was not dropped when the log was opened.
        next: the number of the item that is appended next.
    """

    def __init__(self, folder: Path, decided: int = 0) -> None:
        self._file: int | None = None
        self._folder = folder
        self._size = 0
        self.next = decided
        starts = self._starts()
        self.first = starts[0] if starts else decided
        for start in starts:
            if start >= decided:
                # Of files before the last, a power failure may have cut off the end.
                self._path(start).rename(self._path(self.next))
                self._start = self.next
                self.next += self._count_and_cut(self._path(self.next))
        if self.next == decided:
            self._start = decided

    def _path(self, start: int) -> Path:
        return self._folder / f"waiting-{start:020}.log"

    def _starts(self) -> list[int]:
        return sorted(int(path.stem[8:]) for path in self._folder.glob("waiting-*.log"))

    @staticmethod
    def _count_and_cut(path: Path) -> int:
        """Cut off what is not whole; how many records are."""
        sizes = [_HEAD.size + len(data) for data, _ in _records(path)]
        if path.stat().st_size > sum(sizes):
            os.truncate(path, sum(sizes))
        return len(sizes)

    def append(self, items: Sequence[Item]) -> None:
        """Append *items*: all of them, or with a `StoreWriteError` none."""
        records = bytearray()
        for item in items:
            data = item if isinstance(item, bytes) else encode(item)
            size = len(data) << 1 | isinstance(item, str)
            records += _HEAD.pack(size, xxhash.xxh32_intdigest(data))
            records += data
        try:
            write_all(self._opened(), records)
        except OSError as error:
            if self._file is not None:
                os.truncate(self._file, self._size)
            raise StoreWriteError(f"{self._path(self._start)}: {error.strerror}") from error
        self._size += len(records)
        self.next += len(items)

    def _opened(self) -> int:
        """The file that is appended to."""
        if self._file is None:
            self._file = _open(self._path(self._start))
            self._size = os.fstat(self._file).st_size
        return self._file

    def rotate(self) -> None:
        """Begin another file: those before it can be dropped as a whole."""
        self.close()
        os.close(_open(self._path(self.next)))
        self._start = self.next

    def read(self, begin: int, end: int) -> Iterator[tuple[int, Item]]:
        """The items from number *begin* to before *end*, each with its number."""
        for start in self._starts():
            if start >= end:
                return
            for number, (data, text) in enumerate(_records(self._path(start)), start):
                if number >= end:
                    break
                if number >= begin:
                    yield number, decode(data) if text else data

    def sync(self, end: int) -> None:
        """Have the items before number *end* on the medium. Raises `OSError`."""
        for start in self._starts():
            if start < end:
                files.sync(self._path(start))

    def drop(self, end: int) -> None:
        """Forget the items before number *end*, as far as they fill files."""
        starts = self._starts()
        for start, following in pairwise(starts):
            if following <= end:
                self._path(start).unlink()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    __del__ = close


def waiting_in(folder: Path) -> Iterator[Item]:
    """What the logs in *folder* hold, beside the process that writes them, too."""
    for path in sorted(folder.glob("waiting-*.log")):
        with suppress(FileNotFoundError):  # flushed meanwhile
            for data, text in _records(path):
                yield decode(data) if text else data


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _records(path: Path) -> Iterator[tuple[bytes, int]]:
    """The whole records of a file; nothing from the first one on that is not."""
    with path.open("rb", buffering=_READ) as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            size, sum_ = _HEAD.unpack(head)
            data = file.read(size >> 1)
            if len(data) < size >> 1 or xxhash.xxh32_intdigest(data) != sum_:
                return
            yield data, size & 1
