"""The rate ledger: one politeness for several processes, about shared hosts and addresses.

A *key* is a host or an address. A *grant* allows one fetch to start within a window. No other grant
is given for the key until its holder reports the end, from which a delay runs (promise 1), or until
the grant expires. A wish (Retry-After, back-off) holds for all.

The rules here and in ``lua/ledger.lua`` are the same. Times are whole milliseconds, relative to the
answer of a call: ages in a batch, offsets in a reply. 0 means never.
"""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Struct
from msgspec.msgpack import decode, encode
from xxhash import xxh3_128_hexdigest

from scrapy_spider_suite.cluster.redis_server import RedisServer, check_crawl_name, load_script
from scrapy_spider_suite.errors import LedgerError, RegistryError
from scrapy_spider_suite.frontier.outcomes import LONGEST_WISH
from scrapy_spider_suite.runtime.clock import boot_id, boottime
from scrapy_spider_suite.runtime.files import lock_file

KEY_MAX: Final = 300  # characters of a key
BATCH: Final = 500  # lines of one call; some milliseconds of Redis's time
WISH_MAX: Final = round(LONGEST_WISH * 1000)  # milliseconds of a delay or a wish, at most
HOLD_MAX: Final = 86_400_000  # milliseconds of a fetch, at most
NOBODY: Final = "0" * 16


def grant_key(kind: Literal["host", "address"], name: str) -> str:
    """Return the key of a host by its pacing name, or of an address in its usual spelling."""
    key = f"{kind} {name}"
    if len(key) <= KEY_MAX:
        return key
    return f"{key[:100]} {xxh3_128_hexdigest(key.encode(errors='surrogatepass'))}"


class FetchEnd(NamedTuple):
    key: str
    serial: int
    ago: int
    delay: int  # from the end on


class ReturnedGrant(NamedTuple):
    """An unused grant, or one that may have been given unnoticed."""

    key: str
    serial: int


class DelayWish(NamedTuple):
    key: str
    wait: int  # in which nobody should fetch


class LedgerLine(NamedTuple):
    """A key of a request; the caller's *serial* again renews the window of the same grant."""

    key: str
    serial: int
    delay: int


class LedgerBatch(NamedTuple):
    """One call; ends and returned grants are applied before requests."""

    process: str  # 16 random hexadecimal digits
    era: int  # of the last reply, or 0
    longest: int  # known delay
    window: int  # of a grant
    hold: int  # after the window, until the grant expires
    ahead: int  # by which a grant may be given early
    ends: tuple[FetchEnd, ...] = ()
    returns: tuple[ReturnedGrant, ...] = ()
    wishes: tuple[DelayWish, ...] = ()
    asks: tuple[tuple[LedgerLine, ...], ...] = ()  # each is granted for all its keys or none


class LedgerAnswer(NamedTuple):
    """A grant from *opens* to *closes* after now; with *closes* 0: ask again in *wait*."""

    opens: int = 0
    closes: int = 0
    wait: int = 0


class LedgerReply(NamedTuple):
    """*era* changes when state may be lost; *longest* delay asked for; *damaged* keys."""

    era: int
    longest: int
    answers: tuple[LedgerAnswer, ...]
    damaged: tuple[str, ...] = ()


class RateLedger(Protocol):
    where: str  # for log lines, without a password

    async def settle(self, batch: LedgerBatch) -> LedgerReply:
        """Apply *batch* at one instant, and answer. Sending it again is safe.

        Raises `LedgerError`: not usable now; the batch may have been applied.
        """

    async def close(self) -> None:
        """Close; never raises."""


KEEP_MAX: Final = 3_600_000
"""Milliseconds for which an end counts for another process, however long its delay is."""
CLAIM_SLACK: Final = 250  # how late the next process may return before another one gets the key
SOONEST, LATEST = 50, 2_000  # bounds of when to ask again for a held key: half a delay


class Account(Struct, array_like=True):
    """The state of one key."""

    ended: float = 0
    due: float = 0  # no fetch before it
    opens: float = 0
    closes: float = 0
    until: float = 0  # when the grant of *holder* expires
    delay: float = 0  # that fetches of *holder* need
    serial: float = 0
    claimed: float = 0  # until when *claimant* is next
    holder: str = NOBODY
    claimant: str = NOBODY

    def has(self, process: str, serial: int, now: int) -> bool:
        return self.held(now) and self.holder == process and self.serial == serial

    def held(self, now: int) -> bool:
        return self.holder != NOBODY and self.until > now

    def expires(self, keep: float) -> float:
        """Return when the account may be removed, if ends are kept for *keep*."""
        held = self.until + max(self.delay, keep) if self.holder != NOBODY else 0
        ended = self.ended + keep if self.ended else 0
        return max(self.due, ended, held, self.claimed)

    def end(self, process: str, end: FetchEnd, now: int) -> None:
        at = max(0, now + 1 - end.ago)  # the millisecond has begun: no gap may lack one
        self.ended, self.due = max(self.ended, at), max(self.due, at + end.delay)
        self.drop(process, end.serial)

    def drop(self, process: str, serial: int) -> None:
        if self.holder == process and self.serial == serial:
            self.holder = NOBODY
            self.opens = self.closes = self.until = self.delay = self.serial = 0


