"""A mapping of a store, for tests of what survives a kill."""

from __future__ import annotations

from scrapy_spider_suite.storage.kv import MemoryKV


class Batches(MemoryKV):
    """A mapping whose changes are lost in a kill unless they were committed."""

    def __init__(self) -> None:
        super().__init__()
        self._durable: dict[bytes, bytes] = {}

    def commit(self) -> None:
        """Write what changed."""
        self._durable = dict(self._rows)

    def kill(self) -> None:
        """Forget what was not written."""
        self._rows = dict(self._durable)
