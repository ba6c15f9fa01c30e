"""Processes of the suite's own, for work that would hold the interpreter's lock for too long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import scrapy_spider_suite


def spawn(
    module: str, *arguments: str, talks: bool = False, project: bool = False
) -> subprocess.Popen[str]:
    """Run *module* of the suite in a process of its own. Raises `OSError`.

    *talks*: it has pipes for its input and its output, too; else it has none. *project*: it can
    import what can be imported here.
    """
    root = str(Path(scrapy_spider_suite.__file__).parents[1])
    known = [each or "." for each in sys.path] if project else [os.environ.get("PYTHONPATH")]
    paths = os.pathsep.join([root, *filter(None, known)])
    pipe = subprocess.PIPE if talks else subprocess.DEVNULL
    # In a group of its own: Ctrl-C is for the crawl, which then stops in good order.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=pipe, stdout=pipe, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": paths}, process_group=0, text=True, errors="replace",
    )  # fmt: skip


def words_of(process: subprocess.Popen[str]) -> str:
    """Wait for the end of *process*, and let go of it; why it failed, in a line, "" if it did not.
    """
    lines = process.communicate()[1].splitlines()
    if not process.returncode:
        return ""
    return lines[-1] if lines else f"it ended with {process.returncode}"
