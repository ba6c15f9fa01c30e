"""Starts `build` in a process of its own, and hears of its end without waiting for it."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError, SuiteError
from scrapy_spider_suite.runtime.helper_processes import spawn, words_of
from scrapy_spider_suite.seen import build, catalogue
from scrapy_spider_suite.seen.log import LENGTH_BITS, FreshLog
from scrapy_spider_suite.seen.ranges import Range
from scrapy_spider_suite.seen.table import Handles

MADE: Final = "made"
"""The folder of what is being made; whatever a killed process left there goes at the next start."""

_ROWS_A_STEP: Final = 1_000


class Building:
    """One build of some ranges, whose fresh rows are frozen by it.

    Nothing of the store is changed until `install`.

    Attributes:
        built: of each range, by its low end, how many of its older tables are written.
        handles: of all rows that are written.
    """

    def __init__(
        self, folder: Path, ranges: Sequence[tuple[Range, bool]], log: FreshLog, split: int
    ) -> None:
        """Each range comes with whether its base is to be built anew. Raises `StoreWriteError`."""
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
        """Write the plan, in steps of some milliseconds, and start the process."""
        self._made.mkdir(parents=True)
        tasks = []
        files = self._log.files()
        for number, (part, base) in enumerate(ranges):
            pieces = []
            for table in part.older[: self.built[part.row.low]]:
                for _, own in part.pieces(table):
                    pieces.append(own)
                    yield
            handles = np.concatenate([np.zeros(0, np.int64), *pieces])
            self.handles.append(handles)
            yield
            sources = files
            if sources is None:
                rows = self._made / f"rows-{number}"
                yield from self._copy(handles, rows)
                handles = _consecutive(handles, np.load(f"{rows}.npy"))
                sources = [(0, rows)]
            name = f"handles-{number}.npy"
            np.save(self._made / name, handles)
            paths = tuple((start, str(path)) for start, path in sources)
            tasks.append(build.Task(part.row.low, mark, base, name, paths))
            yield
        plan = build.Plan(str(self._folder), tuple(tasks), split).write(self._made)
        self._process = spawn(build.__name__, str(plan))

    def _copy(self, handles: Handles, path: Path) -> Iterator[None]:
        """Write the rows to a file, since a builder cannot read them; and their lengths."""
        lengths = array("q")
        with path.open("wb") as file:
            for start in range(0, len(handles), _ROWS_A_STEP):
                portion = handles[start : start + _ROWS_A_STEP].tolist()
                some = [self._log.read(handle) for handle in portion]
                lengths.extend(map(len, some))
                file.write(b"".join(some))
                yield
        np.save(path.with_name(f"{path.name}.npy"), np.array(lengths, np.int64))

    def poll(self) -> bool:
        """Do one step, if one is due; whether the build has ended, well or not."""
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
        """Wait for its end."""
        while not self.poll():
            if self._process is not None:
                self._process.wait()

    def install(self) -> catalogue.Catalogue:
        """Make what was built part of the store. Raises `StoreWriteError`; nothing is lost then."""
        if self._process is not None and self._process.returncode and not self._error:
            # Through a pipe, for the disk may be full.
            self._error = f"the builder of segments: {words_of(self._process)}"
        if self._error:
            self.discard()
            raise StoreWriteError(f"{self._folder}: {self._error}")
        try:
            made, _ = catalogue.read(self._made)
            if made is None:
                raise StoreWriteError(f"{self._folder}: the builder wrote no catalogue")
            for path in self._made.glob("segment-*"):
                path.rename(self._folder / path.name)
            catalogue.install(self._made, self._folder)
        except (OSError, JobDamagedError) as error:
            raise StoreWriteError(f"{self._folder}: {error}") from error
        finally:
            self.discard()
        return made

    def cancel(self) -> None:
        """Stop it; what was frozen stays where it is."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self.discard()

    def discard(self) -> None:
        """Delete what it made."""
        if self._process is not None and self._process.stderr is not None:
            self._process.stderr.close()
        shutil.rmtree(self._made, ignore_errors=True)


def _consecutive(handles: Handles, lengths: Handles) -> Handles:
    """The handles of rows of these *lengths* in a file, one after the other."""
    ends = np.cumsum(lengths)
    return (ends - lengths) << LENGTH_BITS | lengths if len(handles) else handles
