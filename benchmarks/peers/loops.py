"""Crawls without a framework: ``loops.py KIND NAMES CONCURRENCY SEED…``.

Both do what a crawler must at the least: fetch, read links from a tree (lexbor), join and normalise
them (ada), and fetch each once, of a set and a queue in memory. They keep no delay, nothing on disk
and no promise. *aiohttp* is what one writes by hand; *wire* speaks HTTP itself (httptools, one
connection a host), which is the quickest that Python code comes to.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ada_url
import httptools
import uvloop
from selectolax.lexbor import LexborHTMLParser

AGENT = "suite-benchmarks/1.0 (+https://benchmarks.example/)"
Fetch = Callable[[str], Coroutine[Any, Any, bytes]]


def links_of(url: str, body: bytes) -> set[str]:
    """The links of a page, normalised, without fragments."""
    found = set()
    for node in LexborHTMLParser(body).css("a[href]"):
        try:
            found.add(ada_url.join_url(url, node.attributes["href"] or "").partition("#")[0])
        except ValueError:
            continue
    return found


async def crawl(fetch: Fetch, seeds: list[str], concurrency: int) -> None:
    """Fetch all there is, *concurrency* at a time."""
    seen, waiting = set(seeds), deque(seeds)
    more = asyncio.Event()

    async def worker() -> None:
        while True:
            while not waiting:
                more.clear()
                await more.wait()
            url = waiting.popleft()
            try:
                body = await fetch(url)
            except (TimeoutError, OSError, ValueError):
                continue
            new = links_of(url, body) - seen
            seen.update(new)
            waiting.extend(new)
            more.set()

    await asyncio.gather(*(worker() for _ in range(concurrency)))


def no_checks() -> ssl.SSLContext:
    """TLS as Scrapy has it by default: no certificate is checked."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def by_aiohttp(names: dict[str, str], seeds: list[str], concurrency: int) -> None:
    """With aiohttp's client, set up as its documentation says for many hosts."""
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult

    class Table(AbstractResolver):
        async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
            return [ResolveResult(
                hostname=host, host=names[host], port=port, family=2, proto=0, flags=0,
            )]  # fmt: skip

        async def close(self) -> None:
            """Nothing is open."""

    connector = aiohttp.TCPConnector(limit=concurrency, resolver=Table(), ssl=no_checks())
    async with aiohttp.ClientSession(
        connector=connector, headers={"User-Agent": AGENT}, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:

        async def fetch(url: str) -> bytes:
            try:
                async with session.get(url, allow_redirects=False) as response:
                    return await response.read()
            except aiohttp.ClientError as error:
                raise OSError(error) from error

        await crawl(fetch, seeds, concurrency)


class Wire(asyncio.Protocol):
    """A connection for one request at a time."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.idle: list[Wire] | None = None
        self._parser: Any = None
        self._body: list[bytes] = []
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def ask(self, head: bytes) -> asyncio.Future[bytes]:
        """Send a request; the body of its answer."""
        self._parser = httptools.HttpResponseParser(self)
        self._body = []
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(head)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        """Of the parser."""
        self._body.append(data)

    def on_message_complete(self) -> None:
        """Of the parser."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(b"".join(self._body))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError())


async def by_wire(names: dict[str, str], seeds: list[str], concurrency: int) -> None:
    """With connections of its own, kept alive."""
    idle: dict[tuple[str, str], list[Wire]] = {}
    loop, tls = asyncio.get_running_loop(), no_checks()

    async def fetch(url: str) -> bytes:
        parts = urlsplit(url)
        key = (parts.scheme, parts.netloc)
        kept = idle.setdefault(key, [])
        wire = kept.pop() if kept else None
        if wire is None or wire.transport.is_closing():
            secure = parts.scheme == "https"
            _, wire = await loop.create_connection(
                Wire, names[parts.hostname or ""], parts.port or (443 if secure else 80),
                ssl=tls if secure else None, server_hostname=parts.hostname if secure else None,
            )  # fmt: skip
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        head = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: {AGENT}\r\n\r\n"
        body = await wire.ask(head.encode())
        kept.append(wire)
        return body

    await crawl(fetch, seeds, concurrency)


def main() -> None:
    """Crawl until somebody ends it."""
    kind, names, concurrency, seeds = sys.argv[1:5]
    ways = {"aiohttp": by_aiohttp, "wire": by_wire}
    table, urls = json.loads(Path(names).read_text()), Path(seeds).read_text().split()
    uvloop.run(ways[kind](table, urls, int(concurrency)))


if __name__ == "__main__":
    main()
