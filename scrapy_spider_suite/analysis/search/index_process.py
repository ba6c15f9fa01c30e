"""Keeps the text index up to date in a process of its own, and starts that process.

It prints a line of JSON for each batch with news. It ends when its standard input has ended and
everything is read, or by SIGTERM after a batch.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_spider_suite.errors import SearchBusyError
from scrapy_spider_suite.runtime.helper_processes import start_helper

if TYPE_CHECKING:
    from scrapy_spider_suite.analysis.search.index_follower import IndexFollower, IndexProgress

NICENESS: Final = 5
PAUSE: Final = 2.0
PATIENCE: Final = 60.0  # seconds that a page may take; see `CrashJournal`


def follow(
    follower: IndexFollower, ending: threading.Event, stopped: threading.Event, wait: float
) -> None:
    """Read until *ending* is set and nothing is left, or *stopped* is set. Raises as `step`."""
    behind = 0
    while not stopped.is_set():
        last = ending.is_set()
        try:
            progress = follower.step(wait)
        except SearchBusyError:
            if last:
                raise
            ending.wait(PAUSE)
            continue
        if progress != type(progress)(behind=behind):
            tell(progress)
        behind = progress.behind
        if progress.more:
            continue
        if last:
            return
        ending.wait(PAUSE)


def tell(progress: IndexProgress) -> None:
    print(json.dumps(asdict(progress)), flush=True)


def main(arguments: list[str]) -> None:
    # Only the helper process needs the libraries of the extra `index`.
    from scrapy_spider_suite.analysis.search.index_follower import IndexFollower

    folder, wait, *rebuild = arguments
    os.nice(NICENESS)
    ending, stopped = threading.Event(), threading.Event()

    def stop(*_: object) -> None:
        stopped.set()
        ending.set()

    def listen() -> None:
        # Not through sys.stdin, whose lock Python wants as it ends.
        while os.read(0, 4096):
            pass
        ending.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    threading.Thread(target=listen, daemon=True).start()
    follower = IndexFollower(Path(folder), stop=stopped.is_set, patience=PATIENCE)
    if rebuild:
        follower.rebuild(tell, float(wait))
    else:
        follow(follower, ending, stopped, float(wait))


class IndexProcess:
    """Indexes the packs in *folder*. *report* gets each `IndexProgress` as a dict, *ended* the exit
    code and the last line of stderr, both in a thread. Raises `OSError`.
    """

    def __init__(
        self, folder: Path, report: Callable[[dict[str, Any]], object],
        ended: Callable[[int, str], object], *, rebuild: bool = False, wait: float = 0.0,
    ) -> None:  # fmt: skip
        more = ["rebuild"] if rebuild else []
        self._child = start_helper(__name__, str(folder), str(wait), *more, talks=True)
        self.pid = self._child.pid
        self._report = report
        self._ended = ended
        self._last_error = ""
        self._errors = threading.Thread(target=self._read_errors, name="index", daemon=True)
        self._reports = threading.Thread(target=self._read_reports, name="index", daemon=True)
        self._errors.start()
        self._reports.start()

    def finish(self) -> None:
        """Let it end when everything is read."""
        if self._child.stdin is not None:
            with suppress(BrokenPipeError):
                self._child.stdin.close()

    def stop(self) -> None:
        self._child.terminate()

    def kill(self) -> None:
        """End it at once; a later one continues from the last commit."""
        self._child.kill()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait *timeout* seconds (None: for ever); return whether *ended* was called."""
        self._reports.join(timeout)
        return not self._reports.is_alive()

    def _read_reports(self) -> None:
        for line in self._child.stdout or ():
            with suppress(ValueError):  # the last one was cut off by a kill
                self._report(json.loads(line))
        with self._child:  # its pipes are closed
            self._errors.join()
        self._ended(self._child.returncode, self._last_error)

    def _read_errors(self) -> None:
        for line in self._child.stderr or ():
            self._last_error = line.strip() or self._last_error
