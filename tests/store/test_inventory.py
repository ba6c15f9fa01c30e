"""Tests of the list of a store's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from scrapy_spider_suite.store.job_directory import (
    find_damage,
    forget_files,
    holds_data,
    note_files,
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A folder that looks like a store, with its list taken."""
    folder = tmp_path / "store"
    folder.mkdir()
    for name in ("CURRENT", "MANIFEST-000005", "000009.sst", "000010.log", "LOG"):
        (folder / name).write_text(f"{name}\n")
    note_files(folder)
    return folder


def test_nothing_has_changed(store: Path) -> None:
    """Equal files are no damage, and neither is what happened to logs."""
    (store / "000010.log").write_text("torn")
    (store / "LOG").unlink()
    assert find_damage(store) is None


@pytest.mark.parametrize("name", ["MANIFEST-000005", "000009.sst", "CURRENT"])
def test_lost(store: Path, name: str) -> None:
    """A file that is missing is named, and so is one that has lost bytes."""
    (store / name).write_text("")
    assert f"{name} has 0 bytes" in str(find_damage(store))
    (store / name).unlink()
    assert find_damage(store) == f"{name} is missing"


@pytest.mark.parametrize("text", ["", "[]", "\0"])
def test_list_that_is_none(store: Path, text: str) -> None:
    """A list that cannot be read is damage."""
    (store.parent / "files.json").write_text(text)
    assert "files.json" in str(find_damage(store))


def test_names_stay_in_the_folder(store: Path) -> None:
    """A list cannot make anyone look elsewhere."""
    (store.parent / "files.json").write_text('{"../../etc/passwd": 1}')
    assert find_damage(store) == "passwd is missing"


def test_after_an_unclean_end(store: Path) -> None:
    """Without a list only what RocksDB would take for a new database is damage."""
    forget_files(store)
    forget_files(store)
    (store / "MANIFEST-000005").write_text("")
    assert find_damage(store) is None
    (store / "CURRENT").unlink()
    assert find_damage(store) == "CURRENT is missing"


def test_new_store(tmp_path: Path) -> None:
    """A folder that is not there, or in which nothing was written yet, holds no data."""
    assert not holds_data(tmp_path / "store")
    assert find_damage(tmp_path / "store") is None
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "000004.log").touch()
    assert not holds_data(tmp_path / "store")
    assert find_damage(tmp_path / "store") is None
