"""The log of what waits for a sieve: appended, read again in its order, dropped from its beginning.

One file for what came between two flushes; its name is the number of its first item. A record is
its length, which of text and bytes it is, xxh32 of it, and itself. What a kill cut short is cut off
when the log is opened.

A flush of the sieve: from what waited to what is new of it, in steps.

Its life: steps, the last of which decides; then what is new is handed out; then it is accepted.
The verdict is in the manifest, so deciding and knowing are one moment, and it stays there until the
next one. Handing out ends with what waited being dropped: files of the sieve's own log, or rows of
the caller's; whatever of that is still there after a kill has not been handed out.

Mercator's sieve: which of many URLs are new, for more of them than memory holds.

What is offered waits until there is enough of it; a *flush* then sorts its fingerprints, compares
them with the sorted ones on disk, and tells those that are new, in the order in which they were
offered (BUbiNG §4: DRUM, which does not keep it, breaks breadth-first search). In memory are 8 or
16 bytes of each URL that waits; the URLs themselves lie in a log: the sieve's own, or rows that its
caller keeps (in a crawl those of the commit of the page that they were found on).

A flush is decided in one moment, on disk, and its verdict is kept until it is accepted: what it
found new is handed out again after a kill, and nothing else is. So nothing is lost, and who stores
what is handed out together with its number gets nothing twice.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from struct import Struct
from threading import Lock

import numpy as np
import xxhash

from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.runtime.files import lock_folder, write_all
from scrapy_spider_suite.seen.fingerprints import (
    WIDTHS,
    Mask,
    Rows,
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
    """The log in *folder*; items are numbered through.

    *decided* is the number after the last item that has been decided about.

    Attributes:
        first: the number of the first item that was not dropped when the log was opened.
        next: the number of the item that is appended next.
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
                self._path(start).rename(self._path(self.next))
                self._start = self.next
                self.next += self._count_and_cut(self._path(self.next))
        if self.next == decided:
            self._start = decided

    def _path(self, start: int) -> Path:
        return self._folder / f"waiting-{start:020}.log"

    def _starts(self) -> list[int]:
        return sorted(int(path.stem[8:]) for path in self._folder.glob("waiting-*.log"))

    @staticmethod
    def _count_and_cut(path: Path) -> int:
        """Cut off what is not whole; how many records are."""
        sizes = [_HEAD.size + len(data) for data, _ in _records(path)]
        if path.stat().st_size > sum(sizes):
            os.truncate(path, sum(sizes))
        return len(sizes)

    def append(self, items: Sequence[Item]) -> None:
        """Append *items*: all of them, or with a `StoreWriteError` none."""
        records = bytearray()
        for item in items:
            data = item if isinstance(item, bytes) else encode(item)
            size = len(data) << 1 | isinstance(item, str)
            records += _HEAD.pack(size, xxhash.xxh32_intdigest(data))
            records += data
        try:
            write_all(self._opened(), records)
        except OSError as error:
            if self._file is not None:
                os.truncate(self._file, self._size)
            raise StoreWriteError(f"{self._path(self._start)}: {error.strerror}") from error
        self._size += len(records)
        self.next += len(items)

    def _opened(self) -> int:
        """The file that is appended to."""
        if self._file is None:
            self._file = _open(self._path(self._start))
            self._size = os.fstat(self._file).st_size
        return self._file

    def rotate(self) -> None:
        """Begin another file: those before it can be dropped as a whole."""
        self.close()
        os.close(_open(self._path(self.next)))
        self._start = self.next

    def read(self, begin: int, end: int) -> Iterator[tuple[int, Item]]:
        """The items from number *begin* to before *end*, each with its number."""
        for start in self._starts():
            if start >= end:
                return
            for number, (data, text) in enumerate(_records(self._path(start)), start):
                if number >= end:
                    break
                if number >= begin:
                    yield number, decode(data) if text else data

    def sync(self, end: int) -> None:
        """Have the items before number *end* on the medium. Raises `OSError`."""
        for start in self._starts():
            if start < end:
                files.sync_path(self._path(start))

    def drop(self, end: int) -> None:
        """Forget the items before number *end*, as far as they fill files."""
        starts = self._starts()
        for start, following in pairwise(starts):
            if following <= end:
                self._path(start).unlink()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    __del__ = close


