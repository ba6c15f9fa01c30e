"""Asking a job at rest: whoever asks carries it out, and is told if the disk does not let him."""

from __future__ import annotations

from pathlib import Path

import pytest

from scrapy_spider_suite.errors import JobError, StoreWriteError
from scrapy_spider_suite.operate.actions import ActionFolder
from scrapy_spider_suite.operate.executors.one_job import ask_job
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.store.job_directory import JobFile
from scrapy_spider_suite.store.rows import FORMAT


class Disk:
    """One that is full for the first so many commits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full: int) -> None:
        self.asked = 0
        commit = JobTarget.commit

        def full_for_a_while(site: JobTarget) -> bool:
            self.asked += 1
            if self.asked <= full:
                raise StoreWriteError("No space left on device")
            return commit(site)

        monkeypatch.setattr(JobTarget, "commit", full_for_a_while)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job that was never used."""
    folder = tmp_path / "suite"
    folder.mkdir()
    JobFile(FORMAT, "id", "news", 0.0, {}).write(folder)
    return folder


@pytest.mark.parametrize("verb", ["pause", "add"])
def test_a_full_disk_is_said_in_the_end(
    folder: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a short verb and in a long one; nothing spins, and the action is taken back."""
    disk = Disk(monkeypatch, full=1 << 60)
    urls = ["http://a.test/"] if verb == "add" else None
    with pytest.raises(JobError, match="cannot be written to: No space left"):
        ask_job(folder, verb, {}, who="ops", urls=urls, wait=0.2)
    assert 0 < disk.asked < 20
    assert list(ActionFolder(folder).path.iterdir()) == []


def test_a_disk_that_has_room_again_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the wait."""
    Disk(monkeypatch, full=3)
    answer = ask_job(folder, "add", {}, who="ops", urls=["http://a.test/"], wait=30.0)
    assert answer is not None
    assert answer.facts["new"] == 1
