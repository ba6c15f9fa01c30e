"""Mappings of bytes, and a store in memory, for crawls without a job directory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Protocol

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.store.rows import PENDING, HostRecord


class KV(Protocol):
    """An ordered map from bytes to bytes. Keys are not empty; values are data, never code."""

    def get(self, key: bytes) -> bytes | None:
        """The value under *key*, or None."""

    def put(self, key: bytes, value: bytes) -> None: ...

    def delete(self, key: bytes) -> None: ...

    def items(self, prefix: bytes = b"", since: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """The pairs whose keys begin with *prefix* and go on with at least *since*, in byte order.

        They are the pairs of the moment of the call: the caller may put and delete meanwhile.
        """


class CookieJars(Protocol):
    """The cookies of a running crawl, whose rows in the store are written late.

    The key of a jar: the ``cookiejar`` of requests (None without one), and a registered domain.
    Times are seconds since the epoch.
    """

    def by_domain(self) -> Mapping[str, Sequence[tuple[Hashable, str]]]:
        """The keys of each domain."""

    def row(self, key: tuple[Hashable, str]) -> tuple[float, bytes] | None:
        """When the jar changed last, and its cookies (`request_codec.pack_cookies`)."""

    def take(self, key: tuple[Hashable, str], when: float, packed: bytes) -> None:
        """Add the cookies of another process, which changed there at *when*: the later ones win."""

    def changed(self, since: float) -> set[str]:
        """The domains whose cookies changed *since* then."""


class MemoryKV:
    """A `KV` in a dict, without a bound, for the life of the process."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self._rows[key] = value

    def delete(self, key: bytes) -> None:
        self._rows.pop(key, None)

    def items(self, prefix: bytes = b"", since: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        first = prefix + since
        found = sorted(key for key in self._rows if key.startswith(prefix) and key >= first)
        return iter([(key, self._rows[key]) for key in found])


class MemoryStore:
    """`RocksStore` for the life of the process, without rows: fronts hold the entries."""

    durable = False
    backlog = 0

    def __init__(self) -> None:
        self.update_record: Callable[[str, HostRecord], None] = lambda host, record: None
        self._states: dict[bytes, bytes] = {}
        self._records: dict[str, HostRecord] = {}
        self._kvs: dict[str, KV] = {}

    def state(self, key: bytes) -> bytes | None:
        return self._states.get(key)

    def find_states(self, keys: list[bytes]) -> list[bytes | None]:
        return [self._states.get(key) for key in keys]

    def put_state(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._states.pop(key, None)
        else:
            self._states[key] = value

    def rows(self, host: str, after: bytes, limit: int) -> list[Entry]:
        return []

    def put_row(self, entry: Entry) -> None: ...

    def put_link(self, state_key: bytes, prefix: bytes, order: bytes, row: bytes) -> None:
        self._states[state_key] = PENDING

    def delete_row(self, host: str, key: bytes) -> None: ...

    def record(self, host: str) -> HostRecord | None:
        record = self._records.get(host)
        if record is not None:
            self.update_record(host, record)
        return record

    def put_record(self, host: str, record: HostRecord) -> None:
        self._records[host] = record

    def records(self) -> Iterator[tuple[str, HostRecord]]:
        for host in sorted(self._records):
            self.update_record(host, self._records[host])
            yield host, self._records[host]

    def due(
        self, limit: int | None, since: float = 0.0, after: str = "", *, before: float | None = None
    ) -> list[tuple[float, str]]:
        return []

    def put_due(self, when: float, host: str) -> None: ...

    def delete_due(self, when: float, host: str) -> None: ...

    def kv(self, name: str) -> KV:
        return self._kvs.setdefault(name, MemoryKV())

    def flush(self) -> None: ...

    def recover(self) -> None: ...

    def close(self) -> None: ...
