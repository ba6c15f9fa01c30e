"""Reading no more of a body than is wanted, with either handler."""

from __future__ import annotations

import pytest
from scrapy.exceptions import DownloadCancelledError
from support.byte_servers import Peer, RawServer, answer, answering
from support.http_client import Client

BIG = b"0123456789" * 100


@pytest.mark.parametrize(
    "reply",
    [
        answer(BIG),
        b"HTTP/1.1 200 OK\r\n\r\n" + BIG,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n" + BIG + b"\r\n",
    ],
    ids=["length", "close", "chunked"],
)
def test_truncate(client: Client, reply: bytes) -> None:
    """Reading stops where it was told to, without an error, whatever the other limits say."""
    client.settings["DOWNLOAD_MAXSIZE"] = 500

    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply)
        await peer.gone()

    async def main() -> None:
        async with RawServer(talk) as server:
            response = await client.fetch(server.url(), meta={"suite_truncate": 15})
        assert (response.body, response.flags) == (BIG[:15], ["truncated"])

    client.run(main())


@pytest.mark.parametrize(("length", "flags"), [(15, []), (16, ["truncated"])])
def test_what_needs_no_truncation(client: Client, length: int, flags: list[str]) -> None:
    """A body of just the allowed size is whole."""

    async def main() -> None:
        async with RawServer(answering(answer(BIG[:length]))) as server:
            response = await client.fetch(server.url(), meta={"suite_truncate": 15})
        assert (response.body, response.flags) == (BIG[:15], flags)

    client.run(main())


def test_a_body_that_says_it_is_too_large(client: Client) -> None:
    """What is truncated need not fit the other limit, however long it says it is."""

    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + BIG)
        await peer.gone()

    async def main() -> None:
        async with RawServer(talk) as server:
            meta = {"suite_truncate": 100, "download_maxsize": 10_000}
            request = client.request(server.url(), meta=meta)
            response = await client.send(request)
        assert (response.body, response.flags) == (BIG[:100], ["truncated"])
        assert request.meta["download_latency"] > 0

    client.run(main())


def test_the_smaller_limit_holds(client: Client) -> None:
    """A limit below the truncation is an error as ever."""

    async def main() -> None:
        async with RawServer(answering(answer(BIG))) as server:
            meta = {"suite_truncate": 900, "download_maxsize": 500}
            with pytest.raises(DownloadCancelledError):
                await client.fetch(server.url(), meta=meta)

    client.run(main())
