"""The index of a folder of packs: indexes of packs, merged indexes, lookups.

`merge_indexes` joins four or more indexes of like size in ``merged-*.cdxj``, whose first line
begins with ``!`` and names its packs. The packs' own indexes stay. A damaged index of a pack counts
as missing.
"""

from __future__ import annotations

import heapq
import json
import logging
import os
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Final, NamedTuple

from scrapy_spider_suite.errors import PackDamagedError
from scrapy_spider_suite.packs import cdxj, pack_file
from scrapy_spider_suite.packs.warc import clean_url
from scrapy_spider_suite.runtime.files import lock_file
from scrapy_spider_suite.runtime.helper_processes import last_error_line, start_helper

logger = logging.getLogger(__name__)


def build_index(pack: str | Path, named: Path | None = None) -> int:
    """Write the index of *pack*, for the name *named* if given; return its number of lines."""
    pack = Path(pack)
    named = named or pack
    index = pack_file.index_path(named)
    raw = index.with_name(f"{index.name}.raw")
    count = 0
    try:
        with raw.open("wb") as file:
            for entry in index_entries(pack, named.name):
                file.write(entry.line() + b"\n")
                count += 1
        cdxj.sort_lines(raw, index)
    finally:
        raw.unlink(missing_ok=True)
    return count


def index_entries(pack: Path, name: str) -> Iterator[cdxj.IndexEntry]:
    """Yield the entries of *pack*, called *name*, in the order of the pack."""
    groups = (found for found in pack_file.scan(pack) if isinstance(found, pack_file.RecordGroup))
    for bundle in captures_of(chain.from_iterable(group.records() for group in groups)):
        yield from cdxj.entries_for(bundle, name)


def captures_of(records: Iterable[cdxj.Located]) -> Iterator[list[cdxj.Located]]:
    """Group the records of each capture: the records that follow a page and name it."""
    bundle: list[cdxj.Located] = []
    for located in records:
        if bundle and not cdxj.is_same_capture(located[0], bundle):
            yield bundle
            bundle = []
        bundle.append(located)
    if bundle:
        yield bundle


