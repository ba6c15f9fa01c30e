"""Upkeep of a trie store: builds of segments, removal of URLs, check and repair.

Segments are built in a process of their own: a trie holds the interpreter's lock for long. The plan
is a JSON file; the results lie beside it, and belong to no store until `SegmentBuild.install`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain
from math import sqrt
from pathlib import Path
from typing import Final

import numpy as np

from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError, SuiteError
from scrapy_spider_suite.runtime.files import store_errors, sync_path
from scrapy_spider_suite.runtime.helper_processes import last_error_line, start_helper
from scrapy_spider_suite.seen import segments
from scrapy_spider_suite.seen.fresh_log import FreshLog, row_reader

SPLIT: Final = 1 << 20  # URLs of a range; one with more is split

NICENESS: Final = 5
PLAN: Final = "plan.json"


@dataclass(frozen=True, slots=True)
class BuildTask:
    low: int  # its first id
    mark: int  # the new segments have all rows with handles below it
    base: bool  # merge everything into the base, not only into the recent segment
    handles: str  # name of a numpy file with the handles of the fresh rows
    files: list[tuple[int, str]]  # the files of the log, each with its start


class SegmentBuilder:
    """Carries out the plan in the file *path*. Raises `JobDamagedError`, OSError."""

    def __init__(self, path: Path) -> None:
        plan = json.loads(path.read_text())
        self._made, self._folder, self._split = path.parent, Path(plan["folder"]), plan["split"]
        self._tasks = [BuildTask(**task) for task in plan["tasks"]]
        catalogue = segments.read_catalogue(self._folder)
        if catalogue is None:
            raise JobDamagedError(f"{self._folder} holds no store of URLs")
        self._catalogue, self._ids = catalogue, segments.UrlIds(catalogue.seed, catalogue.twins)
        self._count = 0

    def run(self) -> None:
        """Build, and write the new catalogue. Raises OSError, `JobDamagedError`."""
        # What the catalogue before this one replaced may be deleted once its name is durable.
        sync_path(self._folder)
        tasks = {task.low: task for task in self._tasks}
        rows = self._catalogue.ranges
        highs = [row.low for row in rows[1:]] + [segments.END]
        ranges: list[segments.RangeRow] = []
        for row, high in zip(rows, highs, strict=True):
            task = tasks.get(row.low)
            ranges += [row] if task is None else self._build(task, row, high)
        after = replace(self._catalogue, serial=self._catalogue.serial + 1, ranges=tuple(ranges))
        segments.write_catalogue(self._made, after)

    def _build(self, task: BuildTask, row: segments.RangeRow, high: int) -> list[segments.RangeRow]:
        merged = [row.base, row.recent] if task.base else [row.recent]
        handles = np.sort(np.load(self._made / task.handles))
        files = [(start, Path(path)) for start, path in task.files]

        old = [segments.Segment(self._folder, part, self._ids) for part in merged if part]

        def keys() -> Iterator[bytes]:
            tries = (segment.keys() for segment in old)
            return chain(chain.from_iterable(tries), row_reader(files, handles))

        if not task.base:
            return [replace(row, mark=task.mark, recent=self._write(keys(), recent=True))]
        count = sum(part.keys - part.gone for part in merged if part is not None) + len(handles)
        id_of = self._ids.id_of
        if count <= self._split:
            return [segments.RangeRow(row.low, task.mark, self._write(keys()))]
        ids = np.frombuffer(array("Q", map(id_of, keys())), np.uint64)
        parts = -(-count * 3 // (self._split * 2))
        lows = [row.low, *range_cuts(np.sort(ids), parts, row.low)]
        ranges = []
        for low, end in zip(lows, [*lows[1:], high], strict=True):
            segment = self._write(key for key in keys() if low <= id_of(key) < end)
            ranges.append(segments.RangeRow(low, task.mark, segment))
        return ranges

    def _write(self, keys: Iterable[bytes], *, recent: bool = False) -> segments.SegmentRow | None:
        self._count += 1
        name = f"segment-{self._catalogue.serial + 1:08x}-{self._made.name}-{self._count}"
        return segments.write_segment(
            self._made / name, keys, self._ids, id_table=self._catalogue.ids, recent=recent
        )


def range_cuts(ids: segments.Ids, parts: int, low: int) -> list[int]:
    """The ids at which sorted *ids*, all at least *low*, are cut into some *parts* equal ranges.

    Cuts are between slots, or inside one if that is off by more than a quarter of a part.
    """
    found: list[int] = []
    for number in range(1, parts):
        wanted = len(ids) * number // parts
        ident = int(ids[wanted])
        slot = ident >> segments.SLOT_SHIFT << segments.SLOT_SHIFT
        ends = [end for end in (slot, slot + (1 << segments.SLOT_SHIFT)) if end < segments.END]
        off = {end: abs(int(np.searchsorted(ids, np.uint64(end))) - wanted) for end in ends}
        best = min(ends, key=off.__getitem__)
        if off[best] > len(ids) // parts // 4:
            best = ident >> segments.TWIN_BITS << segments.TWIN_BITS
        if best > (found[-1] if found else low):
            found.append(best)
    return found


def main(arguments: list[str]) -> None:
    """Carry out a plan: the entry of the helper process."""
    os.nice(NICENESS)
    SegmentBuilder(Path(arguments[0])).run()


MADE: Final = "made"  # the folder of unfinished files; deleted at the next start


class SegmentBuild:
    """One build of some ranges, whose fresh rows it freezes; nothing changes until `install`.

    *ranges*: each with whether its base is built anew. *built* has, by the first id of each range,
    the number of its tables that are written; *handles*, those of the rows.
    """

    def __init__(
        self, folder: Path, ranges: Sequence[tuple[segments.Range, bool]], log: FreshLog, split: int
    ) -> None:
        self._folder = folder
        self._made = folder / MADE / secrets.token_hex(4)
        self._process: subprocess.Popen[str] | None = None
        self._error = ""
        self._log = log
        mark = log.end
        self.built = {part.row.low: len(part.freeze()) for part, _ in ranges}
        self.handles: list[segments.Handles] = []
        self._steps = self._start(ranges, mark, split)

    def _start(
        self, ranges: Sequence[tuple[segments.Range, bool]], mark: int, split: int
    ) -> Iterator[None]:
        self._made.mkdir(parents=True)
        tasks = []
        files = [(start, str(path)) for start, path in self._log.files()]
        for number, (part, base) in enumerate(ranges):
            tables = part.frozen_tables[: self.built[part.row.low]]
            handles = np.array([each for table in tables for each in table.values()], np.int64)
            self.handles.append(handles)
            yield
            name = f"handles-{number}.npy"
            np.save(self._made / name, handles)
            tasks.append(BuildTask(part.row.low, mark, base, name, files))
            yield
        plan = {"folder": str(self._folder), "tasks": list(map(asdict, tasks)), "split": split}
        (self._made / PLAN).write_text(json.dumps(plan))
        self._process = start_helper(__name__, str(self._made / PLAN))

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
            self._discard()
            raise StoreWriteError(f"{self._folder}: {self._error}")
        try:
            made = segments.read_catalogue(self._made)
            if made is None:
                raise StoreWriteError(f"{self._folder}: the builder wrote no catalogue")
            for path in self._made.glob("segment-*"):
                path.rename(self._folder / path.name)
            segments.install_catalogue(self._made, self._folder)
        except (OSError, JobDamagedError) as error:
            raise StoreWriteError(f"{self._folder}: {error}") from error
        finally:
            self._discard()
        return made

    def cancel(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._discard()

    def _discard(self) -> None:
        if self._process is not None and self._process.stderr is not None:
            self._process.stderr.close()
        shutil.rmtree(self._made, ignore_errors=True)


RANGES_A_BUILD: Final = 16  # ranges of one build for which a caller waits
ROWS_A_POLL: Final = 4_096  # added rows after which `poll` is called
FIRST_ROWS: Final = 4_096
"""Fresh rows of which a first segment is made, and further ones while there are few."""
GROWTH: Final = 4
"""A build is due once so many times as many rows are fresh as segments hold, or memory says so."""
POLLS_TO_RETRY: Final = 60
"""Polls after which a failed build is tried again, however little was added."""
DAMAGED_PREFIX: Final = "damaged-"
"""Prefix of the names of damaged files that are kept for inspection."""

Spent = tuple[set[str], segments.Handles]  # files and rows of the log without references


@dataclass(slots=True)
class StoreState:
    folder: Path
    catalogue: segments.Catalogue  # the catalogue on disk
    ids: segments.UrlIds
    ranges: segments.Ranges
    log: FreshLog
    fresh: int  # number of rows in no segment
    damaged: dict[str, str]  # damaged files and the reasons


class TrieUpkeep:
    """Adds rows to the log and the ranges of a store, and has segments built.

    *limit*: fresh rows that memory may hold. *split*: URLs of a range. *trouble* is why the last
    build failed. Invariants: one build at a time; replaced files are deleted after a sync.
    """

    def __init__(self, state: StoreState, *, limit: int, split: int) -> None:
        self.state = state
        self.trouble = ""
        self._limit, self._split = limit, split
        self._poll_at = state.fresh + ROWS_A_POLL
        self._retry_at = 0
        self._refused = 0  # polls since a build failed
        self._build: SegmentBuild | None = None
        self._before: segments.Catalogue | None = None  # the build whose files are not opened
        self._spent: list[Spent] = []
        self._spent_before: list[Spent] = []
        self._rubbish: list[Spent] = []

    @property
    def behind(self) -> bool:
        return self.state.fresh >= self._limit

    def add(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """Add *rows*, all of them new. Raises `StoreWriteError`; nothing is added then."""
        state = self.state
        handles = state.log.append(rows)
        for (ident, _), handle in zip(rows, handles, strict=True):
            state.ranges.at(ident).open_table[ident] = handle
        state.fresh += len(rows)
        if self._build is not None or state.fresh >= self._poll_at:
            self.poll()

    def poll(self) -> bool:
        """Do one step that is due; return whether a build runs. Errors are in *trouble*."""
        fresh = self.state.fresh
        self._poll_at = fresh  # there may be more to do soon
        if self._rubbish:
            self._delete([self._rubbish.pop()])
            return True
        if self._build is not None:
            if self._build.poll():
                self._try_install()
            return True
        self._poll_at += ROWS_A_POLL
        self._refused += fresh < self._retry_at
        if (fresh >= self._retry_at or self._refused >= POLLS_TO_RETRY) and (part := self._due()):
            self._begin([part])
        return self._build is not None

    def wait(self) -> None:
        while self.poll() and self.behind:
            if self._build is not None:
                self._build.wait()

    def flush(self) -> None:
        """Build all ranges with fresh rows, except damaged ones. Raises `StoreWriteError`."""
        self.settle()
        state = self.state
        wanted = [part.row.low for part in state.ranges if part.count]
        for start in range(0, len(wanted), RANGES_A_BUILD):
            parts = [state.ranges.at(low) for low in wanted[start : start + RANGES_A_BUILD]]
            if sound := [part for part in parts if not part.damaged]:
                self._begin(sound)
                if (error := self.settle()) is not None:
                    raise error
        state.log.sync()
        with store_errors(state.folder):
            sync_path(state.folder)
        self._delete(self._rubbish + self._spent)
        self._rubbish, self._spent = [], []
        if not state.fresh and state.catalogue.removed:
            # Whatever the log still has is in segments, or was removed.
            ranges = tuple(replace(row, mark=state.log.end) for row in state.catalogue.ranges)
            self.write(replace(state.catalogue, ranges=ranges, removed=()))
            state.ranges.adopt(state.catalogue, verify=False)

    def settle(self) -> StoreWriteError | None:
        """Wait for the build that runs; return its error, or raise it if the result is there."""
        if self._build is None:
            return None
        self._build.wait()
        error = self._try_install()
        if error is not None and self._build is not None:
            raise error
        return error

    def cancel(self) -> None:
        if self._build is not None:
            self._build.cancel()
            self._build = None

    def write(self, catalogue: segments.Catalogue) -> None:
        """Install *catalogue* with the next serial number. Raises `StoreWriteError`."""
        folder = self.state.folder
        after = replace(catalogue, serial=self.state.catalogue.serial + 1)
        made = folder / MADE / "catalogue"
        try:
            with store_errors(folder):
                made.mkdir(parents=True, exist_ok=True)
                segments.write_catalogue(made, after)
                segments.install_catalogue(made, folder)
                sync_path(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        self.state.catalogue = after

    def _due(self) -> segments.Range | None:
        state = self.state
        for part in state.ranges:
            if not part.damaged and has_removed(part):
                return part
        sound = [part for part in state.ranges if part.count and not part.damaged]
        if not sound:
            return None
        oldest = min(sound, key=lambda part: part.oldest)
        if state.log.overdue(oldest.oldest):
            return oldest
        held = sum(len(segment) for part in state.ranges for segment in part.segments)
        enough = min(self._limit // 2, max(FIRST_ROWS, GROWTH * held))
        return max(sound, key=lambda part: part.count) if state.fresh >= enough else None

    def _begin(self, parts: Sequence[segments.Range]) -> None:
        with suppress(StoreWriteError):  # the build will meet the same fault
            self.state.log.rotate()
        ranges = [(part, wants_base(part)) for part in parts]
        self._build = SegmentBuild(self.state.folder, ranges, self.state.log, self._split)
        self._refused = 0
        self._spent_before, self._spent = self._spent, []

    def _try_install(self) -> StoreWriteError | None:
        """Install the result of the build that ended; on an error the old files serve on."""
        assert self._build is not None
        build, state = self._build, self.state
        try:
            if self._before is None:
                self._before, state.catalogue = state.catalogue, build.install()
            state.ranges.adopt(state.catalogue, build.built, verify=False)
        except StoreWriteError as error:
            self.trouble = str(error)
            if self._before is None:
                self._build, self._spent = None, self._spent_before
                self._retry_at = state.fresh + max(state.fresh // 10, ROWS_A_POLL)
            return error
        self._rubbish += self._spent_before
        before, after = self._before, state.catalogue
        self._build = self._before = None
        state.fresh -= sum(map(len, build.handles))
        self._spent.append((before.files - after.files, np.concatenate(build.handles)))
        self.trouble, self._retry_at = "", 0
        return None

    def _delete(self, spent: list[Spent]) -> None:
        for names, handles in spent:
            for name in names:
                (self.state.folder / name).unlink(missing_ok=True)
            if len(handles):
                self.state.log.forget(handles)


def has_removed(part: segments.Range) -> bool:
    return any(segment.row.removed for segment in part.segments)


def wants_base(part: segments.Range) -> bool:
    """Whether all of a range is merged into its base.

    With *f* rows a time, a base of *b* and recent segments of up to *r*, a row is written
    r / 2f + b / r + 1 times, which is least for r = sqrt(2fb).
    """
    if part.row.base is None or has_removed(part):
        return True
    base = part.row.base.keys
    recent = part.count + (0 if part.row.recent is None else part.row.recent.keys)
    return recent >= min(base, sqrt(2 * part.count * base))


@dataclass(frozen=True, slots=True)
class TrieDamage:
    file: str  # its name
    what: str  # the damage
    urls: int  # URLs that count as not seen because of it


def check_store(upkeep: TrieUpkeep, repair: bool) -> list[TrieDamage]:
    """Read all segments anew; see `TrieStore.check`."""
    upkeep.settle()
    state = upkeep.state
    rows = [each for row in state.catalogue.ranges for each in (row.base, row.recent) if each]
    found = {row.name: _check_segment(state, row) for row in rows}
    for name, why in state.damaged.items():
        found[name] = found.get(name) or TrieDamage(name, why, 0)
    damage = [each for each in found.values() if each is not None]
    if repair and damage:
        _repair(upkeep, {row.name for row in rows if found[row.name] is not None})
    return damage


def _check_segment(state: StoreState, row: segments.SegmentRow) -> TrieDamage | None:
    try:
        segments.Segment(state.folder, row, state.ids)
    except JobDamagedError as error:
        return TrieDamage(row.name, str(error), row.keys - row.gone)
    return None


def _repair(upkeep: TrieUpkeep, lost: set[str]) -> None:
    """Put the files of *lost* segments aside, and write what the log has to segments."""
    state = upkeep.state

    def kept(row: segments.SegmentRow | None) -> segments.SegmentRow | None:
        return None if row is None or row.name in lost else row

    rows = tuple(
        segments.RangeRow(row.low, row.mark, kept(row.base), kept(row.recent))
        for row in state.catalogue.ranges
    )
    upkeep.write(replace(state.catalogue, ranges=rows))
    for name in lost & {path.name for path in state.folder.iterdir()}:
        with store_errors(state.folder / name):
            (state.folder / name).rename(state.folder / f"{DAMAGED_PREFIX}{name}")
    state.ranges.damage.clear()
    state.ranges.adopt(state.catalogue)
    upkeep.flush()
    state.damaged.clear()


def remove_urls(upkeep: TrieUpkeep, start: bytes, parts: Sequence[segments.Range]) -> int:
    """Remove URLs that begin with *start*, all of them in *parts*; return their number."""
    state = upkeep.state
    rows = {part.row.low: part.row for part in state.ranges}
    count = 0
    for part in parts:
        base, in_base = _without(part.row.base, part.base, start)
        recent, in_recent = _without(part.row.recent, part.recent, start)
        rows[part.row.low] = segments.RangeRow(part.row.low, part.row.mark, base, recent)
        count += in_base + in_recent
    fresh = [
        (part, np.array([handle for _, handle in fresh_keys(part, start, state.log)], np.int64))
        for part in parts
    ]
    if not count and not any(len(handles) for _, handles in fresh):
        return 0
    before = state.catalogue
    kept = {key: ident for key, ident in before.twins.items() if not key.startswith(start.hex())}
    upkeep.write(replace(
        before, ranges=tuple(rows.values()), twins=kept,
        removed=(*before.removed, (start.hex(), state.log.end)),
    ))  # fmt: skip
    state.ranges.adopt(state.catalogue, verify=False)
    twins = state.ids.twins
    for key in [key for key in twins if key.startswith(start)]:
        del twins[key]
    for part, handles in fresh:
        if len(handles):
            part.drop(handles)
            state.fresh -= len(handles)
            state.log.forget(handles)
            count += len(handles)
    return count


def fresh_keys(part: segments.Range, prefix: bytes, log: FreshLog) -> Iterator[tuple[bytes, int]]:
    low, high = segments.UrlIds.span(prefix)
    rows = (row for table in part.tables for row in table.items())
    for handle in sorted(handle for ident, handle in rows if low <= ident < high):
        key = log.read(handle)
        if key.startswith(prefix):
            yield key, handle


def _without(
    row: segments.SegmentRow | None, segment: segments.Segment | None, prefix: bytes
) -> tuple[segments.SegmentRow | None, int]:
    found = 0 if segment is None else sum(1 for _ in segment.keys(prefix))
    if row is None or not found:
        return row, 0
    removed = (*row.removed, prefix.hex())
    return replace(row, removed=removed, gone=row.gone + found), found
