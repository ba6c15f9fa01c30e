"""The lzop program, once for all tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import lzop as programs
import pytest

from scrapy_spider_suite.packs.lzo import Lzallright, Lzo, PythonLzo


@pytest.fixture(scope="session")
def lzop(tmp_path_factory: pytest.TempPathFactory) -> programs.Lzop:
    """lzop 1.04 or newer."""
    return programs.find(tmp_path_factory.mktemp("lzop"))


@pytest.fixture(params=["lzallright", "python-lzo"])
def lzo(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lzo]:
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
