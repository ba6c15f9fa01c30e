"""A client for the in-vitro web that knows where its hosts are, and a small web to ask."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from scrapy_spider_suite.testing import FakeWeb, FakeWebConfig

SECONDS = 10.0


class Answer(NamedTuple):
    """What a server said; names of fields in lower case."""

    status: int
    fields: dict[str, str]
    body: bytes


Ask = Callable[..., Answer]
Exchange = Callable[..., bytes]


@pytest.fixture
def ask() -> Ask:
    """Fetch a URL of a web with the standard library's client, on a connection of its own."""

    def ask(web: FakeWeb, url: str, method: str = "GET", **fields: str) -> Answer:
        parts = urlsplit(url)
        place = web.directory.endpoint(parts.hostname or "")
        client = HTTPConnection(place.address, place.port, timeout=SECONDS)
        headers = {"Host": parts.netloc, **fields}
        client.request(method, url.partition(parts.netloc)[2], headers=headers)
        response = client.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        answer = Answer(response.status, names, response.read())
        client.close()
        return answer

    return ask


@pytest.fixture
def exchange() -> Exchange:
    """Send raw bytes to a host; give all bytes until the server closes, or *seconds* pass."""

    def exchange(web: FakeWeb, host: str, sent: bytes, seconds: float = SECONDS) -> bytes:
        received = []
        with socket.create_connection(web.directory.endpoint(host), timeout=seconds) as client:
            client.sendall(sent)
            try:
                while piece := client.recv(1 << 20):
                    received.append(piece)
            except (TimeoutError, ConnectionResetError) as end:
                received.append(f"<{type(end).__name__}>".encode())
        return b"".join(received)

    return exchange


@pytest.fixture(scope="module")
def small() -> Iterator[FakeWeb]:
    """Six hosts of a dozen pages on three addresses."""
    with FakeWeb(FakeWebConfig(hosts=6, pages=12, addresses=3, page_size=2000)) as web:
        yield web
