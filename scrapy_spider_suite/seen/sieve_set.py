"""A set of fingerprints that answers at once, over the files of a sieve; and checkpoints of stores.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from threading import Thread

from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError
from scrapy_spider_suite.runtime.files import LOCK_NAME, lock_folder
from scrapy_spider_suite.seen.fingerprint_cache import FingerprintCache
from scrapy_spider_suite.seen.fingerprints import WIDTHS, fingerprint, item_key
from scrapy_spider_suite.seen.sieve import Flush, Item, Sieve, SieveStatistics

CAPACITY = 1 << 17
"""Items in memory before they are merged: some 15 MB."""
CACHE = 1 << 24
"""Bytes of the cache: a million fingerprints."""


class SieveSet:
    """The set in the folder *path*; items, *bits* and errors are as with `Sieve`.

    *cache* is the memory of the cache in bytes; with *capacity* items in memory `poll` merges them.
    *trouble* is why the last merge failed, until one succeeds.
    """

    def __init__(
        self, path: Path | str, *, bits: int = 128, capacity: int = CAPACITY, cache: int = CACHE
    ) -> None:
        self.cache = FingerprintCache(cache)
        self._width = WIDTHS[bits]
        self._sieve = Sieve(path, bits=bits, capacity=capacity)
        self._capacity = self._patience = capacity
        self._thread: Thread | None = None
        self._closing = False
        self.trouble = ""
        self._flush = self._sieve.under_way
        self._merging: set[bytes] = set()
        self.conclude()
        self._recent = set(self._sieve.prints)

    def add(self, items: Iterable[Item]) -> list[Item]:
        """Add *items*; return the new ones, in their order. Raises `StoreWriteError`."""
        return [item for item in items if self.add_one(item)]

    def add_one(self, item: Item) -> bool:
        """Add *item*, and return whether it is new, or raise `StoreWriteError`."""
        key = item_key(item)
        if not self.cache.add(key):
            return False
        print_ = fingerprint(key, self._width)
        if self._has(print_):
            return False
        try:
            self._sieve.offer_prints((item,), print_)
        except BaseException:
            self.cache.forget(key)
            raise
        self._recent.add(print_)
        return True

    def _has(self, print_: bytes) -> bool:
        return print_ in self._recent or print_ in self._merging or self._sieve.has(print_)

    def __contains__(self, item: Item) -> bool:
        return self._has(fingerprint(item_key(item), self._width))

    def __len__(self) -> int:
        decided = self._flush is None or self._flush.decided
        return len(self._sieve) + len(self._recent) + (0 if decided else len(self._merging))

    def begin(self) -> Flush:
        """Begin to merge the items in memory; run the flush in any thread, then `conclude`."""
        if self._flush is None:
            self._flush = self._sieve.begin(fresh=True)
            self._merging, self._recent = self._recent, set()
        return self._flush

    def conclude(self) -> bool:
        """Conclude the merge if its steps are done; return whether they were."""
        if self._flush is None or not self._flush.decided:
            return False
        self._flush.accept()
        self._flush = None
        self._merging = set()
        return True

    def flush(self) -> None:
        """Merge the items in memory, and wait. Raises `StoreWriteError`; nothing is lost."""
        self.wait()
        for _ in range(2 if self._flush else 1):
            self.begin().run()
            self.conclude()

    def poll(self) -> None:
        """Merge in a thread if it is time to; to be called often. Never raises: errors are in
        *trouble*.

        It waits for the thread when four times *capacity* are in memory.
        """
        late = len(self._recent) >= 4 * self._capacity
        if self._thread is not None and (late or not self._thread.is_alive()):
            self.wait()
        if self._thread is None and len(self._recent) >= self._patience:
            self._thread = Thread(target=self._merge, args=(self.begin(),), daemon=True)
            self._thread.start()

    def _merge(self, flush: Flush) -> None:
        try:
            while not self._closing and flush.step():
                pass
        except (StoreWriteError, JobDamagedError) as error:
            self.trouble = str(error)

    def wait(self) -> None:
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if self.conclude():
            self.trouble, self._patience = "", self._capacity
        else:
            self._patience = len(self._recent) + self._capacity // 4

    def stats(self) -> SieveStatistics:
        return self._sieve.stats()

    def close(self) -> None:
        self._closing = True
        if self._thread is not None:
            self._thread.join()
        self._sieve.close()


class Checkpoint:
    """The files of the store in *folder* before a run, beside it; and the lock of both.

    Made before the store is opened: if the last run did not drop its checkpoint, the store gets the
    files back, and *restored* is true. A file that never changes is linked, others are copied.
    Raises `JobInUseError`, `StoreWriteError`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder.with_name(f"{folder.name}.checkpoint")
        self._files, self._unfinished = self._path / "files", self._path / "unfinished"
        self._lock = lock_folder(self._path)
        try:
            self.restored = self._restore()
        except OSError as error:
            self.close()
            raise StoreWriteError(f"{self._path}: {error.strerror}") from error

    def _restore(self) -> bool:
        shutil.rmtree(self._unfinished, ignore_errors=True)
        if not self._files.exists():
            return False
        shutil.rmtree(self._folder, ignore_errors=True)
        self._files.replace(self._folder)
        return True

    def save(self) -> None:
        """Save the files, before anything is added. Raises `StoreWriteError`."""
        try:
            self._unfinished.mkdir()
            for path in self._folder.iterdir():
                if path.is_file() and path.name != LOCK_NAME:
                    _copy(path, self._unfinished / path.name)
            self._unfinished.replace(self._files)
        except OSError as error:
            raise StoreWriteError(f"{self._path}: {error.strerror}") from error

    def drop(self) -> None:
        if self._files.exists():
            self._files.replace(self._unfinished)  # at once, whenever the process is killed
            shutil.rmtree(self._unfinished, ignore_errors=True)

    def close(self) -> None:
        os.close(self._lock)


def _copy(path: Path, to: Path) -> None:
    if path.suffix == ".rows" or path.name.startswith("segment-"):  # never written to again
        try:
            to.hardlink_to(path)
            return
        except OSError:
            pass  # a file system without links
    shutil.copyfile(path, to)
