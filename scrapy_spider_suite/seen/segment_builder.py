"""Builds segments of a trie store in a process of its own: a trie holds the interpreter's lock
for long.

The plan is a JSON file; the results lie beside it, and belong to no store until `install`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError, SuiteError
from scrapy_spider_suite.runtime.files import sync_path
from scrapy_spider_suite.runtime.helper_processes import last_error_line, start_helper
from scrapy_spider_suite.seen import segments
from scrapy_spider_suite.seen.fresh_log import FreshLog, row_reader
from scrapy_spider_suite.seen.ranges import Range
from scrapy_spider_suite.seen.segments import Catalogue, RangeRow, SegmentRow
from scrapy_spider_suite.seen.url_keys import END, SLOT_SHIFT, TWIN_BITS, Handles, Ids

SPLIT: Final = 1 << 20
"""URLs of a range; one with more is split."""

NICENESS: Final = 5
PLAN: Final = "plan.json"


@dataclass(frozen=True, slots=True)
class BuildTask:
    """One range to be built."""

    low: int  # its first id
    mark: int  # the new segments have all rows with handles below it
    base: bool  # merge everything into the base, not only into the recent segment
    handles: str  # name of a numpy file with the handles of the fresh rows
    files: tuple[tuple[int, str], ...]  # the files of the log, each with its start


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The tasks, the store's folder, and the number of URLs from which on a range is split."""

    folder: str
    tasks: tuple[BuildTask, ...]
    split: int = SPLIT

    def write(self, made: Path) -> Path:
        """Raises OSError."""
        path = made / PLAN
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: Path) -> BuildPlan:
        row = json.loads(path.read_text())
        tasks = [task | {"files": tuple(map(tuple, task["files"]))} for task in row["tasks"]]
        return cls(row["folder"], tuple(BuildTask(**task) for task in tasks), row["split"])


