"""Merges the indexes of a folder of packs in a process of its own: ``python -m … FOLDER``.

Merging is work for the interpreter, whose lock a crawl in the same process would wait for. Killed
at any moment it leaves the index as it was.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from subprocess import Popen, TimeoutExpired

from scrapy_spider_suite.packs.index import due, merge
from scrapy_spider_suite.runtime.helper_processes import spawn, words_of


class Merging:
    """Merges the indexes of *folder* whenever there is something to merge; looked at by `poll`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._wanted = True  # what an earlier crawl left
        self._process: Popen[str] | None = None

    def look(self) -> None:
        """Another pack is closed."""
        self._wanted = True

    def poll(self) -> str:
        """Start a process if there is something to do, or hear of its end; what went wrong, or "".

        Raises `OSError`: none can be started, or the folder cannot be read.
        """
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            self._process = process
        elif process is not None:
            return words_of(process)
        elif self._wanted:
            self._wanted = False
            if due(self._folder):
                self._process = spawn(__name__, str(self._folder))
        return ""

    def finish(self, timeout: float) -> str:
        """Do what there is to do, for *timeout* seconds at most: another crawl does the rest.

        Returns and raises as `poll`.
        """
        end = time.monotonic() + timeout
        said = self.poll()
        while self._process is not None:
            try:
                self._process.wait(max(0.0, end - time.monotonic()))
            except TimeoutExpired:
                self._process.kill()
                words_of(self._process)
                self._process = None
                return said
            said = self.poll() or self.poll() or said  # the last pack was closed meanwhile
        return said


if __name__ == "__main__":
    try:
        merge(Path(sys.argv[1]))
    except OSError as error:
        sys.exit(str(error))
