"""Mercator's sieve: which of many URLs are new, for more of them than memory holds.

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
from dataclasses import dataclass
from pathlib import Path

from scrapy_spider_suite.runtime.files import lock
from scrapy_spider_suite.seen.fingerprints import (
    WIDTHS,
    false_positive_bound,
    fingerprint,
    fingerprints,
    key_of,
)
from scrapy_spider_suite.seen.flushing import Flush, Verdict, writing
from scrapy_spider_suite.seen.parts import PART, SortedParts
from scrapy_spider_suite.seen.rows import TOP, Mask, Rows, bytes_of, mask_of, rows_of
from scrapy_spider_suite.seen.waiting import Item, WaitingLog

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
        part: int = PART,
        readonly: bool = False,
    ) -> None:
        self.path = Path(path)
        self.capacity = capacity
        self._width = WIDTHS[bits]
        self._lock: int | None = None if readonly else lock(self.path)
        self._bucket = bytearray()
        self._flush: Flush | None = None
        try:
            with writing(self.path):
                self._parts = SortedParts(self.path, self._width // 8, part, readonly=readonly)
                self._open(own_log and not readonly)
        except BaseException:
            self._unlock()
            raise

    def _open(self, own_log: bool) -> None:
        verdict = Verdict(**self._parts.manifest.notes)
        self._begun = verdict.end
        self._log = WaitingLog(self.path, verdict.end) if own_log else None
        first = verdict.first if self._log is None else self._log.first
        if first < verdict.end:
            self._flush = Flush(self._parts, verdict, self._log, self._accepted)
        if self._log is not None:
            waiting = self._log.read(verdict.end, self._log.next)
            self._bucket += fingerprints((item for _, item in waiting), self._width)

    def _accepted(self) -> None:
        self._flush = None

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

    @property
    def under_way(self) -> Flush | None:
        """The flush that was begun and not accepted, perhaps before the process ended."""
        return self._flush

    @property
    def _frozen(self) -> bytes:
        return b"" if self._flush is None else self._flush.prints

    def offer(self, items: Iterable[Item]) -> None:
        """Let *items* wait.

        Raises `StoreWriteError` if the log cannot be written: none of them waits then.
        """
        listed = list(items)
        self.keep(listed, fingerprints(listed, self._width))

    def keep(self, items: Sequence[Item], prints: bytes) -> None:
        """`offer`, by who has the fingerprints of *items* already."""
        if self._log is not None:
            self._log.append(items)
        self._bucket += prints

    @property
    def decided(self) -> int:
        """The number after the last item that a flush has decided about."""
        return Verdict(**self._parts.manifest.notes).end

    def begin(self, fresh: bool = False) -> Flush:
        """Begin to flush all that waits; or go on with the flush that is not accepted yet.

        *fresh* is for a caller who knows that all of it is new, which is quicker.
        """
        if self._flush is None:
            end = self.next
            if self._log is not None:
                with writing(self.path):
                    self._log.rotate()
            verdict, prints = Verdict(self._begun, end), bytes(self._bucket)
            self._flush = Flush(
                self._parts, verdict, self._log, self._accepted, prints, fresh
            )
            self._begun = end
            self._bucket.clear()
        return self._flush

    def flush(self) -> list[Item]:
        """Flush all that waits; what is new, in the order in which it was offered first.

        It is accepted at once. For a sieve with a log of its own. Raises `StoreWriteError`; the
        items wait on, then.
        """
        found: list[Item] = []
        for _ in range(1 + (self._flush is not None)):
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
        return self._parts.has(print_)

    def __contains__(self, item: Item) -> bool:
        """Whether *item* was offered before; slow for what waits, of which there is no index."""
        wanted = fingerprint(key_of(item), self._width)
        return self._parts.has(wanted) or any(
            _holds(prints, wanted) for prints in (self._frozen, self._bucket)
        )

    def __len__(self) -> int:
        """How many different items flushes have decided about."""
        return len(self._parts)

    def extract(self, slots: Iterable[int]) -> Iterator[bytes]:
        """The fingerprints of *slots*, many in one piece of bytes."""
        mask = mask_of(slots)
        for low, high in self._parts.spans(mask, TOP):
            yield from map(bytes_of, self._parts.rows(mask, low, high))

    def spans(self, slots: Mask, most: int) -> list[tuple[int, int]]:
        """Ranges in which together all fingerprints of *slots* lie, some *most* or fewer in each.
        """
        return list(self._parts.spans(slots, most))

    def rows(self, slots: Mask, low: int, high: int) -> Iterator[Rows]:
        """The fingerprints of *slots* in the range from *low* to *high* (see `spans`), in pieces.

        While no flush runs, in any thread. Raises `OSError`.
        """
        return self._parts.rows(slots, low, high)

    def absorb(self, pieces: Iterable[bytes]) -> None:
        """Know the fingerprints that another sieve of the same width has extracted.

        Raises `StoreWriteError`; some of them may be known then, and they can be absorbed again.
        """
        self._idle()
        for piece in pieces:
            with writing(self.path):
                merge = self._parts.merge(rows_of(piece, self._width))
                while merge.step():
                    pass
                merge.conclude(self._parts.manifest.notes)

    def remove(self, slots: Iterable[int]) -> None:
        """Forget the fingerprints of *slots*. Raises `StoreWriteError`."""
        for _ in self.removing(mask_of(slots)):
            pass

    def removing(self, slots: Mask) -> Generator[None, None, None]:
        """`remove` in steps of some milliseconds, in any thread, while no flush runs.

        A verdict that was not accepted stays.
        """
        self._decided()
        with writing(self.path):
            yield from self._parts.remove(slots)

    def check(self) -> list[str]:
        """Read all files; what is damaged, one line for each."""
        return self._parts.check()

    def repair(self) -> None:
        """Write damaged files anew with what can be read of them. Raises `StoreWriteError`.

        A verdict that was not accepted stays.
        """
        self._decided()
        with writing(self.path):
            self._parts.repair()

    def _decided(self) -> None:
        if self._flush is None or not self._flush.decided:
            self._idle()

    def _idle(self) -> None:
        if self._flush is not None:
            raise ValueError("a flush is under way: accept it first")

    def stats(self) -> SieveStatistics:
        """How much it holds."""
        bits = self._width * 8
        return SieveStatistics(
            known=len(self._parts),
            waiting=self.next - self.decided,
            bits=bits,
            false_positive_bound=false_positive_bound(self._parts.largest_slot, bits),
            parts=len(self._parts.parts),
            disk=sum(file.size for file in self._parts.files),
            flushes=Verdict(**self._parts.manifest.notes).flushes,
            damaged=tuple(self._parts.damaged.values()),
        )

    def close(self) -> None:
        """Let go of the files. What waits is in the log; without one of its own, at the caller."""
        if self._flush is not None:
            self._flush.abandon()
        if self._log is not None:
            self._log.close()
        self._parts.close()
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
