"""Each LZO compressor, and a store that fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.uploads import Flaky

from scrapy_spider_suite.packs.containers import LZO, LzoCompressor


@pytest.fixture(params=LZO, ids=lambda kind: kind.name)
def lzo(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LzoCompressor:
    """Each of them; liblzo2 may come with lzop, and stands for python-lzo if that is not here."""
    try:
        return request.param()
    except (ImportError, OSError):
        monkeypatch.setitem(sys.modules, "lzo", request.getfixturevalue("lzop").library())
        return request.param()


@pytest.fixture
def flaky() -> Iterator[type[Flaky]]:
    """The store, empty and sound."""
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    Flaky.store.clear()
    Flaky.now = Flaky.away_until = 0.0
    Flaky.attempts, Flaky.breaks = 0, None
    yield Flaky
    MemoryFileSystem.store.clear()
