"""Opening a connection to one address, and what its failure means to Scrapy."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from typing import TYPE_CHECKING

from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
)

from scrapy_spider_suite.handlers.errors import OUT_OF_FILES, OutOfFilesError
from scrapy_spider_suite.handlers.pool import WAITS_FOR_FILES, Connection

if TYPE_CHECKING:
    from scrapy_spider_suite.handlers.pool import Key, Pool

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
