"""A request that a closed connection swallowed is sent again, but not at once."""

from __future__ import annotations

import time

import pytest
from support.byte_servers import Peer, RawServer, answer
from support.http_client import Client

JITTER = 0.002
"""Seconds by which a timer may be early: uvloop's clock counts milliseconds."""


class Forgetful:
    """Answers the first request of a connection, reads the second and closes without a word."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []

    async def __call__(self, peer: Peer) -> None:
        """Serve one connection."""
        for number in range(2):
            await peer.request()
            self.arrivals.append(time.monotonic())
            if not number:
                await peer.send(answer())


@pytest.mark.parametrize("delay", [None, 0.0, 0.3])
def test_the_delay_holds_for_what_is_sent_again(client: Client, delay: float | None) -> None:
    """The server saw the first attempt: to it the second is another request (promise 1)."""

    async def main() -> None:
        serve = Forgetful()
        async with RawServer(serve) as server:
            meta = {} if delay is None else {"suite_keep_alive": delay}
            for _ in range(2):
                response = await client.fetch(server.url(), meta=meta)
                assert response.status == 200
        _, swallowed, again = serve.arrivals[:3]
        assert again - swallowed >= (delay or 0.0) - JITTER

    client.run(main())