class LedgerMarker(Struct, array_like=True):
    """The state of all keys."""

    era: float = 0
    quiet: float = 0  # no grant before it, after a loss
    floor: float = 0  # when a fetch of an unknown key may have ended
    longest: float = 0  # delay so far
    run: str = ""  # of the server or machine

    @property
    def keep(self) -> float:
        return min(self.longest, KEEP_MAX)


def updated_marker(
    marker: LedgerMarker | None, batch: LedgerBatch, now: int, run: str, uptime: int
) -> LedgerMarker:
    """Return the marker for a call at *now*, *uptime* after the *run* began."""
    span = batch.window + batch.hold + batch.longest
    if marker is None or marker.run != run:
        # A new era: for a grant and a delay unknown fetches may be out.
        since = now if marker is None and batch.era else max(0, now - uptime)
        marker = LedgerMarker(max(now, batch.era + 1), 0, 0, batch.longest, run)
        if since + span > now:
            marker.quiet, marker.floor = since + span, since + batch.window + batch.hold
    elif batch.era and batch.era != marker.era:
        # It comes from before a loss, of which who began the era may not have known.
        marker.quiet = max(marker.quiet, marker.era + span)
        marker.floor = max(marker.floor, marker.era + batch.window + batch.hold)
    if batch.longest > marker.longest:
        marker.floor = max(marker.floor, now - marker.keep)
        marker.longest = batch.longest
    return marker


def apply_batch(
    account_of: Callable[[str], Account], batch: LedgerBatch, marker: LedgerMarker, now: int
) -> tuple[LedgerAnswer, ...]:
    """Apply *batch* to the accounts of its keys; answer its requests."""
    for end in batch.ends:
        account_of(end.key).end(batch.process, end, now)
    for returned in batch.returns:
        account_of(returned.key).drop(batch.process, returned.serial)
    for wish in batch.wishes:
        account = account_of(wish.key)
        account.due = max(account.due, now + wish.wait)
    return tuple(
        _asked([account_of(line.key) for line in lines], lines, marker, batch, now)
        for lines in batch.asks
    )


