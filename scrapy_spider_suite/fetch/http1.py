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
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final, NamedTuple

from pydispatch.dispatcher import getAllReceivers  # type: ignore[import-untyped]
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadCancelledError,
    DownloadFailedError,
    DownloadTimeoutError,
    NotConfigured,
    NotSupported,
    ResponseDataLossError,
    StopDownload,
)
from scrapy.http import Headers, Response
from scrapy.responsetypes import responsetypes
from twisted.python.failure import Failure
from twisted.web.iweb import UNKNOWN_LENGTH

from scrapy_spider_suite.errors import ResolveError
from scrapy_spider_suite.exceptions import UnwantedMediaType
from scrapy_spider_suite.fetch.connections import (
    CONNECT_FAILURES,
    CONTEXT_FACTORY,
    Connection,
    ConnectionKey,
    connect,
    crawler_pool,
    has_own_context_factory,
    log_connection,
    make_ssl_context,
    peer_certificate,
)
from scrapy_spider_suite.fetch.http_messages import (
    ADDRESS,
    DEPARTURE,
    KEEP_ALIVE,
    MEDIA_TYPES,
    RECEIVED,
    TRUNCATE,
    TRUNCATED,
    WIRE,
    MalformedResponseError,
    Origin,
    ResponseBoundsError,
    ResponseReader,
    StreamEnd,
    WireCopy,
    request_bytes,
    split_url,
)
from scrapy_spider_suite.fetch.resolver import suite_resolver
from scrapy_spider_suite.runtime.text import media_type
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.signals import settings_changed

logger = logging.getLogger(__name__)

IDLE_SECONDS: Final = 15.0
"""How long an idle connection is kept if the server does not say how long it keeps it."""
SERVER_IDLE_SECONDS: Final = 5.0
"""How long such a server is believed to keep it (the default of Apache and Node)."""
MAX_IDLE_SECONDS: Final = 120.0  # most seconds that a connection is kept idle
_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
"""Methods of requests that may be sent twice after a dead connection; the list is Twisted's."""


class BodyLimits(NamedTuple):
    """How much of a body is read."""

    maxsize: int  # bytes above which the download is cancelled; 0: no limit
    warnsize: int  # bytes above which a warning is logged; 0: never
    truncate: int | None  # bytes after which reading stops without an error
    fail_on_dataloss: bool  # a body that breaks off is an error, else a response with a flag
    media_types: tuple[str, ...]  # of 2xx answers that are read; () for all


