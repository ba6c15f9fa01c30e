"""A segment: an immutable file with a trie of URLs, a filter before it, and the way back from ids.

The file is the trie (``marisa-trie``, mapped into memory), the words of its filter, and in a store
with ids the table that leads from them to the trie's numbers (see `wayback`).

Segments of formats 1 and 2 have buckets in its place, those of format 1 in that of the filter, too.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import marisa_trie  # type: ignore[import-not-found]
import numpy as np
import xxhash

from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.seen import buckets, filters, wayback
from scrapy_spider_suite.seen.catalogue import SegmentRow
from scrapy_spider_suite.seen.identity import Identity
from scrapy_spider_suite.seen.wayback import KeyOf, Way

_MAP: dict[str, Any] = {} if sys.version_info < (3, 13) else {"trackfd": False}

_OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Why a file cannot be opened that says nothing of the file."""

ABSENT, HELD, MAYBE = range(3)
"""What is said of a URL: not here; here; or not here, but another one of the same id may be."""

BASE_TRIES: Final = 2
RECENT_TRIES: Final = 1
"""Tries within a trie: each more makes it smaller, and a look-up half as long again or more."""

Look = Callable[[bytes, int], int]


class Segment:
    """A segment that is there to be looked up."""

    __slots__ = (
        "_identity", "_map", "_path", "_removed", "_trie", "_twins", "key_of", "look", "row",
    )  # fmt: skip

    def __init__(
        self, folder: Path, row: SegmentRow, identity: Identity, twins: Mapping[bytes, int],
        *, verify: bool | None = True,
    ) -> None:  # fmt: skip
        """*verify* reads all of the file; None does so when it is first looked into.

        Raises `JobDamagedError` if it is not what *row* says, `StoreWriteError` if it cannot be
        opened now, for want of files or memory: nothing is the matter with it.
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
        self._identity, self._twins = identity, twins
        self._removed = tuple(bytes.fromhex(prefix) for prefix in row.removed)
        self._trie: Any = None
        self.look: Look = self._look_first
        """Whether a key with an id is here: `ABSENT`, `HELD`, or `MAYBE` its id is. Of the id its
        hash will do."""
        self.key_of: KeyOf = self._key_of_first
        """The URL here that has an id; None in a store without ids."""
        if verify is not None:
            self._begin(verify=verify)

    def _begin(self, *, verify: bool = True) -> None:
        """Look into the file: one that is damaged would take the process with it."""
        row, whole = self.row, memoryview(self._map)
        if verify and _sums(whole, row.trie) != row.sums:
            raise JobDamagedError(f"{self._path} is not as it was written")
        self._trie = marisa_trie.BinaryTrie().map(whole[: row.trie])
        looking = _looking if row.words else _looking_at_checks
        self.look = looking(self._map, row, self._trie, self._removed)
        self.key_of = self._leading_back()

    def _leading_back(self) -> KeyOf:
        row = self.row
        begin = _aligned(row.trie) + filters.WORD * row.words
        found = self._trie, self._identity, self._twins, self._removed
        if not row.width:
            return lambda ident: None
        if row.way is None:
            return buckets.leading_back(self._map, begin, row.keys, row.width, *found)
        return wayback.leading_back(self._map, begin, row.size, row.width, row.way, *found)

    def _look_first(self, key: bytes, ident: int) -> int:
        self._begin()
        return self.look(key, ident)

    def _key_of_first(self, ident: int) -> bytes | None:
        self._begin()
        return self.key_of(ident)

    def keys(self, prefix: bytes = b"") -> Iterator[bytes]:
        """The URLs here that begin with *prefix*, in no order."""
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


def _looking(data: mmap.mmap, row: SegmentRow, trie: Any, removed: tuple[bytes, ...]) -> Look:
    """`Segment.look`."""
    used, patterns, count = filters.USED, filters.PATTERNS, row.words
    words = filters.words_at(data, _aligned(row.trie), count)

    def look(key: bytes, ident: int) -> int:
        low = ident & used
        pattern = patterns[low & 255]
        if words[low % count] & pattern != pattern:
            return ABSENT
        if removed and key.startswith(removed):
            return MAYBE
        return HELD if key in trie else MAYBE

    return look


def _looking_at_checks(
    data: mmap.mmap, row: SegmentRow, trie: Any, removed: tuple[bytes, ...]
) -> Look:
    """`Segment.look` of format 1."""
    may_hold = buckets.may_hold(data, row.trie, row.keys)

    def look(key: bytes, ident: int) -> int:
        if not may_hold(ident):
            return ABSENT
        if removed and key.startswith(removed):
            return MAYBE
        return HELD if key in trie else MAYBE

    return look


def trie_of(folder: Path, row: SegmentRow) -> Iterator[bytes]:
    """The URLs of a segment of which only the trie may be whole. Raises `JobDamagedError`."""
    data = (folder / row.name).read_bytes()[: row.trie]
    if xxhash.xxh3_128_hexdigest(data) != row.sums[0]:
        raise JobDamagedError(f"{folder / row.name} is not as it was written")
    removed = tuple(bytes.fromhex(prefix) for prefix in row.removed)
    for key in marisa_trie.BinaryTrie().map(data).iterkeys():
        if not (removed and key.startswith(removed)):
            yield key


def write(
    path: Path, keys: Iterable[bytes], identity: Identity, twins: Mapping[bytes, int],
    *, ids: bool, recent: bool,
) -> SegmentRow | None:  # fmt: skip
    """Write *keys* as a durable segment; None, and no file, if there are none. Raises OSError."""
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
        idents.append(twins.get(key) or identity.of(key))
    found = np.frombuffer(idents, np.uint64)
    words = filters.words_of(found)
    text = trie.tobytes()
    rest = words.rjust(len(words) + -len(text) % 4, b"\0")
    width = (max(1, count - 1).bit_length() + 7) // 8 if ids else 0
    way: Way | None = None
    if width:
        table, way = wayback.table_of(found, np.frombuffer(numbers, np.uint32), width)
        rest += table
    files.write(path, text, rest)
    sums = xxhash.xxh3_128_hexdigest(text), xxhash.xxh3_128_hexdigest(rest)
    size = len(text) + len(rest)
    return SegmentRow(
        path.name, count, len(text), size, width, sums, words=len(words) // filters.WORD, way=way
    )


def _aligned(size: int) -> int:
    return size + -size % 4


def _sums(data: memoryview, trie: int) -> tuple[str, str]:
    return xxhash.xxh3_128_hexdigest(data[:trie]), xxhash.xxh3_128_hexdigest(data[trie:])
