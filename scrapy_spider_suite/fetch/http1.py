"""The address of a request, for a handler that is used without the suite's gate.

The suite's HTTP/1.1 download handler: asyncio, llhttp, and nothing in between.

Switched on by the add-on, or alone::

    DOWNLOAD_HANDLERS = {
        "http": "scrapy_spider_suite.fetch.http1.Http1Handler",
        "https": "scrapy_spider_suite.fetch.http1.Http1Handler",
    }

It does what Scrapy's own HTTP/1.1 handler does: same settings, meta keys, signals, response flags
and exceptions. Three things differ: ``response.headers`` also has the fields about the connection
(``Connection``, ``Transfer-Encoding``), as Scrapy's aiohttp and httpx handlers leave them; names
are resolved by the suite's resolver, so private addresses are refused unless allowed; certificates
that do not fit the host are not logged. Requests with a proxy are handed to Scrapy's handler.
"""

from __future__ import annotations

import asyncio
import dataclasses
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
    Key,
    connect,
    crawler_pool,
    may_be_sent_again,
    seconds_to_keep,
)
from scrapy_spider_suite.fetch.exchange import (
    MEDIA_TYPES,
    RECEIVED,
    TRUNCATE,
    Exchange,
    Limits,
    Listeners,
)
from scrapy_spider_suite.fetch.http_messages import WIRE, Origin, Sent, request_bytes, split_url
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

async def addresses_of(crawler: Crawler, request: Request, origin: Origin) -> Sequence[str]:
    """Return the addresses that *request* may be sent to, at least one, in order of preference.

    ``request.meta["suite_address"]``, on which the gate booked the request, is the only one where
    it is set; otherwise the crawl's resolver is asked, which knows literals too.

    Raises:
        CannotResolveHostError: *origin*'s host has no address.
        PrivateAddressError: it has none that is allowed.
    """
    booked: str | None = request.meta.get("suite_address")
    if booked:
        return (booked,)
    from scrapy_spider_suite.fetch.resolver import suite_resolver

    host = f"[{origin.host}]" if ":" in origin.host else origin.host.rstrip(".")
    try:
        return (await suite_resolver(crawler).resolve(host)).addresses
    except ResolveError as error:
        raise CannotResolveHostError(str(error)) from error


