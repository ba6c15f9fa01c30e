"""Helper processes: work that would hold the interpreter's lock for too long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from scrapy_spider_suite.errors import SuiteError


def start_helper(
    module: str, *arguments: str, talks: bool = False, project: bool = False
) -> subprocess.Popen[str]:
    """Call ``main([*arguments])`` of *module* in a new process; its result is the exit code.

    A `SuiteError` or an `OSError` of ``main`` is a line on stderr and exit code 1.
    *talks*: stdin and stdout are pipes, else closed. *project*: the process can import whatever
    this process can. Raises `OSError`.
    """
    root = str(Path(__file__).parents[2])
    known = [each or "." for each in sys.path] if project else [os.environ.get("PYTHONPATH")]
    paths = os.pathsep.join([root, *filter(None, known)])
    pipe = subprocess.PIPE if talks else subprocess.DEVNULL
    # In a group of its own: Ctrl-C is for the crawl, which then stops in good order.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, module, *arguments],
        stdin=pipe, stdout=pipe, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": paths}, process_group=0, text=True, errors="replace",
    )  # fmt: skip


def last_error_line(process: subprocess.Popen[str]) -> str:
    """Wait for *process* to end; return its last line on stderr, "" if it succeeded."""
    lines = process.communicate()[1].splitlines()
    if not process.returncode:
        return ""
    return lines[-1] if lines else f"it ended with {process.returncode}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"


_TIED: Final = """
import ctypes, os, sys
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM: execve(2) keeps it
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def tie_to_parent(command: Sequence[str]) -> list[str]:
    """Return *command* for a process that gets SIGTERM when this process ends (on Linux)."""
    return [sys.executable, "-ISc", _TIED, str(os.getpid()), *command]


class Restarts:
    """When a process that ends is started again: later each time, unless it lives for a minute."""

    _LONG: Final = 60.0

    def __init__(self) -> None:
        self._began = self._at = 0.0  # the last start, and the next one
        self._pause = 1.0

    def began(self, now: float) -> None:
        self._began, self._at = now, 0.0

    def due(self, now: float) -> bool:
        """Whether to start it *now*; call when it has ended."""
        if not self._at:
            brief = now - self._began < self._LONG
            self._pause = min(self._LONG, 2 * self._pause) if brief else 1.0
            self._at = now + self._pause
        return now >= self._at


if __name__ == "__main__":
    try:
        sys.exit(import_module(sys.argv[1]).main(sys.argv[2:]))
    except (SuiteError, OSError) as error:
        sys.exit(str(error))
