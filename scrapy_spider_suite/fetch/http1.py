"""The suite's HTTP/1.1 download handler: asyncio and llhttp.

Switched on by the add-on, or alone::

    DOWNLOAD_HANDLERS = {
        "http": "scrapy_spider_suite.fetch.http1.Http1Handler",
        "https": "scrapy_spider_suite.fetch.http1.Http1Handler",
    }

Settings, meta keys, signals, flags and exceptions are those of Scrapy's handler. But
``response.headers`` has the fields about the connection, too; the suite's resolver refuses private
addresses; unfit certificates are not logged. Requests with a proxy go to Scrapy's handler.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadFailedError,
    DownloadTimeoutError,
    NotConfigured,
    NotSupported,
    ResponseDataLossError,
)
from scrapy.responsetypes import responsetypes
from scrapy.signals import spider_closed

from scrapy_spider_suite.errors import ResolveError
from scrapy_spider_suite.exceptions import UnwantedMediaType
from scrapy_spider_suite.fetch.connections import (
    CONNECT_FAILURES,
    Connection,
    ConnectionKey,
    connect,
    crawler_pool,
    may_resend,
    seconds_to_keep,
)
from scrapy_spider_suite.fetch.exchange import (
    MEDIA_TYPES,
    RECEIVED,
    TRUNCATE,
    BodyLimits,
    ByteSignals,
    HttpExchange,
)
from scrapy_spider_suite.fetch.http_messages import WIRE, Origin, WireCopy, request_bytes, split_url
from scrapy_spider_suite.fetch.resolver import suite_resolver
from scrapy_spider_suite.fetch.tls import (
    CONTEXT_FACTORY,
    has_own_context_factory,
    log_connection,
    make_ssl_context,
    peer_certificate,
)
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.signals import settings_changed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_spider_suite.settings.suite import SuiteSettings

logger = logging.getLogger(__name__)

async def addresses_for(crawler: Crawler, request: Request, origin: Origin) -> Sequence[str]:
    """Return the addresses for *request*, at least one, in order of preference.

    ``request.meta["suite_address"]`` if set, else those of the resolver. Raises
    `CannotResolveHostError`, `PrivateAddressError`.
    """
    booked: str | None = request.meta.get("suite_address")
    if booked:
        return (booked,)
    host = f"[{origin.host}]" if ":" in origin.host else origin.host.rstrip(".")
    try:
        return (await suite_resolver(crawler).resolve(host)).addresses
    except ResolveError as error:
        raise CannotResolveHostError(str(error)) from error


class Http1Handler:
    """Scrapy download handler for ``http`` and ``https``.

    Meta keys that it reads:

    - ``suite_address``: numeric address to connect to.
    - ``suite_keep_alive``: seconds until the next fetch from this host, for keeping the connection
      and before a request that a closed connection swallowed is sent again.
    - ``suite_departure``: told of the search for a connection, and of the bytes' departure.
    - ``suite_truncate``: bytes of body after which reading stops, with the flag ``truncated``.
    - ``suite_media_types``: of 2xx answers that are read; others raise `UnwantedMediaType`.

    It sets ``suite_received``, the bytes received, and, for packs, ``suite_wire``, a `WireCopy`.
    """

    lazy = False

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        if has_own_context_factory(settings):
            raise NotConfigured(
                f"Http1Handler cannot use {CONTEXT_FACTORY}: remove that setting, or remove "
                "Http1Handler from DOWNLOAD_HANDLERS"
            )
        self._crawler = crawler
        self._pool = crawler_pool(crawler)
        crawler.signals.connect(self._changed, settings_changed)
        # Handlers are closed after the stats were dumped.
        crawler.signals.connect(self._count, spider_closed)
        self._signals = ByteSignals(crawler)
        self._timeout = settings.getfloat("DOWNLOAD_TIMEOUT")
        self._maxsize = settings.getint("DOWNLOAD_MAXSIZE")
        self._warnsize = settings.getint("DOWNLOAD_WARNSIZE")
        self._fail_on_dataloss = settings.getbool("DOWNLOAD_FAIL_ON_DATALOSS")
        self._dataloss_warned = False
        self._bind = _bind_address(settings.get("DOWNLOAD_BIND_ADDRESS"))
        self._tls = make_ssl_context(settings)
        self._packed = suite_settings(crawler).packs_dir is not None
        self._tls_verbose = settings.getbool("DOWNLOADER_CLIENT_TLS_VERBOSE_LOGGING")
        self._proxied: Any = None  # Scrapy's own handler, made for the first request with a proxy

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Http1Handler:
        """Raises `NotConfigured` (a TLS context factory is set), `SettingsError`."""
        return cls(crawler)

    def _changed(self, new: SuiteSettings) -> None:
        self._timeout = new.project.download_timeout

    async def download_request(self, request: Request) -> Response:
        """Fetch *request*.

        Raises as Scrapy's handler, `PrivateAddressError`, `UnwantedMediaType`, `OutOfFilesError`,
        `UnsendableRequestError`.
        """
        meta = request.meta
        if meta.get("proxy"):
            return await self._through_proxy(request)
        meta.pop(RECEIVED, None)
        origin, target = split_url(request.url)
        message = request_bytes(
            request.method, target, origin.header, request.headers, request.body
        )
        seconds = meta.get("download_timeout") or self._timeout
        try:
            async with asyncio.timeout(seconds) as timeout:
                connection, exchange = await self._fetch(request, origin, message, timeout)
        except TimeoutError:
            raise DownloadTimeoutError(
                f"Getting {request.url} took longer than {seconds} seconds."
            ) from None
        except ResponseDataLossError:
            self._warn_of_dataloss(request.url)
            raise
        if self._packed:
            meta[WIRE] = _wire_copy(message, connection, exchange)
        return self._response(request, connection, exchange)

    def _count(self) -> None:
        if self._crawler.stats is not None:
            for name, value in self._pool.statistics().items():
                self._crawler.stats.set_value(f"suite/connections/{name}", value)

    async def close(self) -> None:
        """Close the idle connections of the crawl, and the handler for proxies."""
        self._pool.close()
        await asyncio.sleep(0)  # sockets are closed by callbacks of the loop's next round
        if self._proxied is not None:
            await self._proxied.close()

    # One fetch

    async def _fetch(
        self, request: Request, origin: Origin, message: bytes, timeout: asyncio.Timeout
    ) -> tuple[Connection, HttpExchange]:
        started = monotonic()
        if (departure := request.meta.get("suite_departure")) is not None:
            departure.hold()
        bind = request.meta.get("bindaddress")
        bind = self._bind if bind is None else _bind_address(bind)
        addresses = await addresses_for(self._crawler, request, origin)
        server = origin.scheme, origin.host, origin.port, bind
        keys = [ConnectionKey(each, *server) for each in addresses]
        connection = next(filter(None, map(self._pool.checkout, keys)), None)
        if connection is not None:
            exchange = self._exchange(request, started)
            try:
                return await self._converse(request, connection, exchange, message)
            except DownloadFailedError:
                # Without a byte of an answer: the server closed it just as it was taken.
                if not (exchange.unanswered and may_resend(request)):
                    raise
                self._pool.counts["retried"] += 1
                await _wait_before_resend(request, timeout)
        connection = await self._open(keys, timeout)
        exchange = self._exchange(request, started)
        return await self._converse(request, connection, exchange, message)

    async def _converse(
        self, request: Request, connection: Connection, exchange: HttpExchange, message: bytes
    ) -> tuple[Connection, HttpExchange]:
        keep = 0.0
        connection.send(message, exchange)
        if (departure := request.meta.get("suite_departure")) is not None:
            departure.gone(monotonic())  # after the bytes: whatever held them up delays no less
        try:
            await exchange.outcome
            keep = seconds_to_keep(request, exchange)
        finally:
            connection.end_exchange()
            request.meta[RECEIVED] = request.meta.get(RECEIVED, 0) + exchange.size
            if keep > 0:
                self._pool.keep_idle(connection, keep)
            else:
                connection.close()
        return connection, exchange

    async def _open(self, keys: Sequence[ConnectionKey], timeout: asyncio.Timeout) -> Connection:
        for key in keys[:-1]:
            try:
                return await self._open_one(key, timeout)
            except CONNECT_FAILURES as error:
                logger.debug("Trying the next address of %s: %s", key.host, error)
        return await self._open_one(keys[-1], timeout)

    async def _open_one(self, key: ConnectionKey, timeout: asyncio.Timeout) -> Connection:
        tls = self._tls if key.scheme == "https" else None
        connection = await connect(self._pool, key, tls, timeout)
        ssl_object = connection.ssl_object
        if ssl_object is not None:
            connection.certificate = peer_certificate(ssl_object)
            if self._tls_verbose:
                log_connection(ssl_object)
        return connection

    def _exchange(self, request: Request, started: float) -> HttpExchange:
        meta = request.meta
        limits = BodyLimits(
            meta.get("download_maxsize", self._maxsize),
            meta.get("download_warnsize", self._warnsize),
            meta.get(TRUNCATE),
            meta.get("download_fail_on_dataloss", self._fail_on_dataloss),
            tuple(meta.get(MEDIA_TYPES, ())),
        )
        outcome = asyncio.get_running_loop().create_future()
        return HttpExchange(request, limits, self._signals, outcome, started)

    def _response(
        self, request: Request, connection: Connection, exchange: HttpExchange
    ) -> Response:
        reader = exchange.reader
        headers = exchange.headers()
        body = reader.body()
        url = request.url.partition("#")[0]
        cls = responsetypes.from_args(headers=headers, url=url, body=body)
        response = cls(
            url=url,
            status=reader.status,
            body=body,
            flags=exchange.flags,
            certificate=connection.certificate,
            ip_address=connection.peer,
            protocol=reader.version,
        )
        response.headers = headers  # as an argument it would be copied and normalised again: 10 µs
        if exchange.stop is not None and exchange.stop.fail:
            exchange.stop.response = response
            raise exchange.stop
        if exchange.unwanted:
            raise UnwantedMediaType(response)
        return response

    async def _through_proxy(self, request: Request) -> Response:
        if self._proxied is None:
            from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
            from twisted.web.client import HTTPConnectionPool

            try:
                self._proxied = HTTP11DownloadHandler.from_crawler(self._crawler)
            except NotConfigured as error:
                raise NotSupported(f"proxies need Scrapy's handler: {error}") from error
            pool = getattr(self._proxied, "_pool", None)
            if isinstance(pool, HTTPConnectionPool):
                pool.retryAutomatically = False  # at once, that is: without the delay
        return await self._proxied.download_request(request)  # type: ignore[no-any-return]

    def _warn_of_dataloss(self, url: str) -> None:
        if not self._dataloss_warned:
            self._dataloss_warned = True
            logger.warning(
                "Got data loss in %s. If you want to process broken responses set the setting "
                "DOWNLOAD_FAIL_ON_DATALOSS = False -- This message won't be shown in further "
                "requests",
                url,
            )


def _wire_copy(message: bytes, connection: Connection, exchange: HttpExchange) -> WireCopy:
    reader, tls = exchange.reader, connection.ssl_object
    protocols = [reader.version.lower()]
    if tls is not None:
        protocols.append((tls.version() or "TLS").lower().replace("tlsv", "tls/"))
    return WireCopy(message, reader.head, tuple(protocols))


async def _wait_before_resend(request: Request, timeout: asyncio.Timeout) -> None:
    # The server may have read the request before it closed the connection: to it, this is another
    # one. The wait does not count against *timeout*.
    seconds = request.meta.get("suite_keep_alive") or 0.0
    deadline = timeout.when()
    if seconds > 0 and deadline is not None:
        timeout.reschedule(deadline + seconds)
        await asyncio.sleep(seconds)


def _bind_address(value: str | tuple[str, int] | None) -> tuple[str, int] | None:
    # Scrapy allows a host or a pair.
    return (value, 0) if isinstance(value, str) else value
