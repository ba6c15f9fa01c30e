"""Sorted fingerprints in a file that is written once and read for ever.

::

    rows | for each block of 256 rows: its first word, and xxh3 of the block | footer

A row is one or two little-endian words of 8 bytes, sorted by the first of them. The footer has the
number of rows and words and checksums of the index and of itself, and stands at the end, so that a
file whose end is missing is no file. Of an open file the index is in memory, 16 bytes for 256 rows;
blocks are read when they are needed and are compared with their checksums then.

Blocks are read, not mapped into memory: pages of a mapped file count as memory of the process,
which Scrapy's memory guard would take for a leak.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct

import numpy as np
import xxhash

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.seen.rows import TOP, Rows, empty, within

BLOCK = 256
"""Rows of a block: 2 or 4 KiB."""
CHUNK = 128 * BLOCK
"""Rows that are read or written at a time: some milliseconds of work."""

_FOOTER = Struct("<8sIIQQ")  # magic, words, rows of a block, rows, xxh3 of the index
_SUM = Struct("<Q")
_MAGIC = b"SIEVE\0\0\1"
_END = _FOOTER.size + _SUM.size

Damage = Callable[[Path, int], None]
"""Told of the number of a block that cannot be used."""

_sum = xxhash.xxh3_64_intdigest


class SortedFile:
    """One such file, open to be read.

    Raises `JobDamagedError`, naming the file, if it is none or its end is missing.
    """

    def __init__(self, path: Path, damage: Damage) -> None:
        self._file: int | None = None
        self.path = path
        self._damage = damage
        try:
            with path.open("rb") as file:
                self._read_end(file.fileno())
        except FileNotFoundError:
            raise JobDamagedError(f"{path} is missing") from None

    def _read_end(self, file: int) -> None:
        size = os.fstat(file).st_size
        end = os.pread(file, _END, max(0, size - _END))
        head, sum_ = end[: _FOOTER.size], end[_FOOTER.size :]
        if len(end) < _END or head[:8] != _MAGIC or _SUM.unpack(sum_)[0] != _sum(head):
            raise JobDamagedError(f"{self.path} is damaged: its end is not that of a sorted file")
        self.words: int
        self._rows: int
        _, self.words, block, self._rows, index_sum = _FOOTER.unpack(head)
        blocks = -(-self._rows // BLOCK)
        index = os.pread(file, blocks * 16, self._rows * self.words * 8)
        sized = size == self._rows * self.words * 8 + blocks * 16 + _END
        if block != BLOCK or not sized or _sum(index) != index_sum:
            raise JobDamagedError(f"{self.path} is damaged: its index cannot be read")
        both = np.frombuffer(index, "<u8").astype(np.uint64)
        self._firsts, self._sums = array("Q", both[:blocks]), array("Q", both[blocks:])

    def __len__(self) -> int:
        return self._rows

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self._rows * self.words * 8 + len(self._firsts) * 16 + _END

    def has(self, row: tuple[int, ...]) -> bool:
        """Whether *row* is among its rows; one read of a block, as a rule."""
        first, starts = row[0], self._firsts
        block = max(0, bisect_left(starts, first) - 1)
        while block < len(starts) and starts[block] <= first:
            words = memoryview(self._block(block)).cast("Q")
            firsts = words[:: self.words]
            at, end = bisect_left(firsts, first), len(firsts)
            while at < end and firsts[at] == first:
                if self.words == 1 or words[at * 2 + 1] == row[1]:
                    return True
                at += 1
            block += 1
        return False

    def _block(self, block: int) -> bytes:
        """The bytes of a block; none of a damaged one."""
        if self._file is None:
            self._file = os.open(self.path, os.O_RDONLY)
        width = self.words * 8
        count = min(BLOCK, self._rows - block * BLOCK)
        data = os.pread(self._file, count * width, block * BLOCK * width)
        if len(data) == count * width and _sum(data) == self._sums[block]:
            return data
        self._damage(self.path, block)
        return b""

    def chunks(self, low: int = 0, high: int = TOP) -> Iterator[Rows]:
        """Its rows whose first words are at least *low* and less than *high*, sorted, in pieces.

        Rows of one first word come in one piece, with at least one row of the next if there is one.
        """
        block = max(0, bisect_left(self._firsts, low) - 1)
        rest = empty(self.words)
        with self.path.open("rb") as file:
            while block < len(self._firsts) and self._firsts[block] < high:
                rows = self._read(file.fileno(), block)
                block += CHUNK // BLOCK
                rows = np.concatenate((rest, within(rows, low, high)))
                if block < len(self._firsts) and len(rows):
                    cut = int(np.searchsorted(rows[:, 0], rows[-1, 0], "left"))
                    rows, rest = rows[:cut], rows[cut:]
                else:
                    rest = rest[:0]
                if len(rows):
                    yield rows
        if len(rest):
            yield rest

    def _read(self, file: int, block: int) -> Rows:
        """The rows of the chunk that begins with *block*, without those of damaged blocks."""
        step = BLOCK * self.words * 8
        data = os.pread(file, CHUNK // BLOCK * step, block * step)
        data = data[: (self._rows - block * BLOCK) * self.words * 8]
        good = bytearray()
        for number in range(block, min(block + CHUNK // BLOCK, len(self._firsts))):
            piece = data[(number - block) * step : (number - block + 1) * step]
            if _sum(piece) == self._sums[number]:
                good += piece
            else:
                self._damage(self.path, number)
        return np.frombuffer(good, "<u8").astype(np.uint64).reshape(-1, self.words)

    def close(self) -> None:
        """Let go of the file; a look-up opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    __del__ = close


class SortedWriter:
    """Writes one such file, of rows that come sorted.

    Raises `OSError` when it cannot; `abandon` removes what was written.
    """

    def __init__(self, path: Path, words: int) -> None:
        self.path = path
        self.rows = 0
        self._words = words
        self._file = path.open("xb", buffering=0)
        self._rest = empty(words)
        self._firsts: list[int] = []
        self._sums: list[int] = []

    def write(self, rows: Rows) -> None:
        """Append *rows*."""
        self.rows += len(rows)
        rows = np.concatenate((self._rest, rows))
        whole = len(rows) - len(rows) % BLOCK
        self._rest = rows[whole:]
        self._blocks(rows[:whole])

    def _blocks(self, rows: Rows) -> None:
        data = rows.astype("<u8").tobytes()
        step = BLOCK * self._words * 8
        self._firsts += rows[::BLOCK, 0].tolist()
        self._sums += [_sum(data[at : at + step]) for at in range(0, len(data), step)]
        write_all(self._file.fileno(), data)

    def close(self) -> None:
        """Write the index and the end, and have all of it on the medium."""
        self._blocks(self._rest)
        index = np.array([*self._firsts, *self._sums], "<u8").tobytes()
        head = _FOOTER.pack(_MAGIC, self._words, BLOCK, self.rows, _sum(index))
        write_all(self._file.fileno(), index + head + _SUM.pack(_sum(head)))
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Remove the file."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def write_all(file: int, data: bytes | bytearray) -> None:
    """Write all of *data*. Raises `OSError`."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
