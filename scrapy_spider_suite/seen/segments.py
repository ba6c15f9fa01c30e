"""Segments of a trie store (trie, filter, id table), and the catalogue that names them.

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
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import marisa_trie  # type: ignore[import-not-found]
import numpy as np
import xxhash

from scrapy_spider_suite.errors import JobDamagedError, JobFormatError, StoreWriteError
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.seen import url_ids
from scrapy_spider_suite.seen.url_ids import IdTableLayout, KeyOf
from scrapy_spider_suite.seen.url_keys import LOW, Ids, UrlIds

WORD: Final = 2
"""Bytes of a word."""
USED: Final = (1 << 30) - 1
"""The bits of an id that are used; their remainder by the number of words is the word's number."""
PATTERNS: Final = [1 << (n & 15) | 1 << ((n & 15) + 1 + (n >> 4) % 15 & 15) for n in range(256)]
"""The two bits, by the lowest byte of an id."""
_URLS_A_WORD: Final = 32 / 9
"""URLs, on average."""


def filter_words(ids: Ids) -> bytes:
    # An odd number of words: which of them it is then says nothing of what is set in it.
    count = int(len(ids) / _URLS_A_WORD) | 1
    low = (ids & np.uint64(USED)).astype(np.int64)
    words = np.zeros(count, np.uint16)
    np.bitwise_or.at(words, low % count, np.array(PATTERNS, np.uint16)[low & 255])
    return words.tobytes()


def filter_words_at(data: mmap.mmap, start: int, count: int) -> memoryview:
    return memoryview(data)[start : start + WORD * count].cast("H")


FORMAT: Final = 1
COPIES: Final = ("catalogue-0", "catalogue-1")


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """One segment."""

    name: str  # its file
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
    """One range of ids, from *low* to the next range's: its segments, the older one first.

    They have the fresh rows with handles below *mark*.
    """

    low: int
    mark: int = 0
    base: SegmentRow | None = None
    recent: SegmentRow | None = None


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The contents of a store.

    Attributes:
        removed: prefixes, and the handle below which fresh rows with them are removed.
        twins: keys of twins in hexadecimal digits, and their ids.
    """

    serial: int  # counts the catalogues of a store
    seed: int  # of its `UrlIds`; *mask* likewise
    ids: bool  # whether the store has id tables
    mask: int = LOW
    ranges: tuple[RangeRow, ...] = (RangeRow(0),)  # in ascending order, the first from 0
    removed: tuple[tuple[str, int], ...] = ()
    twins: dict[str, int] = field(default_factory=dict)

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
        if not text.endswith(b"\n") or digest.decode("latin-1") != xxhash.xxh3_128_hexdigest(
            text[:-1]
        ):
            return None
        row: dict[str, Any] = json.loads(text)
        if (found := row.pop("format")) != FORMAT:
            raise JobFormatError(f"a store of URLs in format {found}; this release reads {FORMAT}")
        row["ranges"] = tuple(_range(part) for part in row["ranges"])
        row["removed"] = tuple((prefix, mark) for prefix, mark in row["removed"])
        return cls(**row)

    def url_ids(self) -> UrlIds:
        return UrlIds(self.seed, self.mask, self.twins)


def _range(row: dict[str, Any]) -> RangeRow:
    return RangeRow(row["low"], row["mark"], _segment(row["base"]), _segment(row["recent"]))


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
    found: list[Catalogue] = []
    damaged = []
    for name in COPIES:
        try:
            data = (folder / name).read_bytes()
        except FileNotFoundError:
            continue
        copy = Catalogue.decode(data)
        if copy is None:
            damaged.append(name)
        else:
            found.append(copy)
    if damaged and not found:
        raise JobDamagedError(f"{folder}: no copy of the catalogue of seen URLs can be read")
    return max(found, key=lambda copy: copy.serial, default=None), damaged


def write_catalogue(folder: Path, catalogue: Catalogue) -> None:
    """Write durable copies into *folder*; `install_catalogue` makes them valid. Raises OSError."""
    data = catalogue.encode()
    for name in COPIES:
        files.write_synced(folder / name, data)


def install_catalogue(made: Path, folder: Path) -> None:
    """Raises `StoreWriteError`."""
    first, second = COPIES
    try:
        (made / first).replace(folder / first)
    except OSError as error:
        raise StoreWriteError(f"{folder}: {error.strerror}") from error
    # It is done; the other one is older then, and known to be.
    with suppress(OSError):
        (made / second).replace(folder / second)


_MAP: dict[str, Any] = {} if sys.version_info < (3, 13) else {"trackfd": False}

_OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Why a file cannot be opened that says nothing of the file."""

ABSENT, PRESENT, MAYBE = range(3)
"""Results of a look-up: absent; present; absent, but a URL of the same id may be present."""

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

        Raises `JobDamagedError` if the file is not what *row* says, `StoreWriteError` if it cannot
        be opened for want of files or memory.
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
        self.lookup: Lookup = self._lookup_first
        """For a key and its id: `ABSENT`, `PRESENT`, or `MAYBE`: its id is here. The hash of the id
        is enough."""
        self.key_of: KeyOf = self._key_of_first
        """The URL here that has an id; None in a store without ids."""
        if verify is not None:
            self._begin(verify=verify)

    def _begin(self, *, verify: bool = True) -> None:
        row, whole = self.row, memoryview(self._map)
        if verify and _sums(whole, row.trie) != row.sums:
            raise JobDamagedError(f"{self._path} is not as it was written")
        self._trie = marisa_trie.BinaryTrie().map(whole[: row.trie])
        self.lookup = _make_lookup(self._map, row, self._trie, self._removed)
        self.key_of = self._make_key_of()

    def _make_key_of(self) -> KeyOf:
        row = self.row
        begin = _aligned(row.trie) + WORD * row.words
        if row.way is None:
            return lambda ident: None
        return url_ids.id_lookup(
            self._map, begin, row.size, row.width, row.way, self._trie, self._ids, self._removed
        )

    def _lookup_first(self, key: bytes, ident: int) -> int:
        self._begin()
        return self.lookup(key, ident)

    def _key_of_first(self, ident: int) -> bytes | None:
        self._begin()
        return self.key_of(ident)

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


# What is looked up for every link: names of a function cost less than attributes do.


def _make_lookup(data: mmap.mmap, row: SegmentRow, trie: Any, removed: tuple[bytes, ...]) -> Lookup:
    used, patterns, count = USED, PATTERNS, row.words
    words = filter_words_at(data, _aligned(row.trie), count)

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


def _sums(data: memoryview, trie: int) -> tuple[str, str]:
    return xxhash.xxh3_128_hexdigest(data[:trie]), xxhash.xxh3_128_hexdigest(data[trie:])
