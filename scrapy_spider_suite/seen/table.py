"""Ids in memory: what was added since its range was last written to a segment.

A dict would take some 170 bytes a URL. Two arrays with open addressing take 16 to 48, and what lies
in the log need not be held. They grow in sixteen parts, so that no step of growing takes long.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scrapy_spider_suite.seen.identity import LOW

Ids = NDArray[np.uint64]
Handles = NDArray[np.int64]
_Part = tuple["array[int]", "array[int]", int]

PARTS: Final = 16
_PART_SHIFT: Final = 24
_SMALLEST: Final = 8

BYTES_A_ROW: Final = 32
"""Memory of an id and its handle, on average over the growth of a table."""


class Table:
    """A map from ids (1 to 2**64 - 1) to handles (0 to 2**63 - 1) that only grows."""

    __slots__ = ("_counts", "_parts", "count", "oldest")

    def __init__(self) -> None:
        nothing = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self._parts = [_filled(*nothing) for _ in range(PARTS)]
        self._counts = [0] * PARTS
        self.count = 0
        self.oldest = -1
        """The lowest handle; -1 if there is none."""

    @classmethod
    def of(cls, ids: Ids, handles: Handles) -> Table:
        """A table of these rows. If an id comes twice, the last of its handles holds."""
        table = cls()
        if not len(ids):
            return table
        ids, first = np.unique(ids[::-1], return_index=True)
        handles = handles[::-1][first]
        part = (ids >> np.uint64(_PART_SHIFT)).astype(np.int64) & (PARTS - 1)
        for number in range(PARTS):
            mine = part == number
            table._parts[number] = _filled(ids[mine], handles[mine])
            table._counts[number] = int(mine.sum())
        table.count = len(ids)
        table.oldest = int(handles.min())
        return table

    def find(self, ident: int) -> int:
        """The handle of *ident*, or -1."""
        keys, handles, mask = self._parts[ident >> _PART_SHIFT & (PARTS - 1)]
        at = ident & mask
        while held := keys[at]:
            if held == ident:
                return handles[at]
            at = at + 1 & mask
        return -1

    def has_hash(self, hash_: int) -> bool:
        """Whether there is an id with these 48 lowest bits."""
        keys, _, mask = self._parts[hash_ >> _PART_SHIFT & (PARTS - 1)]
        at = hash_ & mask
        while held := keys[at]:
            if not (held ^ hash_) & LOW:
                return True
            at = at + 1 & mask
        return False

    def put(self, ident: int, handle: int) -> None:
        """Add *ident*, which is not there yet, with a *handle* above all others."""
        number = ident >> _PART_SHIFT & (PARTS - 1)
        keys, handles, mask = self._parts[number]
        at = ident & mask
        while keys[at]:
            at = at + 1 & mask
        keys[at] = ident
        handles[at] = handle
        if self.oldest < 0:
            self.oldest = handle
        self.count += 1
        self._counts[number] += 1
        if self._counts[number] * 3 > mask * 2:
            self._parts[number] = _filled(*_rows(self._parts[number]), size=(mask + 1) * 2)

    def rows(self) -> tuple[Ids, Handles]:
        """All ids and their handles, in no order."""
        parts = list(self.pieces())
        ids = np.concatenate([ids for ids, _ in parts])
        return ids, np.concatenate([handles for _, handles in parts])

    def pieces(self) -> Iterator[tuple[Ids, Handles]]:
        """The same in sixteen pieces; nothing may be put in between."""
        return map(_rows, self._parts)

    def ids(self) -> Ids:
        """All ids, in no order."""
        held = [np.frombuffer(part[0], np.uint64) for part in self._parts]
        return np.concatenate([ids[ids != 0] for ids in held])

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"<Table: {self.count} ids>"


def _rows(part: _Part) -> tuple[Ids, Handles]:
    keys = np.frombuffer(part[0], np.uint64)
    there = keys != 0
    return keys[there], np.frombuffer(part[1], np.int64)[there]


def _filled(ids: Ids, handles: Handles, size: int = _SMALLEST) -> _Part:
    """A part with these rows, the ids all different, at most two thirds full."""
    while len(ids) * 3 > (size - 1) * 2:
        size *= 2
    keys, places = array("Q", bytes(8 * size)), array("q", bytes(8 * size))
    held, found = np.frombuffer(keys, np.uint64), np.frombuffer(places, np.int64)
    at = (ids & np.uint64(size - 1)).astype(np.int64)
    # All of them try their place at once; who finds it taken, or loses it, tries the next one.
    while len(ids):
        free = held[at] == 0
        held[at[free]] = ids[free]
        won = held[at] == ids
        found[at[won]] = handles[won]
        lost = ~won
        ids, handles, at = ids[lost], handles[lost], at[lost] + 1 & size - 1
    return keys, places, size - 1
