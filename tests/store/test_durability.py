"""SUITE_COMMIT_SURVIVES: what is on the medium when a batch counts as written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rocksdict import Options

from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.store import rocks_store
from scrapy_spider_suite.store.rocks_store import RocksOptions, RocksStore

BATCHES = 20
_CALL = re.compile(r"\b(fsync|fdatasync|sync_file_range)\(\d+<([^>]*)>")
_SCRIPT = f"""
import os, sys
from pathlib import Path
from scrapy.settings import Settings
from scrapy_spider_suite.store.job_directory import Job
from scrapy_spider_suite.settings.suite import SuiteSettings
for level in sys.argv[2:]:
    settings = SuiteSettings.from_settings(Settings({{"SUITE_COMMIT_SURVIVES": level}}))
    job = Job(Path(sys.argv[1], level), settings, "x")
    os.write(2, b"begin " + level.encode())
    for number in range({BATCHES}):
        job.store.put_state(b"%d" % number, b"x")
        job.store.flush()
    os.write(2, b"end " + level.encode())
"""


class Counting(RocksOptions):
    """Has the database count what it syncs."""

    def options(self, *, root: bool = False) -> Options:
        """See `RocksOptions`."""
        options = super().options(root=root)
        if root:
            options.enable_statistics()
            self.root = options
        return options

    @property
    def synced(self) -> int:
        """How often the log was synced to the medium."""
        found = re.search(r"rocksdb\.wal\.synced COUNT : (\d+)", self.root.get_statistics() or "")
        assert found is not None
        return int(found[1])


def write(store: RocksStore, batches: int = BATCHES) -> None:
    """Write so many batches."""
    for number in range(batches):
        store.put_state(b"%d" % number, b"x")
        store.flush()


def counting(
    monkeypatch: pytest.MonkeyPatch, path: Path, **how: bool
) -> tuple[RocksStore, Counting]:
    """A new store, and what counts its syncs."""
    monkeypatch.setattr(rocks_store, "RocksOptions", Counting)
    store = RocksStore(path, **how)  # type: ignore[arg-type]
    assert isinstance(store._tuning, Counting)
    return store, store._tuning


@pytest.mark.parametrize("power_safe", [True, False])
def test_the_log_is_synced_with_each_batch_or_never(
    power_safe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the database's own count."""
    store, tuning = counting(monkeypatch, tmp_path / "store", power_safe=power_safe)
    write(store)
    assert tuning.synced == (BATCHES if power_safe else 0)
    store.close()


def synced_files(trace: str, level: str) -> list[str]:
    """The files that a traced process had synced while it wrote its batches at that *level*."""
    lines = trace.split(f'"begin {level}"', 1)[1].split(f'"end {level}"', 1)[0]
    return [Path(name).name for _, name in _CALL.findall(lines)]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_system_is_asked_to(tmp_path: Path) -> None:
    """The same seen from outside: one call for each batch that the process waits for, or none."""
    trace = tmp_path / "trace"
    command = [
        "strace", "-f", "-y", "-e", "trace=fsync,fdatasync,sync_file_range,write",
        "-o", str(trace), sys.executable, "-c", _SCRIPT, str(tmp_path), "power", "process",
    ]  # fmt: skip
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if "Operation not permitted" in ended.stderr:
        pytest.skip("processes may not be traced here")
    assert ended.returncode == 0, ended.stderr
    said = trace.read_text(errors="replace")
    for level, calls in (("power", BATCHES), ("process", 0)):
        logs = [name for name in synced_files(said, level) if name.endswith(".log")]
        assert len(logs) == calls


def test_small_files_are_on_the_medium_before_they_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``job.json`` that was empty after a power failure would be a job that is damaged."""
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def note_sync(file: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{file}')).name}")
        sync(file)

    def note_replace(new: Path, path: Path) -> None:
        done.append(f"{new.name} to {path.name}, {new.read_text()}")
        replace(new, path)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    files.replace_file(tmp_path / "a.json", b"text")
    assert done == ["sync a.json.new", "a.json.new to a.json, text", f"sync {tmp_path.name}"]
    assert (tmp_path / "a.json").read_text() == "text"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
