"""The records of all hosts, in memory or not: each is read once, and stored once for a batch."""

from __future__ import annotations

from scrapy_spider_suite.frontier.workbench import Workbench
from scrapy_spider_suite.storage.clocks import note_clock
from scrapy_spider_suite.storage.fronts import Fronts
from scrapy_spider_suite.storage.records import HostRecord
from scrapy_spider_suite.storage.store import Store

_CACHE = 20_000
"""Records of hosts that are not resident, kept so that links to them need no look-up."""


class HostRecords:
    """Reads and stores records; *fronts* know where the queue of a resident host begins.

    Attributes:
        wall_offset: wall time minus ``now``, by which clocks of resident hosts are stored.
    """

    def __init__(self, store: Store, workbench: Workbench, fronts: Fronts) -> None:
        self.wall_offset = 0.0
        self._store = store
        self._hosts = workbench.hosts
        self._fronts = fronts
        self._cache: dict[str, HostRecord] = {}
        self._touched: dict[str, HostRecord] = {}

    def touch(self, key: str) -> HostRecord:
        """The record of a host, about to be changed; `save` stores it."""
        record = self._touched[key] = self.of(key)
        return record

    def of(self, key: str) -> HostRecord:
        """The record of a host, to be looked at."""
        host = self._hosts.get(key)
        record: HostRecord = self._known(key) if host is None else host.record
        return record

    def _known(self, key: str) -> HostRecord:
        """The record of a host that is not resident."""
        # Touched ones first: the cache may have been emptied since.
        return self._touched.get(key) or self._cache.get(key) or self._load(key)

    def _load(self, key: str) -> HostRecord:
        if len(self._cache) >= _CACHE and self._store.durable:
            self._cache.clear()
        record = self._store.record(key) or HostRecord()
        self._cache[key] = record
        return record

    def left(self, key: str) -> int:
        """How many stored URLs of a host are still to be asked for."""
        return max(0, self.of(key).pending - self._fronts.leased(key))

    def changed(self, key: str, record: HostRecord) -> None:
        """*record*, which somebody holds, has changed; `save` stores it."""
        self._touched[key] = record

    def came(self, key: str) -> None:
        """A host became resident: it has its record."""
        self._cache.pop(key, None)

    def went(self, key: str, record: HostRecord) -> None:
        """A host is no longer resident, and leaves its record, changed."""
        self._cache[key] = self._touched[key] = record

    def drop(self, key: str) -> None:
        """Forget the record of a host, which the caller deletes."""
        self._cache.pop(key, None)
        self._touched.pop(key, None)

    def save(self) -> None:
        """Put the records that were touched into the store's next batch, each once."""
        for key, record in self._touched.items():
            host = self._hosts.get(key)
            if host is not None:
                self._fronts.set_head(host)
                note_clock(host, self.wall_offset)
            self._store.put_record(key, record)
        self._touched.clear()
