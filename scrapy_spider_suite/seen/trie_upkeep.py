"""The upkeep of a trie store: what is fresh goes to segments, without anyone waiting for it.

Whether the files of a trie store are as they were written, and what can be done if not.

How URLs leave a trie store: at once for who looks, from the files when they are built anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.seen import segments as catalogues
from scrapy_spider_suite.seen.fresh_log import FreshLog, Rows
from scrapy_spider_suite.seen.ranges import Range, Ranges
from scrapy_spider_suite.seen.segment_builder import MADE, Building
from scrapy_spider_suite.seen.segments import Catalogue, RangeRow, Segment, SegmentRow
from scrapy_spider_suite.seen.url_keys import Handles, Identity

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
            files.sync_path(self._folder)
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
            catalogues.write_catalogue(made, after)
            catalogues.install_catalogue(made, self._folder)
            files.sync_path(self._folder)
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


ASIDE = "damaged-"
"""What the names of files begin with that were damaged and are kept to be looked at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is damaged.

    Attributes:
        file: its name.
        what: what is wrong with it.
        urls: how many URLs count as not seen while it is.
        lost: how many of those still do after the repair.
        remedy: what the repair does.
        repaired: whether that was done.
    """

    file: str
    what: str
    urls: int
    lost: int
    remedy: str
    repaired: bool = False


def check(
    folder: Path, upkeep: Upkeep, ranges: Ranges, damaged: dict[str, str], repair: bool
) -> list[Finding]:
    """Read all segments anew; see `TrieStore.check`."""
    upkeep.settle()
    found = [
        finding
        for row in upkeep.catalogue.ranges
        for segment in (row.base, row.recent)
        if segment is not None and (finding := _judge(folder, segment)) is not None
    ]
    names = {finding.file for finding in found}
    others = {name: why for name, why in damaged.items() if name not in names}
    found += [
        Finding(name, why, 0, 0, "what can be read is written anew")
        for name, why in others.items()
    ]
    if not repair or not found:
        return found
    _repair(folder, upkeep, ranges, found)
    damaged.clear()
    return [replace(finding, repaired=True) for finding in found]


def _judge(folder: Path, row: SegmentRow) -> Finding | None:
    """What is wrong with a segment, if anything is."""
    try:
        data = (folder / row.name).read_bytes()
    except OSError as error:
        data = b""
        what = error.strerror or "it cannot be read"
    else:
        what = "it is not as it was written"
    if xxhash.xxh3_128_hexdigest(data[: row.trie]) != row.sums[0]:
        urls = row.keys - row.gone
        return Finding(row.name, what, urls, urls, "it is put aside, and its URLs are forgotten")
    if xxhash.xxh3_128_hexdigest(data[row.trie :]) != row.sums[1]:
        return Finding(row.name, what, row.keys - row.gone, 0, "it is built anew from its trie")
    return None


def _repair(folder: Path, upkeep: Upkeep, ranges: Ranges, found: list[Finding]) -> None:
    """Raises `StoreWriteError`."""
    lost = {finding.file for finding in found if finding.lost}
    bad = {finding.file for finding in found}
    upkeep.write(_leaving_out(upkeep.catalogue, lost))
    for name in lost & {path.name for path in folder.iterdir()}:
        try:
            (folder / name).rename(folder / f"{ASIDE}{name}")
        except OSError as error:
            raise StoreWriteError(f"{folder / name}: {error.strerror}") from error
    ranges.damage.clear()
    ranges.damage.update(dict.fromkeys(bad - lost, "to be built anew"))
    ranges.adopt(upkeep.catalogue)
    # What is missing is missing in memory only: a builder needs no more than the tries.
    again = [part for part in ranges if part.damaged]
    for part in again:
        part.damaged = False
    fresh = [part for part in ranges if part.count]
    upkeep.rebuild([part.row.low for part in {*again, *fresh}], lambda part: True)
    ranges.damage.clear()


def _leaving_out(catalogue: Catalogue, names: set[str]) -> Catalogue:
    def kept(row: SegmentRow | None) -> SegmentRow | None:
        return None if row is None or row.name in names else row

    ranges = tuple(
        RangeRow(row.low, row.mark, kept(row.base), kept(row.recent)) for row in catalogue.ranges
    )
    return replace(catalogue, ranges=ranges)


def remove(
    start: bytes, parts: Sequence[Range], ranges: Ranges, upkeep: Upkeep, log: FreshLog,
    twins: dict[bytes, int],
) -> int:  # fmt: skip
    """Remove what begins with *start*, all of it in *parts*; how many. Raises `StoreWriteError`."""
    rows = {part.row.low: part.row for part in ranges}
    count = 0
    for part in parts:
        base, fewer = _without(part.row.base, part.base, start)
        recent, least = _without(part.row.recent, part.recent, start)
        rows[part.row.low] = RangeRow(part.row.low, part.row.mark, base, recent)
        count += fewer + least
    fresh = [(p, np.array([h for _, h in fresh_keys(p, start, log)], np.int64)) for p in parts]
    if not count and not any(len(handles) for _, handles in fresh):
        return 0
    before = upkeep.catalogue
    kept = {key: ident for key, ident in before.twins.items() if not key.startswith(start.hex())}
    upkeep.write(replace(
        before, ranges=tuple(rows.values()), twins=kept,
        removed=(*before.removed, (start.hex(), log.end)),
    ))  # fmt: skip
    ranges.adopt(upkeep.catalogue, verify=False)
    for key in [key for key in twins if key.startswith(start)]:
        del twins[key]
    for part, handles in fresh:
        if len(handles):
            part.drop(handles)
            upkeep.fresh -= len(handles)
            log.forget(handles)
            count += len(handles)
    return count


def fresh_keys(part: Range, prefix: bytes, log: FreshLog) -> Iterator[tuple[bytes, int]]:
    """The fresh URLs of a range that begin with *prefix*, and their handles."""
    ids, handles = part.rows()
    low, high = Identity.span(prefix)
    near = handles[(ids >= np.uint64(low)) & (ids <= np.uint64(high - 1))]
    for handle in np.sort(near).tolist():
        key = log.read(handle)
        if key.startswith(prefix):
            yield key, handle


def _without(
    row: SegmentRow | None, segment: Segment | None, prefix: bytes
) -> tuple[SegmentRow | None, int]:
    """The row of a segment whose URLs with *prefix* count no more, and how many those are."""
    found = 0 if segment is None else sum(1 for _ in segment.keys(prefix))
    if row is None or not found:
        return row, 0
    removed = (*row.removed, prefix.hex())
    return replace(row, removed=removed, gone=row.gone + found), found
