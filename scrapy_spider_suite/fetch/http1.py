"""The suite's HTTP/1.1 download handler, of DOWNLOAD_HANDLERS: asyncio and llhttp.

Settings, meta keys, signals, flags and exceptions are those of Scrapy's handler. But
``response.headers`` has the fields about the connection, too; the suite's resolver refuses private
addresses; unfit certificates are not logged. Requests with a proxy go to Scrapy's handler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

from pydispatch.dispatcher import getAllReceivers  # type: ignore[import-untyped]
from scrapy import Request, exceptions, signals
from scrapy.crawler import Crawler
from scrapy.http import Headers, Response
from twisted.python.failure import Failure
from twisted.web.iweb import UNKNOWN_LENGTH

from scrapy_spider_suite.errors import ResolveError
from scrapy_spider_suite.exceptions import UnwantedMediaType
from scrapy_spider_suite.fetch import http_messages
from scrapy_spider_suite.fetch.connections import (
    CONNECT_FAILURES,
    CONTEXT_FACTORY,
    Connection,
    ConnectionKey,
    connect,
    crawler_pool,
    has_own_context_factory,
    make_ssl_context,
)
from scrapy_spider_suite.fetch.exchange import BodyLimits, Exchange, note_exchange, pop_exchange
from scrapy_spider_suite.fetch.http_messages import DEPARTURE, KEEP_ALIVE, Origin
from scrapy_spider_suite.fetch.resolver import suite_resolver
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.signals import settings_changed

logger = logging.getLogger(__name__)

_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
"""Methods of requests that may be sent twice after a dead connection; the list is Twisted's."""


class _DownloadSignals:
    """Sends the signals of a download where somebody listens; their receivers may stop it."""

    def __init__(self, crawler: Crawler, request: Request) -> None:
        self._crawler = crawler
        self._request = request
        self._started = monotonic()
        self.stop: exceptions.StopDownload | None = None

    def head_received(self, exchange: Exchange) -> None:
        self._request.meta["download_latency"] = monotonic() - self._started
        if self._has_receiver(signals.headers_received):
            reader, headers = exchange.reader, Headers()
            dict.update(headers, reader.fields)
            expected = UNKNOWN_LENGTH if reader.length is None else reader.length
            named = {"headers": headers, "body_length": expected}
            if self._is_stopped(signals.headers_received, named):
                reader.cut_body(0)  # what came along with the head was not asked for
                exchange.finish("download_stopped")

    def body_received(self, exchange: Exchange, known: int) -> None:
        if self._has_receiver(signals.bytes_received) and self._is_stopped(
            signals.bytes_received, {"data": exchange.reader.body(known)}
        ):
            exchange.finish("download_stopped")

    def _has_receiver(self, signal: object) -> bool:
        return next(iter(getAllReceivers(self._crawler.signals.sender, signal)), None) is not None

    def _is_stopped(self, signal: object, named: dict[str, Any]) -> bool:
        results = self._crawler.signals.send_catch_log(
            signal=signal, request=self._request, spider=self._crawler.spider, **named
        )
        for receiver, result in results:
            if isinstance(result, Failure) and isinstance(result.value, exceptions.StopDownload):
                name = getattr(receiver, "__qualname__", repr(receiver))
                logger.debug("Download stopped for %s from signal handler %s", self._request, name)
                self.stop = result.value
                return True
        return False


