"""How a batch of fingerprints is merged into a set on disk, in steps of some milliseconds.

numpy lets go of the interpreter lock in what takes long here (sorting, searching, copying), and so
do reading, writing and syncing: steps can run in a thread beside a crawl.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.seen.fingerprints import SLOTS
from scrapy_spider_suite.seen.rows import (
    Mask,
    Places,
    Rows,
    empty,
    found,
    merged,
    place,
    slices,
    slots_of,
    sorted_and_unique,
)
from scrapy_spider_suite.seen.sortedfile import CHUNK, SortedFile, SortedWriter

if TYPE_CHECKING:
    from scrapy_spider_suite.seen.parts import SortedParts

PARTS = 32
"""Parts have at most this share of all fingerprints, or what a part may always have."""
_RECENT = 4
"""A recent file has at most one row for so many of its base."""


@dataclass(frozen=True, slots=True)
class Part:
    """The fingerprints from the first word *low* on, up to the next part's.

    Invariant: each of them is in one of the two files only.
    """

    low: int
    base: SortedFile | None = None
    recent: SortedFile | None = None

    def __len__(self) -> int:
        return sum(map(len, self.files))

    @property
    def files(self) -> list[SortedFile]:
        """Its files."""
        return [file for file in (self.base, self.recent) if file is not None]


class Merge:
    """One merge: `step` until there are no more, then `conclude`; or `abandon` before that.

    *batch* is in the order of arrival; if it is *fresh*, nothing of it is in the set, and bases are
    read only where they are written anew. The slots for which *drop* is true are left out of what
    is written, and the parts for which *anew* is true are written anew, whatever the batch.

    Attributes:
        new: of each row of the batch, once there are no more steps: whether it is the first of its
            kind in the batch, and not in the set.
    """

    def __init__(
        self,
        parts: SortedParts,
        batch: Rows,
        drop: Mask | None = None,
        fresh: bool = False,
        anew: Callable[[Part, int], bool] = lambda part, end: False,
    ) -> None:
        self.new: Mask = np.zeros(len(batch), np.bool_)
        self._parts = parts
        self._batch = batch
        self._drop = drop
        self._fresh = fresh
        self._anew = anew
        old = parts.manifest
        self._manifest = replace(
            old, generation=old.generation + 1, parts=[], counts=old.counts.copy()
        )
        self._written: list[Path] = []
        self._writer: SortedWriter | None = None
        self._most = max(parts.part, (len(parts) + len(batch)) // PARTS)
        self._steps = self._run()

    def step(self) -> bool:
        """Do some milliseconds of the work; whether there may be more of it.

        Raises `OSError` if something cannot be read or written, `JobDamagedError` if a file is
        gone: then the set is as it was.
        """
        try:
            next(self._steps)
        except StopIteration:
            return False
        except BaseException:
            self.abandon()
            raise
        return True

    def conclude(self, notes: dict[str, Any]) -> None:
        """Let the new files be the set, on disk, together with *notes*; after all steps.

        Raises `OSError`: then the set is as it was.
        """
        self._manifest.notes = notes
        try:
            self._manifest.write(self._parts.folder)
        except BaseException:
            self.abandon()
            raise
        self._parts.take(self._manifest)

    def abandon(self) -> None:
        """Remove what was written."""
        if self._writer is not None:
            self._writer.abandon()
        for path in self._written:
            path.unlink(missing_ok=True)

    def _run(self) -> Generator[None]:
        pieces: list[tuple[Rows, Places]] = []
        for piece in sorted_and_unique(self._batch, CHUNK):
            pieces.append(piece)
            yield
        unique = np.concatenate([rows for rows, _ in pieces])
        first = np.concatenate([places for _, places in pieces])
        yield
        known = np.zeros(len(unique), np.bool_)
        begin = 0
        for part, end in self._parts.ranges():
            stop = place(unique, end)
            anew = self._anew(part, end)
            if stop > begin or anew:
                known[begin:stop] = yield from self._merge_part(part, unique[begin:stop], anew)
            else:
                self._keep(part.low, part.base, part.recent)
            begin = stop
        self.new[first[~known]] = True
        slots = slots_of(unique[~known])
        # Of what was damaged too much is counted: to the bound that this is for it is no harm.
        self._manifest.counts += np.bincount(slots, minlength=SLOTS)
        if self._drop is not None:
            self._manifest.counts[self._drop] = 0
        yield

    def _merge_part(self, part: Part, batch: Rows, anew: bool) -> Generator[None, None, Mask]:
        """Merge the sorted *batch* into a part; which of it were known."""
        recent = np.concatenate([empty(self._parts.words), *self._read(part.recent)])
        known = found(recent, batch)
        size, more = len(part.base or ()), len(recent) + len(batch)
        anew = anew or not size or more > max(CHUNK, size // _RECENT)
        share = (size + more) / -(-(size + more) // self._most) if anew else float("inf")
        most = int(min(CHUNK, share))
        written: list[tuple[int, str]] = []
        searched = begin = old = 0
        for chunk in self._read(part.base if anew or not self._fresh else None):
            last = int(chunk[-1, 0]) + 1
            stop = place(batch, last)
            known[searched:stop] |= found(chunk, batch[searched:stop])
            if anew:
                end = place(recent, last)
                fresh = batch[begin:stop][~known[begin:stop]]
                for piece in slices(merged(chunk, recent[old:end], fresh), most):
                    self._write(piece, written, share)
                begin, old = stop, end
            searched = stop
            yield
        rest = merged(recent[old:], batch[begin:][~known[begin:]])
        if not anew and known.all():
            self._keep(part.low, part.base, part.recent)
            return known
        for piece in slices(rest, most):
            self._write(piece, written, share)
            yield
        self._end_file()
        if anew:
            self._name_bases(part.low, written)
        else:
            self._keep(part.low, part.base, None, written[0][1])
        return known

    def _read(self, file: SortedFile | None) -> Generator[Rows]:
        """The rows of *file*, without what is dropped, in pieces."""
        try:
            for rows in file.chunks() if file else ():
                left = rows if self._drop is None else rows[~self._drop[slots_of(rows)]]
                if len(left):
                    yield left
        except FileNotFoundError as error:  # that does not end, as a full disk does
            raise JobDamagedError(f"{error.filename} is missing") from None

    def _write(self, rows: Rows, written: list[tuple[int, str]], share: float) -> None:
        """Write sorted *rows* to the file being written, or the next one after so many rows."""
        if self._writer is not None and self._writer.rows >= share:
            self._end_file()
        if self._writer is None:
            name = f"{self._manifest.generation:08}-{len(self._written):05}.rows"
            self._written.append(self._parts.folder / name)
            self._writer = SortedWriter(self._written[-1], self._parts.words)
            written.append((int(rows[0, 0]), name))
        self._writer.write(rows)

    def _end_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _keep(
        self, low: int, base: SortedFile | None, recent: SortedFile | None, name: str = ""
    ) -> None:
        names = [file.path.name if file else "" for file in (base, recent)]
        self._manifest.parts.append((low, names[0], names[1] or name))

    def _name_bases(self, low: int, written: list[tuple[int, str]]) -> None:
        """Note new bases; where nothing is left, the range falls to the part before."""
        if written:
            written[0] = (low, written[0][1])
        elif not low:
            written = [(0, "")]
        self._manifest.parts += [(start, name, "") for start, name in written]
