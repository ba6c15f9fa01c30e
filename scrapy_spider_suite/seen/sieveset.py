"""A set of fingerprints that answers at once, with most of them on disk.

What was added last is in memory, and in a log; when there is enough of it, it is merged into the
sorted files of a sieve, which can happen in another thread. An item is looked for in the cache, in
memory and on disk, where it takes one read of some KiB, or two.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from scrapy_spider_suite.seen.cache import FingerprintCache
from scrapy_spider_suite.seen.fingerprints import WIDTHS, fingerprint, key_of
from scrapy_spider_suite.seen.flushing import Flush
from scrapy_spider_suite.seen.sieve import Sieve, SieveStatistics
from scrapy_spider_suite.seen.waiting import Item

CAPACITY = 1 << 17
"""Items in memory before they are merged: some 15 MB."""
CACHE = 1 << 24
"""Bytes of the cache: a million fingerprints."""


class SieveSet:
    """The set in the folder *path*, which is made if need be.

    Items are as with `Sieve`, whose files these are; so are *bits* and what is raised. *cache* is
    the memory of the cache in bytes, *capacity* the number of items in memory from which on the
    set is `full` and wants to be merged: by `flush`, or with `begin` in another thread.
    """

    def __init__(
        self, path: Path | str, *, bits: int = 128, capacity: int = CAPACITY, cache: int = CACHE
    ) -> None:
        self.cache = FingerprintCache(cache)
        self._width = WIDTHS[bits]
        self._sieve = Sieve(path, bits=bits, capacity=capacity)
        self._flush = self._sieve.under_way
        self._merging: set[bytes] = set()
        self.end()
        self._recent = set(self._sieve.prints)

    def add(self, items: Iterable[Item]) -> list[Item]:
        """Add *items*; those that are new, in their order. Raises `StoreWriteError`."""
        return [item for item in items if self.add_one(item)]

    def add_one(self, item: Item) -> bool:
        """Add *item*; whether it is new. Raises `StoreWriteError`: then it was not added."""
        key = key_of(item)
        if not self.cache.add(key):
            return False
        print_ = fingerprint(key, self._width)
        if self._has(print_):
            return False
        try:
            self._sieve.keep((item,), print_)
        except BaseException:
            self.cache.forget(key)
            raise
        self._recent.add(print_)
        return True

    def _has(self, print_: bytes) -> bool:
        return print_ in self._recent or print_ in self._merging or self._sieve.has(print_)

    def __contains__(self, item: Item) -> bool:
        return self._has(fingerprint(key_of(item), self._width))

    def __len__(self) -> int:
        decided = self._flush is None or self._flush.decided
        return len(self._sieve) + len(self._recent) + (0 if decided else len(self._merging))

    @property
    def full(self) -> bool:
        """Whether it is time for a merge to begin."""
        return self._flush is None and self._sieve.full

    def begin(self) -> Flush:
        """Begin to merge what is in memory; to be run, in any thread, and then `end`ed."""
        if self._flush is None:
            self._flush = self._sieve.begin()
            self._merging, self._recent = self._recent, set()
        return self._flush

    def end(self) -> bool:
        """Conclude the merge that was begun, if its steps are done; whether they were."""
        if self._flush is None or not self._flush.decided:
            return False
        self._flush.accept()
        self._flush = None
        self._merging = set()
        return True

    def flush(self) -> None:
        """Merge all that is in memory. Raises `StoreWriteError`: then it stays there."""
        for _ in range(2 if self._flush else 1):
            self.begin().run()
            self.end()

    @property
    def stats(self) -> SieveStatistics:
        """How much it holds; what *waits* is in memory."""
        return self._sieve.stats

    def close(self) -> None:
        """Let go of the files, when no thread runs a merge; what is in memory is in the log."""
        self._sieve.close()
