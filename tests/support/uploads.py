"""Packs to be uploaded, and a store that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from scrapy_spider_suite.packs import PackWriter
from support.packs import fetch, hand_in, plan


def write(folder: Path, *numbers: int) -> Path:
    """Write a pack of the pages *numbers*."""
    found: list[Path] = []
    writer = PackWriter(plan(folder), closed=found.append)
    for number in numbers:
        hand_in(writer, fetch(number))
    writer.close()
    return found[0]


class Flaky(MemoryFileSystem):
    """A store that is away until a time, or brings other bytes than were sent."""

    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    now = 0.0
    away_until = 0.0
    breaks: ClassVar[Callable[[str, str], None] | None] = None
    attempts = 0

    def put_file(self, lpath: str, rpath: str, *args: Any, **more: Any) -> None:
        """Fail, or store, and perhaps break it."""
        type(self).attempts += 1
        if self.now < self.away_until:
            raise ConnectionError("503 Slow Down")
        super().put_file(lpath, rpath, *args, **more)
        if type(self).breaks is not None:
            type(self).breaks(lpath, rpath)


def there(url: str) -> dict[str, bytes]:
    """What is in a folder there, by its name."""
    system, folder = fsspec.core.url_to_fs(url)
    return {path.rpartition("/")[2]: system.cat_file(path) for path in system.find(folder)}