class HttpExchange:
    """One request and its answer on one connection; a `ConnectionListener`.

    Invariant: *outcome* is set once: to None with a response, else to the error.

    Attributes:
        stop: the exception of a signal handler that stopped the download.
        unwanted: only the head was read, because of the media type.
        size: bytes received, head and framing included.
    """

    __slots__ = (
        "_crawler", "_head_seen", "_limits", "_request", "_started", "_warned", "flags",
        "outcome", "reader", "size", "stop", "unwanted",
    )  # fmt: skip

    def __init__(
        self, crawler: Crawler, request: Request, limits: BodyLimits, started: float
    ) -> None:
        self._crawler = crawler
        self._request = request
        self._limits = limits
        self._started = started  # time.monotonic() when the download began
        self._head_seen = self._warned = False
        self.reader = ResponseReader(request.method)
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.flags: list[str] = []
        self.stop: StopDownload | None = None
        self.unwanted = False
        self.size = 0

    def headers(self) -> Headers:
        headers = Headers()  # filled past its methods: the reader has normalised the names
        dict.update(headers, self.reader.fields)
        return headers

    def idle_seconds(self) -> float:
        """Return how long the connection may idle now; 0: the server closes it before."""
        reader, request = self.reader, self._request
        asked: list[bytes] | None = dict.get(request.headers, b"Connection")
        if asked is not None and b"close" in b",".join(asked).lower():
            return 0.0
        if not reader.keeps_alive or self.stop is not None:
            return 0.0
        promised = reader.keep_alive_timeout
        next_fetch = request.meta.get(KEEP_ALIVE)
        if next_fetch is not None:
            kept = SERVER_IDLE_SECONDS if promised is None else promised
            if next_fetch > kept:
                return 0.0
        return IDLE_SECONDS if promised is None else min(promised, MAX_IDLE_SECONDS)

    def received(self, data: bytes) -> None:
        reader = self.reader
        self.size += len(data)
        if self.outcome.done():
            reader.excess = True
            return
        known = reader.size
        try:
            reader.feed(data)
        except MalformedResponseError as error:
            self._on_malformed(error)
            return
        if not self._head_seen:
            if not reader.head_done:
                return
            self._on_head()
        if reader.size > known and not self.outcome.done():
            self._on_body(known)
        if reader.done:
            self._finish()

    def disconnected(self, error: Exception | None) -> None:
        if self.outcome.done():
            return
        end = self.reader.close()
        why = f": {error}" if error else ""
        if end is StreamEnd.CLOSED:
            self._finish("partial")
        elif self._head_seen:
            self._lose_data(f"connection closed before the end of the body{why}")
        elif end is StreamEnd.NOTHING:
            self._fail(DownloadFailedError(f"connection closed without an answer{why}"))
        else:
            self._fail(DownloadFailedError(f"connection closed within the head{why}"))

    def _on_head(self) -> None:
        self._head_seen = True
        request, limits, length = self._request, self._limits, self.reader.length
        request.meta["download_latency"] = monotonic() - self._started
        if self._has_receiver(signals.headers_received):
            expected = UNKNOWN_LENGTH if length is None else length
            self._stop_if_asked(
                signals.headers_received, headers=self.headers(), body_length=expected
            )
            if self.outcome.done():
                self.reader.cut_body(0)  # what came along with the head was not asked for
                return
        if limits.media_types and not self._is_wanted():
            self.unwanted = True
            self._finish()
            self.reader.cut_body(0)
            return
        if length is None:
            return
        wanted = length if limits.truncate is None else min(length, limits.truncate)
        self._check_size(wanted, "Expected to receive")

    def _on_body(self, known: int) -> None:
        # The body from byte *known* on is new.
        reader, truncate = self.reader, self._limits.truncate
        if self._has_receiver(signals.bytes_received):
            self._stop_if_asked(signals.bytes_received, data=reader.body(known))
            if self.outcome.done():
                return
        if truncate is not None and (
            reader.size > truncate or reader.size == truncate < (reader.length or 0)
        ):
            reader.cut_body(truncate)
            self._finish(TRUNCATED)
        else:
            self._check_size(reader.size, "Received")

    def _is_wanted(self) -> bool:
        if not 200 <= self.reader.status < 300:
            return True
        types = self.reader.fields.get(b"Content-Type", [b""])
        found, wanted = media_type(types[-1].decode("latin-1")), self._limits.media_types
        return not found or found in wanted or f"{found.partition('/')[0]}/*" in wanted

    def _on_malformed(self, error: MalformedResponseError) -> None:
        # The beginning of a broken body may be wanted.
        if self.reader.head_done and not isinstance(error, ResponseBoundsError):
            if not self._head_seen:
                self._on_head()
            self._lose_data(str(error))
        else:
            self._fail(error)

    def _has_receiver(self, signal: object) -> bool:
        return next(iter(getAllReceivers(self._crawler.signals.sender, signal)), None) is not None

    def _stop_if_asked(self, signal: object, **named: Any) -> None:
        results = self._crawler.signals.send_catch_log(
            signal=signal, request=self._request, spider=self._crawler.spider, **named
        )
        for receiver, result in results:
            if isinstance(result, Failure) and isinstance(result.value, StopDownload):
                name = getattr(receiver, "__qualname__", repr(receiver))
                logger.debug("Download stopped for %s from signal handler %s", self._request, name)
                self.stop = result.value
                self._finish("download_stopped")
                return

    def _lose_data(self, why: str) -> None:
        if self._limits.fail_on_dataloss:
            self._fail(ResponseDataLossError(why))
        else:
            self._finish("dataloss")

    def _check_size(self, size: int, prefix: str) -> None:
        limits = self._limits
        if limits.maxsize and size > limits.maxsize:
            message = (
                f"{prefix} {size} bytes which is larger than download max size"
                f" ({limits.maxsize}) in request {self._request}."
            )
            logger.warning(message)
            self._fail(DownloadCancelledError(message))
        elif limits.warnsize and size > limits.warnsize and not self._warned:
            self._warned = True
            logger.warning(
                "%s %d bytes which is larger than download warn size (%d) in request %s.",
                prefix, size, limits.warnsize, self._request,
            )  # fmt: skip

    def _finish(self, flag: str | None = None) -> None:
        if not self.outcome.done():
            self.reader.release()
            if flag:
                self.flags.append(flag)
            self.outcome.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self.outcome.done():
            self.reader.release()
            self.outcome.set_exception(error)


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
        crawler.signals.connect(self._publish_counts, signals.spider_closed)
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
            if not self._dataloss_warned:
                self._dataloss_warned = True
                logger.warning(
                    "Got data loss in %s. If you want to process broken responses set the setting "
                    "DOWNLOAD_FAIL_ON_DATALOSS = False -- This message won't be shown in further "
                    "requests",
                    request.url,
                )
            raise
        if self._packed:
            meta[WIRE] = _wire_copy(message, connection, exchange)
        return self._response(request, connection, exchange)

    def _publish_counts(self) -> None:
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
        if (departure := request.meta.get(DEPARTURE)) is not None:
            departure.hold()
        bind = request.meta.get("bindaddress")
        bind = self._bind if bind is None else _bind_address(bind)
        addresses = await self._addresses(request, origin)
        server = origin.scheme, origin.host, origin.port, bind
        keys = [ConnectionKey(each, *server) for each in addresses]
        connection = next(filter(None, map(self._pool.checkout, keys)), None)
        if connection is not None:
            exchange = self._exchange(request, started)
            try:
                return await self._converse(request, connection, exchange, message)
            except DownloadFailedError:
                # Without a byte of an answer: the server closed it just as it was taken.
                if exchange.reader.touched or request.method not in _IDEMPOTENT or request.body:
                    raise
                self._pool.counts["retried"] += 1
                await _wait_before_resend(request, timeout)
        connection = await self._open(keys, timeout)
        exchange = self._exchange(request, started)
        return await self._converse(request, connection, exchange, message)

    async def _addresses(self, request: Request, origin: Origin) -> Sequence[str]:
        # At least one, in order of preference.
        booked: str | None = request.meta.get(ADDRESS)
        if booked:
            return (booked,)
        host = f"[{origin.host}]" if ":" in origin.host else origin.host.rstrip(".")
        try:
            return (await suite_resolver(self._crawler).resolve(host)).addresses
        except ResolveError as error:
            raise CannotResolveHostError(str(error)) from error

    async def _converse(
        self, request: Request, connection: Connection, exchange: HttpExchange, message: bytes
    ) -> tuple[Connection, HttpExchange]:
        idle_seconds = 0.0
        connection.send(message, exchange)
        if (departure := request.meta.get(DEPARTURE)) is not None:
            departure.gone(monotonic())  # after the bytes: whatever held them up delays no less
        try:
            await exchange.outcome
            idle_seconds = exchange.idle_seconds()
        finally:
            connection.listener = None
            request.meta[RECEIVED] = request.meta.get(RECEIVED, 0) + exchange.size
            if idle_seconds > 0:
                self._pool.keep_idle(connection, idle_seconds)
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
        return HttpExchange(self._crawler, request, limits, started)

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


def _wire_copy(message: bytes, connection: Connection, exchange: HttpExchange) -> WireCopy:
    reader, tls = exchange.reader, connection.ssl_object
    protocols = [reader.version.lower()]
    if tls is not None:
        protocols.append((tls.version() or "TLS").lower().replace("tlsv", "tls/"))
    return WireCopy(message, reader.head, tuple(protocols))


async def _wait_before_resend(request: Request, timeout: asyncio.Timeout) -> None:
    # The server may have read the request before it closed the connection: to it, this is another
    # one. The wait does not count against *timeout*.
    seconds = request.meta.get(KEEP_ALIVE) or 0.0
    deadline = timeout.when()
    if seconds > 0 and deadline is not None:
        timeout.reschedule(deadline + seconds)
        await asyncio.sleep(seconds)


def _bind_address(value: str | tuple[str, int] | None) -> tuple[str, int] | None:
    # Scrapy allows a host or a pair.
    return (value, 0) if isinstance(value, str) else value
