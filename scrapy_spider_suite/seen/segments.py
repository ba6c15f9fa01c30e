"""Segments of a trie store (trie, filter, id table), their catalogue, and the ranges of ids.

The filter sets two bits of one word of 16 for an id, by its lowest 30 bits: a look-up reads one
place, and one in seven absent URLs passes. Of two copies of the catalogue the later whole one
holds.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import marisa_trie  # type: ignore[import-not-found]
import numpy as np
import xxhash
from numpy.typing import NDArray

from scrapy_spider_suite.errors import JobDamagedError, JobFormatError, StoreWriteError
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.seen import url_ids
from scrapy_spider_suite.seen.url_ids import IdTableLayout, KeyOf
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

WORD: Final = 2  # bytes of a word
USED: Final = (1 << 30) - 1
"""The bits of an id that are used; their remainder by the number of words is the word's number."""
PATTERNS: Final = [1 << (n & 15) | 1 << ((n & 15) + 1 + (n >> 4) % 15 & 15) for n in range(256)]
"""The two bits, by the lowest byte of an id."""
_URLS_A_WORD: Final = 32 / 9  # URLs, on average


def filter_words(ids: Ids) -> bytes:
    # An odd number of words: which of them it is then says nothing of what is set in it.
    count = int(len(ids) / _URLS_A_WORD) | 1
    low = (ids & np.uint64(USED)).astype(np.int64)
    words = np.zeros(count, np.uint16)
    np.bitwise_or.at(words, low % count, np.array(PATTERNS, np.uint16)[low & 255])
    return words.tobytes()


FORMAT: Final = 1
COPIES: Final = ("catalogue-0", "catalogue-1")


@dataclass(frozen=True, slots=True)
class SegmentRow:
    name: str  # of its file
    keys: int  # URLs in its trie
    trie: int  # bytes of the trie, which is first in the file
    size: int  # bytes of the file
    width: int  # bytes of a trie's number in the id table; 0 in a store without ids
    sums: tuple[str, str]  # hashes of the trie and of the rest
    removed: tuple[str, ...] = ()  # hexadecimal prefixes of removed URLs
    gone: int = 0  # number of removed URLs
    words: int = 0  # of the filter
    way: IdTableLayout | None = None  # layout of the id table; None in a store without ids

    @property
    def id_table(self) -> int:
        return self.size - self.trie - WORD * self.words if self.width else 0


@dataclass(frozen=True, slots=True)
class RangeRow:
    low: int  # first id
    mark: int = 0  # the segments have the fresh rows with handles below it
    base: SegmentRow | None = None
    recent: SegmentRow | None = None


@dataclass(frozen=True, slots=True)
class Catalogue:
    serial: int  # counts the catalogues of a store
    seed: int  # of its `UrlIds`; *mask* likewise
    ids: bool  # whether the store has id tables
    mask: int = LOW
    ranges: tuple[RangeRow, ...] = (RangeRow(0),)  # in ascending order, the first from 0
    removed: tuple[tuple[str, int], ...] = ()  # prefixes; fresh rows below the handle are removed
    twins: dict[str, int] = field(default_factory=dict)  # hexadecimal keys of twins, and their ids

    @property
    def files(self) -> set[str]:
        rows = (segment for row in self.ranges for segment in (row.base, row.recent))
        return {row.name for row in rows if row is not None}

    @property
    def mark(self) -> int:
        return max(row.mark for row in self.ranges)

    def encode(self) -> bytes:
        text = json.dumps({"format": FORMAT, **asdict(self)}).encode()
        return xxhash.xxh3_128_hexdigest(text).encode() + b"\n" + text + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Catalogue | None:
        """The catalogue in *data*; None if it is damaged. Raises `JobFormatError`."""
        digest, _, text = data.partition(b"\n")
        sum_ = xxhash.xxh3_128_hexdigest(text[:-1])
        if not text.endswith(b"\n") or digest.decode("latin-1") != sum_:
            return None
        row: dict[str, Any] = json.loads(text)
        if (found := row.pop("format")) != FORMAT:
            raise JobFormatError(f"a store of URLs in format {found}; this release reads {FORMAT}")
        row["ranges"] = tuple(
            RangeRow(part["low"], part["mark"], _segment(part["base"]), _segment(part["recent"]))
            for part in row["ranges"]
        )
        row["removed"] = tuple((prefix, mark) for prefix, mark in row["removed"])
        return cls(**row)

    def url_ids(self) -> UrlIds:
        return UrlIds(self.seed, self.mask, self.twins)


def _segment(row: dict[str, Any] | None) -> SegmentRow | None:
    if row is None:
        return None
    way = IdTableLayout(**row["way"]) if row.get("way") else None
    some = {"sums": tuple(row["sums"]), "removed": tuple(row["removed"]), "way": way}
    return SegmentRow(**row | some)


