"""Trie stores for tests: with builds in this process, and few bits in their ids."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from scrapy_spider_suite.errors import SuiteError
from scrapy_spider_suite.seen import segments, trie_upkeep
from scrapy_spider_suite.seen.segments import LOW, Catalogue, digest
from scrapy_spider_suite.seen.trie_store import TrieStore


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
    assert module == trie_upkeep.__name__
    try:
        trie_upkeep.SegmentBuilder(Path(plan)).run()
    except (OSError, SuiteError) as error:
        return Ended(f"{error}\n")
    return Ended()


def build_at_once(patch: pytest.MonkeyPatch) -> None:
    """Have segments built in this process, which takes milliseconds, not half a second."""
    patch.setattr(trie_upkeep, "start_helper", _at_once)


def use_few_ids(patch: pytest.MonkeyPatch, mask: int) -> None:
    """Let only the bits of *mask* tell the ids of a host's URLs apart: many collide."""

    def poor(key: bytes, seed: int | None = None) -> int:
        return digest(key) if seed is None else digest(key, seed) & (~LOW | mask)

    patch.setattr(segments, "digest", poor)


def small(path: Path, *, ids: bool = True, **options: Any) -> TrieStore:
    """A store with ranges of 40 URLs."""
    if not (path / segments.CATALOGUE).exists():
        path.mkdir(parents=True, exist_ok=True)
        made = path / "first"
        made.mkdir()
        segments.write_catalogue(made, Catalogue(1, 7, ids))
        segments.install_catalogue(made, path)
        made.rmdir()
    return TrieStore(path, split=40, **options)
