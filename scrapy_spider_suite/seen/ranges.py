"""The ranges of ids of a store: the segments and the fresh rows of each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.seen.segments import Catalogue, RangeRow, Segment, SegmentRow
from scrapy_spider_suite.seen.url_keys import (
    END,
    LOW,
    SLOT_SHIFT,
    FreshTable,
    Handles,
    Ids,
    UrlIds,
    remember_host,
)


class Range:
    """One range: at most two segments, and tables of fresh rows.

    Invariant: every URL of the range is in exactly one of them. *frozen_tables* are being written
    to a segment, or come from the range that this one was cut from: only rows in this range count.
    """

    __slots__ = (
        "base", "count", "damaged", "frozen_tables", "high", "open_table", "recent", "row",
    )  # fmt: skip

    def __init__(self, row: RangeRow, high: int) -> None:
        self.row = row
        self.high = high
        self.base: Segment | None = None
        self.recent: Segment | None = None
        self.open_table = FreshTable()
        self.frozen_tables: tuple[FreshTable, ...] = ()
        self.count = 0
        """Fresh rows."""
        self.damaged = False
        """Whether a segment is missing: then nothing is written that would leave it out."""

    def find(self, ident: int) -> int:
        handle = self.open_table.find(ident)
        if handle < 0:
            for table in self.frozen_tables:
                if (handle := table.find(ident)) >= 0:
                    break
        return handle

    def may_find(self, hash_: int) -> bool:
        if self.open_table.has_hash(hash_):
            return True
        # A generator costs more than to see that there is nothing to look into.
        tables = self.frozen_tables
        return bool(tables) and any(table.has_hash(hash_) for table in tables)

    def put(self, ident: int, handle: int) -> None:
        self.open_table.put(ident, handle)
        self.count += 1

    def freeze(self) -> tuple[FreshTable, ...]:
        if self.open_table.count:
            self.frozen_tables = (*self.frozen_tables, self.open_table)
            self.open_table = FreshTable()
        return self.frozen_tables

    def thaw(self, built: int) -> None:
        self.frozen_tables = self.frozen_tables[built:]
        frozen = sum(len(self.rows_in(table)[0]) for table in self.frozen_tables)
        self.count = self.open_table.count + frozen

    def inherit(self, tables: Sequence[tuple[FreshTable, Ids]]) -> None:
        found = [(table, int(self._mine(ids).sum())) for table, ids in tables]
        self.frozen_tables = tuple(table for table, count in found if count)
        self.count = sum(count for _, count in found)

    def drop(self, handles: Handles) -> None:
        kept = [self.rows_in(table) for table in (*self.frozen_tables, self.open_table)]
        tables = [FreshTable.from_rows(ids[left], held[left]) for ids, held in kept
                  for left in [~np.isin(held, handles)]]  # fmt: skip
        *frozen, self.open_table = tables
        self.frozen_tables = tuple(table for table in frozen if table.count)
        self.count -= len(handles)

    def rows(self) -> tuple[Ids, Handles]:
        found = [self.rows_in(table) for table in (*self.frozen_tables, self.open_table)]
        return np.concatenate([ids for ids, _ in found]), np.concatenate([h for _, h in found])

    def rows_in(self, table: FreshTable) -> tuple[Ids, Handles]:
        found = list(self.pieces(table))
        return np.concatenate([ids for ids, _ in found]), np.concatenate([h for _, h in found])

    def pieces(self, table: FreshTable) -> Iterator[tuple[Ids, Handles]]:
        """`rows_in` in pieces, none of which takes long."""
        for ids, handles in table.pieces():
            mine = self._mine(ids)
            yield ids[mine], handles[mine]

    def _mine(self, ids: Ids) -> NDArray[np.bool_]:
        return (ids >= np.uint64(self.row.low)) & (ids <= np.uint64(self.high - 1))

    @property
    def oldest(self) -> int:
        """A lower bound of the handles; -1 if no row is fresh."""
        return next((t.oldest for t in (*self.frozen_tables, self.open_table) if t.count), -1)

    @property
    def segments(self) -> list[Segment]:
        return [segment for segment in (self.recent, self.base) if segment is not None]

    def __repr__(self) -> str:
        return f"<Range from {self.row.low:016x}: {self.segments}, {self.count} fresh>"


class Ranges:
    """All ranges of a store, by id; *lows* are their first ids, *damage* the unusable segments.

    *only* is the single range, if the hash of a URL is enough for a look-up in it; else *by_host*
    has ranges of hosts for which it is (see `remember_host`).
    """

    def __init__(self, folder: Path, ids: UrlIds) -> None:
        self.damage: dict[str, str] = {}
        self._folder, self._ids = folder, ids
        self.all: list[Range] = []
        self.lows: list[int] = []
        self._plain = False
        self.only: Range | None = None
        self.by_host: dict[bytes, Range] = {}

    def at(self, ident: int) -> Range:
        return self.all[bisect_right(self.lows, ident) - 1]

    def index(self, ids: Ids) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.searchsorted(np.array(self.lows, np.uint64), ids, "right") - 1

    def between(self, low: int, high: int) -> list[Range]:
        return [part for part in self.all if part.row.low < high and low < part.high]

    def __iter__(self) -> Iterator[Range]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def adopt(
        self, catalogue: Catalogue, built: Mapping[int, int] | None = None,
        verify: bool | None = True,
    ) -> None:  # fmt: skip
        """Become what *catalogue* says. *verify*: see `Segment`. *built*: see `SegmentBuild`.

        Raises `StoreWriteError`; nothing has changed then.
        """
        old = {part.row.low: part for part in self.all}
        known = {s.row.name: s for part in self.all for s in part.segments}
        rows = [row for each in catalogue.ranges for row in (each.base, each.recent) if row]
        segments = {row.name: self._segment(row, known, verify) for row in rows}
        highs = [row.low for row in catalogue.ranges[1:]] + [END]
        ranges = []
        legacies: dict[int, list[tuple[FreshTable, Ids]]] = {}
        for row, high in zip(catalogue.ranges, highs, strict=True):
            part = old.get(row.low)
            parent = part or (self.at(row.low) if self.all else None)
            tables = (built or {}).get(parent.row.low, 0) if parent is not None else 0
            if part is None or part.high != high:
                part = Range(row, high)
                if parent is not None:
                    if parent.row.low not in legacies:
                        left = (*parent.frozen_tables[tables:], parent.open_table)
                        legacies[parent.row.low] = [(t, t.ids()) for t in left if t.count]
                    part.inherit(legacies[parent.row.low])
            elif tables:
                part.thaw(tables)
            part.row = row
            part.base = segments[row.base.name] if row.base else None
            part.recent = segments[row.recent.name] if row.recent else None
            part.damaged = (part.base is None) != (row.base is None) or (
                (part.recent is None) != (row.recent is None)
            )
            ranges.append(part)
        self.all, self.lows = ranges, [part.row.low for part in ranges]
        self.place()

    def place(self) -> None:
        """Recompute *only* and *by_host*, after a change of ranges or twins."""
        self._plain = self._ids.mask == LOW and not self._ids.twins
        self.only = self.all[0] if self._plain and len(self.all) == 1 else None
        self.by_host = {}

    def remember(self, key: bytes, ident: int) -> None:
        """Note the range of the host of *key*, whose id is *ident*, unless the host is cut."""
        part = self.at(ident)
        slot = ident >> SLOT_SHIFT << SLOT_SHIFT
        if self._plain and part.row.low <= slot and slot + LOW < part.high:
            remember_host(self.by_host, key, part)

    def _segment(
        self, row: SegmentRow, known: Mapping[str, Segment], verify: bool | None
    ) -> Segment | None:
        if row.name in self.damage:
            return None
        if row.name in known and known[row.name].row == row:
            return known[row.name]
        try:
            return Segment(self._folder, row, self._ids, verify=verify)
        except JobDamagedError as error:
            self.damage[row.name] = str(error)
            return None
