"""Scrapy's own HTTP/1.1 handler, held to the address that a request was booked on.

For projects that should see no difference: every byte is sent and read by Scrapy and Twisted. Only
what Twisted's agent asks its connection pool for is changed on the way, in the pool's one public
method: the address joins the key, so that no connection to another address of the same name is
reused, and a new connection goes to the address. Host, SNI and the certificate's name stay the
URL's, because the agent has decided on them before.

Private names touched: ``_pool`` and ``_contextFactory`` of Scrapy's ``HTTP11DownloadHandler`` (2.16
to 2.19 have both; without them the handler works unpinned, says so once, and counts addresses that
differ from the booked ones under ``suite/handler/address_mismatch``), and ``_timeouts`` and
``_connections`` of Twisted's ``HTTPConnectionPool`` (without them idle connections are bounded in
time only).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import islice
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from scrapy import signals
from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
from scrapy.exceptions import DownloadFailedError, StopDownload
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint, wrapClientTLS
from twisted.internet.error import ConnectBindError
from twisted.internet.task import deferLater
from twisted.web.client import (  # type: ignore[attr-defined]
    HTTPConnectionPool,
    RequestNotSent,
    RequestTransmissionFailed,
    ResponseNeverReceived,
)

from scrapy_spider_suite.handlers.addressing import addresses_of
from scrapy_spider_suite.handlers.errors import OUT_OF_FILES, OutOfFilesError
from scrapy_spider_suite.handlers.files import raise_file_limit
from scrapy_spider_suite.handlers.keeping import (
    IDLE_SECONDS,
    SERVER_IDLE_SECONDS,
    idle_limit,
    may_be_sent_again,
)
from scrapy_spider_suite.handlers.pool import FILES_FREED, WAITS_FOR_FILES
from scrapy_spider_suite.handlers.wire import split_url
from scrapy_spider_suite.signals import settings_changed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from twisted.internet.interfaces import IStreamClientEndpoint

    from scrapy_spider_suite.settings.suite import SuiteSettings

logger = logging.getLogger(__name__)

_UNSENT = (RequestNotSent, RequestTransmissionFailed)
CONNECT_SECONDS = 10.0
"""Time to connect without a ``download_timeout``; Scrapy's handler has the same."""


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


_pin: ContextVar[Pin | None] = ContextVar("suite_pin", default=None)
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


_bounds: WeakKeyDictionary[Crawler, Bounds] = WeakKeyDictionary()


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
        pin = _pin.get()
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
        if next_fetch is not None and next_fetch > SERVER_IDLE_SECONDS:
            for connection in getattr(self._pool, "_connections", {}).get(pin.key, ()):
                timeouts[connection].reset(0)
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


def _swallowed(request: Request, error: Exception) -> bool:
    """Whether nothing came in answer to *request*, and it may be sent twice."""
    nothing = isinstance(error, _UNSENT) or isinstance(error.__cause__, ResponseNeverReceived)
    return nothing and may_be_sent_again(request)


class PinnedHTTP11Handler(HTTP11DownloadHandler):
    """Scrapy's handler for ``http`` and ``https``, connecting to ``meta["suite_address"]``.

    Without that key the crawl's resolver is asked, as `Http1Handler` does. Requests with a proxy
    are Scrapy's alone. ``meta["suite_keep_alive"]`` and ``meta["suite_truncate"]`` are honoured.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._suite_crawler = crawler
        if crawler not in _bounds:
            _bounds[crawler] = Bounds(crawler)
        self._suite_bounds = _bounds[crawler]
        crawler.signals.connect(self._suite_changed, settings_changed)
        self._suite_pool: AddressedPool | None = None
        pool = getattr(self, "_pool", None)
        self._suite_tls = getattr(self, "_contextFactory", None)
        if isinstance(pool, HTTPConnectionPool) and self._suite_tls is not None:
            self._suite_pool = AddressedPool(pool, self._suite_bounds)
            self._pool = cast("HTTPConnectionPool", self._suite_pool)
        else:
            logger.warning(
                "The HTTP/1.1 handler of this release of Scrapy cannot be held to one address: "
                "promises about IP addresses hold only as far as a name keeps its address"
            )

    def _suite_changed(self, old: SuiteSettings, new: SuiteSettings) -> None:
        self._suite_bounds.idle = idle_limit(self._suite_crawler, raise_file_limit())

    async def download_request(self, request: Request) -> Response:
        """Fetch *request*; raises what Scrapy's handler does, and PrivateAddressError."""
        if request.meta.get("proxy"):
            return await super().download_request(request)
        if self._suite_pool is None:
            return self._compared(request, await super().download_request(request))
        address = request.meta.get("suite_address")
        if not address:
            origin, _ = split_url(request.url)
            address = (await addresses_of(self._suite_crawler, request, origin))[0]
        truncate = request.meta.get("suite_truncate")
        async with self._suite_bounds.slot():
            if truncate is None:
                return await self._download_from(request, address, self._suite_pool)
            return await self._download_some(request, address, self._suite_pool, truncate)

    async def _download_some(
        self, request: Request, address: str, pool: AddressedPool, truncate: int
    ) -> Response:
        """Fetch no more of a body than *truncate* bytes, by Scrapy's way to stop a download."""
        maxsize = request.meta.get("download_maxsize", self._default_maxsize)
        least = maxsize if 0 < maxsize < truncate else 0
        bounded = request.replace(meta=request.meta | {"download_maxsize": least})
        received = 0

        def count(data: bytes, request: Request) -> None:
            nonlocal received
            if request is bounded:
                received += len(data)
                if received > truncate:
                    raise StopDownload(fail=False)

        dispatcher = self._suite_crawler.signals
        dispatcher.connect(count, signals.bytes_received)
        try:
            response = await self._download_from(bounded, address, pool)
        finally:
            dispatcher.disconnect(count, signals.bytes_received)
            if "download_latency" in bounded.meta:
                request.meta["download_latency"] = bounded.meta["download_latency"]
        if received <= truncate:
            return response
        return response.replace(body=response.body[:truncate], flags=["truncated"])

    async def _download_from(
        self, request: Request, address: str, pool: AddressedPool
    ) -> Response:
        meta = request.meta
        bind = meta.get("bindaddress") or self._bind_address
        bind = (bind, 0) if isinstance(bind, str) else bind
        timeout = meta.get("download_timeout") or CONNECT_SECONDS
        pin = Pin(address, timeout, bind, self._suite_tls, self._suite_bounds)
        token = _pin.set(pin)
        try:
            response = await self._download_again(request, pin)
        finally:
            _pin.reset(token)
            pool.trim(pin, meta.get("suite_keep_alive"))
        if response.ip_address is None:  # older releases, where the body is empty
            response.ip_address = ip_address(address.partition("%")[0])
        return response

    async def _download_again(self, request: Request, pin: Pin) -> Response:
        """Fetch *request*, again if it was swallowed by a kept connection that was just closing.

        The server may have read it, and to it this is one request more: so not before the delay,
        and not at once, as Twisted's pool would.
        """
        while True:
            try:
                return await super().download_request(request)
            except (DownloadFailedError, *_UNSENT) as error:
                if pin.connected or not _swallowed(request, error):
                    raise
            await asyncio.sleep(request.meta.get("suite_keep_alive") or 0.0)

    def _compared(self, request: Request, response: Response) -> Response:
        """Count a response that came from another address than the request was booked on."""
        booked = request.meta.get("suite_address")
        seen = response.ip_address
        stats = self._suite_crawler.stats
        if booked and seen is not None and str(seen) != booked and stats is not None:
            stats.inc_value("suite/handler/address_mismatch")
        return response