def waiting_in(folder: Path) -> Iterator[Item]:
    """What the logs in *folder* hold, beside the process that writes them, too."""
    for path in sorted(folder.glob("waiting-*.log")):
        with suppress(FileNotFoundError):  # flushed meanwhile
            for data, text in _records(path):
                yield decode(data) if text else data


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _records(path: Path) -> Iterator[tuple[bytes, int]]:
    """The whole records of a file; nothing from the first one on that is not."""
    with path.open("rb", buffering=_READ) as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            size, sum_ = _HEAD.unpack(head)
            data = file.read(size >> 1)
            if len(data) < size >> 1 or xxhash.xxh32_intdigest(data) != sum_:
                return
            yield data, size & 1


@dataclass(frozen=True, slots=True)
class FlushVerdict:
    """What a flush found, as the manifest's notes keep it.

    Attributes:
        first: number of the first item that it was about.
        end: number after the last one.
        new: a bit for each item, the first in the highest bit of the first byte.
        flushes: how many there have been.
    """

    first: int = 0
    end: int = 0
    new: bytes = b""
    flushes: int = 0


class Flush:
    """One flush of what lies in *parts*; `Sieve.begin` makes it.

    *verdict* says which items it is about, and with *prints*, their fingerprints, it is still to be
    reached; *fresh* says that all of them are new. `step` and `run` may be called in other threads
    than everything else, and in several.
    """

    def __init__(
        self, sieve: Sieve, verdict: FlushVerdict, prints: bytes | None = None, fresh: bool = False
    ) -> None:
        self.first = verdict.first
        self.end = verdict.end
        self.prints = prints or b""
        self.decided = prints is None
        """Whether it is known which items are new."""
        self._sieve, self._parts, self._log = sieve, sieve.parts, sieve.log
        self._verdict = verdict
        self._fresh = fresh
        self._merge: SetMerge | None = None
        self._one = Lock()

    def __len__(self) -> int:
        return self.end - self.first

    def step(self) -> bool:
        """Do some milliseconds of the work, or wait for the disk; whether there is more to do.

        Raises `StoreWriteError` if the disk is full or broken. Nothing is lost then, and the next
        step begins the work anew. Raises `JobDamagedError` if a file of the sieve is gone.
        """
        with self._one, store_errors(self._parts.folder):
            if self.decided:
                return False
            try:
                if self._merge is None:
                    rows = rows_of(self.prints, self._parts.words * 8)
                    self._merge = self._parts.merge(rows, self._fresh)
                elif not self._merge.step():
                    self._decide(self._merge)
                    return False
            except BaseException:
                self._merge = None
                raise
        return True

    def _decide(self, merge: SetMerge) -> None:
        if self._log is not None:
            self._log.sync(self.end)  # what is known must not be lost
        flushes = self._parts.manifest.notes.get("flushes", 0) + 1
        bits = np.packbits(merge.new).tobytes()
        verdict = FlushVerdict(self.first, self.end, bits, flushes)
        merge.conclude(asdict(verdict))
        self._verdict, self._merge, self.decided = verdict, None, True

    def run(self) -> None:
        """Do all steps."""
        while self.step():
            pass

    def is_new(self, number: int) -> bool:
        """Whether the item of this *number* is the first of its kind. Raises `ValueError`."""
        if not self.decided or not self.first <= number < self.end:
            raise ValueError(f"item {number} is not decided about")
        at = number - self.first
        return bool(self._verdict.new[at >> 3] & 0x80 >> (at & 7))

    def new(self) -> Iterator[Item]:
        """The items that are new, in the order of their numbers; from the sieve's own log."""
        if self._log is None:
            raise ValueError("the sieve has no log of its own: ask is_new() for each number")
        for number, item in self._log.read(self.first, self.end):
            if self.is_new(number):
                yield item

    def accept(self) -> None:
        """What is new has been taken: drop what waited. Raises `ValueError` if it is not decided.

        A caller that keeps what waits has dropped its rows before, and has on the medium what
        came of them.
        """
        if not self.decided:
            raise ValueError("the flush has steps left")
        if self._log is not None:
            self._log.drop(self.end)
        self._sieve.under_way = None

    def abandon(self) -> None:
        """Stop in the middle: what it wrote is removed; what waited waits on."""
        if self._merge is not None:
            self._merge.abandon()
            self._merge = None


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `StoreWriteError` that says where."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise StoreWriteError(f"{where}: {error.strerror}") from error


