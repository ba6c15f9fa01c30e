"""Connections, kept open between fetches where that pays.

Invariant: a connection is in the pool if and only if it is open, has no conversation, and its
server is believed to keep it. Idle connections are bounded in number (the least recently used goes
first) and in time (a sweep a second, no timer per connection). All connections together are bounded
too, since the rest of the process needs files as well: a database, name look-ups, even imports.

Opening a connection to one address, and what its failure means to Scrapy.

How many files this process may have open, raised as far as it goes.

How many connections a crawl keeps open, and for how long each.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import ssl
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
)

from scrapy_spider_suite.errors import OutOfFilesError

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_spider_suite.fetch.exchange import Exchange

logger = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 1.0
FILES_FREED: Final = 16
"""Idle connections closed at once when the process is out of files."""
WAITS_FOR_FILES: Final = (0.001, 0.002, 0.004, 0.008, 0.016)
"""Seconds between attempts to connect once no idle connection is left to close: those that others
are closing give their files back a turn or two of the loop later."""


class Key(NamedTuple):
    """What two fetches must have in common to share a connection.

    The address is part of it: a name whose address changed must not go on talking to the old one.
    """

    address: str
    scheme: str
    host: str
    port: int
    bind: tuple[str, int] | None


class Conversation(Protocol):
    """What a connection reports to while a request is out on it."""

    def received(self, data: bytes) -> None:
        """Take the bytes that came."""

    def disconnected(self, error: Exception | None) -> None:
        """Learn that the connection ended, orderly when *error* is None."""


class Connection(asyncio.Protocol):
    """One TCP or TLS connection and what is going on on it.

    Attributes:
        key: what it may be used for.
        peer: the address that it really is connected to.
        fetches: requests sent on it so far.
        certificate: the server's, set by the handler once it was asked for.
        idle_until: loop time, in seconds, after which it is closed if nobody took it.
    """

    __slots__ = (
        "_conversation", "_holds_slot", "_pool", "_transport", "certificate", "fetches",
        "idle_until", "key", "peer",
    )  # fmt: skip

    def __init__(self, pool: Pool, key: Key) -> None:
        self._pool = pool
        self._conversation: Conversation | None = None
        self._holds_slot = False
        self._transport: asyncio.Transport | None = None
        self.key = key
        self.peer: ipaddress.IPv4Address | ipaddress.IPv6Address | None = None
        self.fetches = 0
        self.certificate: Any = None
        self.idle_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """The TLS state, None over plain TCP."""
        return self._transport.get_extra_info("ssl_object") if self._transport else None

    def admit(self) -> None:
        """Give the slot back that was taken for this connection, but not before it is closed."""
        if self._transport is None:
            self._pool.slots.release()
        else:
            self._holds_slot = True

    def send(self, request: bytes, conversation: Conversation) -> None:
        """Send *request*; *conversation* gets all that follows, until :meth:`hang_up`."""
        self.fetches += 1
        if self._transport is None:
            conversation.disconnected(None)
        else:
            self._conversation = conversation
            self._transport.write(request)

    def hang_up(self) -> None:
        """End the conversation; the connection stays open."""
        self._conversation = None

    def close(self) -> None:
        """Close at once. A polite TLS farewell would hold the file until the server answers it."""
        self._conversation = None
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport and note who is at the other end."""
        self._transport = transport  # type: ignore[assignment]
        name = transport.get_extra_info("peername")
        if name:
            self.peer = ipaddress.ip_address(name[0].partition("%")[0])

    def data_received(self, data: bytes) -> None:
        """Hand on what came; bytes that nobody asked for end an idle connection."""
        if self._conversation is not None:
            self._conversation.received(data)
        else:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits, and the pool."""
        self._transport = None
        if self._holds_slot:
            self._holds_slot = False
            self._pool.slots.release()
        self._pool.forget(self)
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            conversation.disconnected(exc)


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """What a pool has done and holds.

    Attributes:
        idle: connections that wait for a fetch.
        limit: how many may.
        opened: connections made.
        reused: fetches on a connection that was already there.
        evicted: idle connections closed to make room.
        expired: idle connections closed because their time was over.
        retried: fetches sent again because the server closed the connection just then.
        out_of_files: attempts to connect that failed for want of a file descriptor.
    """

    idle: int
    limit: int
    opened: int
    reused: int
    evicted: int
    expired: int
    retried: int
    out_of_files: int


class Pool:
    """Idle connections by key, at most *limit* of them.

    Everything here belongs to the thread of one event loop.

    Attributes:
        slots: one for each connection that may be open, idle or not; taken before connecting.
    """

    def __init__(self, limit: int, capacity: int) -> None:
        self.limit = max(1, limit)
        self.slots = asyncio.Semaphore(max(1, capacity))
        self.opened = self.reused = self.retried = self.out_of_files = 0
        self._evicted = self._expired = 0
        self._by_key: dict[Key, list[Connection]] = {}
        self._by_age: OrderedDict[Connection, None] = OrderedDict()  # least recently used first
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    def take(self, key: Key) -> Connection | None:
        """Return an open connection for *key*, the one used last, or None."""
        while connections := self._by_key.get(key):
            connection = connections[-1]
            self.forget(connection)
            if connection.is_open:
                self.reused += 1
                return connection
        return None

    def put(self, connection: Connection, seconds: float) -> None:
        """Keep *connection*, whose conversation is over, for at most *seconds*.

        It is closed instead where no slot is left: somebody may be waiting for one.
        """
        if not connection.is_open:
            return
        if self.slots.locked():
            connection.close()
            return
        while len(self._by_age) >= self.limit:
            self._evict()
        loop = self._running_loop()
        connection.idle_until = loop.time() + seconds
        self._by_key.setdefault(connection.key, []).append(connection)
        self._by_age[connection] = None
        if self._sweeper is None:
            self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)

    def forget(self, connection: Connection) -> None:
        """Take *connection* out of the pool, if it is there."""
        if connection not in self._by_age:
            return
        del self._by_age[connection]
        connections = self._by_key[connection.key]
        connections.remove(connection)
        if not connections:
            del self._by_key[connection.key]

    def free_files(self, most: int = FILES_FREED) -> int:
        """Close *most* of the idle connections, oldest first; return how many there were."""
        count = min(most, len(self._by_age))
        for _ in range(count):
            self._evict()
        return count

    def close(self) -> None:
        """Close all idle connections; the pool can be used again."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self._by_age):
            self.forget(connection)
            connection.close()

    def statistics(self) -> PoolStatistics:
        """Return what the pool holds and has done."""
        return PoolStatistics(
            len(self._by_age), self.limit, self.opened, self.reused, self._evicted, self._expired,
            self.retried, self.out_of_files,
        )  # fmt: skip

    def _evict(self) -> None:
        oldest = next(iter(self._by_age))
        self.forget(oldest)
        oldest.close()
        self._evicted += 1

    def _sweep(self) -> None:
        """Close what has been idle for too long; look again in a second if any is left."""
        loop = self._running_loop()
        now = loop.time()
        for connection in [c for c in self._by_age if c.idle_until <= now]:
            self.forget(connection)
            connection.close()
            self._expired += 1
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep) if self._by_age else None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop


