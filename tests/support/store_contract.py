"""The contracts of interfaces with more than one implementation: here that of the store.

A test module of an implementation derives a ``Test…`` class from a contract and says how to open
what it tests, and how to open it again: what must survive a restart is then tested across one.
The frontier's contracts have modules of their own, ``contracts_frontier`` and, for stores that
keep rows, ``contracts_durable``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.frontier.entries import Entry, host_key, order_key, state_key
from scrapy_spider_suite.store.rocks_store import Store
from scrapy_spider_suite.store.rows import PENDING, HostRecord, pack_row


def row(host: str, sequence: int, priority: int = 0) -> Entry:
    """A pending entry with its order key."""
    url = f"http://{host}/{sequence}"
    key = order_key(priority, sequence)
    return Entry(host, url, state_key(host, url), priority=priority, key=key)


class StoreContract(ABC):
    """What every `Store` does."""

    @abstractmethod
    def open(self, path: Path) -> Store:
        """Open the store at *path*."""

    def again(self, store: Store, path: Path) -> Store:
        """Make sure that what was put is kept; a reopened store, or the same."""
        return store

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        """An empty store."""
        return self.open(tmp_path / "store")

    def test_states(self, store: Store, tmp_path: Path) -> None:
        """Unknown, then what was put last."""
        assert store.state(b"key") is None
        store.put_state(b"key", PENDING)
        store.put_state(b"key", b"last")
        store.put_state(b"empty", b"")
        assert store.state(b"key") == b"last"
        store = self.again(store, tmp_path)
        assert store.state(b"key") == b"last"
        assert store.state(b"empty") == b""
        assert store.state(b"ke") is None

    def test_records(self, store: Store, tmp_path: Path) -> None:
        """Each host has its own."""
        assert store.record("a.t") is None
        record = HostRecord()
        record.pending, record.why = 7, "Retry-After"
        store.put_record("a.t", record)
        store = self.again(store, tmp_path)
        found = store.record("a.t")
        assert found is not None
        assert (found.pending, found.why) == (7, "Retry-After")
        assert store.record("b.t") is None

    def test_a_record_goes_as_it_is_at_the_flush(self, store: Store, tmp_path: Path) -> None:
        """It may change until then, without being put again, and readers see that; not behind."""
        record = HostRecord()
        seen: list[str] = []
        store.put_record("a.t", record)
        assert bool(store.backlog) == store.durable
        record.pending = 3
        assert [(host, each.pending) for host, each in store.records()] == [("a.t", 3)]
        store.update_record = lambda host, record: seen.append(host)
        record.pending = 7
        store.flush()
        assert not store.backlog
        assert seen == ["a.t"] * store.durable
        store = self.again(store, tmp_path)
        assert [(host, each.pending) for host, each in store.records()] == [("a.t", 7)]

    def test_many_states_at_once(self, store: Store, tmp_path: Path) -> None:
        """Those of links that wait for the batch, of others on disk, and of none."""
        store.put_state(b"disk", b"old")
        store.put_state(b"gone", b"old")
        store.flush()
        store.put_state(b"waits", b"new")
        store.put_state(b"disk", b"new")
        store.put_state(b"gone", None)
        keys = [b"unknown", b"disk", b"waits", b"gone", b"disk"]
        for few in (keys, keys[:1], keys[1:2], []):
            assert store.find_states(few) == [store.state(key) for key in few]
        store = self.again(store, tmp_path)
        assert store.find_states(keys) == [None, b"new", b"new", None, b"new"]

    def test_components_keep_apart(self, store: Store, tmp_path: Path) -> None:
        """A name of one component is none of another's."""
        store.kv("a").put(b"key", b"1")
        store.kv("ab").put(b"key", b"2")
        store = self.again(store, tmp_path)
        assert list(store.kv("a").items()) == [(b"key", b"1")]
        assert list(store.kv("ab").items()) == [(b"key", b"2")]
        assert list(store.kv("abc").items()) == []

    def test_nothing_waits_after_a_flush(self, store: Store) -> None:
        """`backlog` says whether there is anything to write."""
        assert not store.backlog
        store.put_state(b"key", PENDING)
        store.put_row(row("a.t", 1))
        assert bool(store.backlog) == store.durable
        store.flush()
        assert store.backlog == 0

    def test_reading_writes_nothing(self, store: Store) -> None:
        """A batch ends where an operation ends, not where somebody looks."""
        store.put_state(b"key", PENDING)
        store.put_row(row("a.t", 1))
        store.put_due(5.0, "a.t")
        store.kv("x").put(b"a", b"b")
        waiting = store.backlog
        store.state(b"key")
        store.rows("a.t", b"", 5)
        store.due(5)
        store.record("a.t")
        store.kv("x").get(b"a")
        list(store.kv("x").items())
        assert store.backlog == waiting

    def test_rows(self, store: Store, tmp_path: Path) -> None:
        """By priority, then as they came; beyond a key; no more than asked for; of one host."""
        if not store.durable:
            return
        for sequence, priority in ((1, 0), (2, 0), (3, 5), (4, -5)):
            store.put_row(row("a.t", sequence, priority))
        store.put_row(row("a.tt", 5))
        store.put_row(row("b.t", 6))
        store.delete_row("a.t", order_key(0, 2))
        store = self.again(store, tmp_path)
        assert [e.url[-1] for e in store.rows("a.t", b"", 9)] == ["3", "1", "4"]
        assert [e.url[-1] for e in store.rows("a.t", b"", 2)] == ["3", "1"]
        assert [e.url[-1] for e in store.rows("a.t", order_key(5, 3), 9)] == ["1", "4"]
        assert [e.url[-1] for e in store.rows("a.t", order_key(0, 0), 9)] == ["1", "4"]
        assert store.rows("c.t", b"", 9) == []

    def test_links(self, store: Store, tmp_path: Path) -> None:
        """A link is put in one step: a row, and a state."""
        link = row("a.t", 7)
        store.put_link(link.identity, host_key("a.t"), link.key, pack_row(link))
        store = self.again(store, tmp_path)
        assert store.state(link.identity) == PENDING
        assert [e.url for e in store.rows("a.t", b"", 9)] == [link.url] * store.durable

    def test_due(self, store: Store, tmp_path: Path) -> None:
        """The earliest first, whatever was taken and put before."""
        if not store.durable:
            return
        for when, host in ((3.0, "c"), (1.0, "a"), (2.0, "b"), (1e13, "resident")):
            store.put_due(when, host)
        store = self.again(store, tmp_path)
        assert store.due(2) == [(1.0, "a"), (2.0, "b")]
        store.delete_due(1.0, "a")
        store = self.again(store, tmp_path)
        assert store.due(2) == [(2.0, "b"), (3.0, "c")]
        store.put_due(0.5, "d")
        store = self.again(store, tmp_path)
        assert store.due(1) == [(0.5, "d")]
        assert store.due(9, 1e13) == [(1e13, "resident")]
        assert store.due(9, 2.5) == [(3.0, "c"), (1e13, "resident")]
        store.put_due(4.0, "e")  # and is not written yet
        assert store.due(9, 2.5, before=4.0) == [(3.0, "c")]
        assert store.due(9, 2.5, before=5.0) == [(3.0, "c"), (4.0, "e")]

    def test_recover_loses_nothing(self, store: Store) -> None:
        """It may be called at any time."""
        store.put_state(b"key", PENDING)
        store.recover()
        assert store.state(b"key") == PENDING
        store.flush()
        store.recover()
        assert store.state(b"key") == PENDING

    @settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=60)
    @given(
        st.lists(
            st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.booleans(), st.booleans()),
            max_size=40,
        ),
        st.integers(-1, 12),
        st.integers(0, 14),
    )
    def test_rows_are_those_of_a_sorted_dict(
        self, store: Store, operations: list[tuple[str, int, bool, bool]], after: int, limit: int
    ) -> None:
        """Whatever is put, deleted and flushed in between: what waits and what is on disk."""
        if not store.durable:
            return
        model: dict[str, set[int]] = {"a": set(), "b": set()}
        for host in model:  # the store outlives one example
            for old in store.rows(host, b"", 100):
                store.delete_row(host, old.key)
        for host, number, put, flush in operations:
            if put:
                store.put_row(row(host, number))
                model[host].add(number)
            else:
                store.delete_row(host, order_key(0, number))
                model[host].discard(number)
            if flush:
                store.flush()
        for host, numbers in model.items():
            start = order_key(0, after) if after >= 0 else b""
            found = [int(e.url.rpartition("/")[2]) for e in store.rows(host, start, limit)]
            assert found == sorted(number for number in numbers if number > after)[:limit]
