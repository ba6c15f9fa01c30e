"""Connections of a crawl: opened, kept open between fetches, and bounded; Scrapy's TLS settings.

Invariant: a connection is in the pool if and only if it is open, has no listener, and its server is
believed to keep it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import resource
import socket
import ssl
import sys
from collections import OrderedDict
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from scrapy import exceptions
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings, default_settings

from scrapy_spider_suite.errors import OutOfFilesError

logger = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 1.0
FILES_FREED: Final = 16  # idle connections closed at once when the process is out of files
_COUNTS: Final = (
    "opened", "reused", "evicted", "expired", "retried", "out_of_files", "pipelined",
    "pipelines_broken",
)  # fmt: skip
WAITS_FOR_FILES: Final = (0.001, 0.002, 0.004, 0.008, 0.016)
"""Seconds between attempts to connect once no idle connection is left to close: connections that
are being closed give their files back a turn or two of the loop later."""


class ConnectionKey(NamedTuple):
    address: str
    scheme: str
    host: str
    port: int
    bind: tuple[str, int] | None


class ConnectionListener(Protocol):
    def received(self, data: bytes) -> None: ...
    def disconnected(self, error: Exception | None) -> None: ...


class Connection(asyncio.Protocol):
    """One TCP or TLS connection; without a *listener* it is idle, until *idle_until* (loop)."""

    __slots__ = (
        "_holds_slot", "_pool", "_transport", "certificate", "fetches", "idle_until", "key",
        "listener", "peer", "tls_protocols",
    )  # fmt: skip

    def __init__(self, pool: ConnectionPool, key: ConnectionKey) -> None:
        self._pool = pool
        self.listener: ConnectionListener | None = None
        self._holds_slot = False
        self._transport: asyncio.Transport | None = None
        self.key = key
        self.peer = ""
        self.fetches = 0
        self.certificate: Any = None
        self.tls_protocols: tuple[str, ...] = ()
        self.idle_until = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """The TLS state, None over plain TCP."""
        return self._transport.get_extra_info("ssl_object") if self._transport else None

    def hold_slot(self) -> None:
        if self._transport is None:
            self._pool.slots.release()
        else:
            self._holds_slot = True

    def send(self, request: bytes, listener: ConnectionListener) -> None:
        """Send *request*; *listener* gets the answer, until `listener` is None again."""
        self.fetches += 1
        if self._transport is None:
            listener.disconnected(None)
        else:
            self.listener = listener
            self._transport.write(request)

    def close(self) -> None:
        """Close at once: a TLS shutdown would wait for the server's answer."""
        self.listener = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        name = transport.get_extra_info("peername")
        if name:
            self.peer = str(ipaddress.ip_address(name[0].partition("%")[0]))

    def data_received(self, data: bytes) -> None:
        """Pass *data* on; unrequested bytes end an idle connection."""
        if self.listener is not None:
            self.listener.received(data)
        else:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._holds_slot:
            self._holds_slot = False
            self._pool.slots.release()
        self._pool.forget(self)
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.disconnected(exc)


class ConnectionPool:
    """Idle connections by key, at most *limit*; *slots*: one for each open connection."""

    logs_tls = False

    def __init__(self, limit: int, capacity: int) -> None:
        self.limit = max(1, limit)
        self.slots = asyncio.Semaphore(max(1, capacity))
        self.counts = dict.fromkeys(_COUNTS, 0)
        self._by_key: dict[ConnectionKey, list[Connection]] = {}
        self._by_age: OrderedDict[Connection, None] = OrderedDict()  # least recently used first
        self._sweeper: asyncio.TimerHandle | None = None

    def checkout(self, key: ConnectionKey) -> Connection | None:
        """Return the connection for *key* used last, or None."""
        while connections := self._by_key.get(key):
            connection = connections[-1]
            self.forget(connection)
            if connection.is_open:
                self.counts["reused"] += 1
                return connection
        return None

    def keep_idle(self, connection: Connection, seconds: float) -> None:
        """Keep *connection* for at most *seconds*; close it if no slot is left."""
        if not connection.is_open:
            return
        if self.slots.locked():
            connection.close()
            return
        while len(self._by_age) >= self.limit:
            self._evict()
        loop = asyncio.get_running_loop()
        connection.idle_until = loop.time() + seconds
        self._by_key.setdefault(connection.key, []).append(connection)
        self._by_age[connection] = None
        if self._sweeper is None:
            self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)

    def forget(self, connection: Connection) -> None:
        if connection not in self._by_age:
            return
        del self._by_age[connection]
        connections = self._by_key[connection.key]
        connections.remove(connection)
        if not connections:
            del self._by_key[connection.key]

    def free_files(self, most: int = FILES_FREED) -> int:
        """Close at most *most* idle connections, oldest first; return the number."""
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

    def statistics(self) -> dict[str, int]:
        return {"idle": len(self._by_age), "limit": self.limit, **self.counts}

    def _evict(self) -> None:
        oldest = next(iter(self._by_age))
        self.forget(oldest)
        oldest.close()
        self.counts["evicted"] += 1

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in [c for c in self._by_age if c.idle_until <= now]:
            self.forget(connection)
            connection.close()
            self.counts["expired"] += 1
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep) if self._by_age else None


OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of ``socket`` and ``connect`` when this process, not the server, ran short."""
CONNECT_FAILURES = (
    exceptions.DownloadConnectionRefusedError,
    exceptions.DownloadFailedError,
    exceptions.DownloadTimeoutError,
)
"""Failures of one address, after which another address of the host may be tried."""


async def connect(
    pool: ConnectionPool, key: ConnectionKey, tls: ssl.SSLContext | None, timeout: asyncio.Timeout
) -> Connection:
    """Open a connection, over TLS for *key*'s host; a wait for a slot stops *timeout*.

    Without a free slot, or out of files, it closes idle connections. Raises `OutOfFilesError`,
    `CannotResolveHostError` (TLS cannot ask for the host), and Scrapy's download errors.
    """
    if pool.slots.locked():
        await _wait_for_slot(pool, timeout)
    else:
        await pool.slots.acquire()
    try:
        connection = await _connect_or_make_room(pool, key, tls)
    except BaseException:  # a cancelled attempt has a slot to give back, too
        pool.slots.release()
        raise
    connection.hold_slot()
    pool.counts["opened"] += 1
    if (ssl_object := connection.ssl_object) is not None:
        connection.certificate = peer_certificate(ssl_object)
        version = ssl_object.version() or "TLS"
        connection.tls_protocols = (version.lower().replace("tlsv", "tls/"),)
        if pool.logs_tls:
            log_connection(ssl_object)
    return connection


async def _wait_for_slot(pool: ConnectionPool, timeout: asyncio.Timeout) -> None:
    loop, deadline = asyncio.get_running_loop(), timeout.when()
    waiting_since = loop.time()
    pool.free_files(1)
    timeout.reschedule(None)
    await pool.slots.acquire()
    if deadline is not None:
        timeout.reschedule(deadline + loop.time() - waiting_since)


async def _connect_or_make_room(
    pool: ConnectionPool, key: ConnectionKey, tls: ssl.SSLContext | None
) -> Connection:
    waits = iter(WAITS_FOR_FILES)
    while True:
        try:
            return await _connect(pool, key, tls)
        except OSError as error:
            if isinstance(error, ssl.SSLError) or error.errno not in OUT_OF_FILES:
                raise _translated(error, key) from error
            pool.counts["out_of_files"] += 1
            wait = WAITS_FOR_FILES[0] if pool.free_files() else next(waits, None)
            if wait is None:
                raise OutOfFilesError(f"cannot connect to {key.address}: {error}") from error
            await asyncio.sleep(wait)  # the loop's next rounds give the files back


async def _connect(
    pool: ConnectionPool, key: ConnectionKey, tls: ssl.SSLContext | None
) -> Connection:
    name = key.host.rstrip(".") if tls else None
    if name is not None:
        # ssl encodes the name, too, but only when the socket is open, which asyncio leaves open.
        try:
            encoded = name.encode("idna")
        except UnicodeError as error:
            raise exceptions.CannotResolveHostError(f"{key.host[:200]!r}: {error}") from error
        if not encoded:
            raise exceptions.CannotResolveHostError(f"{key.host[:200]!r} is no host")
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: Connection(pool, key),
        key.address,
        key.port,
        ssl=tls,
        server_hostname=name,
        local_addr=key.bind,
        flags=socket.AI_NUMERICHOST,  # nothing but the booked address is ever connected to
    )
    return connection


def _translated(error: OSError, key: ConnectionKey) -> Exception:
    message = f"{key.host} at {key.address} port {key.port}: {error}"
    if isinstance(error, ssl.SSLError):
        return exceptions.DownloadFailedError(message)
    if error.errno == errno.ECONNREFUSED:
        return exceptions.DownloadConnectionRefusedError(message)
    if error.errno == errno.ETIMEDOUT:
        return exceptions.DownloadTimeoutError(message)
    return exceptions.DownloadFailedError(message)


_ENOUGH: Final = (1 << 20, 1 << 16, 10_240)
"""Tried in turn where the hard limit cannot be set, as "infinity" on some systems."""


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one; return the limit."""
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