class SegmentBuilder:
    def __init__(self, plan: BuildPlan, made: Path, catalogue: Catalogue) -> None:
        self._plan, self._made, self._catalogue = plan, made, catalogue
        self._folder = Path(plan.folder)
        self._ids = catalogue.url_ids()
        self._count = 0

    def run(self) -> None:
        """Build, and write the new catalogue. Raises OSError, `JobDamagedError`."""
        # What the catalogue before this one replaced may be deleted once its name is durable.
        sync_path(self._folder)
        tasks = {task.low: task for task in self._plan.tasks}
        rows = self._catalogue.ranges
        highs = [row.low for row in rows[1:]] + [END]
        ranges: list[RangeRow] = []
        for row, high in zip(rows, highs, strict=True):
            task = tasks.get(row.low)
            ranges += [row] if task is None else self._build(task, row, high)
        after = replace(
            self._catalogue, serial=self._catalogue.serial + 1, ranges=tuple(ranges)
        )
        segments.write_catalogue(self._made, after)

    def _build(self, task: BuildTask, row: RangeRow, high: int) -> list[RangeRow]:
        merged = [row.base, row.recent] if task.base else [row.recent]
        handles = np.sort(np.load(self._made / task.handles))
        files = [(start, Path(path)) for start, path in task.files]

        def keys() -> Iterator[bytes]:
            tries = (segments.read_trie(self._folder, part) for part in merged if part is not None)
            return chain(chain.from_iterable(tries), row_reader(files, handles))

        if not task.base:
            return [replace(row, mark=task.mark, recent=self._write(keys(), recent=True))]
        count = sum(part.keys - part.gone for part in merged if part is not None) + len(handles)
        if count <= self._plan.split:
            return [RangeRow(row.low, task.mark, self._write(keys()))]
        ids = np.frombuffer(array("Q", map(self._ids.id_of, keys())), np.uint64)
        parts = -(-count * 3 // (self._plan.split * 2))
        lows = [row.low, *range_cuts(np.sort(ids), parts, row.low)]
        return [
            RangeRow(low, task.mark, self._write(self._within(keys(), low, end)))
            for low, end in zip(lows, [*lows[1:], high], strict=True)
        ]

    def _within(self, keys: Iterable[bytes], low: int, high: int) -> Iterator[bytes]:
        return (key for key in keys if low <= self._ids.id_of(key) < high)

    def _write(self, keys: Iterable[bytes], *, recent: bool = False) -> SegmentRow | None:
        self._count += 1
        name = f"segment-{self._catalogue.serial + 1:08x}-{self._made.name}-{self._count}"
        return segments.write_segment(
            self._made / name, keys, self._ids, id_table=self._catalogue.ids, recent=recent
        )


def range_cuts(ids: Ids, parts: int, low: int) -> list[int]:
    """The ids at which sorted *ids*, all at least *low*, are cut into some *parts* equal ranges.

    Cuts are between slots, or if that is off by more than a quarter of a part, inside a large
    host's.
    """
    found: list[int] = []
    for number in range(1, parts):
        wanted = len(ids) * number // parts
        ident = int(ids[wanted])
        slot = ident >> SLOT_SHIFT << SLOT_SHIFT
        ends = [end for end in (slot, slot + (1 << SLOT_SHIFT)) if end < END]
        off = {end: abs(int(np.searchsorted(ids, np.uint64(end))) - wanted) for end in ends}
        best = min(ends, key=off.__getitem__)
        if off[best] > len(ids) // parts // 4:
            best = ident >> TWIN_BITS << TWIN_BITS
        if best > (found[-1] if found else low):
            found.append(best)
    return found


def run_plan(path: Path) -> None:
    """Carry out the plan in the file *path*. Raises OSError, `SuiteError`."""
    plan = BuildPlan.read(path)
    catalogue, _ = segments.read_catalogue(Path(plan.folder))
    if catalogue is None:
        raise JobDamagedError(f"{plan.folder} holds no store of URLs")
    SegmentBuilder(plan, path.parent, catalogue).run()


def main(arguments: list[str]) -> int:
    """Carry out a plan; return 0, or 1 after a line on stderr."""
    os.nice(NICENESS)
    try:
        run_plan(Path(arguments[0]))
    except (OSError, SuiteError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


MADE: Final = "made"
"""The folder of what is being made; whatever a killed process left there goes at the next start."""


class SegmentBuild:
    """One build of some ranges, whose fresh rows it freezes; nothing changes until `install`.

    *built* has, by the first id of each range, the number of its tables that are written;
    *handles*, those of the rows.
    """

    def __init__(
        self, folder: Path, ranges: Sequence[tuple[Range, bool]], log: FreshLog, split: int
    ) -> None:
        """*ranges*: each with whether its base is built anew. Raises `StoreWriteError`."""
        self._folder = folder
        self._made = folder / MADE / secrets.token_hex(4)
        self._process: subprocess.Popen[str] | None = None
        self._error = ""
        self._log = log
        mark = log.end
        self.built = {part.row.low: len(part.freeze()) for part, _ in ranges}
        self.handles: list[Handles] = []
        self._steps = self._start(ranges, mark, split)

    def _start(
        self, ranges: Sequence[tuple[Range, bool]], mark: int, split: int
    ) -> Iterator[None]:
        self._made.mkdir(parents=True)
        tasks = []
        files = tuple((start, str(path)) for start, path in self._log.files())
        for number, (part, base) in enumerate(ranges):
            pieces = []
            for table in part.frozen_tables[: self.built[part.row.low]]:
                for _, own in part.pieces(table):
                    pieces.append(own)
                    yield
            handles = np.concatenate([np.zeros(0, np.int64), *pieces])
            self.handles.append(handles)
            yield
            name = f"handles-{number}.npy"
            np.save(self._made / name, handles)
            tasks.append(BuildTask(part.row.low, mark, base, name, files))
            yield
        plan = BuildPlan(str(self._folder), tuple(tasks), split).write(self._made)
        self._process = start_helper(__name__, str(plan))

    def poll(self) -> bool:
        """Do one step that is due; return whether the build has ended, well or not."""
        if self._error:
            return True
        if self._process is not None:
            return self._process.poll() is not None
        try:
            next(self._steps, None)
        except (OSError, SuiteError) as error:
            self._error = str(error)
        return bool(self._error)

    def wait(self) -> None:
        while not self.poll():
            if self._process is not None:
                self._process.wait()

    def install(self) -> segments.Catalogue:
        """Make the result part of the store. Raises `StoreWriteError`; nothing is lost."""
        if self._process is not None and self._process.returncode and not self._error:
            # Through a pipe, for the disk may be full.
            self._error = f"the builder of segments: {last_error_line(self._process)}"
        if self._error:
            self.discard()
            raise StoreWriteError(f"{self._folder}: {self._error}")
        try:
            made, _ = segments.read_catalogue(self._made)
            if made is None:
                raise StoreWriteError(f"{self._folder}: the builder wrote no catalogue")
            for path in self._made.glob("segment-*"):
                path.rename(self._folder / path.name)
            segments.install_catalogue(self._made, self._folder)
        except (OSError, JobDamagedError) as error:
            raise StoreWriteError(f"{self._folder}: {error}") from error
        finally:
            self.discard()
        return made

    def cancel(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self.discard()

    def discard(self) -> None:
        if self._process is not None and self._process.stderr is not None:
            self._process.stderr.close()
        shutil.rmtree(self._made, ignore_errors=True)
