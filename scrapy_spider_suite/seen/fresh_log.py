"""The log of fresh rows: URLs that no segment holds yet, in files that are only appended to.

A *frame* is the rows of one `append`, whole or ignored. A row's *handle* is its position, counted
over all files, and its length.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError
from scrapy_spider_suite.runtime.files import store_errors, write_all
from scrapy_spider_suite.seen.segments import Handles, Ids

LENGTH_BITS: Final = 16  # the lowest bits of a handle: the length of the row
_LENGTH: Final = (1 << LENGTH_BITS) - 1

FILE_BYTES: Final = 64 << 20
"""A file this long is followed by another, so that room is given back in pieces."""
KEPT_FILES: Final = 8  # the rows of older files are overdue

_PREFIX: Final = "fresh-"
_MAGIC: Final = b"\xf5row"
_HEAD: Final = struct.Struct("<4sIIQ")  # magic, rows, bytes of the body, hash of both and the body


class FreshLog:
    """The log in *folder*; positions begin at *floor* at least, and grow over restarts, too.

    *readonly*: as it is now; a file that is deleted meanwhile raises `FileNotFoundError`. *damage*
    has the unreadable files; a torn end, which was not acknowledged, is no damage.
    """

    def __init__(self, folder: Path, floor: int = 0, *, readonly: bool = False) -> None:
        self.damage: dict[str, str] = {}
        self._folder = folder
        self._readonly = readonly
        self._starts: list[int] = []
        self._fds: list[int] = []
        self._live: list[int] = []
        self.frames: list[tuple[Ids, Handles]] = []  # found when the log was opened
        names = [path.name.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*")]
        found = sorted(int(name, 16) for name in names)
        try:
            for start in found:
                self._read_file(start, last=start == found[-1])
        except OSError:
            self.close()
            raise
        if not readonly and (not found or self._end < floor >> LENGTH_BITS):
            self._begin(max(self._end, floor + _LENGTH >> LENGTH_BITS))

    def _path(self, start: int) -> Path:
        return self._folder / f"{_PREFIX}{start:016x}"

    _end = 0

    @property
    def end(self) -> int:
        """A number above all handles so far, and not above later ones."""
        return self._end << LENGTH_BITS

    @property
    def size(self) -> int:
        return sum(os.fstat(fd).st_size for fd in self._fds)

    def append(self, rows: Sequence[tuple[int, bytes]]) -> list[int]:
        """Append *rows* (id, URL) as one frame; return handles. Raises `StoreWriteError`."""
        if self._end - self._starts[-1] >= FILE_BYTES:
            self.rotate()
        count = len(rows)
        lengths = [len(key) for _, key in rows]
        head = struct.pack(f"<{count}Q{count}I", *[ident for ident, _ in rows], *lengths)
        body = head + b"".join([key for _, key in rows])
        size = len(body)
        digest = xxhash.xxh3_64_intdigest(body, count << 32 | size)
        fd = self._fds[-1]
        try:
            write_all(fd, _HEAD.pack(_MAGIC, count, size, digest) + body)
        except OSError as error:
            # The rest would be taken for a torn end, but not once others follow.
            os.ftruncate(fd, self._end - self._starts[-1])
            raise StoreWriteError(f"{self._folder}: {error.strerror}") from error
        at = self._end + _HEAD.size + len(head)
        handles = []
        for length in lengths:
            handles.append(at << LENGTH_BITS | length)
            at += length
        self._end = at
        self._live[-1] += count
        return handles

    def read(self, handle: int) -> bytes:
        at = handle >> LENGTH_BITS
        number = bisect_right(self._starts, at) - 1
        return os.pread(self._fds[number], handle & _LENGTH, at - self._starts[number])

    def forget(self, handles: Handles) -> None:
        """Note that segments have the rows; delete the files that have no others."""
        files = np.searchsorted(self._starts, handles >> LENGTH_BITS, "right") - 1
        for number, count in enumerate(np.bincount(files, minlength=len(self._starts))):
            self._live[number] -= int(count)
        if not self._live[-1]:
            self.rotate()
        done = [number for number, live in enumerate(self._live[:-1]) if not live]
        for number in reversed(done):
            os.close(self._fds.pop(number))
            self._path(self._starts.pop(number)).unlink(missing_ok=True)
            del self._live[number]

    def rotate(self) -> None:
        """Begin another file, unless the last one is empty. Raises `StoreWriteError`."""
        if self._end > self._starts[-1]:
            self._begin(self._end + 1)  # an empty row may lie at the very end of the last one

    def overdue(self, handle: int) -> bool:
        return self._end - (handle >> LENGTH_BITS) > KEPT_FILES * FILE_BYTES

    def files(self) -> list[tuple[int, Path]]:
        return [(start, self._path(start)) for start in self._starts]

    def sync(self) -> None:
        """Raises `StoreWriteError`."""
        with store_errors(self._folder):
            for fd in self._fds:
                os.fsync(fd)

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def _begin(self, start: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with store_errors(self._folder):
            fd = os.open(self._path(start), flags, 0o644)
        self._end = start
        self._starts.append(start)
        self._fds.append(fd)
        self._live.append(0)

    def _read_file(self, start: int, last: bool) -> None:
        path = self._path(start)
        access = os.O_RDONLY if self._readonly else os.O_RDWR | os.O_APPEND
        data = path.read_bytes()
        fd = os.open(path, access | os.O_CLOEXEC)
        frames, good, gaps = _frames(data, start)
        if not last and good < len(data):
            gaps += len(data) - good
        if gaps:
            self.damage[path.name] = f"{path}: {gaps} bytes cannot be read"
        if last and good < len(data) and not self._readonly:
            os.ftruncate(fd, good)
        self._starts.append(start)
        self._fds.append(fd)
        self._live.append(sum(len(ids) for ids, _ in frames))
        self.frames += frames
        self._end = start + (good if last else len(data))


def _frames(data: bytes, start: int) -> tuple[list[tuple[Ids, Handles]], int, int]:
    """The frames in *data*, the end of the last good one, and the number of unreadable bytes."""
    frames: list[tuple[Ids, Handles]] = []
    at = good = gaps = 0
    while (at := data.find(_MAGIC, at)) >= 0:
        if (frame := _frame(data, at, start)) is None:
            at += 1
            continue
        ids, handles, end = frame
        frames.append((ids, handles))
        gaps += at - good
        at = good = end
    return frames, good, gaps


def _frame(data: bytes, at: int, start: int) -> tuple[Ids, Handles, int] | None:
    """The ids and handles of the frame at *at*, and its end; None if it is damaged."""
    body = at + _HEAD.size
    if body > len(data):
        return None
    _, count, size, digest = _HEAD.unpack_from(data, at)
    end = body + size
    if end > len(data) or 12 * count > size:
        return None
    if xxhash.xxh3_64_intdigest(memoryview(data)[body:end], count << 32 | size) != digest:
        return None
    ids = np.frombuffer(data, np.uint64, count, body).copy()  # else the whole file stays
    lengths = np.frombuffer(data, np.uint32, count, body + 8 * count).astype(np.int64)
    ends = start + body + 12 * count + np.cumsum(lengths)
    return ids, (ends - lengths) << LENGTH_BITS | lengths, end


def row_reader(files: Sequence[tuple[int, Path]], handles: Handles) -> Iterator[bytes]:
    """The URLs of *handles*, which ascend. Raises `JobDamagedError` if one is not in *files*."""
    starts = [start for start, _ in files]
    number, data = -1, b""
    for handle in handles.tolist():
        at = handle >> LENGTH_BITS
        wanted = bisect_right(starts, at) - 1
        if wanted != number:
            number, data = wanted, files[wanted][1].read_bytes()
        begin, length = at - starts[number], handle & _LENGTH
        if begin + length > len(data):
            raise JobDamagedError(f"{files[number][1]} is shorter than it was")
        yield data[begin : begin + length]
