"""Ids of URLs; segments of a trie store (trie, filter, id table), their catalogue, ranges of ids.

An id is the host's slot (16 bits) and 48 bits of a seeded hash of the URL. If two collide, the
later URL is a *twin*: it gets the next free id, and the catalogue lists it.

The filter sets two bits of one word of 16 for an id, by its lowest 30 bits: a look-up reads one
place, and one in seven absent URLs passes. The id table, from an id to its URL, has open addressing
and is seven eighths full: a byte of *checks* for each place, then the trie's *numbers*. A URL's
place is the first free one from the remainder of its id; its check is the remainder by `CHECKS`.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any, Final

import marisa_trie  # type: ignore[import-not-found]
import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from scrapy_spider_suite.errors import JobDamagedError, JobFormatError, StoreWriteError
from scrapy_spider_suite.runtime import files

SLOT_SHIFT: Final = 48
LOW: Final = (1 << SLOT_SHIFT) - 1
END: Final = 1 << 64  # above every id

TWIN_BITS: Final = 16  # twins differ in these lowest bits, within which no range of ids is cut

MAX_KEY: Final = 65_535
"""Bytes of a URL that can be stored; more than 30 times what a crawl follows."""

_REMEMBERED: Final = 20_000  # hosts with a remembered slot; some 3 MB

digest = xxhash.xxh3_64_intdigest
"""The hash whose lowest bits are those of an id, with the seed of the store."""


def encode(url: str) -> bytes:
    """The bytes of *url*, lone surrogates included: every str differs from every other."""
    return url.encode("utf-8", "surrogatepass")


def decode(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")


def host_bytes(key: bytes) -> bytes:
    """`urls.normalize.host_of` for bytes; empty if there is no host."""
    parts = key.split(b"/", 3)
    if len(parts) < 3:
        return b""
    authority = parts[2]
    if b":" in authority and not authority.endswith(b"]"):
        return authority.rpartition(b":")[0]
    return authority


class UrlIds:
    """The ids of a store's URLs, for its life. *twins* are the URLs with ids of their own.

    *hash_id* gives the id of a key that is no twin, never 0.
    """

    __slots__ = ("hash_id", "seed", "twins")

    def __init__(self, seed: int, twins: Mapping[str, int] | None = None) -> None:
        self.seed = seed
        self.twins = {bytes.fromhex(key): ident for key, ident in (twins or {}).items()}
        self.hash_id = _make_hash_id(seed)

    def id_of(self, key: bytes) -> int:
        return self.twins.get(key) or self.hash_id(key)

    @staticmethod
    def span(prefix: bytes) -> tuple[int, int]:
        """The lowest id, and the id after the highest, of URLs with *prefix*.

        These are the ids of one slot if *prefix* ends its host with a slash or colon; else all ids.
        """
        authority = prefix.partition(b"://")[2]
        in_brackets = b"[" in authority and b"]" not in authority
        if prefix.count(b"/") < 3 and (in_brackets or not authority.endswith(b":")):
            return 0, END
        low = digest(host_bytes(prefix)) >> 48 << 48
        return low, low + (1 << SLOT_SHIFT)


def _make_hash_id(seed: int) -> Callable[[bytes], int]:
    slots: dict[bytes, int] = {}
    known, hash_of, low = slots.get, digest, LOW

    def hash_id(key: bytes) -> int:
        # As far as the first slash after "http:/", "https:/": the host, with its slash.
        slot = known(start := key[: key.find(b"/", 8) + 1])
        if slot is None:
            slot = hash_of(host_bytes(key)) >> SLOT_SHIFT << SLOT_SHIFT
            # Of other URLs the beginning does not tell the host.
            if start.startswith((b"http://", b"https://")):
                if len(slots) >= _REMEMBERED:
                    slots.clear()
                slots[start] = slot
        return slot | hash_of(key, seed) & low or 1

    return hash_id


Ids = NDArray[np.uint64]
Handles = NDArray[np.int64]
FreshTable = dict[int, int]  # from ids to handles, in the order of the handles

BYTES_A_ROW: Final = 144  # memory of an id and its handle in a `FreshTable`


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


CHECKS: Final = 251  # a prime below 255, which is the check of a place that is free
_FREE: Final = 255
_FULL: Final = 7 / 8
_BYTES: Final = [bytes([number]) for number in range(CHECKS)]

KeyOf = Callable[[int], bytes | None]


def build_id_table(ids: Ids, numbers: NDArray[np.uint32], width: int) -> tuple[bytes, int, int]:
    """The table for *ids* and their *numbers*, in *width* bytes each; its places and window."""
    places = int(len(ids) / _FULL) | 1
    home = (ids % np.uint64(places)).astype(np.int64)
    order = np.argsort(home, kind="stable")
    home, before = home[order], np.arange(len(ids))
    place = np.maximum.accumulate(home - before) + before
    window = int((place - home).max()) + 1
    total = places + window  # as far as is searched
    checks, held = np.full(total, _FREE, np.uint8), np.zeros((total, width), np.uint8)
    checks[place] = (ids[order] % np.uint64(CHECKS)).astype(np.uint8)
    held[place] = numbers[order].astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width]
    return checks.tobytes() + held.tobytes(), places, window


FORMAT: Final = 1
CATALOGUE: Final = "catalogue"


@dataclass(frozen=True, slots=True)
class SegmentRow:
    name: str  # of its file
    keys: int  # URLs in its trie
    trie: int  # bytes of the trie, which is first in the file
    size: int  # bytes of the file
    width: int  # bytes of a trie's number in the id table; 0 in a store without ids
    sum: str  # hash of the file
    removed: tuple[str, ...] = ()  # hexadecimal prefixes of removed URLs
    gone: int = 0  # number of removed URLs
    words: int = 0  # of the filter
    places: int = 0  # of the id table: ids are divided by it, *window* more follow
    window: int = 0  # no URL is as far from its place as this

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
    seed: int  # of its `UrlIds`
    ids: bool  # whether the store has id tables
    ranges: tuple[RangeRow, ...] = (RangeRow(0),)  # in ascending order, the first from 0
    removed: tuple[tuple[str, int], ...] = ()  # prefixes; fresh rows below the handle are removed
    twins: dict[str, int] = field(default_factory=dict)  # hexadecimal keys of twins, and their ids
    format: int = FORMAT

    @property
    def files(self) -> set[str]:
        rows = (segment for row in self.ranges for segment in (row.base, row.recent))
        return {row.name for row in rows if row is not None}

    def encode(self) -> bytes:
        text = msgspec.json.encode(self)
        return xxhash.xxh3_128_hexdigest(text).encode() + b"\n" + text + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Catalogue | None:
        """The catalogue in *data*; None if it is damaged. Raises `JobFormatError`."""
        said, _, text = data.partition(b"\n")
        sum_ = xxhash.xxh3_128_hexdigest(text[:-1])
        if not text.endswith(b"\n") or said.decode("latin-1") != sum_:
            return None
        found = msgspec.json.decode(text)["format"]
        if found != FORMAT:
            raise JobFormatError(f"a store of URLs in format {found}; this release reads {FORMAT}")
        return msgspec.json.decode(text, type=cls)


def read_catalogue(folder: Path) -> Catalogue | None:
    """The catalogue of the store in *folder*. Raises `JobDamagedError`, `JobFormatError`."""
    try:
        data = (folder / CATALOGUE).read_bytes()
    except FileNotFoundError:
        return None
    catalogue = Catalogue.decode(data)
    if catalogue is None:
        raise JobDamagedError(f"{folder}: the catalogue of seen URLs cannot be read")
    return catalogue


def write_catalogue(folder: Path, catalogue: Catalogue) -> None:
    """Write it into *folder*, durably; `install_catalogue` makes it valid. Raises OSError."""
    files.write_synced(folder / CATALOGUE, catalogue.encode())


def install_catalogue(made: Path, folder: Path) -> None:
    """Raises `StoreWriteError`."""
    with files.store_errors(folder):
        (made / CATALOGUE).replace(folder / CATALOGUE)


_MAP: dict[str, Any] = {} if sys.version_info < (3, 13) else {"trackfd": False}

_OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # no fault of the file

ABSENT, PRESENT, MAYBE = range(3)
"""Results of a look-up; MAYBE: the URL is absent, but another one may have its id."""

BASE_TRIES: Final = 2
RECENT_TRIES: Final = 1
"""Tries within a trie: each more makes it smaller, and a look-up half as long again or more."""

Lookup = Callable[[bytes, int], int]


class Segment:
    __slots__ = ("_ids", "_map", "_path", "_removed", "_trie", "key_of", "lookup", "row")

    def __init__(self, folder: Path, row: SegmentRow, ids: UrlIds, *, verify: bool = True) -> None:
        """*verify*: check the whole file now, not at its first use.

        Raises `JobDamagedError` for another file, `StoreWriteError` for want of resources.
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
        if verify:
            self._begin()

    def _begin(self) -> Segment:
        row, whole = self.row, memoryview(self._map)
        if xxhash.xxh3_128_hexdigest(whole) != row.sum:
            raise JobDamagedError(f"{self._path} is not as it was written")
        self._trie = marisa_trie.BinaryTrie().map(whole[: row.trie])
        self.lookup = _make_lookup(self._map, row, self._trie, self._removed)
        begin = _aligned(row.trie) + WORD * row.words
        self.key_of = lambda ident: None
        if row.width:
            self.key_of = _make_key_of(self._map, begin, row, self._trie, self._ids, self._removed)
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


