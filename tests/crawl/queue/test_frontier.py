"""The contract of the frontier, on every store, and with almost no memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.durable_frontier_contract import DurableFrontierContract
from support.frontier_contract import FrontierContract

from scrapy_spider_suite.crawl.queue import admission
from scrapy_spider_suite.store import host_queues, residency
from scrapy_spider_suite.store import host_queues as hostrecords
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.store.rocks_store import RocksStore, Store


class TestInMemory(FrontierContract):
    """No job directory: every host is resident, and fronts hold everything."""

    def open(self, path: Path) -> Store:
        """Open a new one."""
        return MemoryStore()


class TestOnDisk(DurableFrontierContract):
    """A job directory, and room for every host."""

    given_up = 12_000

    def open(self, path: Path) -> Store:
        """Open a database."""
        return RocksStore(path, memory=4 << 20)


class TestOnDiskWithLittleMemory(TestOnDisk):
    """Room for three hosts, two entries each, one record, and batches of hardly anything."""

    capacity = 3
    given_up = 5_000

    @pytest.fixture(autouse=True)
    def _tiny(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module, name, value in (
            (host_queues, "_FRONT", 2), (hostrecords, "_CACHE", 1), (residency, "_TURN", 2),
            (residency, "_GOING", 2), (residency, "_COMING", 2), (admission, "_BACKLOG", 5),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, value)
