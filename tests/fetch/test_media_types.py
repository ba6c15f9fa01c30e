"""Reading no further than the head where the media type is not wanted; saying how much came."""

from __future__ import annotations

import asyncio

import pytest
from support.byte_servers import Peer, RawServer, answering
from support.http_client import Client

from scrapy_spider_suite.exceptions import UnwantedMediaType
from scrapy_spider_suite.fetch.exchange import pop_exchange
from scrapy_spider_suite.fetch.http_messages import MEDIA_TYPES

TEXT = {MEDIA_TYPES: ("text/*", "application/xhtml+xml")}


def head(content_type: str | None, length: int, status: str = "200 OK") -> bytes:
    """A head that promises *length* bytes."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {length}"]
    lines += [f"Content-Type: {content_type}"] if content_type is not None else []
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize("content_type", ["video/mp4", "Application/PDF; x=y", "nonsense"])
def test_a_body_that_is_not_wanted_is_not_read(client: Client, content_type: str) -> None:
    """The connection is closed after the head, and whoever asks gets that."""
    hung_up = asyncio.Event()

    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.send(head(content_type, 1 << 40) + b"x" * 10)
        await peer.gone()
        hung_up.set()

    async def main() -> None:
        async with RawServer(talk) as server:
            request = client.request(server.url(), meta=TEXT)
            with pytest.raises(UnwantedMediaType, match="which SUITE_MEDIA_TYPES does not") as met:
                await client.send(request)
            response = met.value.response
            assert (response.status, response.body) == (200, b"")
            assert response.headers["Content-Type"] == content_type.encode()
            exchange = pop_exchange(request)
            assert exchange is not None
            assert exchange.size < 200
            await asyncio.wait_for(hung_up.wait(), 10)

    client.run(main())


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("text/html", "200 OK"), ("Text/Plain ; charset=x", "200 OK"), (None, "200 OK"),
        ("", "200 OK"), ("application/xhtml+xml", "206 Partial Content"),
        ("image/png", "404 Not Found"), ("image/png", "301 Moved"), ("image/png", "503 Busy"),
    ],
)  # fmt: skip
def test_what_is_wanted_or_is_no_page(
    client: Client, content_type: str | None, status: str
) -> None:
    """And what says nothing of itself is read."""

    async def main() -> None:
        async with RawServer(answering(head(content_type, 4, status) + b"body")) as server:
            request = client.request(server.url(), meta=TEXT)
            assert (await client.send(request)).body == b"body"
            exchange = pop_exchange(request)
            assert exchange is not None
            assert exchange.size == len(head(content_type, 4, status)) + 4

    client.run(main())


def test_a_short_body_costs_no_connection(client: Client) -> None:
    """It has come with its head: the connection is used for the next request."""

    async def main() -> None:
        replies = head("image/png", 4) + b"body", head("text/html", 4) + b"body"
        async with RawServer(answering(*replies)) as server:
            keep = {"suite_keep_alive": 1.0}
            with pytest.raises(UnwantedMediaType):
                await client.fetch(server.url(), meta=TEXT | keep)
            assert (await client.fetch(server.url(), meta=TEXT | keep)).body == b"body"
            assert server.connections == 1

    client.run(main())
