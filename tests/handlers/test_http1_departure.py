"""A request whose bytes may not go out yet waits with its connection."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from helpers_client import Client
from helpers_servers import RawServer, answer, answering

from scrapy_spider_suite.frontier.departures import departure
from scrapy_spider_suite.frontier.states import AddressState, HostState


def held_up(seconds: float) -> dict[str, object]:
    """Meta of a request beside one that went out just now, at a host with that delay."""
    host, address = HostState("h", seconds, 2, burst=1), AddressState("a", 0.0, 0, 0.0)
    other, mine = departure(host, address), departure(host, address)
    assert other is not None
    other.gone(time.monotonic())
    return {"suite_departure": mine}


def test_the_wait_is_nobodys_time(client: Client) -> None:
    """It is no latency of the server's, and does not count against the timeout."""

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            began = time.monotonic()
            meta = held_up(1.0) | {"download_timeout": 0.8}
            request = client.request(server.url(), meta=meta)
            await client.send(request)
            assert time.monotonic() - began >= 1.0 - 0.002
            assert request.meta["download_latency"] < 0.8

    client.run(main())


def test_a_stop_meanwhile_closes_the_connection(client: Client) -> None:
    """Nothing was sent on it."""

    async def main() -> None:
        async with RawServer(answering(answer())) as server:
            sent = asyncio.ensure_future(client.fetch(server.url(), meta=held_up(60.0)))
            while not server.open:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            sent.cancel()
            with suppress(asyncio.CancelledError):
                await sent
            await asyncio.sleep(0.05)
            assert (server.connections, server.open) == (1, 0)

    client.run(main())