_pools: WeakKeyDictionary[Crawler, ConnectionPool] = WeakKeyDictionary()


def crawler_pool(crawler: Crawler) -> ConnectionPool:
    if crawler not in _pools:
        files = raise_file_limit()
        _pools[crawler] = pool = ConnectionPool(idle_limit(files), capacity=files - files // 4)
        pool.logs_tls = crawler.settings.getbool("DOWNLOADER_CLIENT_TLS_VERBOSE_LOGGING")
    return _pools[crawler]


def idle_limit(files: int) -> int:
    return max(1, files // 4)


CONTEXT_FACTORY: Final = "DOWNLOADER_CLIENTCONTEXTFACTORY"
_VERSIONS: Final = {
    "TLSv1.0": ssl.TLSVersion.TLSv1, "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}  # fmt: skip
_ANY_METHOD: Final = "TLS"
_LEGACY_SERVER_CONNECT: Final = 0x4
"""SSL_OP_LEGACY_SERVER_CONNECT (in ``ssl`` from Python 3.12 on): servers without secure
renegotiation (RFC 5746) are accepted, as by Scrapy."""


def has_own_context_factory(settings: BaseSettings) -> bool:
    """Whether the project sets a TLS context factory, for Scrapy's handler only."""
    # The setting is deprecated: a later Scrapy may have no default.
    return bool(settings[CONTEXT_FACTORY] != getattr(default_settings, CONTEXT_FACTORY, None))


def make_ssl_context(settings: BaseSettings) -> ssl.SSLContext:
    """A client context by Scrapy's settings for TLS.

    Raises `ValueError` for an unknown version or method, ``ssl.SSLError`` if no cipher fits.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.getbool("DOWNLOAD_VERIFY_CERTIFICATES"):
        context.load_default_certs()
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.options |= _LEGACY_SERVER_CONNECT
    least = _version(settings, "DOWNLOAD_TLS_MIN_VERSION")
    most = _version(settings, "DOWNLOAD_TLS_MAX_VERSION")
    if settings["DOWNLOADER_CLIENT_TLS_METHOD"] not in (None, _ANY_METHOD) and not (least or most):
        least = most = _version(settings, "DOWNLOADER_CLIENT_TLS_METHOD")
    if least is not None:
        context.minimum_version = least
    if most is not None:
        context.maximum_version = most
    if ciphers := settings["DOWNLOADER_CLIENT_TLS_CIPHERS"]:
        context.set_ciphers(ciphers)
    if (keys := os.environ.get("SSLKEYLOGFILE")) and not sys.flags.ignore_environment:
        try:
            context.keylog_filename = keys
        except OSError as error:
            logger.warning("Cannot write TLS session keys to SSLKEYLOGFILE=%s: %s", keys, error)
    return context


def _version(settings: BaseSettings, name: str) -> ssl.TLSVersion | None:
    value = settings[name]
    if value is None:
        return None
    try:
        return _VERSIONS[value]
    except KeyError:
        known = ", ".join(_VERSIONS)
        raise ValueError(f"Unknown {name} value: {value} (known: {known})") from None


def peer_certificate(ssl_object: ssl.SSLObject) -> Any:
    """Return the server's certificate as a Twisted ``Certificate``; None if unreadable."""
    der = ssl_object.getpeercert(binary_form=True)
    if der is None:
        return None
    from OpenSSL import crypto
    from twisted.internet.ssl import Certificate

    try:
        return Certificate.load(der, crypto.FILETYPE_ASN1)
    except (crypto.Error, ValueError):
        return None


def log_connection(ssl_object: ssl.SSLObject) -> None:
    cipher = ssl_object.cipher()
    logger.debug(
        "SSL connection to %s using protocol %s, cipher %s",
        ssl_object.server_hostname, ssl_object.version(), cipher[0] if cipher else None,
    )  # fmt: skip
