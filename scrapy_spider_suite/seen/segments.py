"""A segment: an immutable file with a trie of URLs, a filter before it, and the way back from ids.

The file is the trie (``marisa-trie``, mapped into memory), then for each of the *buckets* where it
begins (4 bytes), then the buckets: a byte of each URL's id. Then, in a store with ids, in the same
order the number that the trie gives each URL. A URL's bucket goes by other bits of its id; some
sixteen share one.

So the bytes of a bucket are a filter: of the URLs that a segment does not hold, one in 16 passes.
And where they agree, the trie's number stands at the same place: the same 1.25 bytes a URL spare a
trie most look-ups and lead from an id to its URL. A Bloom filter of that size lets fewer pass but
leads nowhere; no library has one that is looked up where it lies on disk, as this is.
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
from typing import Any, Final

import marisa_trie  # type: ignore[import-not-found]
import numpy as np
import xxhash

from scrapy_spider_suite import durable
from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError
from scrapy_spider_suite.seen.catalogue import SegmentRow
from scrapy_spider_suite.seen.identity import Identity

A_BUCKET: Final = 16
"""URLs of a bucket, on average: from 11 to 23, for the number of buckets is a power of two."""
_BUCKET_SHIFT: Final = 8
_MAP: dict[str, Any] = {} if sys.version_info < (3, 13) else {"trackfd": False}

_OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Why a file cannot be opened that says nothing of the file."""

ABSENT, HELD, MAYBE = range(3)
"""What is said of a URL: not here; here; or not here, but another one of the same id may be."""

BASE_TRIES: Final = 3
RECENT_TRIES: Final = 2
"""Tries within a trie: with 3 it is a twelfth smaller, with 2 faster to build and to look up."""


class Segment:
    """A segment that is there to be looked up."""

    __slots__ = ("_map", "_of", "_path", "_removed", "_trie", "_twins", "key_of", "look", "row")

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
        self._of, self._twins = identity.of, twins
        self._removed = tuple(bytes.fromhex(prefix) for prefix in row.removed)
        self._trie: Any = None
        self.look: Callable[[bytes, int], int] = self._look_first
        """Whether a key with an id is here: `ABSENT`, `HELD`, or `MAYBE` its id is."""
        self.key_of: Callable[[int], bytes | None] = self._key_of_first
        """The URL here that has an id; None in a store without ids."""
        if verify is not None:
            self._begin(verify=verify)

    def _begin(self, *, verify: bool = True) -> None:
        """Look into the file: one that is damaged would take the process with it."""
        row, whole = self.row, memoryview(self._map)
        if verify and _sums(whole, row.trie) != row.sums:
            raise JobDamagedError(f"{self._path} is not as it was written")
        self._trie = marisa_trie.BinaryTrie().map(whole[: row.trie])
        self.look, self.key_of = _lookups(
            self._map, row, self._trie, self._of, self._twins, self._removed
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


def _lookups(
    data: mmap.mmap, row: SegmentRow, trie: Any, of: Callable[[bytes], int],
    twins: Mapping[bytes, int], removed: tuple[bytes, ...],
) -> tuple[Callable[[bytes, int], int], Callable[[int], bytes | None]]:  # fmt: skip
    """`Segment.look`, which is most of what a crawl asks, and `Segment.key_of`: names of a
    function cost less than attributes do."""
    mask, width, restore = _buckets(row.keys) - 1, row.width, trie.restore_key
    begin = row.trie + -row.trie % 4
    checks = begin + 4 * (mask + 2)
    starts = memoryview(data)[begin:checks].cast("I")
    numbers = checks + row.keys - checks * width
    number_of = int.from_bytes

    def look(key: bytes, ident: int) -> int:
        bucket = ident >> _BUCKET_SHIFT & mask
        if ident & 255 not in data[starts[bucket] : starts[bucket + 1]]:
            return ABSENT
        if removed and key.startswith(removed):
            return MAYBE
        return HELD if key in trie else MAYBE

    def key_of(ident: int) -> bytes | None:
        bucket = ident >> _BUCKET_SHIFT & mask
        start = starts[bucket]
        found = data[start : starts[bucket + 1]]
        at = found.find(ident & 255) if width else -1
        while at >= 0:
            place = numbers + (start + at) * width
            key: bytes = restore(number_of(data[place : place + width], "little"))
            own = twins.get(key) if twins else None
            if (own or of(key)) == ident and not (removed and key.startswith(removed)):
                return key
            at = found.find(ident & 255, at + 1)
        return None

    return look, key_of


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
    buckets = _buckets(count)
    bucket = found >> np.uint64(_BUCKET_SHIFT) & np.uint64(buckets - 1)
    order = np.argsort(bucket, kind="stable")
    width = (max(1, count - 1).bit_length() + 7) // 8 if ids else 0
    before = np.searchsorted(bucket[order], np.arange(buckets + 1), "left")
    text = trie.tobytes()
    padding = -len(text) % 4
    checks = len(text) + padding + 4 * (buckets + 1)
    rest = b"".join([
        bytes(padding),
        (before + checks).astype(np.uint32).tobytes(),
        found[order].astype(np.uint8).tobytes(),
        _narrow(np.frombuffer(numbers, np.uint32)[order], width),
    ])  # fmt: skip
    durable.write(path, text, rest)
    sums = xxhash.xxh3_128_hexdigest(text), xxhash.xxh3_128_hexdigest(rest)
    return SegmentRow(path.name, count, len(text), len(text) + len(rest), width, sums)


def _narrow(numbers: np.ndarray[Any, np.dtype[np.uint32]], width: int) -> bytes:
    """*numbers* in *width* bytes each, the lowest byte first."""
    return numbers.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width].tobytes()


def _buckets(keys: int) -> int:
    return 1 << round(log2(max(1, keys / A_BUCKET)))


def _sums(data: memoryview, trie: int) -> tuple[str, str]:
    return xxhash.xxh3_128_hexdigest(data[:trie]), xxhash.xxh3_128_hexdigest(data[trie:])