class Http1Handler:
    """Scrapy download handler for ``http`` and ``https``.

    Meta keys that it reads:

    - ``suite_address``: numeric address to connect to.
    - ``suite_keep_alive``: seconds until the next fetch from this host, for keeping the connection
      and before a request that a closed connection swallowed is sent again.
    - ``suite_departure``: told of the search for a connection, and of the bytes' departure.
    - ``suite_truncate``: bytes of body after which reading stops, with the flag ``truncated``.
    - ``suite_media_types``: of 2xx answers that are read; others raise `UnwantedMediaType`.

    `pop_exchange` has the exchange of a request, also after an error.
    """

    lazy = False

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        if has_own_context_factory(settings):
            raise exceptions.NotConfigured(
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
        self._bind = bind_address(settings.get("DOWNLOAD_BIND_ADDRESS"))
        self._tls = make_ssl_context(settings)
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
        pop_exchange(request)  # of an earlier attempt
        origin, target = http_messages.split_url(request.url)
        message = http_messages.request_bytes(
            request.method, target, origin.header, request.headers, request.body
        )
        seconds = meta.get("download_timeout") or self._timeout
        watch = _DownloadSignals(self._crawler, request)
        try:
            async with asyncio.timeout(seconds) as timeout:
                exchange = await self._fetch(request, origin, message, timeout, watch)
        except TimeoutError:
            raise exceptions.DownloadTimeoutError(
                f"Getting {request.url} took longer than {seconds} seconds."
            ) from None
        except exceptions.ResponseDataLossError:
            if not self._dataloss_warned:
                self._dataloss_warned = True
                logger.warning(
                    "Got data loss in %s. If you want to process broken responses set the setting "
                    "DOWNLOAD_FAIL_ON_DATALOSS = False -- This message won't be shown in further "
                    "requests",
                    request.url,
                )
            raise
        response = exchange.make_response()
        if watch.stop is not None and watch.stop.fail:
            watch.stop.response = response
            raise watch.stop
        if exchange.unwanted:
            raise UnwantedMediaType(response)
        return response

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

    async def _fetch(
        self, request: Request, origin: Origin, message: bytes, timeout: asyncio.Timeout,
        watch: _DownloadSignals,
    ) -> Exchange:  # fmt: skip
        if (departure := request.meta.get(DEPARTURE)) is not None:
            departure.hold()
        bind = request.meta.get("bindaddress")
        bind = self._bind if bind is None else bind_address(bind)
        addresses = await self._addresses(request, origin)
        server = origin.scheme, origin.host, origin.port, bind
        keys = [ConnectionKey(each, *server) for each in addresses]
        connection = next(filter(None, map(self._pool.checkout, keys)), None)
        if connection is not None:
            try:
                return await self._converse(request, connection, message, watch)
            except exceptions.DownloadFailedError:
                # Without a byte of an answer: the server closed it just as it was taken.
                exchange = pop_exchange(request)
                touched = exchange is None or exchange.reader.touched
                if touched or request.method not in _IDEMPOTENT or request.body:
                    raise
                self._pool.counts["retried"] += 1
                await _wait_before_resend(request, timeout)
        connection = await self._open(keys, timeout)
        return await self._converse(request, connection, message, watch)

    async def _addresses(self, request: Request, origin: Origin) -> Sequence[str]:
        # At least one, in order of preference.
        booked: str | None = request.meta.get(http_messages.ADDRESS)
        if booked:
            return (booked,)
        host = f"[{origin.host}]" if ":" in origin.host else origin.host.rstrip(".")
        try:
            return (await suite_resolver(self._crawler).resolve(host)).addresses
        except ResolveError as error:
            raise exceptions.CannotResolveHostError(str(error)) from error

    async def _converse(
        self, request: Request, connection: Connection, message: bytes, watch: _DownloadSignals
    ) -> Exchange:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        exchange = Exchange(
            request.url, message, self._limits(request), partial(_resolve, over), request.method
        )
        exchange.reader.no_body = request.method == "HEAD"
        exchange.observer = watch
        note_exchange(request, exchange)
        idle_seconds = 0.0
        connection.send(message, exchange)
        if (departure := request.meta.get(DEPARTURE)) is not None:
            departure.gone(monotonic())  # after the bytes: whatever held them up delays no less
        try:
            await over
            exchange.note_connection(connection)
            if watch.stop is None and not _asks_to_close(request):
                idle_seconds = exchange.idle_seconds(request.meta.get(KEEP_ALIVE))
        finally:
            exchange.observer = exchange.error = None  # both lead back to *request*
            connection.listener = None
            if idle_seconds > 0:
                self._pool.keep_idle(connection, idle_seconds)
            else:
                connection.close()
        return exchange

    async def _open(self, keys: Sequence[ConnectionKey], timeout: asyncio.Timeout) -> Connection:
        for key in keys[:-1]:
            try:
                return await self._open_one(key, timeout)
            except CONNECT_FAILURES as error:
                logger.debug("Trying the next address of %s: %s", key.host, error)
        return await self._open_one(keys[-1], timeout)

    async def _open_one(self, key: ConnectionKey, timeout: asyncio.Timeout) -> Connection:
        tls = self._tls if key.scheme == "https" else None
        return await connect(self._pool, key, tls, timeout)

    def _limits(self, request: Request) -> BodyLimits:
        meta = request.meta
        return BodyLimits(
            meta.get("download_maxsize", self._maxsize),
            meta.get("download_warnsize", self._warnsize),
            meta.get(http_messages.TRUNCATE),
            meta.get("download_fail_on_dataloss", self._fail_on_dataloss),
            tuple(meta.get(http_messages.MEDIA_TYPES, ())),
        )

    async def _through_proxy(self, request: Request) -> Response:
        if self._proxied is None:
            from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
            from twisted.web.client import HTTPConnectionPool

            try:
                self._proxied = HTTP11DownloadHandler.from_crawler(self._crawler)
            except exceptions.NotConfigured as error:
                raise exceptions.NotSupported(f"proxies need Scrapy's handler: {error}") from error
            pool = getattr(self._proxied, "_pool", None)
            if isinstance(pool, HTTPConnectionPool):
                pool.retryAutomatically = False  # at once, that is: without the delay
        return await self._proxied.download_request(request)  # type: ignore[no-any-return]


def _resolve(over: asyncio.Future[None], exchange: Exchange) -> None:
    if over.done():  # cancelled
        return
    if exchange.error is None:
        over.set_result(None)
    else:
        over.set_exception(exchange.error)


def _asks_to_close(request: Request) -> bool:
    asked: list[bytes] | None = dict.get(request.headers, b"Connection")
    return asked is not None and b"close" in b",".join(asked).lower()


async def _wait_before_resend(request: Request, timeout: asyncio.Timeout) -> None:
    # The server may have read the request before it closed the connection: to it, this is another
    # one. The wait does not count against *timeout*.
    seconds = request.meta.get(KEEP_ALIVE) or 0.0
    deadline = timeout.when()
    if seconds > 0 and deadline is not None:
        timeout.reschedule(deadline + seconds)
        await asyncio.sleep(seconds)


def bind_address(value: str | tuple[str, int] | None) -> tuple[str, int] | None:
    # Scrapy allows a host or a pair.
    return (value, 0) if isinstance(value, str) else value