def _make_key_of(
    data: mmap.mmap, start: int, row: SegmentRow, trie: Any, ids: UrlIds,
    removed: tuple[bytes, ...],
) -> KeyOf:  # fmt: skip
    places, window, width, id_of = row.places, row.window, row.width, ids.id_of
    # Four bytes are read, of which the last ones are the number.
    numbers = start + (row.size - start) // (1 + width)
    before, spare = numbers - start * width + width - 4, 8 * (4 - width)
    four, find, restore, bytes_of = Struct("<I").unpack_from, data.find, trie.restore_key, _BYTES

    def key_of(ident: int) -> bytes | None:
        at = start + ident % places
        last, check = at + window, bytes_of[ident % CHECKS]
        while (at := find(check, at, last)) >= 0:
            (number,) = four(data, before + at * width)
            key: bytes = restore(number >> spare)
            if id_of(key) == ident and not (removed and key.startswith(removed)):
                return key
            at += 1
        return None

    return key_of


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
    places = window = 0
    if width:
        table, places, window = build_id_table(found, np.frombuffer(numbers, np.uint32), width)
        rest += table
    files.write_synced(path, text, rest)
    sum_ = xxhash.xxh3_128(text)
    sum_.update(rest)
    return SegmentRow(
        path.name, count, len(text), len(text) + len(rest), width, sum_.hexdigest(),
        words=len(words) // WORD, places=places, window=window,
    )  # fmt: skip


