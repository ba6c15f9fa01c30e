"""The contract of `Store`, run by every implementation, and again after a restart."""

from __future__ import annotations

from pathlib import Path

from support.store_contract import StoreContract

from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.store.rocks_store import RocksStore, Store

MEMORY = 4 << 20


class TestMemoryStore(StoreContract):
    """In memory, where nothing is to be written."""

    def open(self, path: Path) -> Store:
        """Open a new one."""
        return MemoryStore()


class TestRocksStore(StoreContract):
    """On disk, with everything still waiting to be written."""

    def open(self, path: Path) -> Store:
        """Open, or make, a database."""
        return RocksStore(path, memory=MEMORY)


class TestRocksStoreFlushed(TestRocksStore):
    """On disk, with everything written."""

    def again(self, store: Store, path: Path) -> Store:
        """Write."""
        store.flush()
        return store


class TestRocksStoreReopened(TestRocksStore):
    """On disk, after a restart."""

    def again(self, store: Store, path: Path) -> Store:
        """Close and open."""
        store.close()
        return self.open(path / "store")
