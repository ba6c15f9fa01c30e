"""A set of fingerprints on disk: sorted, in parts by first words, merged with batches.

A part has a *base* and a *recent* file of at most a quarter of it. A merge reads both, and rewrites
recent, or else the base. Files never change: a new manifest makes new ones the set in one moment.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped]
import numpy as np
import xxhash
from numpy.typing import NDArray

from scrapy_spider_suite.errors import JobDamagedError, JobFormatError, JobSettingsError
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.seen.fingerprints import (
    CHUNK,
    SLOTS,
    TOP,
    Mask,
    Places,
    Rows,
    SortedFile,
    SortedWriter,
    are_among,
    false_positive_bound,
    merge_rows,
    no_rows,
    rank_of,
    slice_rows,
    slots_of,
    sorted_and_unique,
)

MANIFEST_NAME = "sieve.manifest"
_FORMAT = 1
_SUM = 8


@dataclass
class SetManifest:
    words: int  # words of 64 bits in a fingerprint
    generation: int = 0  # how often it was replaced
    # For each part its least first word, its base and its recent file ("": none).
    parts: list[tuple[int, str, str]] = field(default_factory=lambda: [(0, "", "")])
    counts: NDArray[np.int64] = field(  # fingerprints of each slot
        default_factory=lambda: np.zeros(SLOTS, np.int64)
    )
    notes: dict[str, Any] = field(default_factory=dict)  # the owner's, from the same moment

    @classmethod
    def read(cls, folder: Path) -> SetManifest | None:
        """The manifest of *folder*, or None. Raises `JobDamagedError`, `JobFormatError`."""
        path = folder / MANIFEST_NAME
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        body, sum_ = data[:-_SUM], data[-_SUM:]
        if len(data) <= _SUM or xxhash.xxh3_64_digest(body) != sum_:
            raise JobDamagedError(f"{path} is damaged")
        row = msgpack.unpackb(body)
        if row["format"] != _FORMAT:
            raise JobFormatError(f"{path} has format {row['format']}, this release reads {_FORMAT}")
        counts = np.frombuffer(row["counts"], "<u4").astype(np.int64)
        parts = [tuple(part) for part in row["parts"]]
        return cls(row["words"], row["generation"], parts, counts, row["notes"])

    def write(self, folder: Path) -> None:
        """Replace the manifest of *folder*, durably, or raise `OSError`."""
        row = {
            "format": _FORMAT, "words": self.words, "generation": self.generation,
            "parts": self.parts, "counts": self.counts.astype("<u4").tobytes(),
            "notes": self.notes,
        }  # fmt: skip
        body: bytes = msgpack.packb(row)
        new = folder / f"{MANIFEST_NAME}.new"
        files.write_synced(new, body + xxhash.xxh3_64_digest(body))
        os.replace(new, folder / MANIFEST_NAME)
        with suppress(OSError):  # the next write to the disk will fail, too
            files.sync_path(folder)


MAX_PARTS = 32  # parts have at most this share of all fingerprints, or what a part may always have
_RECENT = 4  # a recent file has at most one row for so many of its base


@dataclass(frozen=True, slots=True)
class SetPart:
    """The fingerprints from the first word *low* on. Invariant: each is in one file only."""

    low: int
    base: SortedFile | None = None
    recent: SortedFile | None = None

    def __len__(self) -> int:
        return sum(map(len, self.files))

    @property
    def files(self) -> list[SortedFile]:
        return [file for file in (self.base, self.recent) if file is not None]


class SetMerge:
    """One merge: `step` until there are no more, then `conclude`; or `abandon` before that.

    *fresh*: all of *batch* is new, so bases are read only where they are rewritten. Slots in *drop*
    are left out; parts for which *anew* is true are rewritten. After all steps *new* is a mask over
    the batch: rows that are the first of their kind, and not in the set.
    """

    def __init__(
        self, parts: SortedSet, batch: Rows, drop: Mask | None = None, fresh: bool = False,
        anew: Callable[[SetPart, int], bool] = lambda part, end: False,
    ) -> None:  # fmt: skip
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
        self._most = max(parts.part, (len(parts) + len(batch)) // MAX_PARTS)
        self._steps = self._run()

    def step(self) -> bool:
        """Work for milliseconds; whether there may be more. Raises `OSError`, `JobDamagedError`."""
        try:
            next(self._steps)
        except StopIteration:
            return False
        except BaseException:
            self.abandon()
            raise
        return True

    def conclude(self, notes: dict[str, Any]) -> None:
        """Make the new files the set, with *notes*. Raises `OSError`; nothing has changed then."""
        self._manifest.notes = notes
        try:
            self._manifest.write(self._parts.folder)
        except BaseException:
            self.abandon()
            raise
        self._parts.serve(self._manifest)

    def abandon(self) -> None:
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
            stop = rank_of(unique, end)
            anew = self._anew(part, end)
            if stop > begin or anew:
                known[begin:stop] = yield from self._merge_part(part, unique[begin:stop], anew)
            else:
                self._note_files(part.low, part.base, part.recent)
            begin = stop
        self.new[first[~known]] = True
        slots = slots_of(unique[~known])
        # Rows of damaged files are counted twice, which the bound allows.
        self._manifest.counts += np.bincount(slots, minlength=SLOTS)
        if self._drop is not None:
            self._manifest.counts[self._drop] = 0
        yield

    def _merge_part(self, part: SetPart, batch: Rows, anew: bool) -> Generator[None, None, Mask]:
        recent = np.concatenate([no_rows(self._parts.words), *self._read(part.recent)])
        known = are_among(recent, batch)
        size, more = len(part.base or ()), len(recent) + len(batch)
        anew = anew or not size or more > max(CHUNK, size // _RECENT)
        share = (size + more) / -(-(size + more) // self._most) if anew else float("inf")
        most = int(min(CHUNK, share))
        written: list[tuple[int, str]] = []
        searched = begin = old = 0
        for chunk in self._read(part.base if anew or not self._fresh else None):
            last = int(chunk[-1, 0]) + 1
            stop = rank_of(batch, last)
            known[searched:stop] |= are_among(chunk, batch[searched:stop])
            if anew:
                end = rank_of(recent, last)
                fresh = batch[begin:stop][~known[begin:stop]]
                for piece in slice_rows(merge_rows(chunk, recent[old:end], fresh), most):
                    self._write(piece, written, share)
                begin, old = stop, end
            searched = stop
            yield
        rest = merge_rows(recent[old:], batch[begin:][~known[begin:]])
        if not anew and known.all():
            self._note_files(part.low, part.base, part.recent)
            return known
        for piece in slice_rows(rest, most):
            self._write(piece, written, share)
            yield
        self._end_file()
        if not anew:
            self._note_files(part.low, part.base, None, written[0][1])
            return known
        if written:
            written[0] = (part.low, written[0][1])
        elif not part.low:
            written = [(0, "")]
        self._manifest.parts += [(start, name, "") for start, name in written]
        return known

    def _read(self, file: SortedFile | None) -> Generator[Rows]:
        try:
            for rows in file.chunks() if file else ():
                left = rows if self._drop is None else rows[~self._drop[slots_of(rows)]]
                if len(left):
                    yield left
        except FileNotFoundError as error:  # unlike a full disk, this does not pass
            raise JobDamagedError(f"{error.filename} is missing") from None

    def _write(self, rows: Rows, written: list[tuple[int, str]], share: float) -> None:
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

    def _note_files(
        self, low: int, base: SortedFile | None, recent: SortedFile | None, name: str = ""
    ) -> None:
        names = [file.path.name if file else "" for file in (base, recent)]
        self._manifest.parts.append((low, names[0], names[1] or name))


PART_ROWS = 1 << 20  # fingerprints that a part may have, however few there are in all
_ATTEMPTS = 20  # times that a reader begins anew because files were replaced meanwhile


class _Snapshot(NamedTuple):
    """The state that look-ups use, replaced as a whole."""

    manifest: SetManifest
    parts: list[SetPart]
    lows: list[int]  # first words of the parts


class SortedSet:
    """The set in *folder*, which is made if need be, of fingerprints of *words* words.

    A part may always have *part* rows. *damaged* has the damaged files; their rows are new again.
    A *readonly* set belongs to another process. Raises `JobDamagedError` if the manifest is
    damaged, `JobSettingsError` if the fingerprints have another width.
    """

    def __init__(
        self, folder: Path, words: int, part: int = PART_ROWS, *, readonly: bool = False
    ) -> None:
        if not readonly:
            folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._readonly = readonly
        self.words = words
        self.part = part
        self._unpack = Struct(f">{words}Q").unpack
        self.damaged: dict[str, str] = {}
        self._serving = _Snapshot(SetManifest(words), [], [])
        self._read()

    def _read(self) -> None:
        for _ in range(_ATTEMPTS):
            manifest = SetManifest.read(self.folder) or SetManifest(self.words)
            if manifest.words != self.words:
                was, now = manifest.words * 64, self.words * 64
                raise JobSettingsError(
                    f"{self.folder} has fingerprints of {was} bits, not of {now}"
                )
            self.damaged.clear()
            self.serve(manifest)
            if not (self._readonly and self.damaged) or self._is_current():
                return

    def _is_current(self) -> bool:
        now = SetManifest.read(self.folder)
        return now is None or now.generation == self.manifest.generation

    def serve(self, manifest: SetManifest) -> None:
        """Serve the files of *manifest*, also to look-ups in other threads; remove all others."""
        files = {file.path.name: file for file in self.files}
        named = {name for part in manifest.parts for name in part[1:] if name}
        opened = {name: files.get(name) or self._open(name) for name in named}
        parts = [SetPart(low, opened.get(a), opened.get(b)) for low, a, b in manifest.parts]
        self._serving = _Snapshot(manifest, parts, [part.low for part in parts])
        for path in () if self._readonly else self.folder.glob("*.rows"):
            if path.name not in named:
                path.unlink(missing_ok=True)

    def _open(self, name: str) -> SortedFile | None:
        try:
            return SortedFile(self.folder / name, self._note_damage)
        except JobDamagedError as error:
            self.damaged[name] = str(error)
            return None

    def _note_damage(self, path: Path, block: int) -> None:
        self.damaged[path.name] = f"{path} is damaged: block {block} cannot be read"

    @property
    def manifest(self) -> SetManifest:
        return self._serving.manifest

    @property
    def parts(self) -> list[SetPart]:
        return self._serving.parts

    @property
    def files(self) -> list[SortedFile]:
        return [file for part in self.parts for file in part.files]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def false_positive_bound(self) -> float:
        """The greatest probability that a new fingerprint counts as known."""
        return false_positive_bound(int(self.manifest.counts.max()), self.words * 64)

    def has(self, print_: bytes) -> bool:
        """Whether a fingerprint is in the set. Raises `JobDamagedError` if a file is gone."""
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

    def ranges(self) -> Iterator[tuple[SetPart, int]]:
        return zip(self.parts, [*self._serving.lows[1:], TOP], strict=True)

    def rows(self, slots: Mask, low: int = 0, high: int = TOP) -> Iterator[Rows]:
        """The fingerprints of *slots* from first word *low* to before *high*, sorted within a file.

        Raises `OSError` if files are replaced meanwhile.
        """
        for part, end in self.ranges():
            if part.low < high and end > low:
                for file in part.files:
                    for rows in file.chunks(low, high):
                        yield rows[slots[slots_of(rows)]]

    def spans(self, slots: Mask, most: int) -> Iterator[tuple[int, int]]:
        """Ranges of first words with all fingerprints of *slots*, some *most* in each."""
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

    def remove(self, slots: Mask) -> Iterator[None]:
        """Remove the fingerprints of *slots*, in steps. Raises `OSError`."""

        def touched(part: SetPart, end: int) -> bool:
            return bool(slots[part.low >> 48 : (end - 1 >> 48) + 1].any())

        if (slots & (self.manifest.counts > 0)).any():
            yield from self._carry_out(SetMerge(self, no_rows(self.words), slots, anew=touched))

    def repair(self) -> None:
        """Rewrite the readable rows of damaged files. Raises `OSError`."""
        bad = set(self.damaged)

        def damaged(part: SetPart, end: int) -> bool:
            return any(file.path.name in bad for file in part.files)

        for _ in self._carry_out(SetMerge(self, no_rows(self.words), anew=damaged)):
            pass
        self.damaged.clear()

    def _carry_out(self, merge: SetMerge) -> Iterator[None]:
        try:
            while merge.step():
                yield
        except GeneratorExit:
            merge.abandon()
            raise
        merge.conclude(self.manifest.notes)

    def check(self) -> list[str]:
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
        for file in self.files:
            file.close()
