"""Lines in files larger than memory: in sorted ones by binary search, in growing ones by a look.

Sorts the lines of a file that may be larger than memory.
"""

from __future__ import annotations

import heapq
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

from scrapy_spider_suite.runtime import files

_STEP = 1 << 20


class SortedLines:
    """The lines of the file *path*, sorted as bytes; it is replaced, never changed. `OSError`.

    It stays open, which costs a file descriptor, unless it is not to be *kept* so: then it is
    opened for each look.
    """

    def __init__(self, path: Path, *, kept: bool = True) -> None:
        self.path = path
        self._kept: mmap.mmap | bytes | None = None
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            self.identity = file_identity(found)
            self._size = found.st_size
            if kept:
                self._kept = _mapped(file)

    def __len__(self) -> int:
        """Bytes."""
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        """All lines that have an end, without it."""
        data, start = self._data(), 0
        while (end := data.find(b"\n", start)) >= 0:
            yield data[start:end]
            start = end + 1

    @property
    def torn(self) -> bool:
        """Whether the last line has no end: the file was cut off."""
        data = self._data()
        return data[-1:] not in (b"", b"\n")

    def first_and_last(self) -> tuple[bytes, bytes]:
        """The first and the last of the lines that have an end; b"" if there are none."""
        data = self._data()
        last = data.rfind(b"\n")
        if last < 0:
            return b"", b""
        return data[: data.find(b"\n")], data[data.rfind(b"\n", 0, last) + 1 : last]

    def find(self, prefix: bytes) -> Iterator[bytes]:
        """The lines that begin with *prefix*, in their order."""
        data, size = self._data(), len(prefix)
        low, high = 0, len(data)
        while low < high:
            middle = (low + high) // 2
            start = max(data.rfind(b"\n", low, middle) + 1, low)
            if data[start : start + size] < prefix:
                end = data.find(b"\n", middle)
                low = end + 1 if end >= 0 else high
            else:
                high = start
        while data[low : low + size] == prefix and (end := data.find(b"\n", low)) >= 0:
            yield data[low:end]
            low = end + 1

    def _data(self) -> mmap.mmap | bytes:
        if self._kept is not None:
            return self._kept
        with self.path.open("rb") as file:
            return _mapped(file)


def _mapped(file: BinaryIO) -> mmap.mmap | bytes:
    size = os.fstat(file.fileno()).st_size
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""


class GrowingLines:
    """The lines of a file that is being written, in any order; the last may have no end yet.

    It is read, not mapped: its end may be cut off again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[bytes]:
        """All lines that have an end, without it. Raises `OSError`."""
        with self.path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line[:-1]

    def find(self, prefix: bytes) -> Iterator[bytes]:
        """The lines that begin with *prefix*. Raises `OSError`."""
        wanted = b"\n" + prefix
        with self.path.open("rb") as file:
            rest = b"\n"
            while step := file.read(_STEP):
                data = rest + step
                last = data.rfind(b"\n")
                place = data.find(wanted, 0, last)
                while place >= 0:
                    end = data.find(b"\n", place + 1)
                    yield data[place + 1 : end]
                    place = data.find(wanted, end, last)
                rest = data[last:]

    def last(self) -> bytes:
        """The last line that has an end; b"" if there is none. Raises `OSError`."""
        with self.path.open("rb") as file:
            size = file.seek(0, 2)
            for back in (1 << 12, 1 << 17, size):
                file.seek(max(0, size - back))
                lines = file.read().split(b"\n")
                if len(lines) > 2 or back >= size:
                    return lines[-2] if len(lines) > 1 else b""
        return b""


def file_identity(found: os.stat_result) -> tuple[int, int, int]:
    """What is another when the file is another."""
    return found.st_ino, found.st_mtime_ns, found.st_size


CHUNK: Final = 4 << 20
"""Bytes that are sorted at once: no other thread runs meanwhile, some 6 ms."""


def sort_lines(source: Path, target: Path) -> None:
    """Let *target* hold the lines of *source*, sorted as bytes, once it is all on the medium.

    A line that has no end is left out: it was being written. Raises `OSError`; *target* is as it
    was, then.
    """
    with ExitStack() as opened:
        file = opened.enter_context(source.open("rb"))
        runs: list[Iterable[bytes]] = []
        while lines := file.readlines(CHUNK):
            lines = sorted(line for line in lines if line.endswith(b"\n"))
            if len(runs) or file.peek(1):
                run = opened.enter_context(tempfile.TemporaryFile(dir=target.parent))
                run.writelines(lines)
                run.seek(0)
                runs.append(run)
            else:
                runs.append(lines)
        write_lines(heapq.merge(*runs), target)


def write_lines(lines: Iterable[bytes], target: Path) -> None:
    """Let *target* hold *lines* once they are all on the medium. Raises `OSError`."""
    with files.replacing_file(target) as new, new.open("wb") as file:
        file.writelines(lines)
