"""A flush of the sieve: from what waited to what is new of it, in steps.

Its life: steps, the last of which decides; then what is new is handed out; then it is accepted.
The verdict is in the manifest, so deciding and knowing are one moment, and it stays there until the
next one. Handing out ends with what waited being dropped: files of the sieve's own log, or rows of
the caller's; whatever of that is still there after a kill has not been handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock

import numpy as np

from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.seen.merging import Merge
from scrapy_spider_suite.seen.parts import SortedParts
from scrapy_spider_suite.seen.rows import rows_of
from scrapy_spider_suite.seen.waiting import Item, WaitingLog


@dataclass(frozen=True, slots=True)
class Verdict:
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
        self,
        parts: SortedParts,
        verdict: Verdict,
        log: WaitingLog | None,
        done: Callable[[], None],
        prints: bytes | None = None,
        fresh: bool = False,
    ) -> None:
        self.first = verdict.first
        self.end = verdict.end
        self.prints = prints or b""
        self.decided = prints is None
        """Whether it is known what is new."""
        self._parts = parts
        self._verdict = verdict
        self._log = log
        self._done = done
        self._fresh = fresh
        self._merge: Merge | None = None
        self._one = Lock()

    def __len__(self) -> int:
        return self.end - self.first

    def step(self) -> bool:
        """Do some milliseconds of the work, or wait for the disk; whether there is more to do.

        Raises `StoreWriteError` if the disk is full or broken. Nothing is lost then, and the next
        step begins the work anew. Raises `JobDamagedError` if a file of the sieve is gone.
        """
        with self._one, writing(self._parts.folder):
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

    def _decide(self, merge: Merge) -> None:
        if self._log is not None:
            self._log.sync(self.end)  # what is known must not be lost
        flushes = self._parts.manifest.notes.get("flushes", 0) + 1
        bits = np.packbits(merge.new).tobytes()
        verdict = Verdict(self.first, self.end, bits, flushes)
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
        self._done()

    def abandon(self) -> None:
        """Stop in the middle: what it wrote is removed; what waited waits on."""
        if self._merge is not None:
            self._merge.abandon()
            self._merge = None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `StoreWriteError` that says where."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise StoreWriteError(f"{where}: {error.strerror}") from error
