"""The store on disk: rows of queues, states of URLs, records of hosts (U12, U13, E8)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.entries import Entry, host_key
from scrapy_spider_suite.storage.archive import ARCHIVED, Archive
from scrapy_spider_suite.storage.archive import FOLDER as ARCHIVE
from scrapy_spider_suite.storage.database import Database
from scrapy_spider_suite.storage.erasing import Eraser
from scrapy_spider_suite.storage.kv import KV, PrefixedKV
from scrapy_spider_suite.storage.records import HostRecord, pack_row, unpack_row
from scrapy_spider_suite.storage.records import after as end_of
from scrapy_spider_suite.storage.sieved import FOLDER as SIEVE
from scrapy_spider_suite.storage.sieved import Sieved

_DUE = struct.Struct(">Q")
_BY_URL = (b"seeds\0", b"lastmod\0", b"sitemaps\0", b"revisits\0p")
"""How keys in ``kv`` begin that a state key follows."""
_BY_TIME = (b"revisits\0d",)
"""How those begin that a time follows, and then a state key."""
_FRESH = b"fresh\0"
"""Begins a key in ``kv``: a family of their own would be missing where older releases look."""


def _microseconds(when: float) -> bytes:
    return _DUE.pack(max(0, int(when * 1e6)))


class RocksStore(Database):
    """See `Store`. *memory* (bytes) bounds write buffers and block cache together.

    With *secondary*, a folder of its own, it reads a database that another process writes.
    *power_safe* syncs every batch to the medium, so that it survives a power cut as well.

    Raises `JobDamagedError` if the database cannot be opened.

    Attributes:
        archive: where URLs are that need no row any more, if there is one; closed with the store.
        sieve: their fingerprints, if there is one; likewise.
    """

    durable = True

    def __init__(
        self, path: Path, *, memory: int = 80 << 20, power_safe: bool = False,
        secondary: Path | None = None,
    ) -> None:  # fmt: skip
        super().__init__(path, memory=memory, power_safe=power_safe, secondary=secondary)
        self.archive: Archive | None = None
        self.sieve: Sieved | None = None
        # Rows before it were taken: a scan from the start would walk over their remains.
        self._due_head = b""

    def close(self) -> None:
        """See `Store`."""
        try:
            super().close()
        finally:
            for beside in (self.archive, self.sieve):
                if beside is not None:
                    beside.close()

    def erase(self, host: str) -> Eraser:
        """Begin to rewrite the files in which deleted rows of *host* may still lie.

        It goes on beside what follows; closing the store cuts it short.
        """
        begin = host_key(host)
        ranges = [(name, begin, end_of(begin)) for name in ("queue", "states", "hosts")]
        ranges += [("kv", each + begin, each + end_of(begin)) for each in _BY_URL]
        ranges += [("kv", each, each + b"\xff") for each in _BY_TIME]
        return self.erase_keys(ranges)

    def checkpoint(self, path: Path) -> None:
        """Make a copy of all that was flushed in the new folder *path*, beside running writes.

        Archive and sieve, which must be held, are copied into it. For a thread of its own. Raises
        `StoreWriteError`; nothing is left of the copy then.
        """

        def beside() -> None:
            # After the store: what moves there meanwhile is in both, and not in neither.
            if self.archive is not None:
                self.archive.copy(path / ARCHIVE)
            if self.sieve is not None:
                self.sieve.copy(path / SIEVE)

        self.copy(path, beside)

    # URLs

    def state(self, key: bytes) -> bytes | None:
        """See `Store`. What a flush of the sieve has met and has no row is done."""
        state = self.row(key)
        if state is not None or self.sieve is None:
            return state
        try:
            return ARCHIVED if self.sieve.has(key) else None
        except JobDamagedError as error:  # whoever asks, the crawl is to end
            self.damage = self.damage or str(error)
            raise

    def row(self, key: bytes) -> bytes | None:
        """The packed state under a state key, in a row or in the archive; whatever a sieve says."""
        state = self._get("states", key)
        return state if state is not None or self.archive is None else self.archive.get(key)

    def has_row(self, key: bytes) -> bool:
        """Whether the URL with this state key has a row, and is not only in the archive."""
        return self._get("states", key) is not None

    def put_state(self, key: bytes, value: bytes) -> None:
        """See `Store`."""
        self._unwritten.set("states", key, value)

    def delete_state(self, key: bytes) -> None:
        """See `Store`."""
        self._unwritten.set("states", key, None)

    def states(self, prefix: bytes, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """What follows *prefix* in each state key that begins with it, and the packed state.

        Those beyond *after* only, if it is given.
        """
        n = len(prefix)
        start = prefix + after + b"\0" if after else prefix
        for key, value in self._scan("states", start, end_of(prefix)):
            if not key.startswith(prefix):
                return
            yield key[n:], value

    def every_state(self, after: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The state keys beyond *after* that have rows, and their packed states."""
        return self._scan("states", after + b"\0" if after else b"")

    # Queues

    def rows(self, host: str, after: bytes, limit: int) -> list[Entry]:
        """See `Store`. Seeks behind *after*, so that deleted rows before it cost nothing."""
        prefix = host_key(host)
        n = len(prefix)
        start = prefix + after + b"\0" if after else prefix
        rows = self._scan("queue", start, end_of(prefix), prefix)
        return [unpack_row(host, key[n:], value) for key, value in islice(rows, limit)]

    def put_row(self, entry: Entry) -> None:
        """See `Store`."""
        prefix = host_key(entry.host)
        self._unwritten.set("queue", prefix + entry.key, pack_row(entry), prefix)

    def delete_row(self, host: str, key: bytes) -> None:
        """See `Store`."""
        prefix = host_key(host)
        self._unwritten.set("queue", prefix + key, None, prefix)

    def all_rows(self) -> Iterator[Entry]:
        """Every pending entry of the job, host by host."""
        for key, value in self._unwritten.everywhere(self._on_disk("queue"), "queue"):
            end = key.index(b"\0", 2)  # of the host; the slot before it may hold a NUL
            yield unpack_row(key[2:end].decode(), key[end + 1 :], value)

    # Links that wait for the sieve

    def fresh(self, since: int) -> Iterator[tuple[int, bytes]]:
        """Their rows from the number *since* on, each with that of its first link."""
        for key, value in self._scan("kv", _FRESH + _DUE.pack(since), end_of(_FRESH)):
            if not key.startswith(_FRESH):
                return
            yield _DUE.unpack_from(key, len(_FRESH))[0], value

    def put_fresh(self, number: int, row: bytes) -> None:
        """Store a row of them."""
        self._unwritten.set("kv", _FRESH + _DUE.pack(number), row)

    def delete_fresh(self, number: int) -> None:
        """Remove a row."""
        self._unwritten.set("kv", _FRESH + _DUE.pack(number), None)

    # Hosts

    def record(self, host: str) -> HostRecord | None:
        """See `Store`."""
        data = self._get("hosts", host_key(host))
        return None if data is None else HostRecord.from_bytes(data)

    def put_record(self, host: str, record: HostRecord) -> None:
        """See `Store`."""
        self._unwritten.set("hosts", host_key(host), record.to_bytes())

    def delete_record(self, host: str) -> None:
        """Forget *host*."""
        self._unwritten.set("hosts", host_key(host), None)

    def records(self, after: str = "") -> Iterator[tuple[str, HostRecord]]:
        """All hosts and their records, slot by slot; those beyond *after* if it is given."""
        start = host_key(after) + b"\0" if after else b""
        for key, value in self._scan("hosts", start):
            yield key[2:-1].decode(), HostRecord.from_bytes(value)

    def hosts_between(self, begin: bytes, end: bytes) -> Iterator[str]:
        """The hosts that have records, and keys from *begin* on, before *end*."""
        for key, _ in self._scan("hosts", begin, end):
            if key >= end:
                return
            yield key[2:-1].decode()

    def due(self, limit: int, since: float = 0.0, after: str = "") -> list[tuple[float, str]]:
        """See `Store`."""
        first = f"{after}\0" if after else ""
        start = max(self._due_head, _microseconds(since) + first.encode())
        rows = [_due_row(key) for key, _ in islice(self._scan("due", start), limit)]
        if rows and not (since or after):
            self._due_head = _microseconds(rows[0][0])
        return rows

    def all_due(self) -> Iterator[tuple[float, str]]:
        """Every waiting host with its time (wall)."""
        for key, _ in self._scan("due", b""):
            yield _due_row(key)

    def put_due(self, when: float, host: str) -> None:
        """See `Store`."""
        key = _microseconds(when)
        self._due_head = min(self._due_head, key)
        self._unwritten.set("due", key + host.encode(), b"")

    def delete_due(self, when: float, host: str) -> None:
        """See `Store`."""
        self._unwritten.set("due", _microseconds(when) + host.encode(), None)

    def every_row(self) -> Iterator[tuple[str, bytes, bytes]]:
        """All that was flushed: family, key, value."""
        for family in self._families:
            for key, value in self._on_disk(family):
                yield family, key, value

    # What components keep

    def kv(self, name: str) -> KV:
        """See `Store`."""
        return self._rows_of("kv", name.encode() + b"\0")

    @property
    def meta(self) -> KV:
        """Facts about the job as a whole."""
        return self._rows_of("meta", b"")

    def _rows_of(self, family: str, prefix: bytes) -> KV:
        """The keys of *family* that begin with *prefix*; read back before they are flushed."""
        change = partial(self._unwritten.set, family)
        return PrefixedKV(prefix, partial(self._get, family), change, partial(self._scan, family))


def _due_row(key: bytes) -> tuple[float, str]:
    return _DUE.unpack_from(key)[0] / 1e6, key[_DUE.size :].decode()
