"""What only the store on disk does."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Checkpoint
from support.virtual_crawl import copy_of

from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError
from scrapy_spider_suite.frontier.entries import Entry, order_key, state_key
from scrapy_spider_suite.store import rocks_store
from scrapy_spider_suite.store.rocks_store import FAMILIES, FamilyKV, RocksStore
from scrapy_spider_suite.store.rows import PENDING, HostRecord

MEMORY = 4 << 20


class Trap:
    """Whoever unpickles it leaves a trace: a folder."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.trace),)


def put_everywhere(store: RocksStore, value: bytes) -> None:
    """Something in every family."""
    entry = Entry("a.t", "http://a.t/", b"identity", payload=value, key=order_key(0, 1))
    store.put_state(b"key", value)
    store.put_row(entry)
    store.put_record("a.t", HostRecord())
    store.put_due(1.0, "a.t")
    store.kv("x").put(b"key", value)
    FamilyKV(store, "meta").put(b"key", value)


def check_everywhere(store: RocksStore, value: bytes) -> None:
    """It is still there, as it was."""
    assert store.state(b"key") == value
    (row,) = store.rows("a.t", b"", 5)
    assert row.payload == value
    assert store.record("a.t") is not None
    assert store.due(5) == [(1.0, "a.t")]
    assert store.kv("x").get(b"key") == value
    assert list(store.kv("x").items()) == [(b"key", value)]
    assert FamilyKV(store, "meta").get(b"key") == value


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    """A value that is a pickle is bytes like any other (promise 4)."""
    trace = tmp_path / "trace"
    trap = pickle.dumps(Trap(trace))
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    put_everywhere(store, trap)
    check_everywhere(store, trap)
    store.close()
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    check_everywhere(store, trap)
    for name in FAMILIES:
        for key, value in store._on_disk(name):
            assert type(key) is type(value) is bytes
    assert not trace.exists()
    pickle.loads(trap)
    assert trace.exists()


def test_text_has_no_place_in_it(tmp_path: Path) -> None:
    """Raw mode takes bytes alone, in the database itself as well."""
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    with pytest.raises(Exception, match="raw mode"):
        store._db["text"] = "text"


def test_it_is_kept(tmp_path: Path) -> None:
    """Closing writes what waits."""
    store = RocksStore(tmp_path / "store", memory=MEMORY, power_safe=True)
    put_everywhere(store, b"value")
    store.close()
    check_everywhere(RocksStore(tmp_path / "store", memory=MEMORY), b"value")


def test_a_kill_loses_what_was_not_flushed_and_nothing_else(tmp_path: Path) -> None:
    """A copy of the files is what a kill leaves."""
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    put_everywhere(store, b"value")
    store.flush()
    store.put_state(b"key", b"later")
    copy_of(tmp_path / "store", tmp_path / "copy")
    check_everywhere(RocksStore(tmp_path / "copy", memory=MEMORY), b"value")


def test_a_database_can_be_moved(tmp_path: Path) -> None:
    """Nothing in it names its place."""
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    put_everywhere(store, b"value")
    store.close()
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    check_everywhere(RocksStore(tmp_path / "elsewhere", memory=MEMORY), b"value")


def test_a_reader_beside_a_writer(tmp_path: Path) -> None:
    """It sees what was written when it was opened, and takes no lock."""
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    put_everywhere(store, b"value")
    store.flush()
    reader = RocksStore(tmp_path / "store", memory=MEMORY, secondary=tmp_path / "secondary")
    check_everywhere(reader, b"value")
    store.put_state(b"key", b"later")
    store.flush()
    assert reader.state(b"key") == b"value"
    reader.close()
    reader = RocksStore(tmp_path / "store", memory=MEMORY, secondary=tmp_path / "secondary")
    assert reader.state(b"key") == b"later"
    assert [host for host, _ in reader.records()] == ["a.t"]
    assert [row.url for row in reader.all_rows()] == ["http://a.t/"]
    assert list(reader.due(None)) == [(1.0, "a.t")]
    reader.close()


def test_everything_can_be_walked_over(tmp_path: Path) -> None:
    """Host by host, written or still waiting."""
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    for n in range(20):
        host = f"h{n % 4}.t"
        url = f"http://{host}/{n}"
        store.put_row(Entry(host, url, state_key(host, url), key=order_key(0, n)))
        store.put_state(state_key(host, url), PENDING)
        if n == 9:
            store.flush()
    store.delete_row("h0.t", order_key(0, 0))
    rows = list(store.all_rows())
    assert sorted(row.url for row in rows) == sorted(f"http://h{n % 4}.t/{n}" for n in range(1, 20))
    hosts = [row.host for row in rows]
    assert sum(a != b for a, b in pairwise(hosts)) == 3
    states = list(store.states(state_key("h1.t", "")))
    assert states == sorted((f"http://h1.t/{n}".encode(), PENDING) for n in range(1, 20, 4))