if TYPE_CHECKING:
    pass

CONNECT_FAILURES = (
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
)
"""Failures of one address, after which another address of the host may be tried."""


async def connect(
    pool: Pool, key: Key, tls: ssl.SSLContext | None, timeout: asyncio.Timeout
) -> Connection:
    """Open a connection to *key*'s address; over TLS the server is asked for *key*'s host.

    Where as many connections are open as the process can bear, an idle one is closed, or this waits
    for the end of another; that time does not count against *timeout*. Out of files all the same,
    more idle connections are closed before another attempt, and then some attempts more are made.

    Raises:
        OutOfFilesError: there is no file left, with all idle connections closed.
        CannotResolveHostError: the host is nothing that TLS can ask for.
        DownloadConnectionRefusedError, DownloadTimeoutError, DownloadFailedError.
    """
    name = _server_name(key.host) if tls else None
    if pool.slots.locked():
        await _wait_for_slot(pool, timeout)
    else:
        await pool.slots.acquire()
    try:
        connection = await _connect_or_make_room(pool, key, tls, name)
    except BaseException:  # a cancelled attempt has a slot to give back, too
        pool.slots.release()
        raise
    connection.admit()
    pool.opened += 1
    return connection


async def _wait_for_slot(pool: Pool, timeout: asyncio.Timeout) -> None:
    loop, deadline = asyncio.get_running_loop(), timeout.when()
    waiting_since = loop.time()
    pool.free_files(1)
    timeout.reschedule(None)
    await pool.slots.acquire()
    if deadline is not None:
        timeout.reschedule(deadline + loop.time() - waiting_since)


