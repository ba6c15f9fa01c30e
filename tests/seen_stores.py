"""Trie stores for tests: with builds in this process, few bits in their ids, a foreign log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scrapy_spider_suite.errors import SuiteError
from scrapy_spider_suite.seen import segment_builder, segments
from scrapy_spider_suite.seen import segment_builder as building
from scrapy_spider_suite.seen.fresh_log import Rows
from scrapy_spider_suite.seen.segments import Catalogue
from scrapy_spider_suite.seen.trie_store import TrieStore
from scrapy_spider_suite.seen.url_keys import Handles, Ids


class Ended:
    """A build that was done at once, as the process that it usually is looks from outside."""

    def __init__(self, error: str = "") -> None:
        self.returncode = 1 if error else 0
        self.stderr = StringIO(error)

    def poll(self) -> int:
        """It has ended."""
        return self.returncode

    def wait(self) -> int:
        """So there is nothing to wait for."""
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """What it wrote."""
        return "", self.stderr.read()

    def kill(self) -> None:
        """Nor to kill."""


def _at_once(module: str, plan: str) -> Ended:
    assert module == segment_builder.__name__
    try:
        segment_builder.carry_out(Path(plan))
    except (OSError, SuiteError) as error:
        return Ended(f"{error}\n")
    return Ended()


def build_at_once(patch: pytest.MonkeyPatch) -> None:
    """Have segments built in this process, which takes milliseconds, not half a second."""
    patch.setattr(building, "start_helper", _at_once)


def small(path: Path, *, mask: int | None = None, ids: bool = True, **options: Any) -> TrieStore:
    """A store with ranges of 40 URLs; with a *mask* of few bits many URLs' ids collide."""
    if not (path / segments.COPIES[0]).exists():
        path.mkdir(parents=True, exist_ok=True)
        made = path / "first"
        made.mkdir()
        masked = {} if mask is None else {"mask": mask}
        segments.write_catalogue(made, Catalogue(1, 7, ids, **masked))
        segments.install_catalogue(made, path)
        made.rmdir()
    return TrieStore(path, split=40, **options)


class MemoryLog:
    """A log that another store of the crawl keeps; it outlives the trie store, as that would."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, bytes]] = {}
        self.end = 1_000

    def append(self, rows: Rows) -> Sequence[int]:
        """Keep *rows*."""
        handles = list(range(self.end, self.end + len(rows)))
        self._rows |= dict(zip(handles, rows, strict=True))
        self.end += len(rows)
        return handles

    def read(self, handle: int) -> bytes:
        """The URL of a row."""
        return self._rows[handle][1]

    def rows(self) -> Iterator[tuple[Ids, Handles]]:
        """All rows, one at a time."""
        for handle, (ident, _) in list(self._rows.items()):
            yield np.array([ident], np.uint64), np.array([handle], np.int64)

    def forget(self, handles: Handles) -> None:
        """Delete them."""
        for handle in handles.tolist():
            del self._rows[handle]

    def rotate(self) -> None:
        """It has no files."""

    def overdue(self, handle: int) -> bool:
        """Rows are deleted one by one."""
        return False

    def files(self) -> None:
        """A builder cannot read it."""

    def sync(self) -> None:
        """It is the crawl's."""

    def close(self) -> None:
        """It is the crawl's."""
