"""What the handler promises, as Scrapy's own does."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from typing import Any

import pytest
from scrapy import signals
from scrapy.exceptions import (
    DownloadCancelledError,
    DownloadFailedError,
    ResponseDataLossError,
    StopDownload,
)
from scrapy.http import HtmlResponse
from support.byte_servers import PAGE, Peer, RawServer, answer, answering, answering_once
from support.http_client import Client


def test_a_page(client: Client) -> None:
    """A page arrives as the response that Scrapy's own handler builds."""

    async def main() -> None:
        async with RawServer(answering(answer(PAGE, "X-A: 1", "x-a:  2 "))) as server:
            request = client.request(server.url("/a/b?c=d#e"))
            response = await client.send(request)
        assert type(response) is HtmlResponse
        assert (response.status, response.body) == (200, PAGE)
        assert response.url == server.url("/a/b?c=d")
        assert response.headers.getlist("X-A") == [b"1", b"2"]
        assert response.headers["Content-Length"] == b"%d" % len(PAGE)
        assert response.ip_address == ipaddress.ip_address("127.0.0.1")
        assert (response.protocol, response.flags, response.certificate) == ("HTTP/1.1", [], None)
        assert 0 < request.meta["download_latency"] < 5

    client.run(main())


def test_what_is_sent(client: Client) -> None:
    """Method, target, host and fields are the request's; framing is added."""

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            fields = {"User-Agent": "me", "X-Two": ["1", "2"]}
            await client.fetch(server.url("/p%20q?r=s&t"), headers=fields)
            await client.fetch(server.url("/post"), method="POST", body="a=b")
            await client.fetch(server.url("/empty"), method="POST")
        get, post, empty = server.requests
        assert get.startswith(b"GET /p%20q?r=s&t HTTP/1.1\r\n")
        lines = get.split(b"\r\n")
        assert b"Host: example.test:%d" % server.port in lines
        mine = [b"User-Agent: me", b"X-Two: 1", b"X-Two: 2"]
        assert [line for line in lines if line in mine] == mine
        assert get.endswith(b"\r\n\r\n")
        assert b"Content-Length" not in get
        assert b"Connection" not in get
        assert b"\r\nContent-Length: 3\r\n" in post
        assert post.endswith(b"\r\n\r\na=b")
        assert b"\r\nContent-Length: 0\r\n" in empty

    client.run(main())


def test_a_value_cannot_add_a_field(client: Client) -> None:
    """A line break in a header value does not reach the wire."""

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            await client.fetch(server.url(), headers={"X-A": "1\r\nX-Evil: 2"})
        assert b"\r\nX-A: 1 X-Evil: 2\r\n" in server.requests[0]

    client.run(main())


@pytest.mark.parametrize(
    ("method", "reply"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ],
)
def test_responses_without_body(client: Client, method: str, reply: bytes) -> None:
    """Some responses have no body whatever they say, and leave the connection usable."""

    async def main() -> None:
        async with RawServer(answering(reply, answer())) as server:
            first = await client.fetch(server.url(), method=method)
            second = await client.fetch(server.url())
        assert first.body == b""
        assert first.ip_address == ipaddress.ip_address("127.0.0.1")
        assert second.body == PAGE
        assert server.connections == 1

    client.run(main())


def test_chunked(client: Client) -> None:
    """Chunks are joined; extensions and trailers are left out; the connection is reused."""
    reply = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5;a=b\r\nhello\r\n7\r\n, world\r\n0\r\nX-Trailer: 1\r\n\r\n"
    )

    async def main() -> None:
        async with RawServer(answering(reply)) as server:
            for _ in range(2):
                response = await client.fetch(server.url())
                assert response.body == b"hello, world"
                assert response.flags == []
                assert "X-Trailer" not in response.headers
        assert server.connections == 1

    client.run(main())


