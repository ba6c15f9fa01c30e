"""What is particular to Scrapy's handler when it is held to an address."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from helpers_client import Client
from helpers_servers import RawServer, answer, answering, tls_context
from scrapy import Request
from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
from scrapy.http import Response
from twisted.internet.defer import fail
from twisted.internet.error import ConnectBindError

from scrapy_spider_suite.handlers import pinned as module
from scrapy_spider_suite.handlers.errors import OutOfFilesError
from scrapy_spider_suite.handlers.pinnedpool import AddressedPool, Pin
from scrapy_spider_suite.handlers.pool import WAITS_FOR_FILES


def test_this_scrapy_can_be_pinned(pinned: Client) -> None:
    """The private names that the handler needs are there; Twisted's, too."""
    pool = pinned.handler._pool
    assert isinstance(pool, AddressedPool)
    assert (pool._timeouts, pool._connections) == ({}, {})


def test_the_bound_on_idle_connections(pinned: Client) -> None:
    """However many hosts there are, no more connections idle than the setting allows."""
    pinned.settings["SUITE_IDLE_CONNECTIONS"] = 3

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            for number in range(10):
                await pinned.fetch(server.url(host=f"h{number}.test"))
            await asyncio.sleep(0.05)
            assert server.open == 3
            await pinned.fetch(server.url(host="h9.test"))
            assert server.connections == 10

    pinned.run(main())


def test_nothing_is_kept_of_hosts_that_were_left(
    pinned: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twisted's pool remembers each host by an empty list, which would grow with the crawl."""
    pinned.settings["SUITE_IDLE_CONNECTIONS"] = 1
    monkeypatch.setattr("scrapy_spider_suite.handlers.pinnedpool._EMPTY", 10)

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            for number in range(30):
                await pinned.fetch(server.url(host=f"h{number}.test"))
                await asyncio.sleep(0)
            pool = pinned.handler._pool
            assert isinstance(pool, AddressedPool)
            assert len(pool._connections) <= 2 + 10 + 1
            await pinned.fetch(server.url(host="h29.test"))
            assert server.connections == 30

    pinned.run(main())


def test_both_schemes_share_the_bound(pinned: Client, tmp_path: Path) -> None:
    """Scrapy makes a handler for each scheme; the files are the same."""
    pinned.settings["SUITE_IDLE_CONNECTIONS"] = 2

    async def main() -> None:
        other = Client(pinned.kind, lambda main: None)
        other._crawler = pinned.crawler
        tls = tls_context(tmp_path, "example.test")
        async with RawServer(answering(answer())) as plain, RawServer(
            answering(answer()), tls=tls
        ) as safe:
            for number in range(4):
                await pinned.fetch(plain.url(host=f"h{number}.test"))
                await other.fetch(safe.url(host=f"h{number}.test"))
            await asyncio.sleep(0.05)
            assert plain.open + safe.open == 2
            await other.handler.close()

    pinned.run(main())


def test_out_of_files(pinned: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Twisted calls a failure to bind is our own, and said to be; other ones are not."""
    code = errno.EMFILE
    short = Shortage(monkeypatch, lambda: code)

    async def main() -> None:
        nonlocal code
        with pytest.raises(OutOfFilesError, match="Too many open files"):
            await pinned.fetch("http://example.test/")
        assert short.attempts == 1 + len(WAITS_FOR_FILES)
        code = errno.EADDRNOTAVAIL
        with pytest.raises(ConnectBindError):
            await pinned.fetch("http://example.test/")

    pinned.run(main())


def test_out_of_files_for_a_moment(pinned: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """All idle connections are closed, then it is tried again, and the request knows nothing."""

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            for number in range(3):
                await pinned.fetch(server.url(host=f"h{number}.test"))
            short = Shortage(monkeypatch, lambda: errno.EMFILE, until=4)
            await pinned.fetch(server.url(host="h3.test"))
            assert short.attempts == 5
            idle = pinned.handler._pool._connections.values()
            assert [len(connections) for connections in idle] == [0, 0, 0, 1]

    pinned.run(main())


def test_a_slot_is_free_when_its_connection_is_closed(pinned: Client) -> None:
    """Closing takes Twisted a turn or more of the loop; the file is in use until then."""
    pinned.settings["SUITE_IDLE_CONNECTIONS"] = 1

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            bounds = module._bounds[pinned.handler._suite_crawler]
            urls = [server.url(host=f"h{number}.test") for number in range(20)]
            await asyncio.gather(*map(pinned.fetch, urls))
            assert (bounds.out, bounds.open) == (0, 1)

    pinned.run(main())


class Shortage:
    """Makes the handler's attempts to connect fail with *code*, the first *until* of them."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, code: Callable[[], int], until: float = math.inf
    ) -> None:
        self.attempts = 0
        real = Pin._endpoint

        def endpoint(pin: Pin) -> Any:
            self.attempts += 1
            return self if self.attempts <= until else real(pin)

        self._code = code
        monkeypatch.setattr(Pin, "_endpoint", endpoint)

    def connect(self, factory: Any) -> Any:
        """Fail as Twisted's endpoints do."""
        code = self._code()
        return fail(ConnectBindError(code, os.strerror(code)))


def stub_scrapy(monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
    """Let Scrapy's handler answer by itself, from *address*."""

    async def download_request(self: Any, request: Request) -> Response:
        return Response(request.url, ip_address=address and ip_address(address))

    monkeypatch.setattr(HTTP11DownloadHandler, "download_request", download_request)


def test_old_scrapy_forgets_the_address(pinned: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a response without a body had none; the pin knows it."""
    stub_scrapy(monkeypatch, None)

    async def main() -> None:
        response = await pinned.fetch("http://example.test/", "127.0.0.7")
        assert response.ip_address == ip_address("127.0.0.7")

    pinned.run(main())


def test_a_scrapy_that_cannot_be_pinned(
    pinned: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is used as it is, with one warning, and other addresses than the booked one counted."""
    stub_scrapy(monkeypatch, "127.0.0.1")
    monkeypatch.setattr(module, "HTTPConnectionPool", type("Another", (), {}))

    async def main() -> None:
        for address in ("127.0.0.1", "127.0.0.2", None):
            await pinned.fetch("http://example.test/", address)

    with caplog.at_level(logging.WARNING):
        pinned.run(main())
    assert caplog.text.count("cannot be held") == 1
    assert pinned.crawler.stats is not None
    assert pinned.crawler.stats.get_value("suite/handler/address_mismatch") == 1
