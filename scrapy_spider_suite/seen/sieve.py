"""Mercator's sieve: which of many URLs are new, for more URLs than memory holds (BUbiNG §4).

Items wait in a log; a flush compares their fingerprints with the set on disk, and returns the new
ones in the order of the offers. Its verdict is stored in one moment, and until it is accepted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from struct import Struct
from threading import Lock, Thread

import numpy as np
import xxhash

from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.runtime.files import LOCK_NAME, lock_folder, store_errors, write_all
from scrapy_spider_suite.seen.fingerprint_cache import FingerprintCache
from scrapy_spider_suite.seen.fingerprints import (
    WIDTHS,
    Mask,
    false_positive_bound,
    fingerprint,
    fingerprints,
    item_key,
    rows_of,
)
from scrapy_spider_suite.seen.sorted_set import PART_ROWS, SetMerge, SortedSet
from scrapy_spider_suite.seen.url_keys import decode, encode

_HEAD = Struct("<II")  # length * 2 + is text, xxh32
_READ = 1 << 20

Item = str | bytes


class WaitingLog:
    """The log of waiting items in *folder*; *decided* is the number after the last decided item.

    A file has the items between two flushes, and is named by the number of its first item. *first*
    is the number of the oldest item, *next* that of the next one.
    """

    def __init__(self, folder: Path, decided: int = 0) -> None:
        self._file: int | None = None
        self._folder = folder
        self._size = 0
        self.next = decided
        starts = self._starts()
        self.first = starts[0] if starts else decided
        for start in starts:
            if start >= decided:
                # Of files before the last, a power failure may have cut off the end.
                self._path(start).rename(path := self._path(self.next))
                self._start = self.next
                sizes = [_HEAD.size + len(data) for data, _ in _records(path)]
                if path.stat().st_size > sum(sizes):
                    os.truncate(path, sum(sizes))
                self.next += len(sizes)
        if self.next == decided:
            self._start = decided

    def _path(self, start: int) -> Path:
        return self._folder / f"waiting-{start:020}.log"

    def _starts(self) -> list[int]:
        return sorted(int(path.stem[8:]) for path in self._folder.glob("waiting-*.log"))

    def append(self, items: Sequence[Item]) -> None:
        """Append *items*, all or none. Raises `StoreWriteError`."""
        records = bytearray()
        for item in items:
            data = item if isinstance(item, bytes) else encode(item)
            size = len(data) << 1 | isinstance(item, str)
            records += _HEAD.pack(size, xxhash.xxh32_intdigest(data))
            records += data
        try:
            if self._file is None:
                self._file = _open(self._path(self._start))
                self._size = os.fstat(self._file).st_size
            write_all(self._file, records)
        except OSError as error:
            if self._file is not None:
                os.truncate(self._file, self._size)
            raise StoreWriteError(f"{self._path(self._start)}: {error.strerror}") from error
        self._size += len(records)
        self.next += len(items)

    def rotate(self) -> None:
        self.close()
        os.close(_open(self._path(self.next)))
        self._start = self.next

    def read(self, begin: int, end: int) -> Iterator[tuple[int, Item]]:
        for start in self._starts():
            if start >= end:
                return
            for number, (data, text) in enumerate(_records(self._path(start)), start):
                if number >= end:
                    break
                if number >= begin:
                    yield number, decode(data) if text else data

    def sync(self, end: int) -> None:
        """Raises `OSError`."""
        for start in self._starts():
            if start < end:
                files.sync_path(self._path(start))

    def drop(self, end: int) -> None:
        starts = self._starts()
        for start, following in pairwise(starts):
            if following <= end:
                self._path(start).unlink()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    __del__ = close


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _records(path: Path) -> Iterator[tuple[bytes, int]]:
    with path.open("rb", buffering=_READ) as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            size, sum_ = _HEAD.unpack(head)
            data = file.read(size >> 1)
            if len(data) < size >> 1 or xxhash.xxh32_intdigest(data) != sum_:
                return
            yield data, size & 1


@dataclass(frozen=True, slots=True)
class FlushVerdict:
    first: int = 0  # number of the first item
    end: int = 0  # number after the last one
    new: bytes = b""  # a bit for each item, the first in the highest bit of the first byte
    flushes: int = 0  # number of flushes so far


class Flush:
    """One flush of *sieve*; made by `Sieve.begin`. `step` and `run` may be called in any thread.

    Undecided with *prints*, the fingerprints of the items of *verdict*. *fresh*: all are new.
    """

    def __init__(
        self, sieve: Sieve, verdict: FlushVerdict, prints: bytes | None = None, fresh: bool = False
    ) -> None:
        self.first = verdict.first
        self.end = verdict.end
        self.prints = prints or b""
        self.decided = prints is None  # whether it is known which items are new
        self._sieve, self._parts, self._log = sieve, sieve.parts, sieve.log
        self._verdict = verdict
        self._fresh = fresh
        self._merge: SetMerge | None = None
        self._one = Lock()

    def step(self) -> bool:
        """Do some milliseconds of the work; return whether there is more.

        After a `StoreWriteError` the next step begins anew. Raises `JobDamagedError` if a file of
        the sieve is gone.
        """
        with self._one, store_errors(self._parts.folder):
            if self.decided:
                return False
            try:
                if self._merge is None:
                    rows = rows_of(self.prints, self._parts.words * 8)
                    self._merge = SetMerge(self._parts, rows, fresh=self._fresh)
                elif not self._merge.step():
                    self._decide(self._merge)
                    return False
            except BaseException:
                self._merge = None
                raise
        return True

    def _decide(self, merge: SetMerge) -> None:
        if self._log is not None:
            self._log.sync(self.end)  # known items must not be lost
        flushes = self._parts.manifest.notes.get("flushes", 0) + 1
        bits = np.packbits(merge.new).tobytes()
        verdict = FlushVerdict(self.first, self.end, bits, flushes)
        merge.conclude(asdict(verdict))
        self._verdict, self._merge, self.decided = verdict, None, True

    def run(self) -> None:
        while self.step():
            pass

    def is_new(self, number: int) -> bool:
        """Whether the item of this *number* is the first of its kind. Raises `ValueError`."""
        if not self.decided or not self.first <= number < self.end:
            raise ValueError(f"item {number} is not decided about")
        at = number - self.first
        return bool(self._verdict.new[at >> 3] & 0x80 >> (at & 7))

    def new(self) -> Iterator[Item]:
        """The new items, in the order of their numbers; for a sieve with its own log."""
        if self._log is None:
            raise ValueError("the sieve has no log of its own: ask is_new() for each number")
        for number, item in self._log.read(self.first, self.end):
            if self.is_new(number):
                yield item

    def accept(self) -> None:
        """Drop the waiting items: the new ones are stored. Raises `ValueError` if undecided.

        A caller that keeps the waiting items has deleted them, durably, before.
        """
        if not self.decided:
            raise ValueError("the flush has steps left")
        if self._log is not None:
            self._log.drop(self.end)
        self._sieve.under_way = None

    def abandon(self) -> None:
        if self._merge is not None:
            self._merge.abandon()
            self._merge = None


CAPACITY = 1 << 20
"""Items that wait before a sieve is full: 16 MiB of memory, and some 100 during a flush."""


@dataclass(frozen=True, slots=True)
class SieveStatistics:
    known: int  # fingerprints on disk
    waiting: int  # undecided items
    bits: int  # of a fingerprint
    false_positive_bound: float  # greatest probability that a new item is taken for known
    parts: int  # parts of the set
    disk: int  # bytes of its files, without the log
    flushes: int  # number of decided flushes
    damaged: tuple[str, ...]  # damaged files


class Sieve:
    """The sieve in the folder *path*, which is made if need be.

    Items are URLs in normal form, or keys: bytes that begin with a slot. *bits* (64 or 128) is
    fixed; with *capacity* waiting items the sieve is `full`. Without *own_log* the caller stores
    the items, numbered from `next`. After opening it offers those from `decided` on again, and
    hands out the rest of `under_way`. A *readonly* sieve belongs to another process.

    Raises `JobInUseError`, `JobDamagedError` if the manifest is damaged, `JobSettingsError` if
    *bits* differs, `StoreWriteError`. Other damage is in `stats`; its items are new again.
    """

    def __init__(
        self, path: Path | str, *, bits: int = 128, capacity: int = CAPACITY,
        own_log: bool = True, part: int = PART_ROWS, readonly: bool = False,
    ) -> None:  # fmt: skip
        self.path = Path(path)
        self.capacity = capacity
        self._width = WIDTHS[bits]
        self._lock: int | None = None if readonly else lock_folder(self.path)
        self._bucket = bytearray()
        self.under_way: Flush | None = None
        """The flush that was begun and not accepted, also by an earlier process."""
        try:
            with store_errors(self.path):
                self.parts = SortedSet(self.path, self._width // 8, part, readonly=readonly)
                self._open(own_log and not readonly)
        except BaseException:
            self._unlock()
            raise

    def _open(self, own_log: bool) -> None:
        verdict = self._verdict
        self._begun = verdict.end
        self.log = WaitingLog(self.path, verdict.end) if own_log else None
        first = verdict.first if self.log is None else self.log.first
        if first < verdict.end:
            self.under_way = Flush(self, verdict)
        if self.log is not None:
            waiting = self.log.read(verdict.end, self.log.next)
            self._bucket += fingerprints((item for _, item in waiting), self._width)

    @property
    def next(self) -> int:
        return self._begun + self.waiting

    @property
    def waiting(self) -> int:
        return len(self._bucket) // self._width

    @property
    def full(self) -> bool:
        return self.waiting >= self.capacity

    def offer(self, items: Iterable[Item]) -> None:
        """Let *items* wait, all or none. Raises `StoreWriteError`."""
        listed = list(items)
        self.offer_prints(listed, fingerprints(listed, self._width))

    def offer_prints(self, items: Sequence[Item], prints: bytes) -> None:
        """`offer` for a caller that has the fingerprints of *items*."""
        if self.log is not None:
            self.log.append(items)
        self._bucket += prints

    @property
    def _verdict(self) -> FlushVerdict:
        return FlushVerdict(**self.parts.manifest.notes)

    @property
    def decided(self) -> int:
        """The number after the last decided item."""
        return self._verdict.end

    def begin(self, fresh: bool = False) -> Flush:
        """Begin to flush all items, or return the flush not accepted yet. *fresh*: all are new."""
        if self.under_way is None:
            end = self.next
            if self.log is not None:
                with store_errors(self.path):
                    self.log.rotate()
            verdict, prints = FlushVerdict(self._begun, end), bytes(self._bucket)
            self.under_way = Flush(self, verdict, prints, fresh)
            self._begun = end
            self._bucket.clear()
        return self.under_way

    def flush(self) -> list[Item]:
        """Flush and accept all waiting items; return the new ones, in the order of their offers.

        For a sieve with its own log. Raises `StoreWriteError`; the items wait on.
        """
        found: list[Item] = []
        for _ in range(1 + (self.under_way is not None)):
            flush = self.begin()
            flush.run()
            found += flush.new()
            flush.accept()
        return found

    def add(self, items: Iterable[Item]) -> list[Item]:
        """`offer`, then `flush`."""
        self.offer(items)
        return self.flush()

    @property
    def waiting_prints(self) -> list[bytes]:
        data, width = bytes(self._bucket), self._width
        return [data[at : at + width] for at in range(0, len(data), width)]

    def __contains__(self, item: Item) -> bool:
        """Whether *item* was offered before; linear in the number of waiting items."""
        wanted = fingerprint(item_key(item), self._width)
        frozen = b"" if self.under_way is None else self.under_way.prints
        return self.parts.has(wanted) or any(
            _has_print(prints, wanted) for prints in (frozen, self._bucket)
        )

    def __len__(self) -> int:
        return len(self.parts)

    def removing(self, slots: Mask) -> Generator[None, None, None]:
        """Remove the fingerprints of *slots* in steps of some milliseconds, in any thread.

        No flush may run meanwhile; a verdict that is not accepted stays. Raises `StoreWriteError`.
        """
        self._require_verdict()
        with store_errors(self.path):
            yield from self.parts.remove(slots)

    def check(self) -> list[str]:
        """Read all files; return a line for each damaged one."""
        return self.parts.check()

    def repair(self) -> None:
        """Write damaged files anew with their readable rows. Raises `StoreWriteError`."""
        self._require_verdict()
        with store_errors(self.path):
            self.parts.repair()

    def _require_verdict(self) -> None:
        if self.under_way is not None and not self.under_way.decided:
            raise ValueError("a flush is under way: accept it first")

    def stats(self) -> SieveStatistics:
        bits = self._width * 8
        return SieveStatistics(
            known=len(self.parts),
            waiting=self.next - self.decided,
            bits=bits,
            false_positive_bound=false_positive_bound(int(self.parts.manifest.counts.max()), bits),
            parts=len(self.parts.parts),
            disk=sum(file.size for file in self.parts.files),
            flushes=self._verdict.flushes,
            damaged=tuple(self.parts.damaged.values()),
        )

    def close(self) -> None:
        """Close the files. Waiting items are in the log, or with the caller."""
        if self.under_way is not None:
            self.under_way.abandon()
        if self.log is not None:
            self.log.close()
        self.parts.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _has_print(prints: bytes | bytearray, wanted: bytes) -> bool:
    at = prints.find(wanted)
    while at % len(wanted) and at >= 0:
        at = prints.find(wanted, at + 1)
    return at >= 0


SET_CAPACITY = 1 << 17  # items in memory before they are merged: some 15 MB
SET_CACHE = 1 << 24  # bytes of the cache: a million fingerprints


class SieveSet:
    """The set in the folder *path*; items, *bits* and errors are as with `Sieve`.

    *cache* is the memory of the cache in bytes; with *capacity* items in memory `poll` merges them.
    *trouble* is why the last merge failed, until one succeeds.
    """

    def __init__(
        self, path: Path | str, *, bits: int = 128, capacity: int = SET_CAPACITY,
        cache: int = SET_CACHE,
    ) -> None:  # fmt: skip
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
        self._recent = set(self._sieve.waiting_prints)

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
        return print_ in self._recent or print_ in self._merging or self._sieve.parts.has(print_)

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
        """Merge in a thread if one is due; call it often. Never raises: errors are in *trouble*.

        Waits for the thread when four times *capacity* are in memory.
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

    Made before the store is opened. If the last run did not drop its checkpoint, the store gets the
    files back, and *restored* is true. Raises `JobInUseError`, `StoreWriteError`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder.with_name(f"{folder.name}.checkpoint")
        self._files, self._unfinished = self._path / "files", self._path / "unfinished"
        self._lock = lock_folder(self._path)
        shutil.rmtree(self._unfinished, ignore_errors=True)
        self.restored = self._files.exists()
        if self.restored:
            shutil.rmtree(folder, ignore_errors=True)
            try:
                with store_errors(self._path):
                    self._files.replace(folder)
            except BaseException:
                self.close()
                raise

    def save(self) -> None:
        """Save the files, before anything is added. Raises `StoreWriteError`."""
        with store_errors(self._path):
            self._unfinished.mkdir()
            for path in self._folder.iterdir():
                if path.is_file() and path.name != LOCK_NAME:
                    _link_or_copy(path, self._unfinished / path.name)
            self._unfinished.replace(self._files)

    def drop(self) -> None:
        if self._files.exists():
            self._files.replace(self._unfinished)  # at once, whenever the process is killed
            shutil.rmtree(self._unfinished, ignore_errors=True)

    def close(self) -> None:
        os.close(self._lock)


def _link_or_copy(path: Path, to: Path) -> None:
    if path.suffix == ".rows" or path.name.startswith("segment-"):  # never written to again
        try:
            to.hardlink_to(path)
            return
        except OSError:
            pass  # a file system without links
    shutil.copyfile(path, to)
