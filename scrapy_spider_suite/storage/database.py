"""One RocksDB with a family per kind of row, and the batch that waits to be written to it.

The database and every family are opened in raw mode: bytes in, bytes out. The library's
default mode unpickles what it reads, which no one may make us do (promise 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
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
from scrapy_spider_suite.storage.erasing import Eraser, Range
from scrapy_spider_suite.storage.tuning import Tuning
from scrapy_spider_suite.storage.unwritten import Row, Unwritten

FAMILIES = ("hosts", "due", "queue", "states", "kv", "meta")


class Database:
    """See `RocksStore`, whose lower half this is: what rows mean is none of its business.

    Attributes:
        damage: what could not be read, "" as a rule. From then on nothing is written: half of what
            an operation says may wait.
    """

    def __init__(
        self, path: Path, *, memory: int = 80 << 20, power_safe: bool = False,
        secondary: Path | None = None,
    ) -> None:  # fmt: skip
        self.damage = ""
        self._path = path
        self._secondary = secondary
        self._tuning = Tuning(memory)
        self._write_options = WriteOptions()
        self._write_options.sync = power_safe
        self._unwritten = Unwritten()
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
        options = self._tuning.options(root=True)
        if self._secondary is not None:
            options.set_max_open_files(-1)  # the process that writes may remove them meanwhile
        self._db = Rdict(
            str(self._path),
            options=options,
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
        if self.damage:
            raise StoreWriteError(f"{self.damage}: nothing more is written")
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

    def erase_keys(self, ranges: Sequence[Range]) -> Eraser:
        """Begin to rewrite the files in which deleted keys of *ranges* may still lie.

        It goes on beside what follows; closing the store cuts it short.
        """
        self._erasers = [each for each in self._erasers if each.is_alive()]
        eraser = Eraser(self._db, self._families, ranges)
        self._erasers.append(eraser)
        return eraser

    def copy(self, path: Path, beside: Callable[[], None]) -> None:
        """Make a copy of all that was flushed in the new folder *path*, and do *beside*.

        On one file system tables are linked, not copied. For a thread of its own. Raises
        `StoreWriteError`; nothing is left of the copy then.
        """
        try:
            # The checkpoint does it, too, but with Python's lock held: a crawl would stand still.
            for family in list(self._families.values()):
                family.flush()
            Checkpoint(self._db).create_checkpoint(str(path))
            beside()
        except Exception as error:  # the library raises nothing narrower
            rmtree(path, ignore_errors=True)
            rmtree(f"{path}.tmp", ignore_errors=True)
            raise StoreWriteError(f"the store cannot be copied to {path}: {error}") from error

    # Reading: what is on disk, under what waits to be written

    def _get(self, family: str, key: bytes) -> bytes | None:
        waits, value = self._unwritten.find(family, key)
        if waits:
            return value
        rows = self._families[family]
        try:
            found: bytes | None = rows.get(key)
        except Exception as error:  # the library raises nothing narrower
            raise self._damaged(error) from error
        return found

    def _damaged(self, error: Exception) -> JobDamagedError:
        self.damage = f"the store in {self._path} cannot be read: {error}"
        return JobDamagedError(self.damage)

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
        try:
            rows.status()  # it ends at what it cannot read, too
        except Exception as error:  # the library raises nothing narrower
            raise self._damaged(error) from error
