"""The connection pool of Twisted's agent, held to addresses and to bounds.

Private names touched: ``_timeouts`` and ``_connections`` of Twisted's ``HTTPConnectionPool``
(without them idle connections are bounded in time only).
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint, wrapClientTLS
from twisted.internet.error import ConnectBindError
from twisted.internet.task import deferLater
from twisted.web.client import HTTPConnectionPool

from scrapy_spider_suite.handlers.errors import OUT_OF_FILES, OutOfFilesError
from scrapy_spider_suite.handlers.files import raise_file_limit
from scrapy_spider_suite.handlers.keeping import IDLE_SECONDS, SERVER_IDLE_SECONDS, idle_limit
from scrapy_spider_suite.handlers.pool import FILES_FREED, WAITS_FOR_FILES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scrapy.crawler import Crawler
    from twisted.internet.interfaces import IStreamClientEndpoint

_EMPTY = 100
"""Lists without a connection that may be left behind in Twisted's pool."""


@dataclass(slots=True)
class Pin:
    """What one request's connection is held to; the endpoint that Twisted's pool connects with.

    Attributes:
        address: numeric IPv4 or IPv6.
        timeout: seconds to connect.
        bind: local address and port, or None.
        context_factory: makes TLS options for a host and port (Twisted's ``IPolicyForHTTPS``).
        bounds: those of the crawl, which count the connection.
        key: under which the pool keeps the connection, once it was asked for one: scheme, host,
            port, perhaps more of Scrapy's, and last the address.
        connected: whether a new connection was asked for.
    """

    address: str
    timeout: float
    bind: tuple[str, int] | None
    context_factory: Any
    bounds: Bounds
    key: tuple[Any, ...] = ()
    connected: bool = False

    def connect(self, factory: Any) -> Deferred[Any]:
        """Return a Deferred of *factory*'s protocol, connected to the address (and over TLS).

        Out of files, idle connections are closed before another attempt, and then some attempts
        more are made, as with `Http1Handler`; after those it fails with OutOfFilesError.
        """
        return Deferred.fromCoroutine(self._connect_or_make_room(factory))

    async def _connect_or_make_room(self, factory: Any) -> Any:
        from twisted.internet import reactor

        self.connected = True
        waits = iter(WAITS_FOR_FILES)
        while True:
            try:
                protocol = await self._endpoint().connect(factory)
            except ConnectBindError as error:  # Twisted's for a socket that it cannot get, too
                if error.osError not in OUT_OF_FILES:
                    raise
                wait = WAITS_FOR_FILES[0] if self.bounds.free_files() else next(waits, None)
                if wait is None:
                    message = f"cannot connect to {self.address}: {error}"
                    raise OutOfFilesError(message) from error
                await deferLater(cast("Any", reactor), wait)
            else:
                self.bounds.count(protocol)
                return protocol

    def _endpoint(self) -> Any:
        from twisted.internet import reactor

        scheme, host, port = self.key[:3]
        kind: Any = TCP6ClientEndpoint if ":" in self.address else TCP4ClientEndpoint
        endpoint = kind(reactor, self.address, port, timeout=self.timeout, bindAddress=self.bind)
        if scheme == b"https":
            endpoint = wrapClientTLS(self.context_factory.creatorForNetloc(host, port), endpoint)
        return endpoint


current_pin: ContextVar[Pin | None] = ContextVar("suite_pin", default=None)
"""The pin of the request that the current task downloads: the agent's call to the pool cannot carry
it, and every task has a context of its own."""


class Bounds:
    """How many connections a crawl may have; Scrapy makes a handler, and a pool, for each scheme.

    Attributes:
        idle: most connections without a request.
        slots: one for each request that may be out. With the idle connections, a quarter of the
            files, they leave a quarter to the rest of the process.
        out: requests that have a slot.
        open: connections, idle or not, that are not closed yet.
        pools: of all handlers of the crawl.
    """

    def __init__(self, crawler: Crawler) -> None:
        files = raise_file_limit()
        self.idle = idle_limit(crawler, files)
        self.slots = asyncio.Semaphore(max(1, files // 2))
        self.out = self.open = 0
        self.pools: list[AddressedPool] = []

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot, until the connections that are closed by now have given back their files.

        Twisted closes one a turn or two of the loop after it was told to. One that says farewell
        over TLS to a server that does not answer takes longer, and is not waited for.
        """
        async with self.slots:
            self.out += 1
            try:
                yield
            finally:
                self.out -= 1
                for wait in WAITS_FOR_FILES:
                    if self.open <= self.idle + self.out:
                        break
                    await asyncio.sleep(wait)

    def count(self, protocol: Any) -> None:
        """Count the connection of *protocol* until it is closed."""
        lost = protocol.connectionLost
        self.open += 1

        def connection_lost(reason: Any) -> None:
            self.open -= 1
            lost(reason)

        protocol.connectionLost = connection_lost

    def free_files(self) -> int:
        """Close some of the idle connections, oldest first; return how many there were."""
        return sum(pool.close_oldest(FILES_FREED) for pool in self.pools)


class AddressedPool:
    """Stands between Twisted's agent and its connection pool; all but `getConnection` is passed on.

    Args:
        pool: the pool of Scrapy's handler.
        bounds: those of the crawl, which its pools share.
    """

    def __init__(self, pool: HTTPConnectionPool, bounds: Bounds) -> None:
        pool.cachedConnectionTimeout = int(IDLE_SECONDS)
        pool.retryAutomatically = False  # at once, that is: see _download_again
        self.persistent = pool.persistent  # what the agent reads for each request
        self._pool = pool
        self._bounds = bounds
        bounds.pools.append(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def getConnection(self, key: tuple[Any, ...], endpoint: Any) -> Any:
        """Return a Deferred of a connection to the current pin's address (to any without a pin)."""
        pin = current_pin.get()
        if pin is None:
            return self._pool.getConnection(key, endpoint)
        pin.key = (*key, pin.address)
        return self._pool.getConnection(pin.key, cast("IStreamClientEndpoint", pin))

    def trim(self, pin: Pin, next_fetch: float | None) -> None:
        """Close idle connections that are too many, and those of *pin* that would not be reused.

        Connections are closed by letting their own time-outs come now. The pool keeps those in the
        order in which the connections became idle, so the first ones are the oldest.
        """
        timeouts = self._idle_timeouts()
        kept: dict[Any, list[Any]] = getattr(self._pool, "_connections", {})
        if next_fetch is not None and next_fetch > SERVER_IDLE_SECONDS:
            for connection in kept.get(pin.key, ()):
                timeouts[connection].reset(0)
        if len(kept) > 2 * len(timeouts) + _EMPTY:
            # Twisted keeps an empty list for every host that it has ever met.
            for key in [key for key, connections in kept.items() if not connections]:
                del kept[key]
        idle = sum(len(pool._idle_timeouts()) for pool in self._bounds.pools)
        self.close_oldest(idle - self._bounds.idle)

    def close_oldest(self, most: int) -> int:
        """Close *most* of the idle connections, oldest first; return how many there were."""
        oldest = list(islice(self._idle_timeouts().values(), max(0, most)))
        for delayed in oldest:
            delayed.reset(0)
        return len(oldest)

    def _idle_timeouts(self) -> dict[Any, Any]:
        timeouts: dict[Any, Any] = getattr(self._pool, "_timeouts", {})
        return timeouts
