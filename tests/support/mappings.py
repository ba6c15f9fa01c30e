"""Mappings of a store, for tests of what survives a kill, and of what is read."""

from __future__ import annotations

from collections.abc import Iterator

from scrapy_spider_suite.store.interface import KV, MemoryKV


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


class Counted:
    """The rows of another map, of which it counts those that are read one after another."""

    def __init__(self, rows: KV) -> None:
        self.read = 0
        self._rows = rows
        self.get, self.put, self.delete = rows.get, rows.put, rows.delete

    def items(self, prefix: bytes = b"", since: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """See `KV`."""
        for row in self._rows.items(prefix, since):
            self.read += 1
            yield row