def _aligned(size: int) -> int:
    return size + -size % 4


class Range:
    """One range: at most two segments, and tables of fresh rows; each URL is in one of them.

    *frozen_tables* are being written to a segment.
    """

    __slots__ = ("base", "damaged", "frozen_tables", "high", "open_table", "recent", "row")

    def __init__(self, row: RangeRow, high: int) -> None:
        self.row = row
        self.high = high
        self.base: Segment | None = None
        self.recent: Segment | None = None
        self.open_table: FreshTable = {}
        self.frozen_tables: tuple[FreshTable, ...] = ()
        self.damaged = False
        """Whether a segment is missing: then nothing is written that would leave it out."""

    @property
    def tables(self) -> tuple[FreshTable, ...]:
        return (*self.frozen_tables, self.open_table)

    @property
    def count(self) -> int:
        return sum(map(len, self.tables))

    def find(self, ident: int) -> int:
        """The handle of the fresh row of *ident*, or -1."""
        handle = self.open_table.get(ident, -1)
        for table in self.frozen_tables if handle < 0 else ():
            handle = max(handle, table.get(ident, -1))
        return handle

    def freeze(self) -> tuple[FreshTable, ...]:
        if self.open_table:
            self.frozen_tables, self.open_table = self.tables, {}
        return self.frozen_tables

    def drop(self, handles: Handles) -> None:
        gone = set(handles.tolist())
        *frozen, self.open_table = (
            {ident: handle for ident, handle in table.items() if handle not in gone}
            for table in self.tables
        )
        self.frozen_tables = tuple(frozen)

    @property
    def oldest(self) -> int:
        """The lowest handle; -1 if no row is fresh."""
        return next((next(iter(table.values())) for table in self.tables if table), -1)

    @property
    def segments(self) -> list[Segment]:
        return [segment for segment in (self.recent, self.base) if segment is not None]


class Ranges:
    """All ranges of a store, by id; *lows* are their first ids, *damage* the unusable segments."""

    def __init__(self, folder: Path, ids: UrlIds) -> None:
        self.damage: dict[str, str] = {}
        self._folder, self._ids = folder, ids
        self.all: list[Range] = []
        self.lows: list[int] = []

    def at(self, ident: int) -> Range:
        return self.all[bisect_right(self.lows, ident) - 1]

    def between(self, low: int, high: int) -> list[Range]:
        return [part for part in self.all if part.row.low < high and low < part.high]

    def __iter__(self) -> Iterator[Range]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def adopt(
        self, catalogue: Catalogue, built: Mapping[int, int] | None = None, *, verify: bool = True
    ) -> None:
        """Become *catalogue*, or raise `StoreWriteError`. *built*: see `SegmentBuild`."""
        old = {part.row.low: part for part in self.all}
        known = {s.row.name: s for part in self.all for s in part.segments}
        rows = [row for each in catalogue.ranges for row in (each.base, each.recent) if row]
        segments = {row.name: self._segment(row, known, verify) for row in rows}
        highs = [row.low for row in catalogue.ranges[1:]] + [END]
        ranges = []
        for row, high in zip(catalogue.ranges, highs, strict=True):
            part = old.get(row.low)
            parent = part or (self.at(row.low) if self.all else None)
            tables = (built or {}).get(parent.row.low, 0) if parent is not None else 0
            if part is None or part.high != high:
                part = Range(row, high)
                for table in () if parent is None else parent.tables[tables:]:
                    part.open_table |= {i: table[i] for i in table if row.low <= i < high}
            else:
                part.frozen_tables = part.frozen_tables[tables:]
            part.row = row
            part.base = segments[row.base.name] if row.base else None
            part.recent = segments[row.recent.name] if row.recent else None
            part.damaged = (part.base is None) != (row.base is None) or (
                (part.recent is None) != (row.recent is None)
            )
            ranges.append(part)
        self.all, self.lows = ranges, [part.row.low for part in ranges]

    def _segment(
        self, row: SegmentRow, known: Mapping[str, Segment], verify: bool
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
