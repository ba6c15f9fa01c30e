"""The upkeep of a trie store: what is fresh goes to segments, without anyone waiting for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Final

import numpy as np

from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.seen import catalogue as catalogues
from scrapy_spider_suite.seen.building import MADE, Building
from scrapy_spider_suite.seen.catalogue import Catalogue
from scrapy_spider_suite.seen.log import FreshLog, Rows
from scrapy_spider_suite.seen.ranges import Range, Ranges
from scrapy_spider_suite.seen.table import Handles

AT_ONCE: Final = 16
"""Ranges of one build for which somebody waits."""
LOOK_AFTER: Final = 4_096
"""Rows after which it is looked whether there is something to do."""
FIRST: Final = 4_096
"""Fresh rows of which a first segment is made, and further ones while there are few."""
GROWTH: Final = 4
"""A build is due once so many times as many rows are fresh as segments hold, or memory says so."""
PATIENCE: Final = 60
"""Polls after which a build that failed is tried again, however little was added."""
A_STEP: Final = 200_000
"""Rows that are forgotten at a time."""

Spent = tuple[set[str], Handles]
"""Files, and rows of the log, that nothing leads to any more."""


class Upkeep:
    """Adds rows to the log and the ranges of the store in *folder*, and has segments built.

    There is one build at a time. What a build replaced is deleted once a failure of power cannot
    bring it back: the next build makes sure of that, or `rebuild`.

    Attributes:
        catalogue: of the store, as it is on disk.
        fresh: rows in no segment.
        trouble: why the last build failed, until one succeeds.
    """

    def __init__(
        self, folder: Path, catalogue: Catalogue, ranges: Ranges, log: FreshLog, *,
        fresh: int, limit: int, split: int,
    ) -> None:  # fmt: skip
        self.catalogue = catalogue
        self.fresh = fresh
        self.trouble = ""
        self._folder, self._ranges, self._log = folder, ranges, log
        self._limit, self._split = limit, split
        self._look_at = fresh + LOOK_AFTER
        self._retry_at = 0
        self._refused = 0  # polls since a build failed
        self._build: Building | None = None
        self._before: Catalogue | None = None  # of the build whose files are still to be opened
        self._spent: list[Spent] = []
        self._spent_before: list[Spent] = []
        self._rubbish: list[Spent] = []

    @property
    def behind(self) -> bool:
        """Whether more is fresh than should be."""
        return self.fresh >= self._limit

    def keep(self, rows: Rows) -> None:
        """Add *rows*, none of which is there. Raises `StoreWriteError`; nothing is added then."""
        handles = self._log.append(rows)
        only, at = self._ranges.only, self._ranges.at
        for (ident, _), handle in zip(rows, handles, strict=True):
            (only or at(ident)).put(ident, handle)
        self.fresh += len(rows)
        if self._build is not None or self.fresh >= self._look_at:
            self.poll()

    def poll(self) -> bool:
        """Do a step, if one is due; whether a build is under way. What goes wrong is *trouble*."""
        self._look_at = self.fresh  # soon: there may be more to do
        if self._rubbish:
            self._forget([self._rubbish.pop()])
            return True
        if self._build is not None:
            if self._build.poll():
                self._try_install()
            return True
        self._look_at += LOOK_AFTER
        self._refused += self.fresh < self._retry_at
        if (self.fresh >= self._retry_at or self._refused >= PATIENCE) and (part := self._due()):
            self._begin([part], wants_base)
        return self._build is not None

    def wait(self) -> None:
        """Go on until the store is not behind, or something goes wrong."""
        while self.poll() and self.behind:
            if self._build is not None:
                self._build.wait()

    def rebuild(self, lows: Iterable[int], base: Callable[[Range], bool]) -> None:
        """Build the ranges that begin at *lows*, those with damage left out, and wait for it.

        *base* says whether everything of a range is merged. Raises `StoreWriteError`.
        """
        self.settle()
        wanted = list(lows)
        for start in range(0, len(wanted), AT_ONCE):
            parts = [self._ranges.at(low) for low in wanted[start : start + AT_ONCE]]
            sound = [part for part in parts if not part.damaged]
            if sound:
                self._begin(sound, base)
                if (error := self.settle()) is not None:
                    raise error
        self._log.sync()
        try:
            files.sync(self._folder)
        except OSError as error:
            raise StoreWriteError(f"{self._folder}: {error.strerror}") from error
        self._forget(self._rubbish + self._spent)
        self._rubbish, self._spent = [], []
        if not self.fresh and self.catalogue.removed:
            # Whatever the log still has is in segments, or was removed.
            ranges = tuple(replace(row, mark=self._log.end) for row in self.catalogue.ranges)
            self.write(replace(self.catalogue, ranges=ranges, removed=()))
            self._ranges.adopt(self.catalogue, verify=False)

    def settle(self) -> StoreWriteError | None:
        """Wait for the build that is under way; what went wrong with it.

        Raises `StoreWriteError` if what it built is there, but cannot be opened now.
        """
        if self._build is None:
            return None
        self._build.wait()
        error = self._try_install()
        if error is not None and self._build is not None:
            raise error
        return error

    def cancel(self) -> None:
        """Stop the build that is under way."""
        if self._build is not None:
            self._build.cancel()
            self._build = None

    def write(self, catalogue: Catalogue) -> None:
        """Make *catalogue*, one serial on, the one of the store. Raises `StoreWriteError`."""
        after = replace(catalogue, serial=self.catalogue.serial + 1)
        made = self._folder / MADE / "catalogue"
        try:
            made.mkdir(parents=True, exist_ok=True)
            catalogues.write(made, after)
            catalogues.install(made, self._folder)
            files.sync(self._folder)
        except OSError as error:
            raise StoreWriteError(f"{self._folder}: {error.strerror}") from error
        finally:
            shutil.rmtree(made, ignore_errors=True)
        self.catalogue = after

    def _due(self) -> Range | None:
        """The range to be written next: with URLs that were removed, or with fresh rows."""
        for part in self._ranges:
            if not part.damaged and has_removed(part):
                return part
        sound = [part for part in self._ranges if part.count and not part.damaged]
        if not sound:
            return None
        oldest = min(sound, key=lambda part: part.oldest)
        if self._log.overdue(oldest.oldest):
            return oldest
        held = sum(len(segment) for part in self._ranges for segment in part.segments)
        enough = min(self._limit // 2, max(FIRST, GROWTH * held))
        return max(sound, key=lambda part: part.count) if self.fresh >= enough else None

    def _begin(self, parts: Sequence[Range], base: Callable[[Range], bool]) -> None:
        with suppress(StoreWriteError):  # the build will meet the same fault, and deal with it
            self._log.rotate()
        ranges = [(part, base(part)) for part in parts]
        self._build = Building(self._folder, ranges, self._log, self._split)
        self._refused = 0
        self._spent_before, self._spent = self._spent, []

    def _try_install(self) -> StoreWriteError | None:
        """Take over what was built, which has ended.

        Its files are the store's at once; if they cannot be opened now, the old ones serve until
        the next attempt.
        """
        assert self._build is not None
        build = self._build
        try:
            if self._before is None:
                self._before, self.catalogue = self.catalogue, build.install()
            self._ranges.adopt(self.catalogue, build.built, verify=False)
        except StoreWriteError as error:
            self.trouble = str(error)
            if self._before is None:
                self._build, self._spent = None, self._spent_before
                self._retry_at = self.fresh + max(self.fresh // 10, LOOK_AFTER)
            return error
        self._rubbish += self._spent_before
        before, after = self._before, self.catalogue
        self._build = self._before = None
        self.fresh -= sum(map(len, build.handles))
        self._spent.append((before.files - after.files, np.zeros(0, np.int64)))
        self._spent += [
            (set(), handles[start : start + A_STEP])
            for handles in build.handles
            for start in range(0, len(handles), A_STEP)
        ]
        self.trouble, self._retry_at = "", 0
        return None

    def _forget(self, spent: list[Spent]) -> None:
        """Delete what nothing leads to any more."""
        for names, handles in spent:
            for name in names:
                (self._folder / name).unlink(missing_ok=True)
            if len(handles):
                self._log.forget(handles)


def has_removed(part: Range) -> bool:
    """Whether its segments hold URLs that were removed, which nobody should find there any more."""
    return any(segment.row.removed for segment in part.segments)


def wants_base(part: Range) -> bool:
    """Whether it is time to merge everything of a range into its base.

    With *f* rows a time, a base of *b* and recent segments of up to *r*, a row is written
    r / 2f + b / r + 1 times, which is least for r = sqrt(2fb).
    """
    if part.row.base is None or has_removed(part):
        return True
    base = part.row.base.keys
    recent = part.count + (0 if part.row.recent is None else part.row.recent.keys)
    return recent >= min(base, sqrt(2 * part.count * base))
