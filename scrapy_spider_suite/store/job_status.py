"""``status.json`` in the job directory: how a crawl is doing, or how it ended."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Any

from scrapy_spider_suite.runtime.files import lock_file

STATUS_FILE = "status.json"
_SILENT = 10.0
"""Seconds without a word after which the event loop of a crawl stands still."""


class CrawlState(StrEnum):
    RUNNING = "running"
    SILENT = "silent"
    """Its process is there, and has said nothing for some seconds."""
    ENDED = "ended"
    KILLED = "killed"

    @property
    def running(self) -> bool:
        return self in (CrawlState.RUNNING, CrawlState.SILENT)


class StatusFile:
    """The file in *folder*; what it says, *facts* first, is written whole with each `update`."""

    def __init__(self, folder: Path, **facts: Any) -> None:
        self._path = folder / STATUS_FILE
        self._facts = facts

    def update(self, **facts: Any) -> None:
        """Say this, too. A disk that is full keeps what was said before."""
        self._facts.update(facts)
        new = self._path.with_suffix(".new")
        try:
            new.write_text(json.dumps(self._facts) + "\n")
            os.replace(new, self._path)
        except OSError:
            return  # the store says so, and that once is enough


def read_status(folder: Path) -> dict[str, Any] | None:
    """What the file in *folder* says; None if there is none, or it is no status."""
    try:
        status = json.loads((folder / STATUS_FILE).read_text())
    except (OSError, ValueError):
        return None
    return status if isinstance(status, dict) else None


def state_of(folder: Path, status: dict[str, Any], wall: float) -> CrawlState:
    if not status or status.get("ended"):
        return CrawlState.ENDED
    silent = wall - status.get("when", status.get("started", 0.0)) > _SILENT
    uses = _uses(folder, status.get("process"))
    if not uses and (silent or uses is not None):
        return CrawlState.KILLED
    return CrawlState.SILENT if silent else CrawlState.RUNNING


def _uses(folder: Path, process: object) -> bool | None:
    try:
        with (folder / "lock").open() as lock:
            if not lock_file(lock, shared=True):
                return lock.read().strip() == f"process {process}"
    except OSError:
        return None
    return False
