"""Counters and gauges over time: rows of a second, a minute, an hour and a day.

A row adds up the pulses of its span: counters by their increase, gauges by sum, count and maximum.
Each pulse goes to one row of every tier, so sums agree across tiers; they are exact below 2**53.

A tier on disk is a ring of rows in a file of fixed size. The place of a row follows from its time.
Each row has a check sum: a torn row counts as missing. A header names the columns, so that rows of
a run with other columns keep their meaning.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from scrapy_spider_suite.runtime.files import replacing_file

Array: TypeAlias = npt.NDArray[np.float64]


class Tier(NamedTuple):
    name: str
    width: int  # seconds of a row
    kept: int  # rows


TIERS: Final = (
    Tier("second", 1, 7_200),  # 2 hours
    Tier("minute", 60, 10_080),  # 7 days
    Tier("hour", 3_600, 9_600),  # 400 days
    Tier("day", 86_400, 7_305),  # 20 years
)
"""The finest first. The rows that a tier keeps cover a row of the next one."""

_FACTS: Final = 2  # values before the counters: start of the row, seconds that its pulses cover


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the values of a pulse, and the places of their sums in a row."""

    counters: tuple[str, ...]
    gauges: tuple[str, ...]

    @property
    def size(self) -> int:
        """The number of values in a row."""
        return _FACTS + len(self.counters) + 3 * len(self.gauges)

    @property
    def maxima(self) -> int:
        """The place of the first maximum; all values before it are added up."""
        return self.size - len(self.gauges)

    def blank_row(self, start: float) -> Array:
        row = np.zeros(self.size)
        row[0], row[self.maxima :] = start, np.nan
        return row

    def pulse_row(self, start: float, seconds: float, increase: Array, gauges: Array) -> Array:
        """The row of one pulse. A gauge that is NaN has no value."""
        known = ~np.isnan(gauges)
        return np.concatenate(
            ((start, seconds), increase, np.where(known, gauges, 0.0), known, gauges)
        )

    def add(self, row: Array, more: Array) -> None:
        """Add *more*, of the same span, to *row*."""
        maxima = self.maxima
        row[1:maxima] += more[1:maxima]
        np.fmax(row[maxima:], more[maxima:], out=row[maxima:])

    def add_up(self, rows: Array, groups: npt.NDArray[np.int64], count: int) -> Array:
        """Add up *rows* by their rising *groups*: *count* rows, all NaN where a group has none."""
        sums = np.full((count, self.size), np.nan)
        if len(rows):
            begins = np.flatnonzero(np.diff(groups, prepend=-1))
            found, maxima = groups[begins], self.maxima
            sums[found, :maxima] = np.add.reduceat(rows[:, :maxima], begins)
            sums[found, maxima:] = np.fmax.reduceat(rows[:, maxima:], begins)
        return sums

    def places(self, name: str) -> tuple[int, ...]:
        """The places of *name* in a row: a counter's sum, or a gauge's sum, count, maximum."""
        if name in self.counters:
            return (_FACTS + self.counters.index(name),)
        first, gauges = _FACTS + len(self.counters), len(self.gauges)
        at = first + self.gauges.index(name)
        return at, at + gauges, at + 2 * gauges

    def convert(self, rows: Array, old: Columns) -> Array:
        """*rows* with the columns *old* as rows with these; missing ones have no counts."""
        if old == self:
            return rows
        found = np.zeros((len(rows), self.size))
        found[:, self.maxima :] = np.nan
        found[:, :_FACTS] = rows[:, :_FACTS]
        for ours, theirs in ((self.counters, old.counters), (self.gauges, old.gauges)):
            known = set(theirs)
            for name in ours:
                if name in known:
                    found[:, self.places(name)] = rows[:, old.places(name)]
        return found

    def joined(self, old: Columns) -> Columns:
        """These columns, then those of *old* that are not among them."""
        return Columns(
            tuple(dict.fromkeys(self.counters + old.counters)),
            tuple(dict.fromkeys(self.gauges + old.gauges)),
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of *width* seconds that begin at *times* (seconds since the epoch), without gaps.

    The methods return a value for each row: NaN where nothing is known.
    """

    times: Array
    width: float
    columns: Columns
    values: Array

    def total(self, name: str) -> Array:
        """The increase of a counter."""
        return self._column(name, 0)

    def rate(self, name: str) -> Array:
        """The increase of a counter by second, over the seconds that pulses cover."""
        return _divide(self.total(name), self.values[:, 1])

    def mean(self, name: str) -> Array:
        """The mean of a gauge."""
        return _divide(self._column(name, 0), self._column(name, 1))

    def maximum(self, name: str) -> Array:
        """The maximum of a gauge."""
        return self._column(name, 2)

    def _column(self, name: str, part: int) -> Array:
        known = self.columns.gauges if part else self.columns.counters + self.columns.gauges
        if name not in known:
            return np.full(len(self.times), np.nan)
        return self.values[:, self.columns.places(name)[part]]


def _divide(sums: Array, by: Array) -> Array:
    quotients = np.full(len(sums), np.nan)
    np.divide(sums, by, out=quotients, where=by > 0)
    return quotients


class OpenRows:
    """The rows of all tiers that pulses still go to.

    *load* returns the row of a tier (its number) that begins at a time, if it is stored: a pulse
    may belong to an earlier row after a start, or after the clock was set back.
    """

    def __init__(
        self, columns: Columns, load: Callable[[int, float], Array | None],
        tiers: Sequence[Tier] = TIERS,
    ) -> None:  # fmt: skip
        self._columns = columns
        self._load = load
        self._tiers = tiers
        self._rows: list[Array | None] = [None] * len(tiers)

    def has(self, tier: Tier, when: float) -> bool:
        """Whether the row of *tier* for a pulse of *when* is open."""
        row = self._rows[self._tiers.index(tier)]
        return row is not None and bool(row[0] == when // tier.width * tier.width)

    def add(self, when: float, seconds: float, increase: Array, gauges: Array) -> list[Array]:
        """Add a pulse; return the changed row of each tier, which later calls may change."""
        pulse = self._columns.pulse_row(when, seconds, increase, gauges)
        changed = []
        for number, tier in enumerate(self._tiers):
            start, row = when // tier.width * tier.width, self._rows[number]
            if row is None or row[0] != start:
                row = self._load(number, start)
                row = self._columns.blank_row(start) if row is None else row
                self._rows[number] = row
            self._columns.add(row, pulse)
            changed.append(row)
        return changed


_PAGE: Final = 4_096
_FORMAT: Final = "series 1"
_HEADER_MAX: Final = 1 << 20  # bytes
_KEPT_MAX: Final = 100_000  # rows
_SALT: Final = np.uint64(1)  # so that a row of zeros has another sum
_EARLIEST: Final = 1.0  # a place that was never written has the time 0


@dataclass(frozen=True)
class _Ring:
    """The layout of the file of one tier."""

    width: int
    kept: int
    columns: Columns

    @cached_property
    def header(self) -> bytes:
        text = json.dumps({
            "format": _FORMAT, "width": self.width, "kept": self.kept,
            "counters": self.columns.counters, "gauges": self.columns.gauges,
        }).encode() + b"\n"  # fmt: skip
        return text.ljust(-len(text) % _PAGE + len(text), b"\n")

    @classmethod
    def read(cls, file: int) -> _Ring | None:
        """The layout that the header of *file* gives; None: no header of ours."""
        line = os.pread(file, _PAGE, 0)
        while b"\n" not in line and len(line) < _HEADER_MAX and len(line) % _PAGE == 0:
            line += os.pread(file, _PAGE, len(line)) or b"\n"
        with suppress(ValueError, KeyError, TypeError):
            found = json.loads(line.partition(b"\n")[0])
            columns = Columns(
                tuple(map(str, found["counters"])), tuple(map(str, found["gauges"]))
            )
            ring = cls(int(found["width"]), int(found["kept"]), columns)
            if found["format"] == _FORMAT and ring.width > 0 and 0 < ring.kept <= _KEPT_MAX:
                return ring
        return None

    @property
    def stride(self) -> int:
        return 8 * (self.columns.size + 1)

    def offset(self, start: float) -> int:
        return len(self.header) + int(start // self.width) % self.kept * self.stride

    def pack(self, row: Array) -> bytes:
        return row.tobytes() + _check_sums(row[None]).tobytes()

    def newest(self, file: int, now: float) -> float:
        """When the newest row of *file* begins; *now* without any. The clock may have been ahead:
        rows of the future do not count.
        """
        head, words = len(self.header), self.stride // 8
        rows = (os.fstat(file).st_size - head) // self.stride
        if rows <= 0:
            return now
        with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as data:
            times = np.frombuffer(data, np.float64, rows * words, head)[::words].copy()
        past = times[(times >= _EARLIEST) & (times <= now)]
        return float(past.max()) if len(past) else now

    def read_rows(self, file: int, start: float, end: float) -> Array:
        """The rows of *file* that begin from *start* to before *end*, by time."""
        first, count = int(start // self.width), math.ceil((end - start) / self.width) + 1
        head, stride = len(self.header), self.stride
        at = first % self.kept
        if count >= self.kept:
            data = os.pread(file, self.kept * stride, head)
        else:
            data = os.pread(file, min(count, self.kept - at) * stride, head + at * stride)
            if at + count > self.kept:
                data += os.pread(file, (at + count - self.kept) * stride, head)
        data = data[: len(data) // stride * stride]
        words = np.frombuffer(data, np.float64).reshape(-1, self.columns.size + 1)
        rows = words[:, :-1]
        times = rows[:, 0]
        with np.errstate(invalid="ignore"):
            wanted = (times >= max(start, _EARLIEST)) & (times < end) & (times % self.width == 0)
        rows, sums = rows[wanted], words[wanted, -1].view(np.uint64)
        rows = rows[_check_sums(rows) == sums]
        sorted_rows: Array = rows[np.argsort(rows[:, 0], kind="stable")]
        return sorted_rows


def _check_sums(rows: Array) -> npt.NDArray[np.uint64]:
    words = np.ascontiguousarray(rows).view(np.uint64)
    sums: npt.NDArray[np.uint64] = np.bitwise_xor.reduce(words, axis=1) + _SALT
    return sums


class SeriesWriter:
    """Writes the series in *folder*, one process at a time. Its methods raise `OSError`."""

    def __init__(self, folder: Path, columns: Columns) -> None:
        folder.mkdir(exist_ok=True)
        paths = [folder / tier.name for tier in TIERS]
        for path in paths:  # the columns of earlier runs come after those of this one
            if (old := _read_layout(path)) is not None:
                columns = columns.joined(old.columns)
        self._columns = columns
        self._rings = [_Ring(tier.width, tier.kept, columns) for tier in TIERS]
        self._files: list[int] = []
        try:
            for path, ring in zip(paths, self._rings, strict=True):
                self._files.append(_open_ring(path, ring))
        except BaseException:
            self.close()
            raise
        self._open = OpenRows(columns, self._load)

    def add(self, when: float, seconds: float, increase: Array, gauges: Array) -> None:
        """Add the pulse of *when* (seconds since the epoch), which covers so many *seconds*.

        After an error the pulse is in the rows in memory: the next call writes most of them.
        """
        counters = np.zeros(len(self._columns.counters))
        counters[: len(increase)] = increase
        known = np.full(len(self._columns.gauges), np.nan)
        known[: len(gauges)] = gauges
        rows = self._open.add(when, seconds, counters, known)
        for file, ring, row in zip(self._files, self._rings, rows, strict=True):
            os.pwrite(file, ring.pack(row), ring.offset(row[0]))

    def _load(self, number: int, start: float) -> Array | None:
        ring = self._rings[number]
        end = start + ring.width
        rows = ring.read_rows(self._files[number], start, end)
        if not len(rows) and number:  # torn: its rows in the finer tier have all that it had
            parts = self._rings[number - 1].read_rows(self._files[number - 1], start, end)
            rows = self._columns.add_up(parts, np.zeros(len(parts), np.int64), min(1, len(parts)))
            if len(rows):
                rows[0, 0] = start
                os.pwrite(self._files[number], ring.pack(rows[0]), ring.offset(start))
        return rows[0].copy() if len(rows) else None

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files.clear()


def _read_layout(path: Path) -> _Ring | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return _Ring.read(file)
    finally:
        os.close(file)


def _open_ring(path: Path, ring: _Ring) -> int:
    """Open the file *path* of *ring*: a new one, or one with the rows of another layout."""
    old = _read_layout(path)
    if old != ring:
        with replacing_file(path) as new, new.open("wb") as file:
            file.write(ring.header)
            for row in () if old is None else ring.columns.convert(*_all_rows(path)):
                file.seek(ring.offset(row[0]))
                file.write(ring.pack(row))
            file.truncate(len(ring.header) + ring.kept * ring.stride)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def _all_rows(path: Path) -> tuple[Array, Columns]:
    return _read_rows(path, 0.0, _LATEST)


_LATEST: Final = 253_402_300_799.0  # the end of the year 9999


def _read_rows(path: Path, start: float, end: float) -> tuple[Array, Columns]:
    """The rows of the file *path* and their columns; none if it is no file of ours."""
    with suppress(OSError), path.open("rb") as file:
        ring = _Ring.read(file.fileno())
        if ring is not None:
            return ring.read_rows(file.fileno(), start, end), ring.columns
    return np.empty((0, _FACTS)), Columns((), ())


POINTS_MAX: Final = 20_000
_AHEAD: Final = 86_400.0  # seconds from now to the latest row that is read


class SeriesReader:
    """Reads the series in *folder*, also while they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, start: float, end: float, points: int, width: int = 0) -> Rows:
        """The series from *start* to *end* in *points* rows or fewer, and the row around *start*.

        Rows have *width* seconds, if it is not 0 and rows so short are still kept. They come from
        the finest tier that still has *start*. Without a folder nothing is known.
        """
        start, end = max(0.0, start), min(end, time.time() + _AHEAD)
        points = min(points, POINTS_MAX)
        tier = self._finest(start)
        width = row_width(tier, start, end, points, width)
        rows, columns = _read_rows(self._folder / tier.name, start // width * width, end)
        return merge_rows(rows, columns, width, start, end)

    def _finest(self, start: float) -> Tier:
        now = time.time()
        with suppress(OSError), (self._folder / TIERS[0].name).open("rb") as file:
            if (ring := _Ring.read(file.fileno())) is not None:
                return finest_tier(start, ring.newest(file.fileno(), now))
        return finest_tier(start, now)


def finest_tier(start: float, newest: float, tiers: Sequence[Tier] = TIERS) -> Tier:
    """The finest tier that still has *start* when its *newest* row begins then."""
    for tier in tiers:
        if start > newest - tier.width * tier.kept:
            return tier
    return tiers[-1]


_WIDTHS: Final = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200,
    86_400,
)  # fmt: skip
"""Seconds of merged rows: while time goes by, rows begin at the same times."""


