"""Segments are built by real processes, and stores die with real ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.small_disks import tmpfs

from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.seen import fresh_log as logs
from scrapy_spider_suite.seen.trie_store import TrieStore

URLS = [f"http://host{number % 99}.t/some/page/{number}" for number in range(5_000)]

ADDER = """
import sys
from scrapy_spider_suite.seen.trie_store import TrieStore
store = TrieStore(sys.argv[1], memory=144 * 3_000, split=2_000)
for number in range(len(store) // 10, 1_000_000):
    store.add(f"http://host{n % 99}.t/{n}" for n in range(number * 10, number * 10 + 10))
    print(number, flush=True)
"""


def test_a_process_builds(tmp_path: Path) -> None:
    """Beside this one, which looks and adds meanwhile."""
    with TrieStore(tmp_path, memory=144 * 8_000) as store:
        store.add(URLS)
        assert store.poll()
        assert store.add(["http://new.t/"]) == ["http://new.t/"]
        assert all(url in store for url in URLS)
        store.flush()
        stats = store.stats()
        assert (stats.segments, stats.fresh, stats.urls) == (2, 0, 5_001)
        assert stats.size < 0.5 * sum(map(len, URLS))
        assert sorted(store) == sorted([*URLS, "http://new.t/"])
        assert not (tmp_path / "made").exists() or not list((tmp_path / "made").iterdir())


def test_closing_stops_a_build(tmp_path: Path) -> None:
    """What was fresh is still in the log."""
    with TrieStore(tmp_path, memory=144 * 8_000) as store:
        store.add(URLS)
        assert store.poll()
    with TrieStore(tmp_path) as store:
        assert store.stats().fresh == 5_000
        assert store.add(URLS) == []


@pytest.mark.slow
def test_killed_again_and_again(tmp_path: Path) -> None:
    """What was added when the process was killed is there; it adds what the last one did not."""
    for rows in (300, 900, 2_000):
        adder = subprocess.Popen(
            [sys.executable, "-c", ADDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert adder.stdout is not None
        with adder:
            last = -1
            for line in adder.stdout:
                last = int(line)
                if last >= rows:
                    adder.kill()
                    break
        with TrieStore(tmp_path) as store:
            assert len(store) % 10 == 0
            assert len(store) >= (last + 1) * 10
            assert all(f"http://host{n % 99}.t/{n}" in store for n in range(len(store)))
            assert not store.check()


def test_a_full_disk(tmp_path: Path) -> None:
    """Neither the builder nor the log loses anything; once there is room, all goes on."""
    with tmpfs(tmp_path / "disk", "1m") as disk, TrieStore(disk / "seen") as store:
        ballast = disk / "ballast"
        store.add(URLS)
        ballast.write_bytes(bytes(760_000))
        with pytest.raises(StoreWriteError, match="No space left on device"):
            store.flush()
        with pytest.raises(StoreWriteError, match="No space left on device"):
            add_without_end(store)
        added = len(store) - 5_000
        ballast.unlink()
        store.flush()
        assert all(url in store for url in URLS)
        assert all(f"http://more.t/{n}/{'x' * 200}" in store for n in range(added))
        assert len(store) == 5_000 + added


def add_without_end(store: TrieStore) -> None:
    """Add one URL at a time."""
    for number in range(10_000):
        store.add([f"http://more.t/{number}/{'x' * 200}"])


def test_old_rows_are_written_so_that_the_log_gives_room_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before memory asks for it."""
    monkeypatch.setattr(logs, "FILE_BYTES", 20_000)
    monkeypatch.setattr(logs, "KEPT_FILES", 2)
    with TrieStore(tmp_path) as store:
        for start in range(0, 5_000, 50):
            store.add(URLS[start : start + 50])
        assert len(list(tmp_path.glob("fresh-*"))) > 5
        assert store.poll()
        store.flush()
        assert len(list(tmp_path.glob("fresh-*"))) == 1
        assert len(store) == 5_000
    with TrieStore(tmp_path) as store:
        assert store.stats().fresh == 0
        assert store.add(URLS) == []
