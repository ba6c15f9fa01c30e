"""When a disk has too little room, and when it has enough again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scrapy_spider_suite.operate.disk_guard import (
    FreeSpace,
    WatchedFolder,
    free_space,
    headroom,
    in_units,
    shortage,
)

M = 1 << 20
JOB, LOG = Path("/job"), Path("/log")


def disks(**free: int) -> Callable[[Path], FreeSpace]:
    """File systems with so many free MiB, by the names of the folders on them."""

    def look(path: Path) -> FreeSpace:
        if path.name not in free:
            raise FileNotFoundError
        return FreeSpace(hash(path.name), free[path.name] * M)

    return look


def test_each_file_system_needs_its_own_room() -> None:
    """The one that has too little is named, with what it has and what it needs."""
    folders = [WatchedFolder(JOB, 30 * M), WatchedFolder(LOG)]
    assert shortage(folders, 10 * M, look=disks(job=40, log=10)) is None
    assert shortage(folders, 10 * M, look=disks(job=39, log=10)) == (JOB, 39 * M, 40 * M)
    assert shortage(folders, 10 * M, look=disks(job=40, log=9)) == (LOG, 9 * M, 10 * M)


def test_folders_on_one_file_system_share_its_room() -> None:
    """The least counts once, what each needs beside it counts for each."""
    folders = [WatchedFolder(JOB, 30 * M), WatchedFolder(LOG, 5 * M)]
    assert shortage(folders, 10 * M, look=lambda _: FreeSpace(1, 45 * M)) is None
    assert shortage(folders, 10 * M, look=lambda _: FreeSpace(1, 44 * M)) == (JOB, 44 * M, 45 * M)


def test_a_disk_that_was_short_needs_some_more() -> None:
    """Else a crawl would stop and go with each page."""
    assert shortage([WatchedFolder(JOB)], 100 * M, is_short=True, look=disks(job=105)) is not None
    assert shortage([WatchedFolder(JOB)], 100 * M, is_short=True, look=disks(job=111)) is None


def test_what_cannot_be_looked_at_is_passed_over(tmp_path: Path) -> None:
    """Whoever writes there says what is wrong."""
    assert shortage([WatchedFolder(tmp_path / "gone")], 1 << 60) is None
    assert shortage([WatchedFolder(tmp_path)], 1 << 60) is not None
    assert shortage([WatchedFolder(tmp_path)], 0) is None
    assert free_space(tmp_path).free > 0


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
    assert in_units(count) == text