_SLACK: Final = 1e-3  # part of a row's width by which a range may be longer than its rows


def row_width(tier: Tier, start: float, end: float, points: int, width: int) -> int:
    """Seconds of a row when neighbours of *tier* are merged; see `SeriesReader.read`."""
    if width:
        return max(width, tier.width)
    wanted = (end - start) / max(1, points) * (1 - _SLACK)
    for width in _WIDTHS:
        if width >= wanted and width % tier.width == 0:
            return width
    return math.ceil(wanted / _WIDTHS[-1]) * _WIDTHS[-1]


def merge_rows(rows: Array, columns: Columns, width: int, start: float, end: float) -> Rows:
    """Merge *rows* to rows of *width* seconds, from that around *start* to *end*."""
    first = start // width * width
    count = max(0, math.ceil((end - first) / width))
    groups = ((rows[:, 0] - first) // width).astype(np.int64)
    times = first + width * np.arange(count, dtype=np.float64)
    return Rows(times, width, columns, columns.add_up(rows, groups, count))


class RollUp:
    """Adds sources up to aggregates: one product of a matrix of 0 and 1 with the counters.

    *members*: of each aggregate, the numbers of its sources.
    """

    def __init__(self, members: Iterable[Sequence[int]], sources: int) -> None:
        self._members = [np.asarray(each, np.intp) for each in members]
        self._matrix = np.zeros((len(self._members), sources))
        for row, each in zip(self._matrix, self._members, strict=True):
            row[each] = 1.0

    def add_counters(self, counters: Array) -> Array:
        """Aggregates x counters, of sources x *counters*."""
        return self._matrix @ counters

    def add_gauges(self, gauges: Array) -> tuple[Array, Array, Array]:
        """Sum, count and maximum of *gauges* (sources x gauges) by aggregate; NaN: no value."""
        known = ~np.isnan(gauges)
        maxima = np.full((len(self._members), gauges.shape[1]), np.nan)
        for row, each in zip(maxima, self._members, strict=True):
            if len(each):
                np.fmax.reduce(gauges[each], axis=0, out=row)
        sums = self._matrix @ np.where(known, gauges, 0.0)
        return sums, self._matrix @ known.astype(np.float64), maxima
