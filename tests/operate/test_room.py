"""When a disk has too little room, and when it has enough again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scrapy_spider_suite.operate import machine
from scrapy_spider_suite.operate.machine import (
    display_bytes,
    free_space,
    headroom,
    shortage,
)

M = 1 << 20
JOB, LOG = Path("/job"), Path("/log")


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the free MiB of file systems, by the names of the folders on them."""

    def set_free(*, shared: int | None = None, **free: int) -> None:
        monkeypatch.setattr(machine, "free_space", lambda path: (
            (hash(path.name), free[path.name] * M) if shared is None else (1, shared * M)
        ))  # fmt: skip

    return set_free


def test_each_file_system_needs_its_own_room(disks: Callable[..., None]) -> None:
    """The one that has too little is named, with what it has and what it needs."""
    folders = [(JOB, 30 * M), (LOG, 0)]
    disks(job=40, log=10)
    assert shortage(folders, 10 * M) is None
    disks(job=39, log=10)
    assert shortage(folders, 10 * M) == (JOB, 39 * M, 40 * M)
    disks(job=40, log=9)
    assert shortage(folders, 10 * M) == (LOG, 9 * M, 10 * M)


def test_folders_on_one_file_system_share_its_room(disks: Callable[..., None]) -> None:
    """The least counts once, what each needs beside it counts for each."""
    folders = [(JOB, 30 * M), (LOG, 5 * M)]
    disks(shared=45)
    assert shortage(folders, 10 * M) is None
    disks(shared=44)
    assert shortage(folders, 10 * M) == (JOB, 44 * M, 45 * M)


def test_a_disk_that_was_short_needs_some_more(disks: Callable[..., None]) -> None:
    """Else a crawl would stop and go with each page."""
    disks(job=105)
    assert shortage([(JOB, 0)], 100 * M, is_short=True) is not None
    disks(job=111)
    assert shortage([(JOB, 0)], 100 * M, is_short=True) is None


def test_what_cannot_be_looked_at_is_passed_over(tmp_path: Path) -> None:
    """Whoever writes there says what is wrong."""
    assert shortage([(tmp_path / "gone", 0)], 1 << 60) is None
    assert shortage([(tmp_path, 0)], 1 << 60) is not None
    assert shortage([(tmp_path, 0)], 0) is None
    assert free_space(tmp_path)[1] > 0


def test_the_store_needs_room_to_merge() -> None:
    """As much as it holds, up to what it merges at once, and its buffers."""
    assert headroom(0, 64 * M) == 64 * M
    assert headroom(100 * M, 64 * M) == 164 * M
    assert headroom(1 << 40, 64 * M) == 1_664 * M


@pytest.mark.parametrize(
    ("count", "text"),
    [(5, "5 bytes"), (2048, "2K"), (1_900_000, "1.8M"), (3 << 30, "3G"), (1 << 40, "1024G")],
)
def test_units(count: int, text: str) -> None:
    """Rounded down: what is there is no less."""
    assert display_bytes(count) == text
