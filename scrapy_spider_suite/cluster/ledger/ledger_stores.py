"""The rate ledger in an SQLite file, for the processes of a machine, and in Redis.

File: a call is one transaction in a thread; its clock, ``CLOCK_BOOTTIME``, restarts with the
machine, and so does the ledger. Not for network file systems. Redis: one script, Redis's time, keys
that expire.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from scrapy_spider_suite.cluster.ledger import rate_ledger
from scrapy_spider_suite.cluster.ledger.rate_ledger import (
    Account,
    LedgerBatch,
    LedgerMarker,
    LedgerReply,
    pack_batch,
    unpack_reply,
)
from scrapy_spider_suite.cluster.redis_server import RedisServer, check_crawl_name, load_script
from scrapy_spider_suite.errors import LedgerError, RegistryError
from scrapy_spider_suite.runtime.clock import boot_id, boottime
from scrapy_spider_suite.runtime.files import lock_file

_SPARE: Final = 16  # expired accounts removed with a call, beside as many as its keys

_LOCK: Final = ".lock"  # suffix of the file that is locked while the database is opened
_POLL: Final = 0.05  # seconds between two tries to lock it

_OURS: Final = 0x53554C31
_TABLES: Final = f"""
PRAGMA journal_mode = wal;
PRAGMA application_id = {_OURS};
CREATE TABLE IF NOT EXISTS marker (one INTEGER PRIMARY KEY, row BLOB);
CREATE TABLE IF NOT EXISTS accounts (key TEXT PRIMARY KEY, over REAL, row BLOB) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS overs ON accounts (over);
"""
_PURGE: Final = """
DELETE FROM accounts WHERE key IN (SELECT key FROM accounts WHERE over <= ? ORDER BY over LIMIT ?)
"""


class FileLedger:
    """`RateLedger` in the file *path*, whose folder exists.

    Args:
        timeout: seconds to wait for other processes.
        clock: milliseconds of ``CLOCK_BOOTTIME``.
        run: see `boot_id`.
    """

    def __init__(
        self, path: Path, timeout: float = 5.0, *,
        clock: Callable[[], int] = lambda: int(boottime() * 1000), run: str | None = None,
    ) -> None:  # fmt: skip
        self._path = path
        self._timeout = timeout
        self._clock = clock
        self._run = boot_id() if run is None else run
        self._thread = ThreadPoolExecutor(1, "ledger")
        self._file: sqlite3.Connection | None = None
        self._inode = 0
        self.where = f"the ledger {path}"

    async def settle(self, batch: LedgerBatch) -> LedgerReply:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._settle, batch)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    def _settle(self, batch: LedgerBatch) -> LedgerReply:
        with self._transaction() as file:
            now = self._clock()  # the others have finished
            marker = self._attended(file, batch, now)
            book = _Accounts(file, now)
            answers = rate_ledger.apply_batch(book.account, batch, marker, now)
            book.write(marker.keep)
            file.execute(_PURGE, (now, len(book.accounts) + _SPARE))
        damaged = tuple(key for key, account in book.accounts.items() if account is None)
        return LedgerReply(int(marker.era), int(marker.longest), answers, damaged)

    def _attended(self, file: sqlite3.Connection, batch: LedgerBatch, now: int) -> LedgerMarker:
        row = file.execute("SELECT row FROM marker").fetchone()
        try:
            old = None if row is None else LedgerMarker.unpack(row[0])
        except ValueError as error:
            text = f"{self.where} holds what the suite did not write"
            raise LedgerError(text, "damaged") from error
        if old is not None and old.run != self._run:
            file.execute("DELETE FROM accounts")  # times of another clock
        marker = rate_ledger.updated_marker(old, batch, now, self._run, now)
        if (packed := marker.pack()) != (row and row[0]):
            file.execute("REPLACE INTO marker VALUES (1, ?)", (packed,))
        return marker

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            file = self._opened()
            file.execute("BEGIN IMMEDIATE")
            try:
                yield file
            except BaseException:
                file.execute("ROLLBACK")
                raise
            file.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            self._close()
            raise self._said(error) from error

    def _opened(self) -> sqlite3.Connection:
        """Return the database at the path; reopen a replaced file."""
        if self._file is not None and self._seen() != self._inode:
            self._close()
        if self._file is None:
            self._file = sqlite3.connect(
                self._path, self._timeout, isolation_level=None, check_same_thread=False
            )
            with self._alone():
                self._prepare(self._file)
            self._inode = self._seen()
        return self._file

    @contextmanager
    def _alone(self) -> Iterator[None]:
        # SQLite does not wait for others while it changes the journal of a new file. The lock is a
        # file of its own: anybody may hold the folder's, and for as long as a crawl takes.
        lock = os.open(f"{self._path}{_LOCK}", os.O_RDONLY | os.O_CREAT, 0o666)
        until = time.monotonic() + self._timeout
        try:
            while not lock_file(lock):
                if time.monotonic() > until:
                    raise TimeoutError(f"another process has locked {self._path}{_LOCK}")
                time.sleep(_POLL)
            yield
        finally:
            os.close(lock)

    def _prepare(self, file: sqlite3.Connection) -> None:
        (whose,) = file.execute("PRAGMA application_id").fetchone()
        if whose != _OURS:
            if file.execute("SELECT 1 FROM sqlite_master").fetchone() or whose:
                raise LedgerError(f"{self.where} is a database of somebody else", "damaged")
            file.executescript(_TABLES)
        file.execute("PRAGMA synchronous = normal")

    def _seen(self) -> int:
        try:
            return os.stat(self._path).st_ino
        except FileNotFoundError:
            return 0

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _said(self, error: Exception) -> LedgerError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            text = f"{self.where} holds what the suite did not write: {error}"
            return LedgerError(text, "damaged")
        if code == sqlite3.SQLITE_FULL:
            return LedgerError(f"{self.where} cannot grow: {error}", "memory")
        return LedgerError(f"{self.where} cannot be used: {error}", "away")


class _Accounts:
    """The accounts of one call, read when needed; None: damaged."""

    def __init__(self, file: sqlite3.Connection, now: int) -> None:
        self._file = file
        self._now = now
        self.accounts: dict[str, Account | None] = {}

    def account(self, key: str) -> Account | None:
        if key not in self.accounts:
            row = self._file.execute("SELECT row FROM accounts WHERE key = ?", (key,)).fetchone()
            try:
                known = Account() if row is None else Account.unpack(row[0], self._now)
            except ValueError:
                known = None
            self.accounts[key] = known
        return self.accounts[key]

    def write(self, keep: float) -> None:
        known = [(key, each) for key, each in self.accounts.items() if each is not None]
        rows = [(key, each.expires(keep), each.pack()) for key, each in known]
        over = [(key,) for key, expires, _ in rows if expires <= self._now]
        self._file.executemany(
            "REPLACE INTO accounts VALUES (?, ?, ?)", [row for row in rows if row[1] > self._now]
        )
        self._file.executemany("DELETE FROM accounts WHERE key = ?", over)


class RedisLedger:
    """`RateLedger` under ``suite:ledger:{NAME}``, 250 bytes a host; crawls of one *name* share it.

    Raises:
        ValueError: invalid URL or name.
    """

    def __init__(self, url: str, name: str, timeout: float = 5.0) -> None:
        check_crawl_name(name)
        self._server = RedisServer(url, timeout)
        self._script = load_script("world", "ledger")
        self._marker = f"suite:ledger:{{{name}}}"
        self._looked = False
        self.where = f"Redis at {self._server.where}"

    async def settle(self, batch: LedgerBatch) -> LedgerReply:
        keys = batch.all_keys()
        data = pack_batch(batch, {key: index for index, key in enumerate(keys)})
        names = [self._marker, *(f"{self._marker}:{key}" for key in keys)]
        try:
            if not self._looked and (evicting := await self._server.evicting()):
                raise LedgerError(evicting, "eviction")
            self._looked = True
            found = await self._server.run(self._script, names, data)
        except RegistryError as error:
            self._looked = False  # the next one that answers may be another server
            raise LedgerError(self._named(error), error.kind) from error
        try:
            return unpack_reply(found[0], batch, keys)
        except (ValueError, TypeError, IndexError) as error:
            text = f"{self.where} answers what the suite did not write: {error}"
            raise LedgerError(text, "damaged") from error

    async def close(self) -> None:
        await self._server.close()

    def _named(self, error: RegistryError) -> str:
        # Of the keys of fetches the script reports each by itself; the marker is what is left.
        known = error.kind != "type" or self._marker in str(error)
        return str(error) if known else f"{error} ({self._marker})"
