"""What only the suite's own handler does."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from scrapy import signals
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    UnsupportedURLSchemeError,
)
from support.byte_servers import (
    PAGE,
    Peer,
    RawServer,
    answer,
    answering,
    answering_once,
    tls_context,
)
from support.http_client import Client

from scrapy_spider_suite.errors import NoSuchHostError, PrivateAddressError
from scrapy_spider_suite.fetch import http1
from scrapy_spider_suite.fetch.http_messages import ResponseBoundsError, UnsendableRequestError
from scrapy_spider_suite.fetch.resolver import Resolution


def test_fields_about_the_connection_are_kept(client: Client) -> None:
    """Archives want what was on the wire."""
    reply = answer(PAGE, "Connection: keep-alive", "Keep-Alive: timeout=9")

    async def main() -> None:
        async with RawServer(answering(reply)) as server:
            response = await client.fetch(server.url())
            head = await client.fetch(server.url(), method="HEAD")
        assert response.headers["Keep-Alive"] == b"timeout=9"
        assert head.headers["Content-Length"] == b"%d" % len(PAGE)

    client.run(main())


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-Flood: " + b"x" * 1000 + b"\r\n"),
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x" * 10_000),
    ],
    ids=["head", "interim", "chunks"],
)
def test_floods(client: Client, start: bytes, piece: bytes) -> None:
    """An endless answer of any kind ends soon, as a failure of the server."""

    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.send(start)
        while await peer.send(piece):
            pass

    async def main() -> None:
        async with RawServer(talk) as server:
            with pytest.raises(ResponseBoundsError):
                await client.fetch(server.url())
            await asyncio.sleep(0.05)
            assert server.open == 0

    client.run(main())


def test_nothing_is_read_after_the_limit(client: Client) -> None:
    """An endless body costs no more memory than the limit and one read."""
    client.settings["DOWNLOAD_MAXSIZE"] = 1 << 20
    sent = 0

    async def talk(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while await peer.send(b"x" * 65_536):
            sent += 65_536

    async def main() -> None:
        async with RawServer(talk) as server:
            with pytest.raises(Exception, match="max size"):
                await client.fetch(server.url())
        assert sent < 16 << 20

    client.run(main())


class FakeResolver:
    """Knows one name."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked: list[str] = []

    async def resolve(self, host: str) -> Resolution:
        """Answer for example.test and literals only."""
        self.asked.append(host)
        if not host.startswith(("example.test", "[", "127.")):
            raise NoSuchHostError(f"{host}: no such host")
        return Resolution(self.addresses, 600.0)


def resolve_with(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> FakeResolver:
    """Let the crawl's resolver be a fake one."""
    resolver = FakeResolver(*addresses)
    monkeypatch.setattr(http1, "suite_resolver", lambda crawler: resolver)
    return resolver


def test_without_a_booking_the_name_is_resolved(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Used alone, a handler asks the crawl's resolver, for literals too."""
    resolver = resolve_with(monkeypatch, "127.0.0.2")

    async def main() -> None:
        async with RawServer(answering(answer()), "127.0.0.2") as server:
            response = await client.fetch(server.url(), None)
            assert str(response.ip_address) == "127.0.0.2"
            await client.fetch(server.url(host="[2001:db8::1]"), None)
            with pytest.raises(CannotResolveHostError, match="no such host"):
                await client.fetch(server.url(host="other.test"), None)
        assert resolver.asked == ["example.test", "[2001:db8::1]", "other.test"]

    client.run(main())


def test_private_addresses_are_refused(client: Client) -> None:
    """Used alone, too, a page cannot lead the handler to the machine it runs on."""
    del client.settings["SUITE_ALLOW_PRIVATE_ADDRESSES"]

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            with pytest.raises(PrivateAddressError):
                await client.fetch(server.url(host="127.0.0.1"), None)
            assert server.connections == 0

    client.run(main())


def test_the_next_address_is_tried(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is booked, an address that refuses is no reason to give up the host."""
    resolve_with(monkeypatch, "127.0.0.3", "127.0.0.2")

    async def main() -> None:
        async with RawServer(answering(answer()), "127.0.0.2") as server:
            response = await client.fetch(server.url(), None)
            assert str(response.ip_address) == "127.0.0.2"
        with pytest.raises(DownloadConnectionRefusedError):
            await client.fetch(server.url(), None)

    client.run(main())


def test_only_numeric_addresses_are_connected_to(client: Client) -> None:
    """A booking that is a name is not looked up behind the gate's back."""

    async def main() -> None:
        with pytest.raises(DownloadFailedError):
            await client.fetch("http://example.test/", "localhost")

    client.run(main())


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("ftp://example.test/", UnsupportedURLSchemeError),
        ("http://example.test:0/", UnsendableRequestError),
    ],
)
def test_urls_of_other_kinds(client: Client, url: str, error: type[Exception]) -> None:
    """They fail before anything is connected to."""

    async def main() -> None:
        with pytest.raises(error):
            await client.fetch(url)

    client.run(main())


def test_hosts_that_tls_cannot_ask_for(client: Client) -> None:
    """A label of 64 letters is no host."""

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            url = f"https://{'a' * 64}.test:{server.port}/"
            with pytest.raises(CannotResolveHostError):
                await client.fetch(url)

    client.run(main())


def test_tls_details_are_logged_where_asked(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """DOWNLOADER_CLIENT_TLS_VERBOSE_LOGGING."""
    client.settings["DOWNLOADER_CLIENT_TLS_VERBOSE_LOGGING"] = True

    async def main() -> None:
        tls = tls_context(tmp_path, "example.test")
        async with RawServer(answering(answer()), tls=tls) as server:
            await client.fetch(server.url())

    with caplog.at_level(logging.DEBUG):
        client.run(main())
    assert "SSL connection to example.test using protocol TLSv1.3" in caplog.text


def test_tls_versions_that_do_not_meet(client: Client, tmp_path: Path) -> None:
    """A handshake that fails is a failed download."""
    client.settings["DOWNLOADER_CLIENT_TLS_METHOD"] = "TLSv1.2"

    async def main() -> None:
        tls = tls_context(tmp_path, "example.test")
        tls.minimum_version = ssl.TLSVersion.TLSv1_3
        async with RawServer(answering(answer()), tls=tls) as server:
            with pytest.raises(DownloadFailedError):
                await client.fetch(server.url())

    client.run(main())


def test_signals_see_every_piece(client: Client) -> None:
    """Headers once, then the body as it comes."""
    seen: list[bytes] = []

    def on_bytes(data: bytes, request: Any, spider: Any) -> None:
        seen.append(data)

    async def main() -> None:
        client.crawler.signals.connect(on_bytes, signal=signals.bytes_received)
        pieces = answer(b"abc")[:-2], b"b", b"c"
        async with RawServer(answering_once(*pieces, pause=0.02)) as server:
            await client.fetch(server.url())
        assert seen == [b"a", b"b", b"c"]

    client.run(main())
