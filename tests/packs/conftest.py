"""Either LZO library, and a store that fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.uploads import Flaky

from scrapy_spider_suite.packs.containers import Lzallright, LzoLibrary, PythonLzo


@pytest.fixture(params=["lzallright", "python-lzo"])
def lzo(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LzoLibrary]:
    """Either library; where python-lzo is not installed, liblzo2 in its place."""
    if request.param == "lzallright":
        yield Lzallright()
        return
    try:
        yield PythonLzo()
    except ImportError:
        program = request.getfixturevalue("lzop")
        monkeypatch.setitem(sys.modules, "lzo", program.library())
        yield PythonLzo()


@pytest.fixture
def flaky() -> Iterator[type[Flaky]]:
    """The store, empty and sound."""
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    Flaky.store.clear()
    Flaky.now = Flaky.away_until = 0.0
    Flaky.attempts, Flaky.breaks = 0, None
    yield Flaky
    MemoryFileSystem.store.clear()
