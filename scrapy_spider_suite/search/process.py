"""Has `follow` run in a process of its own, and hears what it says without waiting for it."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from scrapy_spider_suite.runtime.helper_processes import spawn

_MODULE: Final = "scrapy_spider_suite.search.follow"
_LINES: Final = 20


class FollowProcess:
    """Follows the packs in *folder* until `finish`, `stop`, or the end of this process.

    *told* is called with every batch, see `Progress`; *ended* once, with the exit code and the last
    line that it had to say; both in a thread. Raises `OSError`: it cannot be started.
    """

    def __init__(
        self,
        folder: Path,
        told: Callable[[dict[str, Any]], object],
        ended: Callable[[int, str], object],
        *arguments: str,
    ) -> None:
        self._child = spawn(_MODULE, str(folder), *arguments, talks=True)
        self.pid = self._child.pid
        self._told = told
        self._ended = ended
        self._words: deque[str] = deque(maxlen=_LINES)
        self._threads = [threading.Thread(target=run, name="index", daemon=True)
                         for run in (self._hear_errors, self._hear)]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Let it end when everything that is there has been read."""
        if self._child.stdin is not None:
            with suppress(BrokenPipeError):
                self._child.stdin.close()

    def stop(self) -> None:
        """Let it write what it has at hand, and end."""
        self._child.terminate()

    def kill(self) -> None:
        """End it at once: it goes on where it has last written."""
        self._child.kill()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for *timeout* seconds, None for ever; whether it has ended, and *ended* is told."""
        self._threads[1].join(timeout)
        return not self._threads[1].is_alive()

    def _hear(self) -> None:
        for line in self._child.stdout or ():
            with suppress(ValueError):  # the last one was cut off by a kill
                self._told(json.loads(line))
        code = self._child.wait()
        self._threads[0].join()
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._ended(code, self._words[-1] if self._words else "")

    def _hear_errors(self) -> None:
        for line in self._child.stderr or ():
            if line.strip():
                self._words.append(line.strip())
