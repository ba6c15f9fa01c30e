"""Files are copied with their holes: a ring of rows that is nearly empty takes no room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scrapy_spider_suite.runtime.files import copy_file

HOLE = 8 << 20


@pytest.mark.parametrize("parts", [
    [], [(0, b"all of it")], [(HOLE, b"end")], [(0, b"begin"), (2 * HOLE, b"x" * 3_000_000)],
])  # fmt: skip
@pytest.mark.parametrize("rest", [0, HOLE])
def test_holes_stay_holes(tmp_path: Path, parts: list[tuple[int, bytes]], rest: int) -> None:
    """The copy has the same bytes and times, and no more blocks."""
    path, to = tmp_path / "from", tmp_path / "to"
    with path.open("wb") as file:
        for place, data in parts:
            file.seek(place)
            file.write(data)
        file.truncate(file.tell() + rest)
    os.utime(path, (1_000, 2_000))
    copy_file(path, to)
    assert to.read_bytes() == path.read_bytes()
    assert to.stat().st_mtime == 2_000
    assert to.stat().st_blocks <= path.stat().st_blocks + 16