@contextmanager
def lock_indexes(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock the indexes of *folder*; yields False if another process has the lock."""
    with (folder / "merging.lock").open("wb") as lock:
        yield lock_file(lock, wait=wait)


FAN_IN: Final = 4
_MERGED: Final = "merged-"
_HEAD: Final = b"! "
_SMALLEST: Final = 1 << 16
_RUNS_KEPT: Final = 64  # indexes of packs that stay open; of more packs, each lookup opens them
_TICK: Final = 100_000_000


class IndexRun(NamedTuple):
    """One file of the folder's index, and the packs that it covers."""

    lines: cdxj.SortedLines
    packs: frozenset[str]
    merged: bool


class FolderIndex:
    """The index of a folder, open packs and later ones included."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen = -1
        self._runs: list[IndexRun] = []
        self._open: list[Path] = []
        self.unindexed: list[Path] = []  # closed packs without a usable index, at the last look

    def find(self, url: str) -> list[cdxj.IndexEntry]:
        """Return every entry of *url*, the oldest first. Raises `OSError`."""
        url = clean_url(url)
        prefix = f"{cdxj.line_key(url)} ".encode()
        self._refresh()
        found = {}
        # Open packs first: one that is closed meanwhile is in the runs by then.
        lines = [*self._growing(prefix)]
        lines += [(run.lines.path, line) for run in self._runs for line in run.lines.find(prefix)]
        for path, line in lines:
            try:
                entry = cdxj.parse_entry(line)
            except PackDamagedError as error:
                logger.warning("%s: %s; `scrapy packs merge` makes it anew", path, error)
                continue
            if entry.url == url:
                found[entry.filename, entry.place] = entry
        return sorted(found.values(), key=lambda entry: entry.stamp)

    def _refresh(self) -> None:
        changed = os.stat(self.folder).st_mtime_ns
        if changed != self._seen:
            # What comes within the same tick of the clock does not change the time again.
            recent = abs(time.time_ns() - changed) < _TICK
            known = {run.lines.path: run for run in self._runs}
            self._runs = index_runs(self.folder, known)
            self._open = list(self.folder.glob(f"*{pack_file.INDEX}{pack_file.OPEN}"))
            listed = set[str]().union(*(run.packs for run in self._runs))
            closed = pack_file.closed_packs(self.folder)
            self.unindexed = [path for path in closed if path.name not in listed]
            self._seen = -1 if recent else changed

    def _growing(self, prefix: bytes) -> list[tuple[Path, bytes]]:
        found: list[tuple[Path, bytes]] = []
        for path in self._open:
            try:
                found += [(path, line) for line in cdxj.GrowingLines(path).find(prefix)]
            except FileNotFoundError:  # the pack is closed by now
                self._seen = -1
                self._refresh()
        return found


def index_runs(folder: Path, known: dict[Path, IndexRun] | None = None) -> list[IndexRun]:
    """Return the files that together index the closed packs. Raises `OSError`."""
    names = [path for path in folder.iterdir() if path.name.endswith(pack_file.INDEX)]
    found = [_known(path, known) for path in names if path.name.startswith(_MERGED)]
    merged = sorted(filter(None, found), key=lambda run: (-len(run.packs), run.lines.path.name))
    chosen: list[IndexRun] = []
    covered: set[str] = set()
    for run in merged:
        if covered.isdisjoint(run.packs):
            chosen.append(run)
            covered |= run.packs
    own = sorted(path for path in names if not path.name.startswith(_MERGED))
    rest = [path for path in own if path.name.removesuffix(pack_file.INDEX) not in covered]
    kept = len(rest) <= _RUNS_KEPT
    return [*chosen, *filter(None, (_known(path, known, kept=kept) for path in rest))]


def merge_indexes(folder: Path) -> int:
    """Merge indexes of like size unless another process does; return the number of files left."""
    with lock_indexes(folder) as mine:
        found = index_runs(folder)
        if not mine:
            return len(found)
        used = {run.lines.path for run in found}
        for path in folder.glob(f"{_MERGED}*"):
            if path not in used and path.name.endswith((pack_file.INDEX, f"{pack_file.INDEX}.new")):
                path.unlink(missing_ok=True)
        while group := mergeable(found):
            packs = frozenset[str]().union(*(run.packs for run in group))
            path = folder / f"{_MERGED}{uuid.uuid4().hex}{pack_file.INDEX}"
            head = _HEAD + json.dumps({"packs": sorted(packs)}).encode() + b"\n"
            lines = (line + b"\n" for line in heapq.merge(*map(run_lines, group)))
            cdxj.write_lines(chain([head], lines), path)
            merged = IndexRun(cdxj.SortedLines(path), packs, True)
            found = [run for run in found if run not in group] + [merged]
            for run in group:
                if run.merged:
                    run.lines.path.unlink()
        return len(found)


def mergeable(found: Sequence[IndexRun]) -> list[IndexRun]:
    """Return the indexes of like size to merge next, if there are enough."""
    by_class: dict[int, list[IndexRun]] = {}
    for run in found:
        size = max(len(run.lines), _SMALLEST) // _SMALLEST
        by_class.setdefault((size.bit_length() - 1) // 2, []).append(run)
    full = [number for number, group in by_class.items() if len(group) >= FAN_IN]
    return by_class[min(full)][:_RUNS_KEPT] if full else []


def run_lines(run: IndexRun) -> Iterator[bytes]:
    """The lines of a run without the head of a merged one."""
    return (line for line in run.lines if not line.startswith(_HEAD))


def _known(path: Path, known: dict[Path, IndexRun] | None, *, kept: bool = True) -> IndexRun | None:
    run = (known or {}).get(path)
    merged, pack = path.name.startswith(_MERGED), _pack_of(path)
    if not merged and not pack_file.is_pack(pack):
        return None
    try:
        if run is not None and cdxj.file_identity(path.stat()) == run.lines.identity:
            return run
        lines = cdxj.SortedLines(path, kept=kept)
        packs = _packs_in(lines) if merged else frozenset([pack.name])
        if packs and _is_sound(lines, pack):
            return IndexRun(lines, packs, merged)
    except FileNotFoundError:
        return None
    logger.warning("%s is damaged: it is not used; `scrapy packs merge` makes it anew", path)
    return None


def _packs_in(merged: cdxj.SortedLines) -> frozenset[str]:
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        packs = json.loads(next(iter(merged), b"").removeprefix(_HEAD))["packs"]
        return frozenset(map(str, packs))
    return frozenset()


def _pack_of(index: Path) -> Path:
    return index.with_name(index.name.removesuffix(pack_file.INDEX))


def _is_sound(lines: cdxj.SortedLines, pack: Path) -> bool:
    if not len(lines):
        with suppress(FileNotFoundError):  # nor can it be made
            return next(index_entries(pack, pack.name), None) is None
    return not lines.torn and all(map(_is_line, filter(None, lines.first_and_last())))


def _is_line(line: bytes) -> bool:
    with suppress(PackDamagedError):
        return line.startswith(_HEAD) or bool(cdxj.parse_entry(line))
    return False


def is_indexed(pack: Path) -> bool:
    with suppress(FileNotFoundError):
        lines = cdxj.SortedLines(pack_file.index_path(pack))
        return _is_sound(lines, pack) and all(map(_is_line, lines))
    return False


def repair_indexes(folder: Path) -> int:
    """Make missing and damaged indexes, remove damaged merged ones; return the number made."""
    with lock_indexes(folder, wait=True):
        broken = [path for path in pack_file.closed_packs(folder) if not is_indexed(path)]
        names = {path.name for path in broken}
        for run in (run for run in index_runs(folder) if run.merged):
            if run.packs & names or not all(map(_is_line, run.lines)):
                run.lines.path.unlink()
        for path in broken:
            build_index(path)
        return len(broken)


class IndexMerger:
    """Merges the indexes of *folder* in a process: merging holds the interpreter's lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._wanted = True  # what an earlier crawl left
        self._process: Popen[str] | None = None

    def notify(self) -> None:
        self._wanted = True

    def poll(self) -> str:
        """Start a process if needed, or collect its end; return its error. Raises `OSError`."""
        if (process := self._process) is not None:
            if process.poll() is not None:
                self._process = None
                return last_error_line(process)
        elif self._wanted:
            self._wanted = False
            if mergeable(index_runs(self._folder)):
                self._process = start_helper(__name__, str(self._folder))
        return ""

    def finish(self, timeout: float) -> str:
        """Do the rest within *timeout* seconds. Returns and raises as `poll`."""
        end = time.monotonic() + timeout
        said = self.poll()
        while self._process is not None:
            try:
                self._process.wait(max(0.0, end - time.monotonic()))
            except TimeoutExpired:
                self._process.kill()
                last_error_line(self._process)
                self._process = None
                return said
            said = self.poll() or self.poll() or said  # the last pack was closed meanwhile
        return said


def main(arguments: list[str]) -> None:
    """Merge the indexes of a folder: the entry of the helper process."""
    merge_indexes(Path(arguments[0]))


class TemporaryIndexes:
    """Indexes of packs that have none, an open file each; each pack is read once."""

    def __init__(self) -> None:
        self._made: dict[tuple[Path, tuple[int, int, int]], cdxj.SortedLines] = {}

    def find(self, pack: Path, url: str) -> list[cdxj.IndexEntry]:
        """Return every entry of *url* in the closed *pack*. Raises `OSError`."""
        url = clean_url(url)
        key = pack, cdxj.file_identity(pack.stat())
        if key not in self._made:
            logger.warning("%s has no index that serves: it is read whole; `scrapy packs merge` "
                           "makes one", pack)  # fmt: skip
            with tempfile.TemporaryDirectory(prefix="scrapy-packs-") as folder:
                named = Path(folder) / pack.name
                build_index(pack, named)
                self._made[key] = cdxj.SortedLines(pack_file.index_path(named))
        found = map(cdxj.parse_entry, self._made[key].find(f"{cdxj.line_key(url)} ".encode()))
        return [entry for entry in found if entry.url == url]
