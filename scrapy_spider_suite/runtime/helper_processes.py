"""Helper processes: work that would hold the interpreter's lock for too long."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path


def start_helper(
    module: str, *arguments: str, talks: bool = False, project: bool = False
) -> subprocess.Popen[str]:
    """Call ``main([*arguments])`` of *module* in a new process; its result is the exit code.

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


if __name__ == "__main__":
    sys.exit(import_module(sys.argv[1]).main(sys.argv[2:]))