async def _connect_or_make_room(
    pool: Pool, key: Key, tls: ssl.SSLContext | None, name: str | None
) -> Connection:
    waits = iter(WAITS_FOR_FILES)
    while True:
        try:
            return await _connect(pool, key, tls, name)
        except OSError as error:
            if isinstance(error, ssl.SSLError) or error.errno not in OUT_OF_FILES:
                raise _translated(error, key) from error
            pool.out_of_files += 1
            wait = WAITS_FOR_FILES[0] if pool.free_files() else next(waits, None)
            if wait is None:
                raise OutOfFilesError(f"cannot connect to {key.address}: {error}") from error
            await asyncio.sleep(wait)  # the loop's next rounds give the files back


async def _connect(
    pool: Pool, key: Key, tls: ssl.SSLContext | None, name: str | None
) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: Connection(pool, key),
        key.address,
        key.port,
        ssl=tls,
        server_hostname=name,
        local_addr=key.bind,
        flags=socket.AI_NUMERICHOST,  # nothing but the booked address is ever connected to
    )
    return connection


def _server_name(host: str) -> str:
    """Return what a server is asked for over TLS.

    ``ssl`` encodes the name too, but only when the socket is open, which asyncio then leaves so.
    """
    name = host.rstrip(".")
    try:
        if name.encode("idna"):
            return name
    except UnicodeError as error:
        raise CannotResolveHostError(f"{host[:200]!r}: {error}") from error
    raise CannotResolveHostError(f"{host[:200]!r} is no host")


def _translated(error: OSError, key: Key) -> Exception:
    """Return Scrapy's exception for what went wrong while connecting."""
    message = f"{key.host} at {key.address} port {key.port}: {error}"
    if isinstance(error, ssl.SSLError):
        return DownloadFailedError(message)
    if error.errno == errno.ECONNREFUSED:
        return DownloadConnectionRefusedError(message)
    if error.errno == errno.ETIMEDOUT:
        return DownloadTimeoutError(message)
    return DownloadFailedError(message)


_UNKNOWN: Final = 1_024
"""Assumed where the system does not tell (Windows: select() stops at 512, proactors do not)."""
_ENOUGH: Final = (1 << 20, 1 << 16, 10_240)
"""Tried in turn where the hard limit is "infinity", which not every system lets one set."""


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one; return the limit that holds then.

    Every idle connection is an open file, and many systems start programs with 256 or 1,024.
    """
    try:
        import resource
    except ImportError:
        return _UNKNOWN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    for wanted in _ENOUGH if hard == infinite else (hard, *(n for n in _ENOUGH if n < hard)):
        if soft == infinite or soft >= wanted:
            break
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            logger.debug("Raised the limit of open files from %d to %d", soft, wanted)
            soft = wanted
    return _ENOUGH[0] if soft == infinite else soft


IDLE_SECONDS: Final = 15.0
"""How long an idle connection is kept to a server that does not say how long it does."""
SERVER_IDLE_SECONDS: Final = 5.0
"""How long such a server is believed to keep it (Apache's and Node's default)."""
MAX_IDLE_SECONDS: Final = 120.0
"""Longest that any is kept, whatever the server says."""
_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
"""The list is Twisted's."""

_pools: WeakKeyDictionary[Crawler, Pool] = WeakKeyDictionary()


def crawler_pool(crawler: Crawler) -> Pool:
    """Return the connections of *crawler*: one pool for both schemes, so that its bound is one."""
    if crawler not in _pools:
        files = raise_file_limit()
        _pools[crawler] = Pool(idle_limit(files), capacity=files - files // 4)
    return _pools[crawler]


def idle_limit(files: int) -> int:
    """Return how many idle connections a process of so many *files* may keep."""
    return max(1, files // 4)


def seconds_to_keep(request: Request, exchange: Exchange) -> float:
    """Return how long the connection may idle after *exchange*; 0 closes it.

    It is closed if the server would close it before the next fetch from this host anyway: an open
    file less, and no race with the server's own closing.
    """
    if not exchange.leaves_connection_usable or _asks_to_close(request):
        return 0.0
    promised = exchange.reader.keep_alive_timeout
    next_fetch = request.meta.get("suite_keep_alive")
    if next_fetch is not None:
        kept = SERVER_IDLE_SECONDS if promised is None else promised
        if next_fetch > kept:
            return 0.0
    return IDLE_SECONDS if promised is None else min(promised, MAX_IDLE_SECONDS)


def may_be_sent_again(request: Request) -> bool:
    """Whether *request* may be sent twice, when a kept connection turns out to be dead."""
    return request.method in _IDEMPOTENT and not request.body


def _asks_to_close(request: Request) -> bool:
    values: list[bytes] | None = dict.get(request.headers, b"Connection")
    return values is not None and b"close" in b",".join(values).lower()


OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What the system answers to ``socket`` and ``connect`` when we, not the server, ran short."""
