"""A crawl that runs beside a test, which acts on it with ``scrapy frontier``."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scrapy_spider_suite.store.job_directory import FOLDER
from support.crawls import Process, start, web_settings
from support.webs import FakeWebProcess


def until(true: Callable[[], Any], within: float = 30.0, every: float = 0.05) -> None:
    """Return as soon as *true* is, asked *every* so many seconds.

    Raises `TimeoutError` after *within* seconds.
    """
    deadline = time.monotonic() + within
    while not true():
        if time.monotonic() >= deadline:
            raise TimeoutError("what was waited for did not come")
        time.sleep(every)


@contextmanager
def running(
    web: FakeWebProcess, folder: Path, spider: str = "support.spiders.Bulk", **settings: Any
) -> Iterator[Process]:
    """Crawl *web* from its first seed as ``folder/job``; entered as soon as a page has arrived."""
    given = web_settings(web.ready.dns_port, JOBDIR=str(folder / "job"), **settings)
    process = start(spider, given, folder, seeds=web.ready.seeds[0])
    try:
        until(lambda: (folder / "job" / FOLDER / "status.json").exists() or process.poll())
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
