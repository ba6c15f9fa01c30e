"""The archive: what is done leaves the database, and nothing about the crawl changes."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.virtual_crawl import WALL, entry

from scrapy_spider_suite.crawl.queue.frontier import Frontier, UrlEdits
from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.frontier.entries import host_key, state_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.store import seen_transfer
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.store.seen_index import ARCHIVE_FOLDER, DONE_200, Archive
from scrapy_spider_suite.store.seen_transfer import Archiver, archived, bring_back, while_locked

DONE = UrlState(State.DONE, Event.SUCCESS, 1, 200, 1_700_000_000)
PORTS = ["http://a.t/", "https://a.t/", "http://a.t:8080/", "https://a.t:8443/x?y=1#"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RocksStore]:
    """A store with an empty archive, whose passes begin with the first page."""
    monkeypatch.setattr(seen_transfer, "_LEAST", 1)
    monkeypatch.setattr(seen_transfer, "_PORTION", 10)
    store = RocksStore(tmp_path / "store", memory=16 << 20)
    store.archive = Archive(tmp_path / ARCHIVE_FOLDER)
    yield store
    store.close()


def fill(store: RocksStore, state: UrlState, *urls: str, host: str = "a.t") -> list[bytes]:
    """Rows for *urls*."""
    keys = [state_key(host, url) for url in urls]
    for key in keys:
        store.put_state(key, state.to_bytes())
    store.flush()
    return keys


def move(store: RocksStore, *, power_safe: bool = False) -> None:
    """A whole pass."""
    assert store.archive is not None
    counters = Counters()
    counters.done = 1 << 20
    store.power_safe = power_safe
    archiver = Archiver(store, store.archive, counters, store.flush)
    while archiver.step():
        pass
    store.flush()


@pytest.mark.parametrize("power_safe", [False, True])
def test_what_is_done_moves(store: RocksStore, power_safe: bool) -> None:
    """Its row is gone, and it is known as before; on any port."""
    keys = fill(store, DONE, *PORTS, *(f"http://a.t/{n}" for n in range(100)))
    move(store, power_safe=power_safe)
    assert not any(store.get("states", key) for key in keys)
    assert {store.state(key) for key in keys} == {DONE_200}
    assert sorted(host_key("a.t") + name for name in archived(store, "a.t")) == sorted(keys)
    assert store.state(state_key("a.t", "http://a.t/100")) is None
    assert list(archived(store, "b.t")) == []


@pytest.mark.parametrize(
    ("state", "host"),
    [
        (UrlState(State.PENDING), "a.t"),
        (UrlState(State.FAILED, Event.CLIENT_ERROR, 1, 404), "a.t"),
        (UrlState(State.DONE, Event.CALLBACK_ERROR, 1, 200), "a.t"),
        (UrlState(State.DONE, Event.REDIRECT, 1, 301), "a.t"),
        (UrlState(State.DONE, Event.SUCCESS, 1, 206), "a.t"),
        (UrlState(State.DONE, Event.SUCCESS, 1, 200, url="http://a.t/of-the-spider"), "a.t"),
        (DONE, "a-slot-of-the-spider"),
    ],
)
def test_what_says_more_stays(store: RocksStore, state: UrlState, host: str) -> None:
    """Only what needs no words any more moves; nor what is paced as another host's."""
    keys = fill(store, state, *PORTS, host=host)
    keys += [host_key(host) + b"\xff0123456789abcdef"]
    store.put_state(keys[-1], UrlState(State.DONE, Event.SUCCESS, 1, 200).to_bytes())
    move(store)
    assert all(store.get("states", key) for key in keys)


def test_killed_between_the_archive_and_the_batch(store: RocksStore, tmp_path: Path) -> None:
    """It is in both then, and moves with the next pass; a row goes before the archive."""
    keys = fill(store, DONE, *PORTS)
    assert store.archive is not None
    store.archive.add(keys)
    again = UrlState(State.FAILED, Event.CLIENT_ERROR, 2, 404)
    fill(store, again, PORTS[0])
    assert UrlState.from_bytes(store.state(keys[0]) or b"") == again
    assert list(archived(store, "a.t")) == []
    move(store)
    assert [store.get("states", key) is not None for key in keys] == [True, False, False, False]
    with StoreReader(tmp_path) as reader:
        assert sorted(row.url for row in reader.urls("a.t")) == sorted(PORTS)
        assert {row.state.state for row in reader.urls("a.t")} == {State.DONE, State.FAILED}


def test_bring_back(store: RocksStore) -> None:
    """All URLs of a host, and of no other, have rows again."""
    urls = [f"http://a.t/{n}" for n in range(35)]
    keys = fill(store, DONE, *urls)
    other = fill(store, DONE, "http://b.t/", host="b.t")
    move(store)
    for _ in bring_back(store, "a.t"):
        store.flush()
    assert all(store.get("states", key) for key in keys)
    assert not store.get("states", other[0])
    assert store.archive is not None
    assert len(store.archive.urls) == 1


