"""Deleted rows leave the files, too; and whoever closes the store does not wait for that."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from support.small_disks import tmpfs
from support.virtual_crawl import entry

from scrapy_spider_suite.frontier.entries import state_key
from scrapy_spider_suite.store.rocks_store import RocksStore, ranges_of_host
from scrapy_spider_suite.store.rows import PENDING

HOST = "private-host-of-somebody.test"


def rows(store: RocksStore, host: str, number: int) -> list[bytes]:
    """Write rows of a host; their keys."""
    keys = []
    for n in range(number):
        url = entry(f"http://{host}/{n}", key=n.to_bytes(10, "big"))
        store.put_row(url)
        store.put_state(state_key(host, url.url), PENDING)
        keys.append(url.key)
    store.flush()
    return keys


def remains(folder: Path) -> int:
    """How many tables and logs hold the name of the host (keys are not compressed away)."""
    files = [*folder.glob("*.sst"), *folder.glob("*.log")]
    return sum(HOST.encode()[:16] in path.read_bytes() for path in files)


def test_nothing_remains_in_the_files(tmp_path: Path) -> None:
    """Neither in tables nor in logs."""
    store = RocksStore(tmp_path / "store")
    keys = rows(store, HOST, 2_000)
    rows(store, "other.test", 2_000)
    assert remains(tmp_path / "store")
    for n, key in enumerate(keys):
        store.delete_row(HOST, key)
        store.put_state(state_key(HOST, f"http://{HOST}/{n}"), None)
    store.flush()
    eraser = store.erase(ranges_of_host(HOST))
    eraser.join()
    assert eraser.failure == ""
    assert store.rows(HOST, b"", 10) == []
    assert len(store.rows("other.test", b"", 3_000)) == 2_000
    store.close()
    assert not remains(tmp_path / "store")


def test_closing_cuts_it_short(tmp_path: Path) -> None:
    """And the store can be opened again at once, with all that was written."""
    store = RocksStore(tmp_path / "store")
    rows(store, "other.test", 20_000)
    eraser = store.erase(ranges_of_host("other.test"))
    store.close()
    assert not eraser.is_alive()
    assert "tables could not" in eraser.failure
    again = RocksStore(tmp_path / "store")
    assert len(again.rows("other.test", b"", 30_000)) == 20_000
    again.close()


@pytest.mark.parametrize("in_tables", [False, True])
def test_a_full_disk_is_told(tmp_path: Path, in_tables: bool) -> None:
    """Whether the rows are still to be written out or are in tables; once there is room it works.
    """
    with tmpfs(tmp_path / "disk", "24m") as disk:
        store = RocksStore(disk / "store")
        rows(store, "other.test", 2_000)
        for n, key in enumerate(rows(store, HOST, 2_000)):
            store.delete_row(HOST, key)
            store.put_state(state_key(HOST, f"http://{HOST}/{n}"), None)
        store.flush()
        if in_tables:
            [family.flush() for family in store._families.values()]  # a variable would hold it
        with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4_096)):
                pass
        eraser = store.erase(ranges_of_host(HOST))
        eraser.join()
        assert "tables could not" in eraser.failure
        (disk / "filler").unlink()
        store.recover()
        again = store.erase(ranges_of_host(HOST))
        again.join()
        assert again.failure == ""
        store.close()
        assert not remains(disk / "store")
