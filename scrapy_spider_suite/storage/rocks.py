"""The store on disk: one RocksDB with a family per kind of row (U12, U13, E8).

The database and every family are opened in raw mode: bytes in, bytes out. The library's
default mode unpickles what it reads, which no one may make us do (promise 4).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from shutil import rmtree

from rocksdict import (
    AccessType,
    Checkpoint,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.storage.archive import ARCHIVED, Archive
from scrapy_spider_suite.storage.archive import FOLDER as ARCHIVE
from scrapy_spider_suite.storage.erasing import Eraser
from scrapy_spider_suite.storage.kv import KV, PrefixedKV
from scrapy_spider_suite.storage.records import HostRecord, host_key, pack_row, unpack_row
from scrapy_spider_suite.storage.records import after as end_of
from scrapy_spider_suite.storage.sieved import FOLDER as SIEVE
from scrapy_spider_suite.storage.sieved import Sieved
from scrapy_spider_suite.storage.tuning import Tuning
from scrapy_spider_suite.storage.unwritten import Row, Unwritten

FAMILIES = ("hosts", "due", "queue", "states", "kv", "meta")
_DUE = struct.Struct(">Q")
_FRESH = b"fresh\0"
"""Begins a key in ``kv``: a family of their own would be missing where older releases look."""


def _microseconds(when: float) -> bytes:
    return _DUE.pack(max(0, int(when * 1e6)))


class RocksStore:
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
        self._path = path
        self._secondary = secondary
        self._tuning = Tuning(memory)
        self._write_options = WriteOptions()
        self._write_options.sync = power_safe
        self._unwritten = Unwritten()
        self.archive: Archive | None = None
        self.sieve: Sieved | None = None
        # Rows before it were taken: a scan from the start would walk over their remains.
        self._due_head = b""
        self._erasers: list[Eraser] = []
        try:
            self._open()
        except Exception as error:  # the library raises nothing narrower
            raise JobDamagedError(
                f"the store in {path} cannot be opened ({error}); look at it with `scrapy frontier "
                "check`, restore a copy, or begin anew with another JOBDIR"
            ) from error

    def _open(self, access: AccessType | None = None) -> None:
        if access is None and self._secondary is not None:
            access = AccessType.secondary(str(self._secondary))
        self._db = Rdict(
            str(self._path),
            options=self._tuning.options(root=True),
            column_families={name: self._tuning.options() for name in FAMILIES},
            access_type=access or AccessType.read_write(),
        )
        self._families = {name: self._db.get_column_family(name) for name in FAMILIES}
        self._handles = {name: self._db.get_column_family_handle(name) for name in FAMILIES}

    def recover(self) -> None:
        """See `Store`. A database that could not write refuses to until it is opened again."""
        self._let_go()
        try:
            self._open()
        except Exception as error:  # the library raises nothing narrower
            # Whoever still looks something up must find it, although nothing can be written.
            self._let_go()
            with suppress(Exception):  # not even that: the next attempt may be luckier
                self._open(AccessType.read_only())
            raise StoreWriteError(f"the store in {self._path} cannot be opened: {error}") from error

    def _let_go(self) -> None:
        """Close the database, which holds its lock as long as anything refers to it."""
        for eraser in self._erasers:
            eraser.cut_short(self._db)
        self._erasers.clear()
        self._families.clear()
        self._handles.clear()
        with suppress(Exception):  # it says again what failed, and closes all the same
            self._db.close()

    def resize(self, memory: int) -> None:
        """Let caches and buffers have *memory* bytes (what a full table needs stays as it is)."""
        self._tuning.resize(memory)

    def sync(self, *, power_safe: bool) -> None:
        """Sync every batch to the medium, or only hand it to the system."""
        self._write_options.sync = power_safe

    @property
    def power_safe(self) -> bool:
        """Whether every batch is synced to the medium."""
        return bool(self._write_options.sync)

    # Writing: collected, then written as one batch

    @property
    def dirty(self) -> bool:
        """See `Store`."""
        return bool(self._unwritten)

    @property
    def backlog(self) -> int:
        """See `Store`."""
        return len(self._unwritten)

    def flush(self) -> None:
        """See `Store`. What could not be written is kept and tried again with the next flush."""
        if not self._unwritten:
            return
        # Built anew each time: a failed write spends a batch.
        batch = WriteBatch(raw_mode=True)
        handles = self._handles
        for family, key, value in self._unwritten:
            if value is None:
                batch.delete(key, handles[family])
            else:
                batch.put(key, value, handles[family])
        try:
            self._db.write(batch, self._write_options)
        except Exception as error:  # the library raises nothing narrower
            raise StoreWriteError(f"the store in {self._path} cannot write: {error}") from error
        self._unwritten.clear()

    def sync_log(self) -> None:
        """Have what was flushed on the medium, in any thread. Raises `StoreWriteError`."""
        try:
            self._db.flush_wal(sync=True)
        except Exception as error:  # the library raises nothing narrower
            raise StoreWriteError(f"the store in {self._path} cannot write: {error}") from error

    def size(self) -> int:
        """Bytes on disk, those aside that are not merged into tables yet."""
        name = "rocksdb.total-sst-files-size"
        return sum(each.property_int_value(name) or 0 for each in self._families.values())

    def close(self) -> None:
        """See `Store`."""
        try:
            self.flush()
        finally:
            self._let_go()
            for beside in (self.archive, self.sieve):
                if beside is not None:
                    beside.close()

    def erase(self, host: str) -> Eraser:
        """Begin to rewrite the files in which deleted rows of *host* may still lie.

        It goes on beside what follows; closing the store cuts it short.
        """
        begin = host_key(host)
        keyed = ("queue", "states", "hosts")
        self._erasers = [each for each in self._erasers if each.is_alive()]
        eraser = Eraser(self._db, self._families, keyed, begin, end_of(begin))
        self._erasers.append(eraser)
        return eraser

    def checkpoint(self, path: Path) -> None:
        """Make a copy of all that was flushed in the new folder *path*, beside running writes.

        On one file system tables are linked, not copied. For a thread of its own. Raises
        `StoreWriteError`; nothing is left of the copy then.
        """
        try:
            # The checkpoint does it, too, but with Python's lock held: a crawl would stand still.
            for family in list(self._families.values()):
                family.flush()
            Checkpoint(self._db).create_checkpoint(str(path))
            # After it: what moves there meanwhile is in both, and not in neither.
            if self.archive is not None:
                self.archive.copy(path / ARCHIVE)
            if self.sieve is not None:
                self.sieve.copy(path / SIEVE)
        except Exception as error:  # the library raises nothing narrower
            rmtree(path, ignore_errors=True)
            rmtree(f"{path}.tmp", ignore_errors=True)
            raise StoreWriteError(f"the store cannot be copied to {path}: {error}") from error

    # URLs

    def state(self, key: bytes) -> bytes | None:
        """See `Store`. What a flush of the sieve has met and has no row is done."""
        state = self.row(key)
        if state is None and self.sieve is not None and self.sieve.has(key):
            return ARCHIVED
        return state

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

    def due(self, limit: int, since: float = 0.0, after: str = "") -> list[tuple[float, str]]:
        """See `Store`."""
        first = f"{after}\0" if after else ""
        start = max(self._due_head, _microseconds(since) + first.encode())
        rows = [_due_row(key) for key, _ in islice(self._scan("due", start), limit)]
        if rows and not since:
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

    # Reading: what is on disk, under what waits to be written

    def _get(self, family: str, key: bytes) -> bytes | None:
        waits, value = self._unwritten.find(family, key)
        if waits:
            return value
        found: bytes | None = self._families[family].get(key)
        return found

    def _scan(
        self, family: str, start: bytes, end: bytes | None = None, group: bytes = b""
    ) -> Iterator[Row]:
        disk = self._on_disk(family, start, end)
        return self._unwritten.over(disk, family, start, group)

    def _on_disk(
        self, family: str, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[Row]:
        options = ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        rows = self._families[family].iter(options)
        rows.seek(start)
        while rows.valid():
            yield rows.key(), rows.value()
            rows.next()


def _due_row(key: bytes) -> tuple[float, str]:
    return _DUE.unpack_from(key)[0] / 1e6, key[_DUE.size :].decode()
