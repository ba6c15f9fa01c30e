"""The status file."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from scrapy_spider_suite.store.job_reader import STATUS_FILE, StatusFile, read_status


def test_facts_add_up(tmp_path: Path) -> None:
    """What was said stays said until something else is."""
    status = StatusFile(tmp_path, ended=None)
    status.update(done=1)
    status.update(done=2)
    assert read_status(tmp_path) == {"done": 2, "ended": None}
    assert [path.name for path in tmp_path.iterdir()] == [STATUS_FILE]


def test_no_room_keeps_what_was_said(tmp_path: Path) -> None:
    """And raises nothing."""
    status = StatusFile(tmp_path)
    status.update(done=1)
    (tmp_path / "status.new").mkdir(mode=stat.S_IRUSR)
    status.update(done=2)
    assert read_status(tmp_path) == {"done": 1}


@pytest.mark.parametrize("text", ["", "[]", "{", "\0"])
def test_what_is_no_status(text: str, tmp_path: Path) -> None:
    """It is as if there was none."""
    assert read_status(tmp_path) is None
    (tmp_path / STATUS_FILE).write_text(text)
    assert read_status(tmp_path) is None
