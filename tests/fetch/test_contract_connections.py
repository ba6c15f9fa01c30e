"""What both handlers promise about connections; everything here runs on each of them."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from pathlib import Path

import pytest
from scrapy.exceptions import (
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
)
from support.byte_servers import PAGE, Peer, RawServer, answer, answering, tls_context
from support.http_client import Client


def test_connections_are_reused(client: Client) -> None:
    """A second fetch from the same place takes the connection of the first."""

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            for _ in range(3):
                await client.fetch(server.url())
            assert server.connections == 1

    client.run(main())


def test_connections_that_the_server_will_close(client: Client) -> None:
    """They are not kept."""

    async def main() -> None:
        async with RawServer(answering(answer(PAGE, "Connection: close"))) as server:
            for _ in range(2):
                await client.fetch(server.url())
            assert server.connections == 2

    client.run(main())


def test_a_far_next_fetch_closes_the_connection(client: Client) -> None:
    """No file is held for a connection that the server will close before it is needed."""

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            await client.fetch(server.url(), meta={"suite_keep_alive": 60.0})
            await asyncio.sleep(0.05)
            assert server.open == 0
            await client.fetch(server.url(), meta={"suite_keep_alive": 1.0})
            await asyncio.sleep(0.05)
            assert server.open == 1
        assert b"Connection" not in b"".join(server.requests)

    client.run(main())


def test_a_dead_connection_is_replaced_once(client: Client) -> None:
    """A server that closes an idle connection just as it is reused costs a GET nothing."""

    async def talk(peer: Peer) -> None:
        if await peer.request() is not None:
            await peer.send(answer())
            await peer.request()

    async def main() -> None:
        async with RawServer(talk) as server:
            for _ in range(3):
                assert (await client.fetch(server.url())).status == 200
            assert server.connections == 3
            assert len(server.requests) == 5

    client.run(main())


def test_a_post_is_not_sent_twice(client: Client) -> None:
    """What may have been acted on is not repeated behind the crawl's back."""

    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer())
        await peer.request()

    async def main() -> None:
        async with RawServer(talk) as server:
            await client.fetch(server.url())
            with pytest.raises(DownloadFailedError):
                await client.fetch(server.url(), method="POST", body="a=b")
            assert len(server.requests) == 2

    client.run(main())


def test_the_booked_address_is_connected_to(client: Client) -> None:
    """One name, two addresses: each fetch goes to its own, keep-alive or not."""

    async def main() -> None:
        two, three = answering(answer(b"two")), answering(answer(b"three"))
        async with (
            RawServer(two, "127.0.0.2") as first,
            RawServer(three, "127.0.0.3", first.port) as second,
        ):
            for _ in range(2):
                for server, body in ((first, b"two"), (second, b"three")):
                    response = await client.fetch(first.url(), server.host)
                    assert response.body == body
                    assert str(response.ip_address) == server.host
            assert (first.connections, second.connections) == (1, 1)
            host = b"Host: example.test:%d\r\n" % first.port
            assert all(host in each for each in first.requests + second.requests)

    client.run(main())


def test_ipv6(client: Client) -> None:
    """An IPv6 address is connected to, and written into Host with its brackets."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("no IPv6 on loopback")

    async def main() -> None:
        async with RawServer(answering(answer()), "::1") as server:
            response = await client.fetch(server.url(host="[::1]"), "::1")
        assert response.ip_address == ipaddress.ip_address("::1")
        assert b"Host: [::1]:%d\r\n" % server.port in server.requests[0]

    client.run(main())


def test_two_names_do_not_share_a_connection(client: Client) -> None:
    """One address, two names: a virtual host must not see the other's connection."""

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            await client.fetch(server.url())
            await client.fetch(server.url(host="other.test"))
            assert server.connections == 2

    client.run(main())


