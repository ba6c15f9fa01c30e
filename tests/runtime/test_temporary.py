"""The folder of a crawl without a job directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.runtime.files import TEMPORARY_PREFIX, TemporaryFolder

HOLD = """
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.runtime.files import TemporaryFolder
folder = TemporaryFolder()
(folder.path / "store").mkdir()
print(folder.path, flush=True)
input()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's folder for temporary files, here and in processes started by the test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def hold() -> tuple[subprocess.Popen[str], Path]:
    """Start a process that has a folder; return it and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_removed_at_the_end(temporary: Path) -> None:
    """Nothing is left of it."""
    folder = TemporaryFolder()
    (folder.path / "store").mkdir()
    folder.remove()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_removed(temporary: Path) -> None:
    """By the next that needs a folder, and not before its process has ended."""
    with hold()[0] as process:
        (held,) = temporary.iterdir()
        own = TemporaryFolder()
        assert set(temporary.iterdir()) == {held, own.path}
        process.send_signal(signal.SIGKILL)
        process.wait()
        other = TemporaryFolder()
        assert set(temporary.iterdir()) == {own.path, other.path}
        own.remove()
        other.remove()


def test_nothing_else_is_removed(temporary: Path) -> None:
    """A folder without a lock, or with a link for one, and what a link of that name leads to."""
    (temporary / "target").mkdir()
    (temporary / "target" / "lock").touch()
    (temporary / f"{TEMPORARY_PREFIX}link").symlink_to(temporary / "target")
    (temporary / f"{TEMPORARY_PREFIX}other").mkdir()
    (temporary / f"{TEMPORARY_PREFIX}linked").mkdir()
    (temporary / f"{TEMPORARY_PREFIX}linked" / "lock").symlink_to(temporary / "target" / "lock")
    before = set(temporary.rglob("*"))
    TemporaryFolder().remove()
    assert set(temporary.rglob("*")) == before


def test_no_place_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that says what to set."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(SettingsError, match="set JOBDIR, or TMPDIR"):
        TemporaryFolder()
