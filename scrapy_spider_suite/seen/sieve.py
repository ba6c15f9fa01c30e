"""Mercator's sieve: which of many URLs are new, for more URLs than memory holds (BUbiNG §4).

Fingerprints wait in memory; a flush compares them with the set on disk. Its verdict is stored in
one moment, and until it is accepted. `SieveSet` answers at once instead, one look-up each.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock, Thread

import numpy as np

from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.seen.fingerprint_cache import FingerprintCache
from scrapy_spider_suite.seen.fingerprints import WIDTHS, Mask, fingerprint, fingerprints, rows_of
from scrapy_spider_suite.seen.sorted_set import PART_ROWS, SetMerge, SortedSet


@dataclass(frozen=True, slots=True)
class FlushVerdict:
    first: int = 0  # number of the first key
    end: int = 0  # number after the last one
    new: bytes = b""  # a bit for each key, the first in the highest bit of the first byte
    flushes: int = 0  # number of flushes so far


class Flush:
    """One flush of *sieve*, for any thread; undecided if *prints* has the fingerprints."""

    def __init__(self, sieve: Sieve, verdict: FlushVerdict, prints: bytes | None = None) -> None:
        self.first = verdict.first
        self.end = verdict.end
        self.prints = prints or b""
        self.decided = prints is None  # whether it is known which keys are new
        self._sieve, self._parts = sieve, sieve.parts
        self._verdict = verdict
        self._merge: SetMerge | None = None
        self._one = Lock()

    def step(self) -> bool:
        """Do some milliseconds of the work; return whether there is more.

        After a `StoreWriteError` the next step begins anew. Raises `JobDamagedError` as well.
        """
        with self._one, files.store_errors(self._parts.folder):
            if self.decided:
                return False
            try:
                if self._merge is None:
                    rows = rows_of(self.prints, self._parts.words * 8)
                    self._merge = SetMerge(self._parts, rows)
                elif not self._merge.step():
                    self._decide(self._merge)
                    return False
            except BaseException:
                self._merge = None
                raise
        return True

    def _decide(self, merge: SetMerge) -> None:
        bits = np.packbits(merge.new).tobytes()
        verdict = FlushVerdict(self.first, self.end, bits, self._sieve.flushes + 1)
        merge.conclude(asdict(verdict))
        self._verdict, self._merge, self.decided = verdict, None, True

    def run(self) -> None:
        while self.step():
            pass

    def is_new(self, number: int) -> bool:
        """Whether the key of this *number* is the first of its kind. Raises `ValueError`."""
        if not self.decided or not self.first <= number < self.end:
            raise ValueError(f"key {number} is not decided about")
        at = number - self.first
        return bool(self._verdict.new[at >> 3] & 0x80 >> (at & 7))

    def accept(self) -> None:
        """Drop the verdict: its new keys are stored. Raises `ValueError` if undecided."""
        if not self.decided:
            raise ValueError("the flush has steps left")
        self._sieve.under_way = None

    def abandon(self) -> None:
        if self._merge is not None:
            self._merge.abandon()
            self._merge = None


CAPACITY = 1 << 20
"""Keys that wait before a sieve is full: 16 MiB of memory, and some 100 during a flush."""


class Sieve:
    """The sieve in the folder *path*, which is made if need be.

    The caller stores the waiting keys, numbered from `next`. After opening it offers those from
    `decided` on again, and hands out the rest of `under_way`: see docs/seen.md. A *readonly* sieve
    belongs to another process.

    Raises `JobInUseError`, `JobDamagedError` if the manifest is damaged, `JobSettingsError` if
    *bits* differs, `StoreWriteError`. Other damage is in `parts.damaged`; its keys are new again.
    """

    def __init__(
        self, path: Path | str, *, bits: int = 128, capacity: int = CAPACITY,
        part: int = PART_ROWS, readonly: bool = False,
    ) -> None:  # fmt: skip
        self.path = Path(path)
        self.capacity = capacity
        self._width = WIDTHS[bits]
        self._bucket = bytearray()
        with ExitStack() as opened:
            if not readonly:
                opened.callback(os.close, files.lock_folder(self.path))
            with files.store_errors(self.path):
                self.parts = SortedSet(self.path, self._width // 8, part, readonly=readonly)
            opened.callback(self.parts.close)
            self._opened = opened.pop_all()
        verdict = self._verdict
        self._begun = verdict.end
        self.under_way = Flush(self, verdict) if verdict.first < verdict.end else None
        """The flush that was begun and not accepted, also by an earlier process."""

    @property
    def next(self) -> int:
        return self._begun + self.waiting

    @property
    def waiting(self) -> int:
        return len(self._bucket) // self._width

    @property
    def full(self) -> bool:
        return self.waiting >= self.capacity

    def offer(self, keys: Iterable[bytes]) -> None:
        self._bucket += fingerprints(keys, self._width)

    def offer_prints(self, prints: bytes) -> None:
        """`offer` for a caller that has the fingerprints."""
        self._bucket += prints

    @property
    def _verdict(self) -> FlushVerdict:
        return FlushVerdict(**self.parts.manifest.notes)

    @property
    def decided(self) -> int:
        """The number after the last decided key."""
        return self._verdict.end

    @property
    def flushes(self) -> int:
        return self._verdict.flushes

    def begin(self) -> Flush:
        """Begin to flush all waiting keys, or return the flush that is not accepted yet."""
        if self.under_way is None:
            end, prints = self.next, bytes(self._bucket)
            self.under_way = Flush(self, FlushVerdict(self._begun, end), prints)
            self._begun = end
            self._bucket.clear()
        return self.under_way

    def __len__(self) -> int:
        return len(self.parts)

    def removing(self, slots: Mask) -> Generator[None, None, None]:
        """Remove the fingerprints of *slots* in steps of some milliseconds, in any thread.

        No flush may run meanwhile; a verdict that is not accepted stays. Raises `StoreWriteError`.
        """
        self._require_verdict()
        with files.store_errors(self.path):
            yield from self.parts.remove(slots)

    def repair(self) -> None:
        """Write damaged files anew with their readable rows. Raises `StoreWriteError`."""
        self._require_verdict()
        with files.store_errors(self.path):
            self.parts.repair()

    def _require_verdict(self) -> None:
        if self.under_way is not None and not self.under_way.decided:
            raise ValueError("a flush is under way: accept it first")

    def close(self) -> None:
        if self.under_way is not None:
            self.under_way.abandon()
        self._opened.close()


SET_CAPACITY = 1 << 17  # keys in memory before they are merged: some 15 MB
SET_CACHE = 1 << 24  # bytes of the cache: a million fingerprints


class SieveSet:
    """The set of keys in the folder *path*; the keys added last are in memory until `flush`.

    *bits* and errors are as with `Sieve`. *cache* is the memory of the cache in bytes; with
    *capacity* keys in memory `poll` merges them. *trouble* is why the last merge failed.
    """

    def __init__(
        self, path: Path | str, *, bits: int = 128, capacity: int = SET_CAPACITY,
        cache: int = SET_CACHE,
    ) -> None:  # fmt: skip
        self.cache = FingerprintCache(cache)
        self.trouble = ""
        self._width = WIDTHS[bits]
        self._capacity = self._patience = capacity
        self._recent: set[bytes] = set()
        self._merging: set[bytes] = set()
        self._thread: Thread | None = None
        with ExitStack() as opened:
            opened.callback(os.close, files.lock_folder(folder := Path(path)))
            with files.store_errors(folder):
                self.parts = SortedSet(folder, self._width // 8)
            opened.callback(self.parts.close)
            self._opened = opened.pop_all()
        self._size = len(self.parts)

    def add(self, key: bytes) -> bool:
        """Add *key*; return whether it is new."""
        if not self.cache.add(key):
            return False
        print_ = fingerprint(key, self._width)
        if self._has(print_):
            return False
        self._recent.add(print_)
        self._size += 1
        return True

    def _has(self, print_: bytes) -> bool:
        return print_ in self._recent or print_ in self._merging or self.parts.has(print_)

    def __contains__(self, key: bytes) -> bool:
        return self._has(fingerprint(key, self._width))

    def __len__(self) -> int:
        return self._size

    def poll(self) -> None:
        """Merge in a thread if a merge is due; call it often. Never raises: see *trouble*.

        Waits for the thread when four times *capacity* are in memory.
        """
        late = len(self._recent) >= 4 * self._capacity
        if self._thread is not None and (late or not self._thread.is_alive()):
            self._end_merge()
        if self._thread is None and len(self._recent) >= self._patience:
            self._begin_merge()

    def flush(self) -> None:
        """Merge all keys in memory, and wait. Raises `StoreWriteError`; nothing is lost."""
        self._end_merge()
        if self._recent:
            self._begin_merge()
            self._end_merge()
        if self.trouble:
            raise StoreWriteError(self.trouble)

    def _begin_merge(self) -> None:
        self._merging, self._recent = self._recent, set()
        self._thread = Thread(target=self._merge, daemon=True)
        self._thread.start()

    def _merge(self) -> None:
        try:
            with files.store_errors(self.parts.folder):
                rows = rows_of(b"".join(self._merging), self._width)
                merge = SetMerge(self.parts, rows, fresh=True)
                while merge.step():
                    pass
                merge.conclude({})
            self.trouble, self._merging = "", set()  # not before: look-ups go on meanwhile
        except (StoreWriteError, JobDamagedError) as error:
            self.trouble = str(error)

    def _end_merge(self) -> None:
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        self._patience = self._capacity
        if self._merging:
            self._recent |= self._merging
            self._merging = set()
            self._patience = len(self._recent) + self._capacity // 4

    def close(self) -> None:
        """Close the files; keys in memory are lost."""
        self._end_merge()
        self._opened.close()


_GROWING = "fresh-*"  # files that are copied; all others never change, and may be linked


class Checkpoint:
    """The files of the store in *folder* before a run, beside it; and the lock of both.

    Made before the store is opened. If the last run did not drop its checkpoint, the store gets the
    files back, and *restored* is true. Raises `JobInUseError`, `StoreWriteError`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder.with_name(f"{folder.name}.checkpoint")
        self._files, self._unfinished = self._path / "files", self._path / "unfinished"
        self._lock = files.lock_folder(self._path)
        shutil.rmtree(self._unfinished, ignore_errors=True)
        self.restored = self._files.exists()
        if self.restored:
            shutil.rmtree(folder, ignore_errors=True)
            try:
                with files.store_errors(self._path):
                    self._files.replace(folder)
            except BaseException:
                self.close()
                raise

    def save(self) -> None:
        """Save the files, before anything is added. Raises `StoreWriteError`."""
        with files.store_errors(self._path):
            copy_files(self._folder, self._unfinished)
            self._unfinished.replace(self._files)

    def drop(self) -> None:
        if self._files.exists():
            self._files.replace(self._unfinished)  # at once, whenever the process is killed
            shutil.rmtree(self._unfinished, ignore_errors=True)

    def close(self) -> None:
        os.close(self._lock)


def copy_files(folder: Path, target: Path) -> None:
    """Copy the files of a locked archive or sieve, in any thread. Raises `StoreWriteError`."""
    with files.store_errors(target):
        target.mkdir(parents=True)
        for path in folder.iterdir():
            if not path.is_file() or path.name == files.LOCK_NAME or path.suffix == ".new":
                continue
            copy = target / path.name
            try:
                if not path.match(_GROWING):
                    os.link(path, copy)
                    continue
            except OSError:
                pass  # a file system without links
            shutil.copyfile(path, copy)
            files.sync_path(copy)
        files.sync_path(target)
