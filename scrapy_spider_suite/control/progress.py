"""How far a long action has come, kept in the job with each of its portions."""

from __future__ import annotations

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.store.interface import KV


class Progress:
    """The last *host* and *url* that were dealt with, a position *at* in a file, and counts."""

    def __init__(self, kv: KV, id: str) -> None:
        self._kv = kv
        self._key = b"progress " + id.encode()
        data = kv.get(self._key)
        self.host, self.url, self.at, self.counts = "", b"", 0, dict[str, int]()
        if data is not None:
            self.host, self.url, self.at, self.counts = msgpack.unpackb(data)

    def count(self, name: str, number: int = 1) -> None:
        """Count *number* more."""
        self.counts[name] = self.counts.get(name, 0) + number

    def save(self) -> None:
        """Put it into the next batch, with what was done up to here."""
        self._kv.put(self._key, msgpack.packb([self.host, self.url, self.at, self.counts]))

    def forget(self) -> None:
        """The action is over."""
        self._kv.delete(self._key)