def read_catalogue(folder: Path) -> tuple[Catalogue | None, list[str]]:
    """The catalogue of the store in *folder*, or None; and the names of damaged copies.

    Raises `JobDamagedError` if no copy can be read, `JobFormatError`.
    """
    copies: dict[str, Catalogue | None] = {}
    for name in COPIES:
        with suppress(FileNotFoundError):
            copies[name] = Catalogue.decode((folder / name).read_bytes())
    found = [copy for copy in copies.values() if copy is not None]
    if copies and not found:
        raise JobDamagedError(f"{folder}: no copy of the catalogue of seen URLs can be read")
    damaged = [name for name, copy in copies.items() if copy is None]
    return max(found, key=lambda copy: copy.serial, default=None), damaged


def write_catalogue(folder: Path, catalogue: Catalogue) -> None:
    """Write durable copies into *folder*; `install_catalogue` makes them valid. Raises OSError."""
    data = catalogue.encode()
    for name in COPIES:
        files.write_synced(folder / name, data)


def install_catalogue(made: Path, folder: Path) -> None:
    """Raises `StoreWriteError`."""
    first, second = COPIES
    with files.store_errors(folder):
        (made / first).replace(folder / first)
    # It is done; the other one is older then, and known to be.
    with suppress(OSError):
        (made / second).replace(folder / second)


_MAP: dict[str, Any] = {} if sys.version_info < (3, 13) else {"trackfd": False}

_OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # no fault of the file

ABSENT, PRESENT, MAYBE = range(3)
"""Results of a look-up; MAYBE: the URL is absent, but another one may have its id."""

BASE_TRIES: Final = 2
RECENT_TRIES: Final = 1
"""Tries within a trie: each more makes it smaller, and a look-up half as long again or more."""

Lookup = Callable[[bytes, int], int]


class Segment:
    __slots__ = (
        "_ids", "_map", "_path", "_removed", "_trie", "key_of", "lookup", "row",
    )  # fmt: skip

    def __init__(
        self, folder: Path, row: SegmentRow, ids: UrlIds, *, verify: bool | None = True
    ) -> None:
        """*verify*: read and check the whole file; None: at its first use; False: never.

        Raises `JobDamagedError` if the file does not match *row*, `StoreWriteError` for want of
        open files or memory.
        """
        path = self._path = folder / row.name
        try:
            with path.open("rb") as file:
                if (found := os.fstat(file.fileno()).st_size) != row.size:
                    raise JobDamagedError(f"{path} has {found} bytes, not {row.size}")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, **_MAP)
        except OSError as error:
            if error.errno in _OURS:
                raise StoreWriteError(f"{path}: {error.strerror}") from error
            raise JobDamagedError(f"{path}: {error.strerror}") from error
        self.row = row
        self._ids = ids
        self._removed = tuple(bytes.fromhex(prefix) for prefix in row.removed)
        self._trie: Any = None
        self.lookup: Lookup = lambda key, ident: self._begin().lookup(key, ident)
        """For a key and its id: `ABSENT`, `PRESENT`, or `MAYBE`: its id is here. The hash of the id
        is enough."""
        self.key_of: KeyOf = lambda ident: self._begin().key_of(ident)
        """The URL here that has an id; None in a store without ids."""
        if verify is not None:
            self._begin(verify=verify)

    def _begin(self, *, verify: bool = True) -> Segment:
        row, whole = self.row, memoryview(self._map)
        trie, rest = whole[: row.trie], whole[row.trie :]
        if verify and tuple(map(xxhash.xxh3_128_hexdigest, (trie, rest))) != row.sums:
            raise JobDamagedError(f"{self._path} is not as it was written")
        self._trie = marisa_trie.BinaryTrie().map(trie)
        self.lookup = _make_lookup(self._map, row, self._trie, self._removed)
        begin = _aligned(row.trie) + WORD * row.words
        self.key_of = lambda ident: None
        if row.way is not None:
            self.key_of = url_ids.id_lookup(
                self._map, begin, row.size, row.width, row.way, self._trie, self._ids,
                self._removed,
            )  # fmt: skip
        return self

    def keys(self, prefix: bytes = b"") -> Iterator[bytes]:
        # A generator, for it must hold this object: the trie does not hold its map.
        if self._trie is None:
            self._begin()
        removed = self._removed
        for key in self._trie.iterkeys(prefix):
            if not (removed and key.startswith(removed)):
                yield key

    def __len__(self) -> int:
        return self.row.keys - self.row.gone

    def __repr__(self) -> str:
        return f"<Segment {self.row.name}: {len(self)} URLs>"