def _asked(
    accounts: Sequence[Account], lines: Sequence[LedgerLine], marker: LedgerMarker,
    batch: LedgerBatch, now: int,
) -> LedgerAnswer:  # fmt: skip
    process, opens, claimed, waits = batch.process, float(now), False, []
    for account, line in zip(accounts, lines, strict=True):
        wait = 0.0
        if account.has(process, line.serial, now):
            opens = max(opens, account.opens)
        else:
            poll = min(max(line.delay // 2, SOONEST), LATEST)
            if account.claimed > now and account.claimant != process:
                claimed = True
                wait = max(2 * poll, account.claimed - CLAIM_SLACK - now)
            if account.held(now):
                wait = max(wait, poll + max(0, account.opens - now))
            else:
                free = _free(account, line.delay, marker)
                opens, wait = max(opens, free), max(wait, free - now - batch.ahead)
        waits.append(wait)
    wait = max(0.0, opens - now - batch.ahead, *waits)
    if wait > 0:
        late = [each for each, own in zip(accounts, waits, strict=True) if own > wait - CLAIM_SLACK]
        _claim(accounts if claimed else late, process, now + wait, claimed)
        return LedgerAnswer(wait=math.ceil(wait))
    for account, line in zip(accounts, lines, strict=True):
        if account.claimant == process:
            account.claimed, account.claimant = 0, NOBODY
        if not account.held(now):
            account.opens = opens
        account.closes = opens + batch.window
        account.until = max(account.until, account.closes + batch.hold)
        account.holder, account.serial, account.delay = process, line.serial, line.delay
    ahead = round(opens - now)
    return LedgerAnswer(ahead, ahead + batch.window)


def _free(account: Account, delay: int, marker: LedgerMarker) -> float:
    at = max(account.due, marker.quiet)
    if marker.floor:
        at = max(at, marker.floor + min(delay, KEEP_MAX))
    if account.ended:
        at = max(at, account.ended + delay)
    if account.holder != NOBODY:  # it ran out, as if its fetch had ended then
        at = max(at, account.until + max(account.delay, delay))
    return at


def _claim(accounts: Sequence[Account], process: str, until: float, claimed: bool) -> None:
    # Not if another process claims one: two that wait for each other would wait for ever.
    for account in accounts:
        if not claimed:
            account.claimant, account.claimed = process, until + CLAIM_SLACK
        elif account.claimant == process:
            account.claimed, account.claimant = 0, NOBODY


# In an SQLite file, for the processes of a machine

_SPARE: Final = 16  # expired accounts removed with a call, beside twice as many as its keys
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
    """`RateLedger` in the file *path*, whose folder exists; not for network file systems.

    *timeout*: seconds to wait for other processes. *clock*: milliseconds of ``CLOCK_BOOTTIME``,
    which restarts with the machine, and so does the ledger. *run*: see `boot_id`.
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
        accounts: dict[str, Account] = {}

        def account_of(key: str) -> Account:
            if key not in accounts:
                row = file.execute("SELECT row FROM accounts WHERE key = ?", (key,)).fetchone()
                accounts[key] = Account() if row is None else decode(row[0], type=Account)
            return accounts[key]

        with self._transaction() as file:
            now = self._clock()  # the others have finished
            marker = self._updated_marker(file, batch, now)
            answers = apply_batch(account_of, batch, marker, now)
            file.executemany(
                "REPLACE INTO accounts VALUES (?, ?, ?)",
                [(key, each.expires(marker.keep), encode(each)) for key, each in accounts.items()],
            )
            file.execute(_PURGE, (now, 2 * len(accounts) + _SPARE))
        return LedgerReply(int(marker.era), int(marker.longest), answers)

    def _updated_marker(
        self, file: sqlite3.Connection, batch: LedgerBatch, now: int
    ) -> LedgerMarker:
        row = file.execute("SELECT row FROM marker").fetchone()
        old = None if row is None else decode(row[0], type=LedgerMarker)
        if old is not None and old.run != self._run:
            file.execute("DELETE FROM accounts")  # times of another clock
        marker = updated_marker(old, batch, now, self._run, now)
        if row is None or encode(marker) != row[0]:
            file.execute("REPLACE INTO marker VALUES (1, ?)", (encode(marker),))
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
        except (sqlite3.Error, msgspec.DecodeError, OSError) as error:
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
        foreign = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
        if foreign or isinstance(error, msgspec.DecodeError):
            text = f"{self.where} holds what the suite did not write: {error}"
            return LedgerError(text, "damaged")
        if code == sqlite3.SQLITE_FULL:
            return LedgerError(f"{self.where} cannot grow: {error}", "memory")
        return LedgerError(f"{self.where} cannot be used: {error}", "away")


# In Redis

_RedisReply = tuple[int, int, list[LedgerAnswer], list[int]]


class RedisLedger:
    """`RateLedger` under ``suite:ledger:{NAME}``, which crawls of one *name* share.

    250 bytes a host. Raises `ValueError`: invalid URL or name.
    """

    def __init__(self, url: str, name: str, timeout: float = 5.0) -> None:
        check_crawl_name(name)
        self._server = RedisServer(url, timeout)
        self._script = load_script("world", "ledger")
        self._marker = f"suite:ledger:{{{name}}}"
        self._looked = False
        self.where = f"Redis at {self._server.where}"

    async def settle(self, batch: LedgerBatch) -> LedgerReply:
        lines: Iterable[Any] = chain(batch.ends, batch.returns, batch.wishes, *batch.asks)
        keys = list(dict.fromkeys(line.key for line in lines))
        names = [self._marker, *(f"{self._marker}:{key}" for key in keys)]
        try:
            if not self._looked and (evicting := await self._server.evicting()):
                raise LedgerError(evicting, "eviction")
            self._looked = True
            found = await self._server.run(self._script, names, _pack_batch(batch, keys))
        except RegistryError as error:
            self._looked = False  # the next one that answers may be another server
            raise LedgerError(str(error), error.kind) from error
        era, longest, answers, damaged = decode(found[0], type=_RedisReply)
        return LedgerReply(era, longest, tuple(answers), tuple(keys[index] for index in damaged))

    async def close(self) -> None:
        await self._server.close()


def _pack_batch(batch: LedgerBatch, keys: Sequence[str]) -> bytes:
    indexes = {key: index for index, key in enumerate(keys)}

    def numbered(lines: Any) -> list[list[Any]]:
        return [[indexes[line.key], *line[1:]] for line in lines]

    return encode([
        *batch[:6], *map(numbered, (batch.ends, batch.returns, batch.wishes)),
        [numbered(ask) for ask in batch.asks],
    ])  # fmt: skip
