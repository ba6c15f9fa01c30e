"""A store gets back the files that it had before a run that was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.seen_contract import SieveUrls

from scrapy_spider_suite.errors import JobInUseError
from scrapy_spider_suite.seen.sieve import Checkpoint
from scrapy_spider_suite.seen.trie_store import TrieStore

OLD, FRESH, NEW = (
    [f"http://{name}.example/{number}" for number in range(200)] for name in ("old", "fresh", "new")
)


@pytest.mark.parametrize("store", [SieveUrls, TrieStore])
def test_a_killed_run(store: Any, tmp_path: Path) -> None:
    """Merged or in a log: what the run has added is gone, and what was there before is there."""
    folder = tmp_path / "seen"
    earlier = store(folder)
    earlier.add(OLD)
    earlier.flush()
    earlier.add(FRESH)
    earlier.close()
    for merges in (False, True):
        checkpoint = Checkpoint(folder)
        assert checkpoint.restored == merges
        run = store(folder)
        checkpoint.save()
        assert all(url in run for url in OLD + FRESH)
        assert not any(url in run for url in NEW)
        run.add(NEW)
        if merges:
            run.flush()
        run.close()
        checkpoint.close()
    checkpoint = Checkpoint(folder)
    assert checkpoint.restored
    run = store(folder)
    checkpoint.save()
    assert not any(url in run for url in NEW)
    run.add(NEW)
    run.close()
    checkpoint.drop()
    checkpoint.close()
    checkpoint = Checkpoint(folder)
    assert not checkpoint.restored
    checkpoint.close()
    ended = store(folder)
    assert all(url in ended for url in OLD + FRESH + NEW)
    ended.close()


def test_one_run_at_a_time(tmp_path: Path) -> None:
    """Another process does not take the files of a run that goes on for those of a killed one."""
    checkpoint = Checkpoint(tmp_path / "seen")
    with pytest.raises(JobInUseError):
        Checkpoint(tmp_path / "seen")
    checkpoint.close()
