"""The store on disk: one RocksDB with a family per kind of row.

Changes wait in `PendingWrites` and become one batch; reads look there first and never write.
Every family is opened in raw mode: the library's default unpickles what it reads (promise 4).
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from heapq import merge
from itertools import islice
from operator import itemgetter
from pathlib import Path
from shutil import rmtree
from threading import Thread
from typing import Any

import rocksdict

from scrapy_spider_suite.errors import JobDamagedError, StoreWriteError
from scrapy_spider_suite.frontier.entries import Entry, host_key
from scrapy_spider_suite.seen.segments import CATALOGUE
from scrapy_spider_suite.seen.sieve import CAPACITY, copy_files
from scrapy_spider_suite.seen.sorted_set import MANIFEST_NAME
from scrapy_spider_suite.store import seen_index
from scrapy_spider_suite.store.interface import KV, MemoryStore
from scrapy_spider_suite.store.rows import PENDING, HostRecord, end_of_prefix, pack_row, unpack_row

Range = tuple[str, bytes, bytes]  # A family, the first key in it, and the first that is behind
_ERRORS = "rocksdb.background-errors"


class TableRewrite(Thread):
    """Rewrites the tables with keys of *ranges*, in a thread. *failure* says why not all of it."""

    def __init__(
        self, db: rocksdict.Rdict, families: Mapping[str, rocksdict.Rdict],
        ranges: Collection[Range],
    ) -> None:  # fmt: skip
        super().__init__(daemon=True)
        self.failure = ""
        self._cut = False
        self._db = db
        self._families = dict(families)
        self._ranges = tuple(ranges)
        self.start()

    def cut_short(self, db: rocksdict.Rdict) -> None:
        """End the rewrite, and wait for that, before *db* is closed."""
        if self.is_alive():
            self._cut = True
            db.cancel_all_background(False)
        self.join()

    def run(self) -> None:
        options = rocksdict.CompactOptions()
        # Tables of the last level would be left as they are, with what they hold.
        options.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force())
        try:
            before = self._errors()
            for family in self._families.values():
                family.flush()
            for name, begin, end in self._ranges:
                self._families[name].compact_range(begin, end, options)
            if self._cut or self._errors() > before:
                self.failure = "the store's tables could not all be rewritten"
        except Exception as error:  # the library raises nothing narrower
            self.failure = f"the store's tables could not be rewritten ({error})"
        finally:
            # The database keeps its lock while it is referred to.
            del self._db, self._families

    def _errors(self) -> int:
        return self._db.property_int_value(_ERRORS) or 0


class RocksOptions:
    """Options of a database whose write buffers and block cache have *memory* bytes together."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self._cache = rocksdict.Cache(memory * 2 // 5)
        self._buffers = rocksdict.WriteBufferManager(memory * 3 // 5, False)

    def options(self, *, root: bool = False) -> rocksdict.Options:
        options = rocksdict.Options(raw_mode=True)
        table = rocksdict.BlockBasedOptions()
        table.set_block_cache(self._cache)
        # Filters and indexes count as cache, and in pieces: whole ones, of a megabyte each, push
        # one another out, and then every look-up reads one (60 us instead of 5).
        table.set_bloom_filter(10, False)
        table.set_cache_index_and_filter_blocks(True)
        table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_pin_top_level_index_and_filter(True)
        options.set_block_based_table_factory(table)
        buffer = min(self.memory // 8, 8 << 20)  # in the processor's cache a key costs half as much
        options.set_write_buffer_size(buffer)
        options.set_max_bytes_for_level_base(16 * buffer)
        options.set_compression_type(rocksdict.DBCompressionType.lz4())
        if root:
            options.create_if_missing(True)
            options.create_missing_column_families(True)
            options.set_write_buffer_manager(self._buffers)
            options.set_max_total_wal_size(self.memory)
            options.set_keep_log_file_num(2)
            options.set_max_log_file_size(10 << 20)
            options.set_max_open_files(256)
        return options


Row = tuple[bytes, bytes]
_Changes = dict[bytes, bytes | None]
_NO_CHANGES: Mapping[bytes, bytes | None] = {}


class PendingWrites:
    """The last value of each key that changed since the last batch; None: deleted.

    Keys belong to a family and, in it, to a *group* (the rows of one host): a scan reads one group.
    """

    def __init__(self) -> None:
        # The waiting changes by family and group.
        self.families: defaultdict[str, defaultdict[bytes, _Changes]] = defaultdict(
            lambda: defaultdict(dict)
        )
        self.size = 0
        """Waiting changes; a KiB counts as much as a key."""

    def set(self, family: str, key: bytes, value: bytes | None, group: bytes = b"") -> None:
        self.families[family][group][key] = value
        self.size += 1 + (len(key) + len(value or b"") >> 10)

    def changes(self, family: str, group: bytes = b"") -> Mapping[bytes, bytes | None]:
        return self.families[family].get(group, _NO_CHANGES)

    def overlay(
        self, disk: Iterator[Row], family: str, start: bytes, end: bytes | None = None,
        group: bytes = b"",
    ) -> Iterator[Row]:  # fmt: skip
        """The rows of *disk*, those from *start* to before *end*, as after the next batch."""
        changes = self.changes(family, group)
        if not changes:
            return disk
        rows = (row for row in changes.items() if start <= row[0] and (end is None or row[0] < end))
        return _newest(sorted(rows), disk)

    def overlay_all(self, disk: Iterator[Row], family: str) -> Iterator[Row]:
        """`overlay` for all groups of *family*."""
        groups = self.families[family].values()
        return _newest(sorted(item for changes in groups for item in changes.items()), disk)

    def clear(self) -> None:
        self.families.clear()
        self.size = 0


def _newest(mine: list[tuple[bytes, bytes | None]], disk: Iterator[Row]) -> Iterator[Row]:
    last = None
    # Of equal keys the merge yields that of its first argument first.
    for key, value in merge(mine, disk, key=itemgetter(0)):
        if key != last:
            last = key
            if value is not None:
                yield key, value


STORE_FOLDER = "store"  # of the database, in the job's ``suite`` folder
FAMILIES = ("hosts", "due", "queue", "states", "kv", "meta")


class Database:
    """The lower half of `RocksStore`: families, batch, reads. After *damage* nothing is written."""

    def __init__(self, path: Path, memory: int, power_safe: bool, secondary: Path | None) -> None:
        self.damage = ""
        self.power_safe = power_safe
        self._path = path
        self._secondary = secondary
        self._tuning = RocksOptions(memory)
        self._write_options = rocksdict.WriteOptions()
        self._write_options.sync = power_safe
        self.pending_writes = PendingWrites()
        self._rewrites: list[TableRewrite] = []
        try:
            self._open()
        except Exception as error:  # the library raises nothing narrower
            raise JobDamagedError(
                f"the store in {path} cannot be opened ({error}); look at it with `scrapy frontier "
                "check`, restore a copy, or begin anew with another JOBDIR"
            ) from error

    def _open(self, access: rocksdict.AccessType | None = None) -> None:
        if access is None and self._secondary is not None:
            access = rocksdict.AccessType.secondary(str(self._secondary))
        options = self._tuning.options(root=True)
        if self._secondary is not None:
            options.set_max_open_files(-1)  # the process that writes may remove them meanwhile
        self._db = rocksdict.Rdict(
            str(self._path),
            options=options,
            column_families={name: self._tuning.options() for name in FAMILIES},
            access_type=access or rocksdict.AccessType.read_write(),
        )
        self._families = {name: self._db.get_column_family(name) for name in FAMILIES}
        self._handles = {name: self._db.get_column_family_handle(name) for name in FAMILIES}

    def recover(self) -> None:
        """Prepare for another attempt after a failed write. Raises `StoreWriteError`."""
        self._release()
        try:
            self._open()
        except Exception as error:  # the library raises nothing narrower
            # Look-ups go on, although nothing can be written.
            self._release()
            with suppress(Exception):  # the next attempt may succeed
                self._open(rocksdict.AccessType.read_only())
            raise StoreWriteError(f"the store in {self._path} cannot be opened: {error}") from error

    def _release(self) -> None:
        for rewrite in self._rewrites:
            rewrite.cut_short(self._db)
        self._rewrites.clear()
        self._families.clear()
        self._handles.clear()
        with suppress(Exception):  # it repeats the failure, and closes all the same
            self._db.close()

    # Writing: collected, then written as one batch

    @property
    def backlog(self) -> int:
        """How many changes wait for `flush`; a value of some KiB counts as several."""
        return self.pending_writes.size

    def flush(self) -> None:
        """Write all changes in one batch. Raises `StoreWriteError`; the changes wait on."""
        if not self.pending_writes.size:
            return
        if self.damage:
            raise StoreWriteError(f"{self.damage}: nothing more is written")
        # Built anew each time: a failed write spends a batch.
        batch = rocksdict.WriteBatch(raw_mode=True)
        for family, groups in self.pending_writes.families.items():
            handle = self._handles[family]
            for changes in groups.values():
                for key, value in changes.items():
                    if value is None:
                        batch.delete(key, handle)
                    else:
                        batch.put(key, value, handle)
        try:
            self._db.write(batch, self._write_options)
        except Exception as error:  # the library raises nothing narrower
            raise StoreWriteError(f"the store in {self._path} cannot write: {error}") from error
        self.pending_writes.clear()

    def sync_log(self) -> None:
        """Sync flushed changes to the medium, in any thread. Raises `StoreWriteError`."""
        try:
            self._db.flush_wal(sync=True)
        except Exception as error:  # the library raises nothing narrower
            raise StoreWriteError(f"the store in {self._path} cannot write: {error}") from error

    def size(self) -> int:
        """Bytes of the tables on disk."""
        name = "rocksdb.total-sst-files-size"
        return sum(each.property_int_value(name) or 0 for each in self._families.values())

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._release()

    # Reading: what is on disk, under what waits to be written

    def get(self, family: str, key: bytes) -> bytes | None:
        waiting = self.pending_writes.changes(family)
        if key in waiting:
            return waiting[key]
        try:
            found: bytes | None = self._families[family].get(key)
        except Exception as error:  # the library raises nothing narrower
            raise self._damaged(error) from error
        return found

    def find(self, family: str, keys: list[bytes]) -> list[bytes | None]:
        """`get` of each of *keys*."""
        if len(keys) == 1:  # most requests come alone, and a list of one costs more
            return [self.get(family, keys[0])]
        library: Any = self._families[family]  # its types know no list of bytes alone
        try:
            found: list[bytes | None] = library.get(keys)
        except Exception as error:  # the library raises nothing narrower
            raise self._damaged(error) from error
        if waiting := self.pending_writes.changes(family):
            return [waiting.get(key, value) for key, value in zip(keys, found, strict=True)]
        return found

    def _damaged(self, error: Exception) -> JobDamagedError:
        self.damage = f"the store in {self._path} cannot be read: {error}"
        return JobDamagedError(self.damage)

    def scan(
        self, family: str, start: bytes, end: bytes | None = None, group: bytes = b""
    ) -> Iterator[Row]:
        """The rows from key *start* to before *end*; *group*: see `PendingWrites`."""
        disk = self._on_disk(family, start, end)
        return self.pending_writes.overlay(disk, family, start, end, group)

    def _on_disk(self, family: str, start: bytes = b"", end: bytes | None = None) -> Iterator[Row]:
        options = rocksdict.ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        rows = self._families[family].iter(options)
        rows.seek(start)
        while rows.valid():
            yield rows.key(), rows.value()
            rows.next()
        try:
            rows.status()  # it also ends at an unreadable row
        except Exception as error:  # the library raises nothing narrower
            raise self._damaged(error) from error

    def every_row(self) -> Iterator[tuple[str, bytes, bytes]]:
        for family in self._families:
            for key, value in self._on_disk(family):
                yield family, key, value


class FamilyKV:
    """The keys of one *family* of *database* that begin with *prefix*, without it."""

    def __init__(self, database: Database, family: str, prefix: bytes = b"") -> None:
        self._database = database
        self._family = family
        self._prefix = prefix

    def get(self, key: bytes) -> bytes | None:
        return self._database.get(self._family, self._prefix + key)

    def put(self, key: bytes, value: bytes) -> None:
        self._database.pending_writes.set(self._family, self._prefix + key, value)

    def delete(self, key: bytes) -> None:
        self._database.pending_writes.set(self._family, self._prefix + key, None)

    def items(self, prefix: bytes = b"", since: bytes = b"") -> Iterator[Row]:
        begin = self._prefix + prefix
        for key, value in self._database.scan(self._family, begin + since):
            if not key.startswith(begin):
                return
            yield key[len(self._prefix) :], value


_DUE = struct.Struct(">Q")
_BY_URL = (b"seeds\0", b"lastmod\0", b"sitemaps\0", b"revisits\0p")
"""How keys in ``kv`` begin that a state key follows."""
_BY_TIME = (b"revisits\0d",)  # how keys begin that a time and a state key follow


def ranges_of_host(host: str) -> list[Range]:
    begin = host_key(host)
    ranges = [(name, begin, end_of_prefix(begin)) for name in ("queue", "states", "hosts")]
    ranges += [("kv", each + begin, each + end_of_prefix(begin)) for each in _BY_URL]
    return ranges + [("kv", each, each + b"\xff") for each in _BY_TIME]


def _microseconds(when: float) -> bytes:
    return _DUE.pack(max(0, int(when * 1e6)))


class RocksStore(Database):
    """Rows of queues, states of URLs, records of hosts, and the hosts that are due.

    *memory* (bytes) bounds write buffers and block cache together. With *secondary*, a folder of
    its own, it reads a database that another process writes. *power_safe* syncs every batch.
    *archive* and *sieve* are closed with the store. Raises `JobDamagedError`.
    """

    durable = True  # whether rows can be read back; else fronts hold everything

    def __init__(
        self, path: Path, *, memory: int = 80 << 20, power_safe: bool = False,
        secondary: Path | None = None,
    ) -> None:  # fmt: skip
        super().__init__(path, memory, power_safe, secondary)
        self.archive: seen_index.Archive | None = None
        self.sieve: seen_index.SieveIndex | None = None
        self.update_record: Callable[[str, HostRecord], None] = lambda host, record: None
        """Is called with a host and its record before the record is packed, or read meanwhile."""
        self._records: dict[str, HostRecord] = {}  # that changed since the last batch
        # Rows before it were deleted: a scan from the start would walk over their remains.
        self._due_head = b""

    def close(self) -> None:
        try:
            super().close()
        finally:
            if self.archive is not None:
                self.archive.urls.close()
            if self.sieve is not None:
                self.sieve.sieve.close()

    @property
    def backlog(self) -> int:
        return len(self._records) + self.pending_writes.size

    def flush(self) -> None:
        """See `Database.flush`. Records are packed here, each once."""
        self._pack_records()
        super().flush()
        self._records.clear()

    def _pack_records(self) -> None:
        for host, record in self._records.items():
            self.update_record(host, record)
            self.pending_writes.set("hosts", host_key(host), record.to_bytes())

    def checkpoint(self, path: Path) -> None:
        """Copy all that was flushed to the new folder *path*, beside running writes; for a thread.

        Tables are linked if possible. Archive and sieve, which must be locked, are copied. Raises
        `StoreWriteError`; the incomplete copy is deleted then.
        """
        try:
            # The checkpoint does it, too, but with Python's lock held: a crawl would stand still.
            for family in list(self._families.values()):
                family.flush()
            rocksdict.Checkpoint(self._db).create_checkpoint(str(path))
            # After the store: a URL that moves there meanwhile is in both copies.
            if self.archive is not None:
                copy_files(self.archive.urls.path, path / seen_index.ARCHIVE_FOLDER)
            if self.sieve is not None:
                copy_files(self.sieve.sieve.path, path / seen_index.SIEVE_FOLDER)
        except Exception as error:  # the library raises nothing narrower
            rmtree(path, ignore_errors=True)
            rmtree(f"{path}.tmp", ignore_errors=True)
            raise StoreWriteError(f"the store cannot be copied to {path}: {error}") from error

    def erase(self, ranges: Collection[Range]) -> TableRewrite:
        """Begin to rewrite the files with deleted keys of *ranges*; `close` ends it early."""
        self._rewrites = [each for each in self._rewrites if each.is_alive()]
        self._rewrites.append(TableRewrite(self._db, self._families, ranges))
        return self._rewrites[-1]

    def state(self, key: bytes, *, sieved: bool = True) -> bytes | None:
        """The packed `UrlState` under a state key; None: unknown. A URL in the sieve is done.

        Not *sieved*: whatever the sieve says.
        """
        return self.find_states([key], sieved=sieved)[0]

    def find_states(self, keys: list[bytes], *, sieved: bool = True) -> list[bytes | None]:
        """`state` of each of *keys*."""
        found, archive = self.find("states", keys), self.archive
        if archive is not None:
            found = [
                archive.get(key) if state is None else state
                for key, state in zip(keys, found, strict=True)
            ]
        if self.sieve is None or not sieved:
            return found
        try:
            return [
                seen_index.DONE_200 if state is None and self.sieve.has(key) else state
                for key, state in zip(keys, found, strict=True)
            ]
        except JobDamagedError as error:  # the crawl must end
            self.damage = self.damage or str(error)
            raise

    def put_state(self, key: bytes, value: bytes | None) -> None:
        """None deletes."""
        self.pending_writes.set("states", key, value)

    def states(self, prefix: bytes, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """The rest of each state key with *prefix*, beyond *after*, and the packed state."""
        n = len(prefix)
        start = prefix + after + b"\0" if after else prefix
        for key, value in self.scan("states", start, end_of_prefix(prefix) if prefix else None):
            yield key[n:], value

    def rows(self, host: str, after: bytes, limit: int) -> list[Entry]:
        """Up to *limit* rows of *host* behind the order key *after*; those before cost nothing."""
        prefix = host_key(host)
        n = len(prefix)
        start = prefix + after + b"\0" if after else prefix
        rows = self.scan("queue", start, end_of_prefix(prefix), prefix)
        return [unpack_row(host, key[n:], value) for key, value in islice(rows, limit)]

    def put_row(self, entry: Entry) -> None:
        prefix = host_key(entry.host)
        self.pending_writes.set("queue", prefix + entry.key, pack_row(entry), prefix)

    def put_link(self, state_key: bytes, prefix: bytes, order: bytes, row: bytes) -> None:
        """Make a URL pending, with *row* in the queue of the host with the key *prefix*."""
        self.pending_writes.set("states", state_key, PENDING)
        self.pending_writes.set("queue", prefix + order, row, prefix)

    def delete_row(self, host: str, key: bytes) -> None:
        prefix = host_key(host)
        self.pending_writes.set("queue", prefix + key, None, prefix)

    def all_rows(self) -> Iterator[Entry]:
        for key, value in self.pending_writes.overlay_all(self._on_disk("queue"), "queue"):
            end = key.index(b"\0", 2)  # of the host; the slot before it may hold a NUL
            yield unpack_row(key[2:end].decode(), key[end + 1 :], value)

    def record(self, host: str) -> HostRecord | None:
        record = self._records.get(host)
        if record is not None:
            self.update_record(host, record)
            return record
        data = self.get("hosts", host_key(host))
        return None if data is None else HostRecord.from_bytes(data)

    def put_record(self, host: str, record: HostRecord) -> None:
        """Put *record* into the next batch, as it is when the batch is written."""
        self._records[host] = record

    def delete_record(self, host: str) -> None:
        self._records.pop(host, None)
        self.pending_writes.set("hosts", host_key(host), None)

    def records(
        self, begin: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[str, HostRecord]]:
        """The hosts with keys (`host_key`) from *begin* to before *end*, and their records."""
        self._pack_records()
        for key, value in self.scan("hosts", begin, end):
            yield key[2:-1].decode(), HostRecord.from_bytes(value)

    def due(
        self, limit: int | None, since: float = 0.0, after: str = "", *, before: float | None = None
    ) -> list[tuple[float, str]]:
        """Up to *limit* waiting hosts and times (wall), beyond the host *after* at *since*.

        *before*: nothing at that time or behind it is read, nor remains of deleted rows there.
        """
        first = f"{after}\0" if after else ""
        start = max(self._due_head, _microseconds(since) + first.encode())
        end = None if before is None else _microseconds(before)
        keys = (key for key, _ in islice(self.scan("due", start, end), limit))
        rows = [(_DUE.unpack_from(key)[0] / 1e6, key[_DUE.size :].decode()) for key in keys]
        if rows and not (since or after):
            self._due_head = _microseconds(rows[0][0])
        return rows

    def put_due(self, when: float, host: str) -> None:
        key = _microseconds(when)
        self._due_head = min(self._due_head, key)
        self.pending_writes.set("due", key + host.encode(), b"")

    def delete_due(self, when: float, host: str) -> None:
        self.pending_writes.set("due", _microseconds(when) + host.encode(), None)

    def kv(self, name: str) -> KV:
        return FamilyKV(self, "kv", name.encode() + b"\0")


Store = MemoryStore | RocksStore


def open_store(folder: Path, *, memory: int, secondary: Path | None = None) -> RocksStore:
    """Open ``store`` in *folder*, with archive and sieve beside it as far as they exist.

    Arguments as in `RocksStore`; with *secondary* all is read only. Raises `JobDamagedError`.
    """
    path = folder / STORE_FOLDER
    store = RocksStore(path, memory=memory, secondary=secondary)
    try:
        # After the store: a URL that moves there meanwhile is in both.
        open_seen(store, folder, readonly=secondary is not None)
    except BaseException:
        store.close()
        raise
    return store


def open_seen(
    store: RocksStore, folder: Path, *, wanted: str = "", bits: int | None = None,
    capacity: int = CAPACITY, readonly: bool = False,
) -> None:  # fmt: skip
    """Open archive and sieve of *store* in *folder*, as far as they exist and are not open.

    Makes the *wanted* one (``trie`` or ``sieve``). Raises `JobDamagedError`, `StoreWriteError`.
    """
    path = folder / seen_index.ARCHIVE_FOLDER
    if store.archive is None and (wanted == "trie" or (path / CATALOGUE).exists()):
        store.archive = seen_index.Archive(path, readonly=readonly)
    path = folder / seen_index.SIEVE_FOLDER
    if store.sieve is None and (wanted == "sieve" or (path / MANIFEST_NAME).exists()):
        store.sieve = seen_index.SieveIndex(
            path, store.kv(seen_index.DROPPED), bits=bits, capacity=capacity, readonly=readonly
        )


class DamageGuard:
    """A damaged row of *store* ends the block without an error; nothing more is written then."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return isinstance(error, JobDamagedError) and self.note(error)

    def note(self, error: JobDamagedError) -> bool:
        if isinstance(self._store, RocksStore):
            self._store.damage = self._store.damage or str(error)
        return isinstance(self._store, RocksStore)
