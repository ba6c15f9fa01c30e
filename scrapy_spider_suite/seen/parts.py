"""A set of fingerprints on disk: sorted, in parts by their first words, merged with batches.

A part has a *base* and, once that is large, a *recent* file. A batch is compared with both, and
what is new of it is merged into recent; only when recent would be more than a quarter of the base
are the two merged into a new base. So a batch that is small beside the set costs reading all of it,
as with Mercator's sieve (BUbiNG §4), but writing little of it. A base that grows too large is cut;
a look-up touches two files at most, however large the set.

Files never change. A merge writes new ones, and a new manifest makes them the set in one moment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from struct import Struct

import numpy as np

from scrapy_spider_suite.errors import JobDamagedError, JobSettingsError
from scrapy_spider_suite.seen.manifest import Manifest
from scrapy_spider_suite.seen.merging import Merge, Part
from scrapy_spider_suite.seen.rows import TOP, Mask, Rows, empty, slots_of
from scrapy_spider_suite.seen.sortedfile import SortedFile

PART = 1 << 20
"""Fingerprints that a part may have, however few there are in all."""
_ATTEMPTS = 20
"""Times that a reader begins anew because files were replaced meanwhile."""


class _Serving:
    """What look-ups go by: replaced as a whole."""

    def __init__(self, manifest: Manifest, parts: list[Part]) -> None:
        self.manifest = manifest
        self.parts = parts
        self.lows = [part.low for part in parts]
        self.rows = sum(map(len, parts))


class SortedParts:
    """The set in *folder*, which is made if need be, of fingerprints of *words* words.

    A damaged file is named in *damaged*, and the others serve: what it held is new again. Raises
    `JobDamagedError` if the manifest is damaged, and `JobSettingsError` if the set has fingerprints
    of another width. With *readonly* it is looked at beside the process whose it is.

    Attributes:
        damaged: what could not be read: the name of each file, and what is the matter with it.
        part: fingerprints that a part may have, however few there are in all.
    """

    def __init__(
        self, folder: Path, words: int, part: int = PART, *, readonly: bool = False
    ) -> None:
        if not readonly:
            folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._readonly = readonly
        self.words = words
        self.part = part
        self._unpack = Struct(f">{words}Q").unpack
        self.damaged: dict[str, str] = {}
        self._serving = _Serving(Manifest(words), [])
        self._read()

    def _read(self) -> None:
        """Serve what the manifest on disk says; a reader, what was there at one moment."""
        for _ in range(_ATTEMPTS):
            manifest = Manifest.read(self.folder) or Manifest(self.words)
            if manifest.words != self.words:
                was, now = manifest.words * 64, self.words * 64
                raise JobSettingsError(
                    f"{self.folder} has fingerprints of {was} bits, not of {now}"
                )
            self.damaged.clear()
            self.take(manifest)
            if not (self._readonly and self.damaged) or self._is_current():
                return

    def _is_current(self) -> bool:
        now = Manifest.read(self.folder)
        return now is None or now.generation == self.manifest.generation

    def take(self, manifest: Manifest) -> None:
        """Serve what *manifest* says, and remove all other files.

        Another thread may look up meanwhile: it is served by the old files or by the new ones.
        """
        files = {file.path.name: file for file in self.files}
        named = {name for part in manifest.parts for name in part[1:] if name}
        opened = {name: files.get(name) or self._open(name) for name in named}
        parts = [Part(low, opened.get(a), opened.get(b)) for low, a, b in manifest.parts]
        self._serving = _Serving(manifest, parts)
        for path in () if self._readonly else self.folder.glob("*.rows"):
            if path.name not in named:
                path.unlink(missing_ok=True)

    def _open(self, name: str) -> SortedFile | None:
        try:
            return SortedFile(self.folder / name, self._note)
        except JobDamagedError as error:
            self.damaged[name] = str(error)
            return None

    def _note(self, path: Path, block: int) -> None:
        self.damaged[path.name] = f"{path} is damaged: block {block} cannot be read"

    @property
    def manifest(self) -> Manifest:
        """What the set consists of."""
        return self._serving.manifest

    @property
    def parts(self) -> list[Part]:
        """Its parts, in the order of their ranges."""
        return self._serving.parts

    @property
    def files(self) -> list[SortedFile]:
        """All files."""
        return [file for part in self.parts for file in part.files]

    def __len__(self) -> int:
        return self._serving.rows

    @property
    def largest_slot(self) -> int:
        """How many fingerprints the slot that has most of them has, at most."""
        return int(self.manifest.counts.max())

    def has(self, print_: bytes) -> bool:
        """Whether a fingerprint is in the set. Raises `JobDamagedError`: a file of it is gone."""
        row = self._unpack(print_)
        serving = self._serving
        part = serving.parts[bisect_right(serving.lows, row[0]) - 1]
        try:
            base, recent = part.base, part.recent
            return (base is not None and base.has(row)) or (recent is not None and recent.has(row))
        except FileNotFoundError as error:
            if serving is self._serving:
                if self._is_current():
                    raise JobDamagedError(f"{error.filename} is missing") from None
                self._read()
            return self.has(print_)  # a merge ended meanwhile

    def ranges(self) -> Iterator[tuple[Part, int]]:
        """The parts, each with the end of its range."""
        return zip(self.parts, [*self._serving.lows[1:], TOP], strict=True)

    def rows(self, slots: Mask, low: int = 0, high: int = TOP) -> Iterator[Rows]:
        """The fingerprints of *slots*, in pieces; sorted within a file.

        Those whose first words are at least *low* and less than *high*. Raises `OSError` if files
        are replaced meanwhile.
        """
        for part, end in self.ranges():
            if part.low < high and end > low:
                for file in part.files:
                    for rows in file.chunks(low, high):
                        yield rows[slots[slots_of(rows)]]

    def spans(self, slots: Mask, most: int) -> Iterator[tuple[int, int]]:
        """Ranges of first words, in which together all fingerprints of *slots* lie, and in each of
        them about as many as *most* at the most."""
        begin = end = count = 0
        for slot in np.flatnonzero(slots & (self.manifest.counts > 0)).tolist():
            number = int(self.manifest.counts[slot])
            if count and count + number > most:
                yield begin << 48, end << 48
                count = 0
            if number > most:
                # Behind the slot they are those of a hash, and lie as close anywhere.
                pieces = -(-number // most)
                yield from pairwise((slot << 48) + (n << 48) // pieces for n in range(pieces + 1))
            else:
                begin = begin if count else slot
                count, end = count + number, slot + 1
        if count:
            yield begin << 48, end << 48

    def merge(self, batch: Rows, fresh: bool = False) -> Merge:
        """Begin to merge *batch*, which is in the order of its arrival; see `Merge` for *fresh*."""
        return Merge(self, batch, fresh=fresh)

    def remove(self, slots: Mask) -> Iterator[None]:
        """Remove the fingerprints of *slots*, in steps. Raises `OSError`."""

        def touched(part: Part, end: int) -> bool:
            return bool(slots[part.low >> 48 : (end - 1 >> 48) + 1].any())

        if (slots & (self.manifest.counts > 0)).any():
            yield from self._carry_out(Merge(self, empty(self.words), slots, anew=touched))

    def repair(self) -> None:
        """Write anew what can be read of damaged files. Raises `OSError`."""
        bad = set(self.damaged)

        def damaged(part: Part, end: int) -> bool:
            return any(file.path.name in bad for file in part.files)

        for _ in self._carry_out(Merge(self, empty(self.words), anew=damaged)):
            pass
        self.damaged.clear()

    def _carry_out(self, merge: Merge) -> Iterator[None]:
        try:
            while merge.step():
                yield
        except GeneratorExit:
            merge.abandon()
            raise
        merge.conclude(self.manifest.notes)

    def check(self) -> list[str]:
        """Read everything; what is damaged, one line for each file."""
        for _ in range(_ATTEMPTS):
            try:
                for file in self.files:
                    for _ in file.chunks():
                        pass
                break
            except FileNotFoundError:
                if self._is_current():
                    raise
                self._read()
        return list(self.damaged.values())

    def close(self) -> None:
        """Let go of the files."""
        for file in self.files:
            file.close()