def test_interim_responses_are_skipped(client: Client) -> None:
    """A 100 or 103 before the response is not the response."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    reply = b"HTTP/1.1 100 Continue\r\n\r\n" + hints + answer()

    async def main() -> None:
        async with RawServer(answering(reply)) as server:
            response = await client.fetch(server.url())
        assert (response.status, response.body) == (200, PAGE)
        assert "Link" not in response.headers

    client.run(main())


def test_a_body_that_ends_with_the_connection(client: Client) -> None:
    """Nobody can tell if it is whole, so it is flagged."""

    async def main() -> None:
        reply = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
        async with RawServer(answering_once(reply, b"all ", b"of it")) as server:
            response = await client.fetch(server.url())
        assert (response.body, response.flags) == (b"all of it", ["partial"])

    client.run(main())


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\nnonsense\r\n",
    ],
    ids=["length", "chunked", "broken chunk"],
)
def test_data_loss(client: Client, reply: bytes) -> None:
    """A body that breaks off is an error, or a flag where that is asked for."""

    async def main() -> None:
        async with RawServer(answering_once(reply)) as server:
            with pytest.raises(ResponseDataLossError):
                await client.fetch(server.url())
            lenient = {"download_fail_on_dataloss": False}
            response = await client.fetch(server.url(), meta=lenient)
        assert (response.body, response.flags) == (b"short", ["dataloss"])

    client.run(main())


def test_data_loss_is_explained_once(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """The hint at the setting is logged for the first lossy response only."""

    async def main() -> None:
        reply = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
        async with RawServer(answering_once(reply)) as server:
            for _ in range(2):
                with pytest.raises(ResponseDataLossError):
                    await client.fetch(server.url())

    with caplog.at_level(logging.WARNING):
        client.run(main())
    assert caplog.text.count("DOWNLOAD_FAIL_ON_DATALOSS") == 1


@pytest.mark.parametrize(
    "reply",
    [
        answer(b"x" * 2000),
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + b"x" * 2000 + b"\r\n",
    ],
    ids=["length", "close", "chunked"],
)
def test_maxsize(client: Client, reply: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A body larger than the limit is not read to its end."""
    client.settings["DOWNLOAD_MAXSIZE"] = 1000

    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply)
        await peer.gone()

    async def main() -> None:
        async with RawServer(talk) as server:
            with pytest.raises(DownloadCancelledError):
                await client.fetch(server.url())
            await asyncio.sleep(0.05)
            assert server.open == 0

    client.run(main())
    assert "larger than download max size (1000)" in caplog.text


def test_warnsize(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """A large body is warned of, once, and read."""

    async def main() -> None:
        async with RawServer(answering(answer(b"x" * 2000))) as server:
            response = await client.fetch(server.url(), meta={"download_warnsize": 1000})
        assert len(response.body) == 2000

    client.run(main())
    assert caplog.text.count("larger than download warn size (1000)") == 1


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\nxxx",
        b"\x00" * 100 + b"\r\n\r\n",
    ],
    ids=["nothing", "half a head", "ssh", "negative", "two lengths", "upgrade", "zeros"],
)
def test_no_response(client: Client, reply: bytes) -> None:
    """What is not a response fails as a download that is worth a retry."""

    async def main() -> None:
        async with RawServer(answering_once(reply)) as server:
            with pytest.raises(DownloadFailedError):
                await client.fetch(server.url())

    client.run(main())


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nno colon here\r\nX-A: 1\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\nX-A: 1\nContent-Length: 5\n\n",
        b"HTTP/1.1 200\r\nX-A: 1\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A:\r\n 1\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nX-A: 1\r\nContent-Length: 5\r\n\r\n",
    ],
    ids=["no colon", "line feeds", "no reason", "same length twice", "folded", "1.0"],
)
def test_sloppy_heads_are_read(client: Client, head: bytes) -> None:
    """What Scrapy's handler can read, this one can."""

    async def main() -> None:
        async with RawServer(answering_once(head + b"hello")) as server:
            response = await client.fetch(server.url())
        assert (response.status, response.body) == (200, b"hello")
        assert response.headers["X-A"] == b"1"

    client.run(main())


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("name", ["headers_received", "bytes_received"])
def test_stop_download(client: Client, name: str, fail: bool) -> None:
    """A signal handler can stop a download; what came so far is the response."""
    seen: list[dict[str, Any]] = []

    def stop(**named: Any) -> None:
        seen.append(named)
        raise StopDownload(fail=fail)

    async def main() -> None:
        client.crawler.signals.connect(stop, signal=getattr(signals, name))
        async with RawServer(answering(answer(b"x" * 100))) as server:
            if fail:
                with pytest.raises(StopDownload) as caught:
                    await client.fetch(server.url())
                response = caught.value.response
            else:
                response = await client.fetch(server.url())
            await asyncio.sleep(0.05)
            assert server.open == 0
        assert response is not None
        assert "download_stopped" in response.flags
        assert response.body == (b"x" * 100 if name == "bytes_received" else b"")
        assert len(seen) == 1
        assert seen[0]["spider"] is client.crawler.spider

    client.run(main())
    assert seen[0]["request"].url.endswith("/")
    if name == "headers_received":
        assert seen[0]["body_length"] == 100
        assert seen[0]["headers"]["Content-Length"] == b"100"
    else:
        assert seen[0]["data"] == b"x" * 100
