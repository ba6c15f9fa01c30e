"""A job seen from outside: beside a writer, and with everything that can be wrong in it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.virtual_crawl import POLICY, WALL

from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.entries import Entry, state_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.store.host_queues import RESIDENT
from scrapy_spider_suite.store.job_reader import StoreReader, wait_reason
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import HostRecord, UrlState


def entry(host: str, path: str, priority: int = 0) -> Entry:
    """A bulk link."""
    url = f"http://{host}/{path}"
    return Entry(host, url, state_key(host, url), priority=priority)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    """The store of a job in *tmp_path*, open for writing all the while."""
    store = RocksStore(tmp_path / "store", memory=4 << 20)
    yield store
    store.close()


@pytest.fixture
def frontier(store: RocksStore) -> Frontier:
    """Three URLs of one host and one of another, pending."""
    frontier = Frontier(store, POLICY, now=0.0, wall=WALL, capacity=100)
    entries = [entry("a.t", "1"), entry("a.t", "2"), entry("a.t", "3", priority=9)]
    frontier.admission.schedule([*entries, entry("b.t", "")], 0.0)
    frontier.flush()
    return frontier


def test_what_a_writer_has_committed_is_seen(
    store: RocksStore, frontier: Frontier, tmp_path: Path
) -> None:
    """Hosts, queues in their order, states and counters; what is not committed is not."""
    frontier.admission.schedule([entry("c.t", "")], 0.0)
    with StoreReader(tmp_path) as reader:
        assert reader.counters().pending == 4
        pending = {name: record.pending for name, record in reader.store.records()}
        assert pending == {"a.t": 3, "b.t": 1}
        assert [each.url[-1] for each in reader.pending("a.t")] == ["3", "1", "2"]
        assert [row.url for row in reader.urls("a.t")] == [f"http://a.t/{n}" for n in (1, 2, 3)]
        assert {row.state.state for row in reader.urls("a.t")} == {State.PENDING}
        assert reader.store.record("c.t") is None
        assert list(reader.pending("c.t")) == list(reader.urls("c.t")) == []
        assert list(reader.check()) == []


def test_it_leaves_nothing_behind(frontier: Frontier, tmp_path: Path) -> None:
    """Neither in the job nor among temporary files."""
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with StoreReader(tmp_path) as reader:
        temporary = reader._temporary.path
        assert temporary.is_dir()
    assert not temporary.exists()
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_what_a_killed_reader_left_is_swept(
    frontier: Frontier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next one; what a reader has that lives stays."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    killed = tmp_path / "tmp" / "scrapy-frontier-killed"
    (killed / "secondary").mkdir(parents=True)
    (killed / "lock").touch()
    with StoreReader(tmp_path) as first, StoreReader(tmp_path) as second:
        assert not killed.exists()
        assert first._temporary.path.is_dir()
        assert second._temporary.path.is_dir()


def test_there_is_no_store(tmp_path: Path) -> None:
    """None is made, either."""
    with pytest.raises(JobDamagedError, match="has no store"):
        StoreReader(tmp_path)
    (tmp_path / "store").mkdir()
    with pytest.raises(JobDamagedError, match="cannot be opened"):
        StoreReader(tmp_path)


def test_a_url_whose_identity_is_no_url(store: RocksStore, tmp_path: Path) -> None:
    """A spider's own request is shown by the URL that its state holds."""
    state = UrlState(State.DONE, Event.SUCCESS, 1, 200, 0, "http://a.t/post")
    store.put_state(state_key("a.t", "")[:-1] + b"\0\xff\x01\x02", state.to_bytes())
    store.flush()
    with StoreReader(tmp_path) as reader:
        assert [row.url for row in reader.urls("a.t")] == ["http://a.t/post"]


# Status