class Http1Handler:
    """Scrapy download handler for ``http`` and ``https``.

    Request meta keys of its own: ``suite_address`` (numeric address to connect to),
    ``suite_keep_alive`` (seconds until the next fetch from this host is expected; the connection is
    closed after the answer if the server would not keep it that long, and a request that a closed
    connection swallowed waits so long before it is sent again), ``suite_departure`` (hears when
    the connection is looked for, and when the request's bytes are out), ``suite_truncate`` (bytes
    of body after which reading stops; the response is flagged ``truncated``),
    ``suite_media_types`` (those of 2xx answers that are read; others raise `UnwantedMediaType`
    after their heads). It sets ``suite_received``, the bytes that came, and, where pages are
    packed, ``suite_wire``, a `Sent`.
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
        self._listeners = Listeners(crawler)
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
        """Make a handler for *crawler*.

        Raises:
            NotConfigured: the project has a TLS context factory of its own.
            SettingsError: a ``SUITE_`` setting is wrong.
        """
        return cls(crawler)

    def _changed(self, old: SuiteSettings, new: SuiteSettings) -> None:
        self._timeout = new.project.download_timeout
        self._packed = new.packs_dir is not None

    async def download_request(self, request: Request) -> Response:
        """Fetch *request*.

        Raises:
            CannotResolveHostError, DownloadConnectionRefusedError, DownloadTimeoutError,
            DownloadFailedError, DownloadCancelledError, ResponseDataLossError,
            UnsupportedURLSchemeError, StopDownload: as Scrapy's handler does.
            PrivateAddressError: the host is at an address that is not allowed.
            UnwantedMediaType: the answer is of none of the media types that are read.
            OutOfFilesError: this process cannot open another connection.
            UnsendableRequestError: the request cannot be written as HTTP/1.1.
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
            meta[WIRE] = _sent(message, connection, exchange)
        return self._response(request, connection, exchange)

    def _count(self) -> None:
        if self._crawler.stats is not None:
            for name, value in dataclasses.asdict(self._pool.statistics()).items():
                self._crawler.stats.set_value(f"suite/connections/{name}", value)

    async def close(self) -> None:
        """Close the idle connections of the crawl, and what was made for proxies."""
        self._pool.close()
        await asyncio.sleep(0)  # sockets are closed by callbacks of the loop's next round
        if self._proxied is not None:
            await self._proxied.close()

    # One fetch

    async def _fetch(
        self, request: Request, origin: Origin, message: bytes, timeout: asyncio.Timeout
    ) -> tuple[Connection, Exchange]:
        """Send *message* to where it belongs; return the finished exchange."""
        started = monotonic()
        if (departure := request.meta.get("suite_departure")) is not None:
            departure.hold()
        bind = request.meta.get("bindaddress")
        bind = self._bind if bind is None else _bind_address(bind)
        addresses = await addresses_of(self._crawler, request, origin)
        keys = [Key(each, origin.scheme, origin.host, origin.port, bind) for each in addresses]
        connection = next(filter(None, map(self._pool.take, keys)), None)
        if connection is not None:
            exchange = self._exchange(request, started)
            try:
                return await self._converse(request, connection, exchange, message)
            except DownloadFailedError:
                # Without a byte of an answer: the server closed it just as it was taken.
                if not (exchange.unanswered and may_be_sent_again(request)):
                    raise
                self._pool.retried += 1
                await _pause(request, timeout)
        connection = await self._open(keys, timeout)
        exchange = self._exchange(request, started)
        return await self._converse(request, connection, exchange, message)

    async def _converse(
        self, request: Request, connection: Connection, exchange: Exchange, message: bytes
    ) -> tuple[Connection, Exchange]:
        """Send *message* on *connection* and wait; keep or close the connection afterwards."""
        keep = 0.0
        connection.send(message, exchange)
        if (departure := request.meta.get("suite_departure")) is not None:
            departure.gone(monotonic())  # after the bytes: whatever held them up delays no less
        try:
            await exchange.outcome
            keep = seconds_to_keep(request, exchange)
        finally:
            connection.hang_up()
            request.meta[RECEIVED] = request.meta.get(RECEIVED, 0) + exchange.size
            if keep > 0:
                self._pool.put(connection, keep)
            else:
                connection.close()
        return connection, exchange

    async def _open(self, keys: Sequence[Key], timeout: asyncio.Timeout) -> Connection:
        """Connect to the first of *keys* that can be connected to."""
        for key in keys[:-1]:
            try:
                return await self._open_one(key, timeout)
            except CONNECT_FAILURES as error:
                logger.debug("Trying the next address of %s: %s", key.host, error)
        return await self._open_one(keys[-1], timeout)

    async def _open_one(self, key: Key, timeout: asyncio.Timeout) -> Connection:
        tls = self._tls if key.scheme == "https" else None
        connection = await connect(self._pool, key, tls, timeout)
        ssl_object = connection.ssl_object
        if ssl_object is not None:
            connection.certificate = peer_certificate(ssl_object)
            if self._tls_verbose:
                log_connection(ssl_object)
        return connection

    def _exchange(self, request: Request, started: float) -> Exchange:
        meta = request.meta
        limits = Limits(
            meta.get("download_maxsize", self._maxsize),
            meta.get("download_warnsize", self._warnsize),
            meta.get(TRUNCATE),
            meta.get("download_fail_on_dataloss", self._fail_on_dataloss),
            tuple(meta.get(MEDIA_TYPES, ())),
        )
        outcome = asyncio.get_running_loop().create_future()
        return Exchange(request, limits, self._listeners, outcome, started)

    def _response(
        self, request: Request, connection: Connection, exchange: Exchange
    ) -> Response:
        """Build the response; raises what the errback is to have it with."""
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
        """Hand a request with a proxy to Scrapy's handler, so that proxies work as ever."""
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


def _sent(message: bytes, connection: Connection, exchange: Exchange) -> Sent:
    reader, tls = exchange.reader, connection.ssl_object
    protocols = [reader.version.lower()]
    if tls is not None:
        protocols.append((tls.version() or "TLS").lower().replace("tlsv", "tls/"))
    return Sent(message, reader.head, tuple(protocols))


async def _pause(request: Request, timeout: asyncio.Timeout) -> None:
    """Wait for the delay before *request* is sent again; that does not count against *timeout*.

    The server may have read it before it closed the connection, and to it this is one request more.
    """
    seconds = request.meta.get("suite_keep_alive") or 0.0
    deadline = timeout.when()
    if seconds > 0 and deadline is not None:
        timeout.reschedule(deadline + seconds)
        await asyncio.sleep(seconds)


def _bind_address(value: str | tuple[str, int] | None) -> tuple[str, int] | None:
    """Return what Scrapy allows as a bind address, a host or a pair, as a pair."""
    return (value, 0) if isinstance(value, str) else value