def test_what_cannot_be_opened_is_damaged(tmp_path: Path) -> None:
    """The error says what to do, on one line."""
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    put_everywhere(store, b"value")
    store.close()
    (tmp_path / "store" / "CURRENT").write_text("MANIFEST-999999\n")
    with pytest.raises(JobDamagedError, match=r"cannot be opened .* look at it with"):
        RocksStore(tmp_path / "store", memory=MEMORY)


def test_what_cannot_be_read_is_damaged(tmp_path: Path) -> None:
    """Half of a queue is not all of it; and half of what an operation says is not written."""
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    for n in range(3_000):
        store.put_row(Entry("a.t", f"http://a.t/{n * n:x}", key=order_key(0, n)))
        store.put_state(b"%d" % n, PENDING)
    store.flush()
    for name in ("queue", "states"):
        store._families[name].flush()
    store.close()
    for path in (tmp_path / "store").glob("*.sst"):
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 3)
            file.write(bytes(5_000))
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    assert len(store.rows("a.t", b"", 10)) == 10
    with pytest.raises(JobDamagedError, match=r"store cannot be read: .*orruption"):
        store.rows("a.t", b"", 3_000)
    with pytest.raises(JobDamagedError, match="cannot be read"):
        [store.state(b"%d" % n) for n in range(3_000)]
    store.put_state(b"key", b"value")
    for write in (store.flush, store.close):
        with pytest.raises(StoreWriteError, match=r"cannot be read: .*: nothing more is written"):
            write()
    reader = RocksStore(tmp_path / "store", memory=MEMORY, secondary=tmp_path / "secondary")
    assert reader._families["states"].get(b"key") is None
    reader.close()


# Writes that fail


class Full:
    """A database that cannot write."""

    def __init__(self, database: Any) -> None:
        self._database = rocks_store

    def write(self, *_: Any) -> None:
        """As RocksDB does."""
        raise RuntimeError("IO error: No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


def test_what_could_not_be_written_is_kept(tmp_path: Path) -> None:
    """It is read back meanwhile, and written with the next batch."""
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    real, store._db = store._db, Full(store._db)  # type: ignore[assignment]
    put_everywhere(store, b"value")
    for _ in range(2):
        with pytest.raises(StoreWriteError, match="No space left"):
            store.flush()
    check_everywhere(store, b"value")
    store.put_state(b"key", b"value")
    store._db = real
    store.flush()
    assert not store.backlog
    store.close()
    check_everywhere(RocksStore(tmp_path / "store", memory=MEMORY), b"value")


def test_a_store_that_is_away_for_a_while(tmp_path: Path) -> None:
    """Not even reading works: that is said as any other failure, and gets over it the same way."""
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    put_everywhere(store, b"value")
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("no folder")
    for _ in range(2):
        with pytest.raises(StoreWriteError, match="cannot be opened"):
            store.recover()
    (tmp_path / "store").unlink()
    (tmp_path / "away").rename(tmp_path / "store")
    store.recover()
    store.close()
    check_everywhere(RocksStore(tmp_path / "store", memory=MEMORY), b"value")


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.store.rocks_store import RocksStore

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = RocksStore(Path(sys.argv[1]), memory=4 << 20)
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, unlimited))
failures = 0
for n in range(1_000):
    store.put_state(b"%d" % n, bytes([n % 251]) * 1_000)
    try:
        store.flush()
    except StoreWriteError:
        failures += 1
assert failures, "the limit had no effect"
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, unlimited))
for _ in range(2):
    try:
        store.recover()
    except StoreWriteError:
        print("still full")
    assert store.state(b"0") == bytes(1_000)
    assert store.state(b"999") == bytes([999 % 251]) * 1_000
resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
store.recover()
store.flush()
store.close()
store = RocksStore(Path(sys.argv[1]), memory=4 << 20)
for n in range(1_000):
    assert store.state(b"%d" % n) == bytes([n % 251]) * 1_000, n
print(failures, "failed batches")
"""


def test_a_checkpoint_finds_everything_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has to flush itself, it does with Python's lock held: the crawl would wait."""
    store = RocksStore(tmp_path / "store", memory=MEMORY)
    put_everywhere(store, b"value")
    store.flush()
    unflushed = []

    def checkpoint(db: object) -> Checkpoint:
        for name in FAMILIES:
            family = store._families[name]
            unflushed.append(family.property_int_value("rocksdb.num-entries-active-mem-table"))
        return Checkpoint(db)

    monkeypatch.setattr(rocks_store.rocksdict, "Checkpoint", checkpoint)
    store.checkpoint(tmp_path / "copy")
    store.close()
    assert unflushed == [0] * len(FAMILIES)
    copy = RocksStore(tmp_path / "copy", memory=MEMORY)
    assert copy.state(b"key") == b"value"
    copy.close()


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files there")
def test_a_disk_that_is_full_for_a_while(tmp_path: Path) -> None:
    """A real one, by the limit on a process's files: after `recover` everything is written."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FULL_DISK, str(tmp_path / "store")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("still full\nstill full\n")
    assert done.stdout.endswith("failed batches\n")