def _make_lookup(data: mmap.mmap, row: SegmentRow, trie: Any, removed: tuple[bytes, ...]) -> Lookup:
    # Each link is looked up: names of a function cost less than attributes do.
    used, patterns, count, start = USED, PATTERNS, row.words, _aligned(row.trie)
    words = memoryview(data)[start : start + WORD * count].cast("H")

    def lookup(key: bytes, ident: int) -> int:
        low = ident & used
        pattern = patterns[low & 255]
        if words[low % count] & pattern != pattern:
            return ABSENT
        if removed and key.startswith(removed):
            return MAYBE
        return PRESENT if key in trie else MAYBE

    return lookup


def read_trie(folder: Path, row: SegmentRow) -> Iterator[bytes]:
    """The URLs of a segment whose id table may be damaged. Raises `JobDamagedError`."""
    data = (folder / row.name).read_bytes()[: row.trie]
    if xxhash.xxh3_128_hexdigest(data) != row.sums[0]:
        raise JobDamagedError(f"{folder / row.name} is not as it was written")
    removed = tuple(bytes.fromhex(prefix) for prefix in row.removed)
    for key in marisa_trie.BinaryTrie().map(data).iterkeys():
        if not (removed and key.startswith(removed)):
            yield key


def write_segment(
    path: Path, keys: Iterable[bytes], ids: UrlIds, *, id_table: bool, recent: bool
) -> SegmentRow | None:
    """Write *keys* as a durable segment; None, and no file, without keys. Raises OSError."""
    # The cache of the largest kind makes look-ups a tenth faster, and the trie a hundredth larger.
    trie = marisa_trie.BinaryTrie(
        keys,
        num_tries=RECENT_TRIES if recent else BASE_TRIES,
        cache_size=marisa_trie.HUGE_CACHE,
    )
    count = len(trie)
    if not count:
        return None
    numbers, idents = array("I"), array("Q")
    for key, number in trie.iteritems():
        numbers.append(number)
        idents.append(ids.id_of(key))
    found = np.frombuffer(idents, np.uint64)
    words = filter_words(found)
    text = trie.tobytes()
    rest = words.rjust(len(words) + -len(text) % 4, b"\0")
    width = (max(1, count - 1).bit_length() + 7) // 8 if id_table else 0
    way: IdTableLayout | None = None
    if width:
        table, way = url_ids.build_id_table(found, np.frombuffer(numbers, np.uint32), width)
        rest += table
    files.write_synced(path, text, rest)
    sums = xxhash.xxh3_128_hexdigest(text), xxhash.xxh3_128_hexdigest(rest)
    size = len(text) + len(rest)
    return SegmentRow(
        path.name, count, len(text), size, width, sums, words=len(words) // WORD, way=way
    )


def _aligned(size: int) -> int:
    return size + -size % 4


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
        self.count = 0  # fresh rows
        self.damaged = False
        """Whether a segment is missing: then nothing is written that would leave it out."""

    def find(self, ident: int) -> int:
        """The handle of the fresh row of *ident*, or -1."""
        for table in (self.open_table, *self.frozen_tables):
            if (handle := table.find(ident)) >= 0:
                return handle
        return -1

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
        frozen = sum(len(self._rows_in(table)[0]) for table in self.frozen_tables)
        self.count = self.open_table.count + frozen

    def inherit(self, tables: Sequence[tuple[FreshTable, Ids]]) -> None:
        counts = [int(self._mine(ids).sum()) for _, ids in tables]
        self.frozen_tables = tuple(t for (t, _), n in zip(tables, counts, strict=True) if n)
        self.count = sum(counts)

    def drop(self, handles: Handles) -> None:
        tables = []
        for table in (*self.frozen_tables, self.open_table):
            ids, held = self._rows_in(table)
            left = ~np.isin(held, handles)
            tables.append(FreshTable.from_rows(ids[left], held[left]))
        *frozen, self.open_table = tables
        self.frozen_tables = tuple(table for table in frozen if table.count)
        self.count -= len(handles)

    def rows(self) -> tuple[Ids, Handles]:
        return self._rows_in(*self.frozen_tables, self.open_table)

    def _rows_in(self, *tables: FreshTable) -> tuple[Ids, Handles]:
        found = [piece for table in tables for piece in self.pieces(table)]
        return np.concatenate([ids for ids, _ in found]), np.concatenate([h for _, h in found])

    def pieces(self, table: FreshTable) -> Iterator[tuple[Ids, Handles]]:
        """The rows of *table* in this range, in pieces none of which takes long."""
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


class Ranges:
    """All ranges of a store, by id; *lows* are their first ids, *damage* the unusable segments.

    *only* is the single range, if a URL's hash is enough for a look-up; else *by_host* has the
    ranges of such hosts (see `remember_host`).
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
        self.clear_shortcuts()

    def clear_shortcuts(self) -> None:
        """Recompute *only* and *by_host*, after a change of ranges or twins."""
        self._plain = self._ids.mask == LOW and not self._ids.twins
        self.only = self.all[0] if self._plain and len(self.all) == 1 else None
        self.by_host = {}

    def remember_range(self, key: bytes, ident: int) -> None:
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
