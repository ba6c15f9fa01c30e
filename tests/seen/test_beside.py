"""Tries and sieves beside the process that writes them, or when there are no files left."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from scrapy_spider_suite.errors import JobDamagedError, JobInUseError, StoreWriteError
from scrapy_spider_suite.seen import fresh_log as logs
from scrapy_spider_suite.seen import trie_store
from scrapy_spider_suite.seen.fingerprints import fingerprint
from scrapy_spider_suite.seen.segments import encode, mmap
from scrapy_spider_suite.seen.sieve import Sieve
from scrapy_spider_suite.seen.trie_store import TrieStore


def urls(first: int, last: int) -> list[str]:
    """Some URLs."""
    return [f"http://h{n % 7}.t/{n}" for n in range(first, last)]


@pytest.fixture
def no_files(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Switches off, and on again, that a file can be mapped."""
    real = mmap.mmap

    def none_left(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def switch(*, on: bool) -> None:
        monkeypatch.setattr(mmap, "mmap", real if on else none_left)

    return switch


def test_too_many_open_files_is_no_damage(tmp_path: Path, no_files: Any) -> None:
    """The store is not opened, and says why; with room for it everything is there."""
    with TrieStore(tmp_path) as store:
        store.add(urls(0, 100))
        store.flush()
    no_files(on=False)
    with pytest.raises(StoreWriteError, match="Too many open files"):
        TrieStore(tmp_path)
    no_files(on=True)
    with TrieStore(tmp_path) as store:
        assert not store.damaged
        assert all(url in store for url in urls(0, 100))


def test_too_many_open_files_when_a_build_ends(tmp_path: Path, no_files: Any) -> None:
    """What was there serves; the new files are opened when there is room, and nothing is lost."""
    with TrieStore(tmp_path) as store:
        store.add(urls(0, 100))
        store.flush()
        store.add(urls(100, 200))
        no_files(on=False)
        with pytest.raises(StoreWriteError, match="Too many open files"):
            store.flush()
        assert "Too many open files" in store.trouble
        assert store.poll()
        assert all(url in store for url in urls(0, 200))
        assert store.add(urls(150, 250)) == urls(200, 250)
        no_files(on=True)
        store.poll()
        assert store.trouble == ""
        assert len(store) == 250
        store.flush()
    with TrieStore(tmp_path) as store:
        assert sorted(store) == sorted(urls(0, 250))
        assert not store.damaged


def test_a_reader_begins_anew_when_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows go from the log to a segment between its look at the one and at the other."""
    writer = TrieStore(tmp_path)
    writer.add(urls(0, 100))
    read, times = logs.FreshLog.__init__, []

    def late(self: logs.FreshLog, *arguments: Any, **options: Any) -> None:
        times.append(1)
        if len(times) == 1:
            monkeypatch.setattr(logs.FreshLog, "__init__", read)
            writer.flush()  # the catalogue was read; what follows is of another moment
            monkeypatch.setattr(logs.FreshLog, "__init__", late)
        read(self, *arguments, **options)

    monkeypatch.setattr(logs.FreshLog, "__init__", late)
    with TrieStore(tmp_path, readonly=True) as reader:
        assert sorted(reader) == sorted(urls(0, 100))
    assert len(times) == 2
    writer.close()


def test_a_file_of_the_log_goes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is listed, and then it is not there: not a word about damage."""
    writer = TrieStore(tmp_path)
    writer.add(urls(0, 100))
    before, opened = logs.FreshLog._read_file, []

    def goes(self: logs.FreshLog, start: int, last: bool) -> None:
        if not opened:
            opened.append(start)
            writer.flush()
        before(self, start, last)

    monkeypatch.setattr(logs.FreshLog, "_read_file", goes)
    with TrieStore(tmp_path, readonly=True) as reader:
        assert not reader.damaged
        assert len(reader) == 100
    writer.close()


def test_a_reader_gives_up_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so in a line."""
    with TrieStore(tmp_path) as store:
        store.add(urls(0, 10))

    def gone(*_: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(trie_store, "_replay", gone)
    with pytest.raises(JobInUseError, match="changes faster"):
        TrieStore(tmp_path, readonly=True)


def test_a_damaged_segment_is_never_looked_into(tmp_path: Path) -> None:
    """Who does not read everything first reads what he looks into: a damaged trie can crash him."""
    with TrieStore(tmp_path) as store:
        store.add(urls(0, 1_000))
        store.flush()
        known = store.id(urls(3, 4)[0])
    (segment,) = tmp_path.glob("segment-*")
    data = bytearray(segment.read_bytes())
    data[16:4_000] = os.urandom(3_984)
    segment.write_bytes(data)
    for ask in (
        lambda store: urls(0, 1)[0] in store, lambda store: store.url(known), list,
        lambda store: [each for url in urls(0, 50) for each in [url in store]],
    ):  # fmt: skip
        with TrieStore(tmp_path, readonly=True, verify=False) as store:
            assert len(store) == 1_000
            with pytest.raises(JobDamagedError, match="not as it was written"):
                ask(store)


def test_a_sieve_is_looked_at_beside_its_writer(tmp_path: Path) -> None:
    """Its files are neither locked nor removed, and those that go are found again elsewhere."""
    path = tmp_path / "sieve"
    writer = Sieve(path)

    def has(sieve: Sieve, first: int, last: int) -> bool:
        prints = (fingerprint(encode(url), 16) for url in urls(first, last))
        return all(map(sieve.parts.has, prints))

    def add(first: int, last: int) -> None:
        writer.offer(map(encode, urls(first, last)))
        writer.begin().run()
        writer.begin().accept()

    add(0, 100)
    reader = Sieve(path, readonly=True)
    assert has(reader, 0, 100)
    assert not has(reader, 100, 101)
    (path / "of-another.rows").touch()
    shutil.copytree(path, tmp_path / "before")
    add(100, 200)
    again = Sieve(path, readonly=True)
    assert has(again, 0, 200)
    assert has(reader, 0, 100)
    assert reader.parts.check() == again.parts.check() == []
    assert (tmp_path / "before" / "of-another.rows").exists()
    for each in (reader, again, writer):
        each.close()
