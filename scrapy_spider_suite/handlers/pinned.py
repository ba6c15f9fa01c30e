"""Scrapy's own HTTP/1.1 handler, held to the address that a request was booked on.

For projects that should see no difference: every byte is sent and read by Scrapy and Twisted. Only
what Twisted's agent asks its connection pool for is changed on the way, in the pool's one public
method: the address joins the key, so that no connection to another address of the same name is
reused, and a new connection goes to the address. Host, SNI and the certificate's name stay the
URL's, because the agent has decided on them before.

Private names touched: ``_pool`` and ``_contextFactory`` of Scrapy's ``HTTP11DownloadHandler`` (2.16
to 2.19 have both; without them the handler works unpinned, says so once, and counts addresses that
differ from the booked ones under ``suite/handler/address_mismatch``), and those of `pinnedpool`.
"""

from __future__ import annotations

import asyncio
import logging
from ipaddress import ip_address
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

from scrapy import signals
from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
from scrapy.exceptions import DownloadFailedError, StopDownload
from twisted.web.client import (  # type: ignore[attr-defined]
    HTTPConnectionPool,
    RequestNotSent,
    RequestTransmissionFailed,
    ResponseNeverReceived,
)

from scrapy_spider_suite.handlers.addressing import addresses_of
from scrapy_spider_suite.handlers.files import raise_file_limit
from scrapy_spider_suite.handlers.keeping import idle_limit, may_be_sent_again
from scrapy_spider_suite.handlers.pinnedpool import AddressedPool, Bounds, Pin, current_pin
from scrapy_spider_suite.handlers.wire import split_url
from scrapy_spider_suite.signals import settings_changed

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_spider_suite.settings.suite import SuiteSettings

logger = logging.getLogger(__name__)

_UNSENT = (RequestNotSent, RequestTransmissionFailed)
CONNECT_SECONDS = 10.0
"""Time to connect without a ``download_timeout``; Scrapy's handler has the same."""

_bounds: WeakKeyDictionary[Crawler, Bounds] = WeakKeyDictionary()


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
        token = current_pin.set(pin)
        try:
            response = await self._download_again(request, pin)
        finally:
            current_pin.reset(token)
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