@pytest.mark.parametrize("text", [None, "", "{", "[1]", "\x00"])
def test_a_status_that_is_missing_or_broken_is_none(
    text: str | None, frontier: Frontier, tmp_path: Path
) -> None:
    """It is a convenience, and no reason to fail."""
    if text is not None:
        (tmp_path / "status.json").write_text(text)
    with StoreReader(tmp_path) as reader:
        assert reader.status() is None


def test_a_status(frontier: Frontier, tmp_path: Path) -> None:
    """As the crawl wrote it."""
    (tmp_path / "status.json").write_text(json.dumps({"done": 1}))
    with StoreReader(tmp_path) as reader:
        assert reader.status() == {"done": 1}


# Checking


def found(store: RocksStore, folder: Path) -> list[str]:
    """What a check says after everything is written."""
    store.flush()
    with StoreReader(folder) as reader:
        return list(reader.check())


def test_a_row_without_a_state(store: RocksStore, frontier: Frontier, tmp_path: Path) -> None:
    """And the host that does not count it."""
    extra = entry("a.t", "new")
    extra.key = b"\x80" + b"\0" * 8 + b"\x63"
    store.put_row(extra)
    assert found(store, tmp_path) == [
        "http://a.t/new is queued, but has no state",
        "a.t counts 3 pending URLs, but its queue has 4",
    ]


def test_a_row_whose_url_is_done(store: RocksStore, frontier: Frontier, tmp_path: Path) -> None:
    """It would be fetched again."""
    store.put_state(state_key("b.t", "http://b.t/"), UrlState(State.DONE).to_bytes())
    assert found(store, tmp_path) == ["http://b.t/ is queued, but its state is done"]


def test_a_host_that_would_never_be_visited(
    store: RocksStore, frontier: Frontier, tmp_path: Path
) -> None:
    """It has pending URLs and does not stand on the waiting list."""
    store.delete_due(RESIDENT, "a.t")
    assert found(store, tmp_path) == ["a.t has pending URLs, but is not on the waiting list"]


def test_a_host_that_waits_and_does_not_know_it(
    store: RocksStore, frontier: Frontier, tmp_path: Path
) -> None:
    """Its record would not take it off the list."""
    record = store.record("a.t")
    assert record is not None
    record.due = None
    store.put_record("a.t", record)
    assert found(store, tmp_path) == [
        "a.t is on the waiting list, but its record does not say so"
    ]


def test_counters_that_do_not_add_up(
    store: RocksStore, frontier: Frontier, tmp_path: Path
) -> None:
    """The job's against the sum of its hosts'."""
    frontier.counters.done += 1
    frontier.counters.save(store)
    assert found(store, tmp_path) == ["the job counts 1 done URL, its hosts 0"]


# Why a host waits


def record_of(**fields: object) -> HostRecord:
    """A record with some fields set."""
    record = HostRecord()
    for name, value in fields.items():
        setattr(record, name, value)
    return record


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "nothing pending"),
        ({"pending": 1, "dead": "host_dead"}, "given up: host dead"),
        ({"pending": 1, "next_fetch": 130.0}, "its delay: next visit in 30 s"),
        (
            {"pending": 1, "next_fetch": 160.0, "why": "Retry-After"},
            "Retry-After: next visit in 60 s",
        ),
        ({"pending": 1, "due": 50.0}, "waits on disk for room in memory"),
        (
            {"pending": 1, "due": 390.0},
            "held back: another agent has it, or it is on its way from one to the other",
        ),
        (
            {"pending": 1, "due": RESIDENT},
            "ready: visited as its address and the crawl's places allow",
        ),
    ],
)
def test_why_a_host_waits(fields: dict[str, object], why: str) -> None:
    """The most telling reason, at time 100."""
    assert wait_reason(record_of(**fields), 100.0) == why


def test_the_clock_is_the_readers(frontier: Frontier, tmp_path: Path) -> None:
    """Times on disk are wall time."""
    with StoreReader(tmp_path) as reader:
        record = reader.store.record("a.t")
    assert record is not None
    assert WALL <= record.next_fetch < WALL + 3600
