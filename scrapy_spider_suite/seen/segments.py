"""A segment: an immutable file with a trie of URLs, a filter before it, and the way back from ids.

The file is the trie (``marisa-trie``, mapped into memory) and the words of its filter. Then, in a
store with ids, for each of the *buckets* where it begins (4 bytes), then the buckets: a byte of
each URL's id; then, in the same order, the number that the trie gives each URL. A URL's bucket goes
by other bits of its id; some sixteen share one. Where the bytes agree, the trie's number stands at
the same place.

Segments of format 1 have no words. They have buckets in stores without ids, too, whose bytes are
the filter: of the URLs that a segment does not hold, one in 16 passes.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import log2
from pathlib import Path
from struct import Struct
from typing import Any, Final

import marisa_trie  # type: ignore[import-not-found]
import numpy as np
import xxhash
from numpy.typing import NDArray

from scrapy_spider_suite import durable
from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError
from scrapy_spider_suite.seen import filters
from scrapy_spider_suite.seen.catalogue import SegmentRow
from scrapy_spider_suite.seen.identity import Identity
from scrapy_spider_suite.seen.table import Ids

A_BUCKET: Final = 16
"""URLs of a bucket, on average: from 11 to 23, for the number of buckets is a power of two."""
_BUCKET_SHIFT: Final = 8
_BYTES: Final = [bytes([number]) for number in range(256)]
_MAP: dict[str, Any] = {} if sys.version_info < (3, 13) else {"trackfd": False}

_OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Why a file cannot be opened that says nothing of the file."""

ABSENT, HELD, MAYBE = range(3)
"""What is said of a URL: not here; here; or not here, but another one of the same id may be."""

BASE_TRIES: Final = 2
RECENT_TRIES: Final = 1
"""Tries within a trie: each more makes it smaller, and a look-up half as long again or more."""

Look = Callable[[bytes, int], int]
KeyOf = Callable[[int], bytes | None]
Numbers = NDArray[np.uint32]


class Segment:
    """A segment that is there to be looked up."""

    __slots__ = ("_has", "_map", "_path", "_removed", "_trie", "_twins", "key_of", "look", "row")

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
        self._has, self._twins = identity.has, twins
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
        self.key_of = _leading_back(
            self._map, row, self._trie, self._has, self._twins, self._removed
        )

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
    mask, starts, _ = _buckets_of(data, row)

    def look(key: bytes, ident: int) -> int:
        bucket = ident >> _BUCKET_SHIFT & mask
        if ident & 255 not in data[starts[bucket] : starts[bucket + 1]]:
            return ABSENT
        if removed and key.startswith(removed):
            return MAYBE
        return HELD if key in trie else MAYBE

    return look


def _leading_back(
    data: mmap.mmap, row: SegmentRow, trie: Any, has: Callable[[bytes, int], bool],
    twins: Mapping[bytes, int], removed: tuple[bytes, ...],
) -> KeyOf:  # fmt: skip
    """`Segment.key_of`."""
    if not row.width:
        return lambda ident: None
    mask, starts, checks = _buckets_of(data, row)
    width, restore = row.width, trie.restore_key
    # Four bytes are read, of which the last ones are the number.
    before, spare = checks + row.keys - checks * width + width - 4, 8 * (4 - width)
    four, find, bytes_of = Struct("<I").unpack_from, data.find, _BYTES

    def key_of(ident: int) -> bytes | None:
        bucket = ident >> _BUCKET_SHIFT & mask
        check, end = bytes_of[ident & 255], starts[bucket + 1]
        at = find(check, starts[bucket], end)
        while at >= 0:
            (number,) = four(data, before + at * width)
            key: bytes = restore(number >> spare)
            mine = twins[key] == ident if twins and key in twins else has(key, ident)
            if mine and not (removed and key.startswith(removed)):
                return key
            at = find(check, at + 1, end)
        return None

    return key_of


def _buckets_of(data: mmap.mmap, row: SegmentRow) -> tuple[int, memoryview, int]:
    """The mask of buckets' numbers, where each bucket starts, and the first does."""
    begin = _aligned(_aligned(row.trie) + filters.WORD * row.words)
    buckets = _buckets(row.keys)
    end = begin + 4 * (buckets + 1)
    return buckets - 1, memoryview(data)[begin:end].cast("I"), end


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
    if width:
        rest = rest.ljust(_aligned(len(text) + len(rest)) - len(text), b"\0")
        rest += _way_back(found, np.frombuffer(numbers, np.uint32), width, len(text) + len(rest))
    durable.write(path, text, rest)
    sums = xxhash.xxh3_128_hexdigest(text), xxhash.xxh3_128_hexdigest(rest)
    size = len(text) + len(rest)
    return SegmentRow(
        path.name, count, len(text), size, width, sums, words=len(words) // filters.WORD
    )


def _way_back(found: Ids, numbers: Numbers, width: int, start: int) -> bytes:
    """The buckets of the ids *found*, of which each has one of *numbers*; they begin at *start*."""
    buckets = _buckets(len(found))
    bucket = found >> np.uint64(_BUCKET_SHIFT) & np.uint64(buckets - 1)
    order = np.argsort(bucket, kind="stable")
    before = np.searchsorted(bucket[order], np.arange(buckets + 1), "left")
    checks = start + 4 * (buckets + 1)
    return b"".join([
        (before + checks).astype(np.uint32).tobytes(),
        found[order].astype(np.uint8).tobytes(),
        _narrow(numbers[order], width),
    ])  # fmt: skip


def _narrow(numbers: Numbers, width: int) -> bytes:
    """*numbers* in *width* bytes each, the lowest byte first."""
    return numbers.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width].tobytes()


def _aligned(size: int) -> int:
    return size + -size % 4


def _buckets(keys: int) -> int:
    return 1 << round(log2(max(1, keys / A_BUCKET)))


def _sums(data: memoryview, trie: int) -> tuple[str, str]:
    return xxhash.xxh3_128_hexdigest(data[:trie]), xxhash.xxh3_128_hexdigest(data[trie:])