CAPACITY = 1 << 20
"""Items that wait before a sieve is full: 16 MiB of memory, and some 100 during a flush."""


@dataclass(frozen=True, slots=True)
class SieveStatistics:
    """How much a sieve holds.

    Attributes:
        known: fingerprints on disk.
        waiting: items that no flush has decided about.
        bits: of a fingerprint.
        false_positive_bound: greatest probability that a new item is taken for known.
        parts: parts of the set.
        disk: bytes of its files, without the log.
        flushes: how many flushes have been decided.
        damaged: files that cannot be read, or not wholly.
    """

    known: int
    waiting: int
    bits: int
    false_positive_bound: float
    parts: int
    disk: int
    flushes: int
    damaged: tuple[str, ...]


class Sieve:
    """The sieve in the folder *path*, which is made if need be.

    Items are URLs in normal form, or keys: bytes that begin with a slot. With *own_log* they are
    written to a log of the sieve's until they are decided about; without, the caller keeps what it
    offers, numbered from `next` on, and offers again what has numbers from `decided` on when it
    opens the sieve again; `under_way` then is the last flush, of which it hands out what it still
    has. *bits* (64 or 128) is fixed for the life of the files; *capacity* is the
    number of waiting items from which on the sieve is `full`. With *readonly*, which has no log,
    it is looked at beside the process that uses it.

    Raises `JobInUseError` if it is open already, `JobDamagedError` if the manifest is damaged,
    `JobSettingsError` if *bits* is not that of the files, `StoreWriteError`. Other damage is named
    by `stats`, and what was in the files is new again.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        bits: int = 128,
        capacity: int = CAPACITY,
        own_log: bool = True,
        part: int = PART_ROWS,
        readonly: bool = False,
    ) -> None:
        self.path = Path(path)
        self.capacity = capacity
        self._width = WIDTHS[bits]
        self._lock: int | None = None if readonly else lock_folder(self.path)
        self._bucket = bytearray()
        self.under_way: Flush | None = None
        """The flush that was begun and not accepted, perhaps before the process ended."""
        try:
            with store_errors(self.path):
                self.parts = SortedSet(self.path, self._width // 8, part, readonly=readonly)
                self._open(own_log and not readonly)
        except BaseException:
            self._unlock()
            raise

    def _open(self, own_log: bool) -> None:
        verdict = FlushVerdict(**self.parts.manifest.notes)
        self._begun = verdict.end
        self.log = WaitingLog(self.path, verdict.end) if own_log else None
        first = verdict.first if self.log is None else self.log.first
        if first < verdict.end:
            self.under_way = Flush(self, verdict)
        if self.log is not None:
            waiting = self.log.read(verdict.end, self.log.next)
            self._bucket += fingerprints((item for _, item in waiting), self._width)

    @property
    def words(self) -> int:
        """Words of 64 bits in a fingerprint."""
        return self._width // 8

    @property
    def next(self) -> int:
        """The number that the next offered item gets."""
        return self._begun + self.waiting

    @property
    def waiting(self) -> int:
        """How many items wait for a flush to begin."""
        return len(self._bucket) // self._width

    @property
    def full(self) -> bool:
        """Whether it is time for a flush."""
        return self.waiting >= self.capacity

    def offer(self, items: Iterable[Item]) -> None:
        """Let *items* wait.

        Raises `StoreWriteError` if the log cannot be written: none of them waits then.
        """
        listed = list(items)
        self.offer_prints(listed, fingerprints(listed, self._width))

    def offer_prints(self, items: Sequence[Item], prints: bytes) -> None:
        """`offer`, by who has the fingerprints of *items* already."""
        if self.log is not None:
            self.log.append(items)
        self._bucket += prints

    @property
    def decided(self) -> int:
        """The number after the last item that a flush has decided about."""
        return FlushVerdict(**self.parts.manifest.notes).end

    def begin(self, fresh: bool = False) -> Flush:
        """Begin to flush all that waits; or go on with the flush that is not accepted yet.

        *fresh* is for a caller who knows that all of it is new, which is quicker.
        """
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
        """Flush all that waits; what is new, in the order in which it was offered first.

        It is accepted at once. For a sieve with a log of its own. Raises `StoreWriteError`; the
        items wait on, then.
        """
        found: list[Item] = []
        for _ in range(1 + (self.under_way is not None)):
            flush = self.begin()
            flush.run()
            found += flush.new()
            flush.accept()
        return found

    def add(self, items: Iterable[Item]) -> list[Item]:
        """`offer` and `flush` at once: for few calls with many items."""
        self.offer(items)
        return self.flush()

    @property
    def prints(self) -> list[bytes]:
        """The fingerprints of what waits for a flush to begin."""
        data, width = bytes(self._bucket), self._width
        return [data[at : at + width] for at in range(0, len(data), width)]

    def has(self, print_: bytes) -> bool:
        """Whether a fingerprint is on disk."""
        return self.parts.has(print_)

    def __contains__(self, item: Item) -> bool:
        """Whether *item* was offered before; slow for what waits, of which there is no index."""
        wanted = fingerprint(item_key(item), self._width)
        frozen = b"" if self.under_way is None else self.under_way.prints
        return self.parts.has(wanted) or any(
            _holds(prints, wanted) for prints in (frozen, self._bucket)
        )

    def __len__(self) -> int:
        """How many different items flushes have decided about."""
        return len(self.parts)

    def spans(self, slots: Mask, most: int) -> list[tuple[int, int]]:
        """Ranges in which together all fingerprints of *slots* lie, some *most* or fewer in each.
        """
        return list(self.parts.spans(slots, most))

    def rows(self, slots: Mask, low: int, high: int) -> Iterator[Rows]:
        """The fingerprints of *slots* in the range from *low* to *high* (see `spans`), in pieces.

        While no flush runs, in any thread. Raises `OSError`.
        """
        return self.parts.rows(slots, low, high)

    def removing(self, slots: Mask) -> Generator[None, None, None]:
        """Remove the fingerprints of *slots*, in steps of some milliseconds, in any thread.

        No flush may run meanwhile. Raises `StoreWriteError`.

        A verdict that was not accepted stays.
        """
        self._decided()
        with store_errors(self.path):
            yield from self.parts.remove(slots)

    def check(self) -> list[str]:
        """Read all files; what is damaged, one line for each."""
        return self.parts.check()

    def repair(self) -> None:
        """Write damaged files anew with what can be read of them. Raises `StoreWriteError`.

        A verdict that was not accepted stays.
        """
        self._decided()
        with store_errors(self.path):
            self.parts.repair()

    def _decided(self) -> None:
        if self.under_way is None or not self.under_way.decided:
            self._idle()

    def _idle(self) -> None:
        if self.under_way is not None:
            raise ValueError("a flush is under way: accept it first")

    def stats(self) -> SieveStatistics:
        """How much it holds."""
        bits = self._width * 8
        return SieveStatistics(
            known=len(self.parts),
            waiting=self.next - self.decided,
            bits=bits,
            false_positive_bound=false_positive_bound(self.parts.largest_slot, bits),
            parts=len(self.parts.parts),
            disk=sum(file.size for file in self.parts.files),
            flushes=FlushVerdict(**self.parts.manifest.notes).flushes,
            damaged=tuple(self.parts.damaged.values()),
        )

    def close(self) -> None:
        """Let go of the files. What waits is in the log; without one of its own, at the caller."""
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


def _holds(prints: bytes | bytearray, wanted: bytes) -> bool:
    """Whether *wanted* is one of the fingerprints that stand one after the other in *prints*."""
    at = prints.find(wanted)
    while at % len(wanted) and at >= 0:
        at = prints.find(wanted, at + 1)
    return at >= 0
