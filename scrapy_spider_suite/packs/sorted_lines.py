"""Sorted and growing files of lines, larger than memory."""

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
    """The lines of *path*, sorted as bytes. The file may be replaced, never changed.

    It stays open unless *kept* is false; then each lookup opens it. Raises `OSError`.
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
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        data, start = self._data(), 0
        while (end := data.find(b"\n", start)) >= 0:
            yield data[start:end]
            start = end + 1

    @property
    def torn(self) -> bool:
        data = self._data()
        return data[-1:] not in (b"", b"\n")

    def first_and_last(self) -> tuple[bytes, bytes]:
        """The first and the last complete line, or b"" twice."""
        data = self._data()
        last = data.rfind(b"\n")
        if last < 0:
            return b"", b""
        return data[: data.find(b"\n")], data[data.rfind(b"\n", 0, last) + 1 : last]

    def find(self, prefix: bytes) -> Iterator[bytes]:
        """Yield the lines that begin with *prefix*, in order."""
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
    """The unsorted lines of a file that is being written.

    Read, not mapped: its end may be cut off again. Methods raise `OSError`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line[:-1]

    def find(self, prefix: bytes) -> Iterator[bytes]:
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
        with self.path.open("rb") as file:
            size = file.seek(0, 2)
            for back in (1 << 12, 1 << 17, size):
                file.seek(max(0, size - back))
                lines = file.read().split(b"\n")
                if len(lines) > 2 or back >= size:
                    return lines[-2] if len(lines) > 1 else b""
        return b""


def file_identity(found: os.stat_result) -> tuple[int, int, int]:
    """Values that differ when the file was replaced or changed."""
    return found.st_ino, found.st_mtime_ns, found.st_size


CHUNK: Final = 4 << 20
"""Bytes sorted at once: no other thread runs meanwhile."""


def sort_lines(source: Path, target: Path) -> None:
    """Write the complete lines of *source*, sorted as bytes, to *target*, synced.

    Raises `OSError`; *target* is unchanged then.
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
    """Replace *target* by *lines*, synced. Raises `OSError`."""
    with files.replacing_file(target) as new, new.open("wb") as file:
        file.writelines(lines)
