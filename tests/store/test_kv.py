"""The contract of `KV`, run by every implementation, and again after a reopen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.store.interface import KV, MemoryKV
from scrapy_spider_suite.store.rocks_store import RocksStore


class KVContract(ABC):
    """What every `KV` does; a subclass says how to open one, and how to open it again."""

    @abstractmethod
    def open(self, path: Path) -> KV:
        """Open the store at *path*."""

    def reopen(self, kv: KV, path: Path) -> KV:
        """Close *kv* and open it again, if that keeps what it holds."""
        return kv

    @pytest.fixture
    def kv(self, tmp_path: Path) -> KV:
        """An empty store."""
        return self.open(tmp_path)

    def test_what_was_put_is_got(self, kv: KV, tmp_path: Path) -> None:
        """Values come back byte by byte, empty ones and NULs among them."""
        kv.put(b"a", b"1")
        kv.put(b"\x00\xff", b"\x00" * 3)
        kv.put(b"empty", b"")
        kv = self.reopen(kv, tmp_path)
        assert kv.get(b"a") == b"1"
        assert kv.get(b"\x00\xff") == b"\x00" * 3
        assert kv.get(b"empty") == b""
        assert kv.get(b"b") is None

    def test_the_last_put_counts(self, kv: KV, tmp_path: Path) -> None:
        """A key has one value."""
        kv.put(b"a", b"1")
        kv.put(b"a", b"2")
        kv = self.reopen(kv, tmp_path)
        assert list(kv.items()) == [(b"a", b"2")]

    def test_delete(self, kv: KV, tmp_path: Path) -> None:
        """A deleted key is unknown, and an unknown key may be deleted."""
        kv.put(b"a", b"1")
        kv.delete(b"a")
        kv.delete(b"never")
        kv = self.reopen(kv, tmp_path)
        assert kv.get(b"a") is None
        assert list(kv.items()) == []

    def test_items_from_a_key_on(self, kv: KV, tmp_path: Path) -> None:
        """Those of a prefix whose rest is as great, or greater."""
        for key in (b"a\x01", b"b\x01", b"b\x02", b"b\x02\x00", b"b\xff", b"c"):
            kv.put(key, b"")
        kv = self.reopen(kv, tmp_path)
        assert [key for key, _ in kv.items(b"b", b"\x02")] == [b"b\x02", b"b\x02\x00", b"b\xff"]
        assert [key for key, _ in kv.items(b"b", b"\xff\x00")] == []

    def test_items_are_those_of_a_prefix_in_byte_order(self, kv: KV, tmp_path: Path) -> None:
        """The order is that of unsigned bytes, up to the highest."""
        for key in (b"b\xff\xff", b"b", b"c", b"b\x00", b"a", b"b\xff", b"\xff", b"\xff\xff"):
            kv.put(key, key[::-1])
        kv = self.reopen(kv, tmp_path)
        assert [key for key, _ in kv.items(b"b")] == [b"b", b"b\x00", b"b\xff", b"b\xff\xff"]
        assert [key for key, _ in kv.items(b"\xff")] == [b"\xff", b"\xff\xff"]
        assert list(kv.items(b"x")) == []
        assert all(value == key[::-1] for key, value in kv.items())

    def test_the_caller_may_change_what_it_walks_over(self, kv: KV) -> None:
        """items() yields the pairs of the moment of the call."""
        for n in range(5):
            kv.put(b"%d" % n, b"old")
        for key, value in kv.items():
            assert value == b"old"
            kv.delete(key)
            kv.put(b"new" + key, b"new")
        assert [key for key, _ in kv.items()] == [b"new%d" % n for n in range(5)]


class TestMemoryKV(KVContract):
    """The dict."""

    def open(self, path: Path) -> KV:
        """A new one: nothing lies on the disk."""
        return MemoryKV()

    def test_it_describes_itself(self) -> None:
        """Its length is the number of keys."""
        kv = MemoryKV()
        kv.put(b"a", b"")
        assert len(kv) == 1


class TestRocksKV(KVContract):
    """A component's part of the job's database."""

    def open(self, path: Path) -> KV:
        """Open the database; it also holds another component's keys."""
        self.store = RocksStore(path / "store")
        other = self.store.kv("anothe")
        other.put(b"r", b"not ours")
        return self.store.kv("another")

    def reopen(self, kv: KV, path: Path) -> KV:
        """Close the database and open it again."""
        self.store.close()
        return self.open(path)


KEYS = st.binary(min_size=1, max_size=3)


@given(st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=5))), st.binary(max_size=2))
def test_memory_kv_equals_a_dict(steps: list[tuple[bytes, bytes | None]], prefix: bytes) -> None:
    """After any puts and deletes (None) it holds what a dict would."""
    kv, oracle = MemoryKV(), dict[bytes, bytes]()
    for key, value in steps:
        if value is None:
            kv.delete(key)
            oracle.pop(key, None)
        else:
            kv.put(key, value)
            oracle[key] = value
    assert list(kv.items(prefix)) == sorted(
        (key, value) for key, value in oracle.items() if key.startswith(prefix)
    )