def test_tls(client: Client, tmp_path: Path) -> None:
    """The name of the URL is asked for and the certificate handed on, whoever signed it."""

    async def main() -> None:
        tls = tls_context(tmp_path, "example.test")
        async with RawServer(answering(answer()), "127.0.0.2", tls=tls) as server:
            for _ in range(2):
                response = await client.fetch(server.url(), "127.0.0.2")
                assert response.body == PAGE
                assert str(response.ip_address) == "127.0.0.2"
                assert response.certificate.dumpPEM() in (tmp_path / "server.pem").read_bytes()
        assert server.names == ["example.test"]
        assert b"Host: example.test:%d\r\n" % server.port in server.requests[0]

    client.run(main())


def test_certificates_are_verified_where_asked(client: Client, tmp_path: Path) -> None:
    """With verification on, a certificate that nobody signed fails the download."""
    client.settings["DOWNLOAD_VERIFY_CERTIFICATES"] = True

    async def main() -> None:
        tls = tls_context(tmp_path, "example.test")
        async with RawServer(answering(answer()), tls=tls) as server:
            with pytest.raises(DownloadFailedError):
                await client.fetch(server.url())

    client.run(main())


def test_plain_text_where_tls_was_expected(client: Client) -> None:
    """A server that does not speak TLS fails the download."""

    async def talk(peer: Peer) -> None:
        await peer.send(answer())

    async def main() -> None:
        async with RawServer(talk) as server:
            with pytest.raises(DownloadFailedError):
                await client.fetch(server.url().replace("http:", "https:"))

    client.run(main())


@pytest.mark.parametrize("where", ["setting", "meta"])
def test_bind_address(client: Client, where: str) -> None:
    """The local end of a connection can be chosen, and is not shared with another choice."""
    seen: list[str] = []
    if where == "setting":
        client.settings["DOWNLOAD_BIND_ADDRESS"] = "127.0.0.9"

    async def talk(peer: Peer) -> None:
        seen.append(peer.client)
        await answering(answer())(peer)

    async def main() -> None:
        async with RawServer(talk) as server:
            meta = {"bindaddress": ("127.0.0.9", 0)} if where == "meta" else None
            await client.fetch(server.url(), meta=meta)
        assert seen == ["127.0.0.9"]

    client.run(main())


def test_many_at_once(client: Client) -> None:
    """Requests of different hosts do not mix."""

    async def talk(peer: Peer) -> None:
        while (request := await peer.request()) is not None:
            await asyncio.sleep(0.01)
            await peer.send(answer(request.split(b" ")[1]))

    async def main() -> None:
        async with RawServer(talk) as server:
            urls = [server.url(f"/{n}", f"h{n % 7}.test") for n in range(50)]
            responses = await asyncio.gather(*map(client.fetch, urls))
        assert [r.body for r in responses] == [f"/{n}".encode() for n in range(50)]

    client.run(main())


@pytest.mark.parametrize(
    "pieces",
    [[], [b"HTTP/1.1 200 OK\r\n"], [answer(b"x" * 100)[:-1]]],
    ids=["silent", "in the head", "in the body"],
)
def test_timeout(client: Client, pieces: list[bytes]) -> None:
    """The timeout counts for the whole download, wherever the server falls silent."""

    async def talk(peer: Peer) -> None:
        await peer.request()
        for piece in pieces:
            await peer.send(piece)
        await peer.gone()

    async def main() -> None:
        async with RawServer(talk) as server:
            with pytest.raises(DownloadTimeoutError, match=r"took longer than 0\.1 seconds"):
                await client.fetch(server.url(), meta={"download_timeout": 0.1})
            await asyncio.sleep(0.05)
            assert server.open == 0

    client.run(main())


def test_a_slow_body_does_not_stretch_the_timeout(client: Client) -> None:
    """A byte now and then keeps no download alive."""

    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while await peer.send(b"x"):
            await asyncio.sleep(0.02)

    async def main() -> None:
        async with RawServer(talk) as server:
            with pytest.raises(DownloadTimeoutError):
                await client.fetch(server.url(), meta={"download_timeout": 0.15})

    client.run(main())


def test_refused(client: Client) -> None:
    """Nobody listens."""

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            pass
        with pytest.raises(DownloadConnectionRefusedError):
            await client.fetch(server.url())

    client.run(main())
