"""``status.json`` in the job directory: how a crawl is doing, or how it ended."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Any

from scrapy_spider_suite.runtime.files import lock_file

STATUS_FILE = "status.json"
_SILENT = 10.0  # seconds without a new status after which the event loop of a crawl stands still


class CrawlState(StrEnum):
    RUNNING = "running"
    SILENT = "silent"  # its process is there, but the status was not written for some seconds
    ENDED = "ended"
    KILLED = "killed"

    @property
    def running(self) -> bool:
        return self in (CrawlState.RUNNING, CrawlState.SILENT)


class StatusFile:
    """``status.json`` in *folder*: how a crawl is doing, or how it ended. *facts* come first."""

    def __init__(self, folder: Path, **facts: Any) -> None:
        self._path = folder / STATUS_FILE
        self._facts = facts

    def update(self, **facts: Any) -> None:
        """Add *facts*, and write all of them. While the disk is full the old file stays."""
        self._facts.update(facts)
        new = self._path.with_suffix(".new")
        try:
            new.write_text(json.dumps(self._facts) + "\n")
            os.replace(new, self._path)
        except OSError:
            return  # the store logs it


def read_status(folder: Path) -> dict[str, Any] | None:
    """The status in *folder*; None without a readable one."""
    try:
        status = json.loads((folder / STATUS_FILE).read_text())
    except (OSError, ValueError):
        return None
    return status if isinstance(status, dict) else None


def state_of(folder: Path, status: dict[str, Any], wall: float) -> CrawlState:
    if not status or status.get("ended"):
        return CrawlState.ENDED
    silent = wall - status.get("when", status.get("started", 0.0)) > _SILENT
    in_use: bool | None = False
    try:
        with (folder / "lock").open() as lock:
            if not lock_file(lock, shared=True):
                in_use = lock.read().strip() == f"process {status.get('process')}"
    except OSError:
        in_use = None
    if not in_use and (silent or in_use is not None):
        return CrawlState.KILLED
    return CrawlState.SILENT if silent else CrawlState.RUNNING
