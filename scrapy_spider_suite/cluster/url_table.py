"""The URLs that an owner knows, and how they ended: sorted fingerprints in immutable segments.

A segment is written once, as a blob of the shared queue, and never changed: whoever owns the URLs
next has them all. Later segments win. Small ones are merged, so that a look-up searches few. Of a
long one a copy in a local folder is mapped into memory. A fingerprint has 64 bits: of 12 billion
URLs some four would be taken for others.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from scrapy_spider_suite.errors import BlobError
from scrapy_spider_suite.frontier.outcomes import Event

_ROW: Final = np.dtype([("key", "<u8"), ("when", "<u4"), ("status", "<u2"), ("event", "u1")])
EVENTS: Final = (None, *Event)
EVENT_NUMBERS: Final = {event: number for number, event in enumerate(EVENTS)}
_MERGED: Final = 4  # a segment is merged with the next one unless it is this many times as long
_SHORT: Final = 1_000  # rows of a segment that needs no file
_SUM: Final = 8  # bytes of the checksum before the rows
Keys: TypeAlias = npt.NDArray[np.uint64]
_Rows: TypeAlias = npt.NDArray[np.void]


class Ending(NamedTuple):
    """How a URL ended last, at *when* (seconds since the epoch); *event* None: not yet."""

    event: Event | None
    status: int
    when: int


def fingerprint(key: bytes) -> int:
    """The fingerprint of a URL by its state key."""
    return xxh3_64_intdigest(key)


def _sorted(rows: _Rows) -> _Rows:
    """By key, one row for each: the last one."""
    rows = rows[np.argsort(rows["key"], kind="stable")]
    last = np.append(rows["key"][1:] != rows["key"][:-1], True) if len(rows) else slice(None)
    found: _Rows = rows[last]
    return found


class UrlTable:
    """Known URLs by fingerprint; *segments* are bytes, the oldest first. Files are in *folder*.

    Raises `BlobError`: a damaged segment; `OSError`.
    """

    def __init__(self, folder: Path, segments: Iterable[bytes] = ()) -> None:
        self._folder = folder
        self._segments = [self._mapped(data, _rows_of(data)) for data in segments]

    def _mapped(self, data: bytes, rows: _Rows) -> _Rows:
        if len(rows) < _SHORT:
            return rows
        path = self._folder / f"{secrets.token_hex(8)}.segment"
        path.write_bytes(data)
        mapped: _Rows = np.memmap(path, _ROW, "r", _SUM)
        path.unlink()  # it lives as long as it is mapped
        return mapped

    def __len__(self) -> int:
        """The number of rows; a URL in several segments counts several times until a merge."""
        return sum(map(len, self._segments))

    def known(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Which of *keys* are known."""
        found = np.zeros(len(keys), np.bool_)
        for rows in self._segments:
            found |= _places(rows, keys)[1]
        return found

    def ending(self, key: int) -> Ending | None:
        """How the URL with the fingerprint *key* ended; None: it is not known."""
        keys = np.array([key], np.uint64)
        for rows in reversed(self._segments):
            places, there = _places(rows, keys)
            if there[0]:
                row = rows[places[0]]
                return Ending(EVENTS[int(row["event"])], int(row["status"]), int(row["when"]))
        return None

    def add(self, endings: Sequence[tuple[int, Ending]]) -> bytes:
        """Add URLs, or endings of known ones; the bytes of the new segment."""
        rows = np.zeros(len(endings), _ROW)
        rows["key"] = [key for key, _ in endings]
        rows["event"] = [EVENT_NUMBERS[each.event] for _, each in endings]
        rows["status"] = [each.status for _, each in endings]
        rows["when"] = [each.when for _, each in endings]
        rows = _sorted(rows)
        data = _bytes_of(rows)
        self._segments.append(self._mapped(data, rows))
        return data

    def merge(self) -> tuple[int, bytes] | None:
        """Merge the latest segments, if they are short: how many, and the bytes of the new one."""
        count, size = 1, len(self._segments[-1]) if self._segments else 0
        for rows in reversed(self._segments[:-1]):
            if len(rows) >= _MERGED * size:
                break
            count, size = count + 1, size + len(rows)
        if count < 2:
            return None
        merged = _sorted(np.concatenate(self._segments[-count:]))
        data = _bytes_of(merged)
        self._segments[-count:] = [self._mapped(data, merged)]
        return count, data


def _places(rows: _Rows, keys: Keys) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Where each key would stand in *rows*, and whether it does."""
    known = rows["key"]
    places = np.searchsorted(known, keys)
    if not len(known):
        return places, np.zeros(len(keys), np.bool_)
    places = np.minimum(places, len(known) - 1)
    return places, known[places] == keys


def _bytes_of(rows: _Rows) -> bytes:
    data = rows.tobytes()
    return xxh3_64_intdigest(data).to_bytes(_SUM, "big") + data


def _rows_of(data: bytes) -> _Rows:
    rest = data[_SUM:]
    if len(data) < _SUM or len(rest) % _ROW.itemsize:
        raise BlobError("a segment of known URLs is cut short", damaged=True)
    if xxh3_64_intdigest(rest) != int.from_bytes(data[:_SUM], "big"):
        raise BlobError("a segment of known URLs has another checksum", damaged=True)
    rows = np.frombuffer(rest, _ROW)
    if len(rows) and int(rows["event"].max()) >= len(EVENTS):
        raise BlobError("a segment of known URLs has an unknown event", damaged=True)
    return rows
