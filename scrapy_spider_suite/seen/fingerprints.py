"""Fingerprints: made from keys, as numpy rows, in sorted files.

A key begins with the slot of a host (`frontier.entries.state_key`); its fingerprint is the slot and
the first bytes of the key's xxh3_128. A row is a fingerprint as one or two words of 64 bits; sorted
rows are sorted by first words only.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from struct import Struct

import numpy as np
import xxhash
from numpy.typing import NDArray

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.runtime.files import write_all

SLOTS = 1 << 16
WIDTHS = {64: 8, 128: 16}  # bytes of a fingerprint, by its bits

_digest = xxhash.xxh3_128_digest


def fingerprint(key: bytes, width: int) -> bytes:
    return (key[:2] if len(key) > 1 else key.ljust(2, b"\0")) + _digest(key)[: width - 2]


def fingerprints(keys: Iterable[bytes], width: int) -> bytes:
    return b"".join([fingerprint(key, width) for key in keys])


def false_positive_bound(largest: int, bits: int) -> float:
    """The greatest probability that a new key counts as known; *largest*: keys in a slot."""
    return min(1.0, float(largest) / 2.0 ** (bits - 16))


Rows = NDArray[np.uint64]
Mask = NDArray[np.bool_]
Places = NDArray[np.intp]

TOP = 1 << 64  # greater than every word


def rows_of(prints: bytes | bytearray, width: int) -> Rows:
    """Concatenated fingerprints of *width* bytes as rows, in the same order (big-endian)."""
    return np.frombuffer(prints, ">u8").astype(np.uint64).reshape(-1, width // 8)


def bytes_of(rows: Rows) -> bytes:
    return rows.astype(">u8").tobytes()


def no_rows(words: int) -> Rows:
    return np.empty((0, words), np.uint64)


def rank_of(rows: Rows, word: int) -> int:
    """The number of sorted *rows* whose first word is less than *word*, which may be `TOP`."""
    return len(rows) if word >= TOP else int(np.searchsorted(rows[:, 0], np.uint64(word)))


def mask_of(slots: Iterable[int]) -> Mask:
    mask = np.zeros(1 << 16, np.bool_)
    mask[list(slots)] = True
    return mask


def slots_of(rows: Rows) -> Places:
    return (rows[:, 0] >> np.uint64(48)).astype(np.intp)


def sorted_and_unique(batch: Rows, length: int) -> Iterator[tuple[Rows, Places]]:
    """The different rows of *batch*, sorted, and their first indexes; some *length* at a time."""
    firsts = np.ascontiguousarray(batch[:, 0])
    sample = np.sort(firsts[:: max(1, length // 64)])
    bounds = [0, *map(int, np.unique(sample[64::64])), TOP]
    for low, high in pairwise(bounds):
        chosen = firsts >= np.uint64(low)
        if high < TOP:
            chosen &= firsts < np.uint64(high)
        places = np.flatnonzero(chosen)
        places = places[np.lexsort(batch[places].T[::-1])]  # stable; the last key counts first
        rows = batch[places]
        first = np.ones(len(rows), np.bool_)
        first[1:] = (rows[1:] != rows[:-1]).any(axis=1)
        yield rows[first], places[first]


def are_among(rows: Rows, asked: Rows) -> Mask:
    return find_rows(rows, asked)[0]


def find_rows(rows: Rows, asked: Rows) -> tuple[Mask, Places]:
    if not len(rows):
        return np.zeros(len(asked), np.bool_), np.zeros(len(asked), np.intp)
    firsts = np.ascontiguousarray(rows[:, 0])
    at = np.minimum(np.searchsorted(firsts, asked[:, 0]), len(rows) - 1)
    hit: Mask = (rows[at] == asked).all(axis=1)
    half = (firsts[at] == asked[:, 0]) & ~hit  # in common
    for number in np.flatnonzero(half):
        last = np.searchsorted(firsts, asked[number, 0], "right")
        same = np.flatnonzero((rows[at[number] : last] == asked[number]).all(axis=1))
        if len(same):
            hit[number], at[number] = True, at[number] + same[0]
    return hit, at


def merge_rows(*several: Rows) -> Rows:
    some = [rows for rows in several if len(rows)]
    if len(some) < 2:
        return some[0] if some else several[0]
    rows = np.concatenate(some)
    # A stable sort finds the runs that are sorted already.
    return rows[np.argsort(rows[:, 0], kind="stable")]


def slice_rows(rows: Rows, length: int) -> Iterator[Rows]:
    """Sorted *rows* in slices of some *length*; rows of one first word stay together."""
    while len(rows) > length:
        cut = rank_of(rows, int(rows[length, 0]))
        cut = cut or int(np.searchsorted(rows[:, 0], rows[0, 0], "right"))
        yield rows[:cut]
        rows = rows[cut:]
    if len(rows):
        yield rows


BLOCK = 256  # rows of a block: 2 or 4 KiB
CHUNK = 128 * BLOCK  # rows that are read or written at a time: some milliseconds of work

_FOOTER = Struct("<8sIIQQ")  # magic, words, rows of a block, rows, xxh3 of the index
_SUM = Struct("<Q")
_MAGIC = b"SIEVE\0\0\1"
_END = _FOOTER.size + _SUM.size

Damage = Callable[[Path, int], None]  # told of the number of a block that cannot be used

_sum = xxhash.xxh3_64_intdigest


class SortedFile:
    """A sorted file, open for reading: rows, first word and xxh3 of each block of rows, a footer.

    Words are little-endian. The index of an open file is in memory; blocks are read when needed,
    not mapped: Scrapy's memory guard takes mapped pages for a leak. Raises `JobDamagedError`.
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
        return self._rows * self.words * 8 + len(self._firsts) * 16 + _END

    def has(self, row: tuple[int, ...]) -> bool:
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
        """The sorted rows with first words from *low* to before *high*, in pieces by first word."""
        block = max(0, bisect_left(self._firsts, low) - 1)
        rest = no_rows(self.words)
        with self.path.open("rb") as file:
            while block < len(self._firsts) and self._firsts[block] < high:
                rows = self._read(file.fileno(), block)
                block += CHUNK // BLOCK
                rows = rows[rank_of(rows, low) : rank_of(rows, high)]
                rows = np.concatenate((rest, rows))
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
        if self._file is not None:
            os.close(self._file)
            self._file = None

    __del__ = close


class SortedWriter:
    """Writes a new sorted file. Raises `OSError`."""

    def __init__(self, path: Path, words: int) -> None:
        self.path = path
        self.rows = 0
        self._words = words
        self._file = path.open("xb", buffering=0)
        self._rest = no_rows(words)
        self._firsts: list[int] = []
        self._sums: list[int] = []

    def write(self, rows: Rows) -> None:
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
        """Write the index and the footer, and sync the file."""
        self._blocks(self._rest)
        index = np.array([*self._firsts, *self._sums], "<u8").tobytes()
        head = _FOOTER.pack(_MAGIC, self._words, BLOCK, self.rows, _sum(index))
        write_all(self._file.fileno(), index + head + _SUM.pack(_sum(head)))
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)