def test_only_what_is_durable_moves(store: RocksStore) -> None:
    """A page that is done in memory only is not archived: its links would be lost with a kill."""
    (key,) = fill(store, DONE, "http://a.t/")
    store.put_state(key2 := state_key("a.t", "http://a.t/2"), DONE.to_bytes())
    counters = Counters()
    counters.done = 10
    assert store.archive is not None
    archiver = Archiver(store, store.archive, counters, lambda: None)
    assert archiver.step()
    assert store.archive.get(key) is store.archive.get(key2) is None
    store.flush()
    while archiver.step():
        pass
    assert store.archive.get(key) == store.archive.get(key2) == DONE_200


def test_one_at_a_time_holds_it(store: RocksStore) -> None:
    """A copy and a removal, say; nothing moves meanwhile."""

    def work() -> Generator[str, None, int]:
        yield "at work"
        return 7

    first, second = while_locked(store.archive, work()), while_locked(store.archive, work())
    assert next(first) == "at work"
    assert next(second) is True
    fill(store, DONE, *PORTS)
    move(store)
    assert store.get("states", state_key("a.t", PORTS[0]))
    with pytest.raises(StopIteration) as ended:
        next(first)
    assert ended.value.value == 7
    assert next(second) == "at work"
    second.close()  # an action that is taken back
    move(store)
    assert not store.get("states", state_key("a.t", PORTS[0]))


def test_a_page_that_is_fetched_again_goes_back(store: RocksStore) -> None:
    """Refetched, it has a row; done again, it moves again, and is counted once."""
    (key,) = fill(store, DONE, "http://a.t/")
    move(store)
    frontier = Frontier(store, Policy(), now=0.0, wall=WALL, capacity=1)
    frontier.residents.records.touch("a.t").done = frontier.counters.done = 1
    frontier.counters.events[Event.SUCCESS] = 1
    rework = UrlEdits(frontier, store)
    for _ in bring_back(store, "a.t"):
        frontier.flush()
    ((_, state),) = rework.urls("a.t", b"", 5)
    assert rework.requeue(entry("http://a.t/"), state, 0.0)
    assert UrlState.from_bytes(store.state(key) or b"").state is State.PENDING
    assert list(archived(store, "a.t")) == []
    fill(store, DONE, "http://a.t/")
    move(store)
    assert store.state(key) == DONE_200
    assert store.archive is not None
    assert len(store.archive.urls) == 1


def test_a_full_disk(
    store: RocksStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once, nothing is lost, and the pass is made when there is room."""
    keys = fill(store, DONE, *PORTS)
    write = os.write

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    counters = Counters()
    counters.done = 10
    assert store.archive is not None
    archiver = Archiver(store, store.archive, counters, store.flush)
    monkeypatch.setattr(os, "write", full)
    for _ in range(3):
        assert not archiver.step()
        counters.done += 10
    monkeypatch.setattr(os, "write", write)
    assert len([each for each in caplog.messages if "No space left" in each]) == 1
    assert all(store.get("states", key) for key in keys)
    while archiver.step():
        pass
    assert {store.state(key) for key in keys} == {DONE_200}


def test_nothing_moves_while_it_is_at_rest(store: RocksStore, tmp_path: Path) -> None:
    """A copy is of one moment: every URL is in its database or in its archive."""
    keys = fill(store, DONE, *PORTS)
    assert store.archive is not None
    assert store.archive.lock()
    move(store)
    assert all(store.get("states", key) for key in keys)
    store.checkpoint(tmp_path / "copy")
    store.archive.unlock()
    move(store)
    late = fill(store, DONE, "http://a.t/late")
    copy = RocksStore(tmp_path / "copy", memory=16 << 20)
    copy.archive = Archive(tmp_path / "copy" / ARCHIVE_FOLDER)
    assert all(copy.get("states", key) for key in keys)
    copy.close()
    store.checkpoint(tmp_path / "second")
    copy = RocksStore(tmp_path / "second", memory=16 << 20)
    copy.archive = Archive(tmp_path / "second" / ARCHIVE_FOLDER)
    assert {copy.state(key) for key in keys} == {DONE_200}
    assert copy.get("states", late[0])
    copy.close()


def test_a_copy_is_on_the_medium(
    store: RocksStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are copied, and the names of all of them."""
    fill(store, DONE, *PORTS)
    move(store)
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_path", synced.append)
    store.checkpoint(tmp_path / "copy")
    folder = tmp_path / "copy" / ARCHIVE_FOLDER
    assert folder in synced
    assert {path for path in folder.iterdir() if path.stat().st_nlink == 1} <= set(synced)
    assert any(path.match("fresh-*") for path in synced)


def test_a_copy_that_fails_leaves_nothing(
    store: RocksStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says why."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(StoreWriteError, match="No space left"):
        store.checkpoint(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_request_without_a_host_is_not_here(store: RocksStore) -> None:
    """A spider's ``data:`` URL has a fingerprint for a name, and nothing for a host."""
    key = host_key("") + b"\xff" + bytes(range(20))
    assert store.archive is not None
    assert store.archive.get(key) is None
    assert not store.archive.takes(key, DONE.to_bytes())
    assert store.state(key) is None
