"""When the suite's own handler opens, keeps and closes connections."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest
from scrapy.exceptions import (
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
)
from scrapy.signals import spider_closed
from support.byte_servers import PAGE, Peer, RawServer, answer, answering
from support.http_client import Client

from scrapy_spider_suite.errors import OutOfFilesError
from scrapy_spider_suite.fetch import connections
from scrapy_spider_suite.fetch.connections import WAITS_FOR_FILES, crawler_pool


@pytest.mark.parametrize(
    ("promise", "next_fetch", "kept"),
    [
        (None, None, True),
        (None, 4.0, True),
        (None, 6.0, False),
        (60, 30.0, True),
        (2, 4.0, False),
        (0, None, False),
        (None, float("inf"), False),
    ],
)
def test_keeping(client: Client, promise: int | None, next_fetch: float | None, kept: bool) -> None:
    """A connection is kept if the server keeps it until the next fetch."""
    fields = [] if promise is None else [f"Keep-Alive: timeout={promise}"]

    async def main() -> None:
        async with RawServer(answering(answer(PAGE, *fields))) as server:
            meta = {} if next_fetch is None else {"suite_keep_alive": next_fetch}
            await client.fetch(server.url(), meta=meta)
            await asyncio.sleep(0.03)
            assert server.open == kept

    client.run(main())


def test_a_request_to_close(client: Client) -> None:
    """A Connection: close of the user's is honoured by both sides."""

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            await client.fetch(server.url(), headers={"Connection": "close"})
            await asyncio.sleep(0.03)
            assert server.open == 0

    client.run(main())


def test_http_1_0_closes(client: Client) -> None:
    """An old server keeps nothing unless it says so."""

    async def main() -> None:
        old = answer().replace(b"HTTP/1.1", b"HTTP/1.0")
        async with RawServer(answering(old)) as server:
            for _ in range(2):
                response = await client.fetch(server.url())
            assert response.protocol == "HTTP/1.0"
            assert server.connections == 2

    client.run(main())


def test_excess_is_not_the_next_response(client: Client) -> None:
    """Bytes behind a response never become the answer to another request."""
    replies = [answer() + answer(b"smuggled"), answer(b"true")]

    async def main() -> None:
        async with RawServer(answering(*replies)) as server:
            assert (await client.fetch(server.url())).body == PAGE
            assert (await client.fetch(server.url())).body == b"true"
            assert server.connections == 2

    client.run(main())


def test_late_excess_is_not_the_next_response(client: Client) -> None:
    """Nor do bytes that come while the connection is idle."""

    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer(b"%d" % peer.number))
        await asyncio.sleep(0.02)
        await peer.send(answer(b"smuggled"))
        await peer.gone()

    async def main() -> None:
        async with RawServer(talk) as server:
            assert (await client.fetch(server.url())).body == b"0"
            await asyncio.sleep(0.06)
            assert (await client.fetch(server.url())).body == b"1"

    client.run(main())


def test_the_bound_on_idle_connections(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many hosts there are, no more connections idle than `idle_limit` allows."""
    monkeypatch.setattr(connections, "idle_limit", lambda files: 3)

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            for number in range(10):
                await client.fetch(server.url(host=f"h{number}.test"))
            await asyncio.sleep(0.05)
            assert server.open == 3
            await client.fetch(server.url(host="h9.test"))
            assert server.connections == 10
        client.crawler.signals.send_catch_log(spider_closed)  # before the stats are dumped
        await client.handler.close()

    client.run(main())
    stats = client.crawler.stats.get_stats()
    assert stats["suite/connections/opened"] == 10
    assert stats["suite/connections/reused"] == 1
    assert stats["suite/connections/evicted"] == 7


def test_both_schemes_share_the_bound(client: Client) -> None:
    """Scrapy makes a handler for each scheme; the files are the same."""
    other = client.kind.from_crawler(client.crawler)
    assert other._pool is client.handler._pool is crawler_pool(client.crawler)


def test_closing(client: Client) -> None:
    """No connection outlives the handler."""

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            await client.fetch(server.url())
            await client.handler.close()
            await asyncio.sleep(0.03)
            assert server.open == 0

    client.run(main())


def test_cancelling(client: Client) -> None:
    """A cancelled download closes its connection and stays cancelled."""

    async def talk(peer: Peer) -> None:
        await peer.request()
        await peer.gone()

    async def main() -> None:
        async with RawServer(talk) as server:
            task = asyncio.ensure_future(client.fetch(server.url()))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.03)
            assert server.open == 0

    client.run(main())


def test_out_of_files(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections are given up first; then the error says whose fault it is."""
    left = [OSError(errno.EMFILE, "Too many open files")] * (1 + len(WAITS_FOR_FILES))
    connect = connections._connect

    async def failing(*arguments: Any) -> Any:
        if left:
            raise left[-1] if endless else left.pop()
        return await connect(*arguments)

    endless = False
    monkeypatch.setattr(connections, "_connect", failing)

    async def main() -> None:
        nonlocal endless
        async with RawServer(answering(answer())) as server:
            with pytest.raises(OutOfFilesError):
                await client.fetch(server.url())
            await client.fetch(server.url())
            left.append(OSError(errno.ENFILE, "Too many open files in system"))
            assert (await client.fetch(server.url(host="other.test"))).status == 200
            await asyncio.sleep(0.03)
            assert server.open == 1
            endless = True
            left.append(OSError(errno.EMFILE, "Too many open files"))
            with pytest.raises(OutOfFilesError):
                await client.fetch(server.url(host="third.test"))
        assert crawler_pool(client.crawler).statistics()["idle"] == 0

    client.run(main())


def test_no_more_connections_than_slots(client: Client) -> None:
    """Who finds no slot waits for one, and that wait does not count as the server's."""
    most = 0

    async def talk(peer: Peer) -> None:
        nonlocal most
        most = max(most, peer.server.open)
        while await peer.request() is not None:
            await asyncio.sleep(0.05)
            await peer.send(answer())

    async def main() -> None:
        pool = crawler_pool(client.crawler)
        pool.slots = asyncio.Semaphore(2)
        async with RawServer(talk) as server:
            await client.fetch(server.url(host="idle.test"))
            urls = [server.url(host=f"h{number}.test") for number in range(8)]
            meta = {"download_timeout": 0.15}
            await asyncio.gather(*(client.fetch(url, meta=meta) for url in urls))
            assert most <= 3  # the server may see a new one before the end of an old one
            with pytest.raises(DownloadTimeoutError):
                await client.fetch(server.url(), meta={"download_timeout": 0.03})
            with pytest.raises(DownloadConnectionRefusedError):
                await client.fetch(server.url(), "127.0.0.6")
            await asyncio.sleep(0.03)
            idle = pool.statistics()["idle"]
            assert pool.slots._value == 2 - idle, "every slot was given back"

    client.run(main())


def test_a_connection_that_ends_at_once(client: Client) -> None:
    """A server that accepts and hangs up fails the download, and nothing waits for it."""

    async def talk(peer: Peer) -> None:
        pass

    async def main() -> None:
        async with RawServer(talk) as server:
            for _ in range(20):
                with pytest.raises(DownloadFailedError):
                    await client.fetch(server.url())

    client.run(main())
