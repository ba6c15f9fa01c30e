"""Lists of pages over one connection, with 50 and 300 connections, as KSpider's (K16 to K18).

    python benchmarks/pipelining.py            # full size: some minutes
    python benchmarks/pipelining.py --small    # for CI: does it run at all

Each host has a start page and 19 others. The server answers a request one round trip after the
request came, and the first request of a connection after two. Three crawls take turns: one page a
visit, 20 pages a visit one after the other, and 20 pages a visit in a pipeline. No delays.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import re
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from peers import SUITE, measure

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.dns_server import NameServer

CONNECTIONS: Final = (50, 300)
PAGES: Final = 20
"""Pages of a host; the longest list that KSpider's URL manager makes (K16)."""
PAGE_SIZE: Final = 10_000
"""Bytes of a page: KSpider's 6 MB/s at 618 pages/s."""
ROUND_TRIP: Final = 0.1
"""Seconds."""
DOMAIN: Final = "list.test"
VISITS: Final = {
    "one page a visit": "requests_per_visit=1",
    "20 pages a visit": "requests_per_visit=20",
    "20 pages, pipelined": "requests_per_visit=20 pipelining=yes",
}
"""The rule of the overrides file for each crawl."""


class Figures(NamedTuple):
    """One crawl, or the medians of several; *cpu* in µs a page."""

    pages: int
    rate: float
    cpu: float
    megabytes: float
    opened: int


class PageServer(asyncio.Protocol):
    """Answers in order, each request a round trip after it came."""

    def __init__(self, round_trip: float) -> None:
        self._round_trip = round_trip
        self._due = 0.0
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer all requests that are complete."""
        loop = asyncio.get_running_loop()
        *heads, self._rest = (self._rest + data).split(b"\r\n\r\n")
        for head in heads:
            trips = 1 if self._due else 2
            # Timers of one moment come in any order.
            self._due = max(self._due + 1e-6, loop.time() + trips * self._round_trip)
            loop.call_at(self._due, self._answer, head)

    def _answer(self, head: bytes) -> None:
        links = b""
        if head.startswith(b"GET / "):
            links = b"".join(b'<a href="/%d">x</a>' % number for number in range(1, PAGES))
        body = b"<html><body>" + links + b"x" * (PAGE_SIZE - len(links))
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        if re.search(rb"\r\nConnection: close", head):
            self._transport.close()


def serve(round_trip: float, ready: Connection) -> None:
    """Serve for ever; send the port through *ready*."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: PageServer(round_trip), "127.0.0.1", 0, backlog=1024
        )
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@contextlib.contextmanager
def serving(round_trip: float) -> Iterator[int]:
    """Serve from a process of its own; give the port."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(round_trip, there), daemon=True
    )
    process.start()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()


def compare(
    hosts: int, rounds: int, connections: tuple[int, ...] = CONNECTIONS,
    round_trip: float = ROUND_TRIP,
) -> dict[tuple[int, str], Figures]:  # fmt: skip
    """Crawl *hosts* in each way, by turns; return the medians of *rounds*."""
    found: dict[tuple[int, str], list[Figures]] = {}
    names = NameServer()
    names.everything = bytes([127, 0, 0, 1])
    try:
        with serving(round_trip) as port, tempfile.TemporaryDirectory() as folder:
            rules = Path(folder) / "overrides"
            seeds = [f"http://h{number}.{DOMAIN}:{port}/" for number in range(hosts)]
            for _ in range(rounds):
                for most in connections:
                    for name, rule in VISITS.items():
                        rules.write_text(f".{DOMAIN} {rule}\n")
                        settings = {
                            **SUITE, "CONCURRENT_REQUESTS": most, "ROBOTSTXT_OBEY": False,
                            "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0, "SUITE_IP_CONCURRENCY": 0,
                            "SUITE_ALLOW_PRIVATE_ADDRESSES": ["127.0.0.0/8"],
                            "SUITE_DNS_SERVERS": [names.address], "SUITE_OVERRIDES": str(rules),
                        }  # fmt: skip
                        crawl = {"spider": "bulk", "seeds": seeds, "settings": settings}
                        found.setdefault((most, name), []).append(_figures(measure(crawl)))
    finally:
        names.close()
    return {key: _medians(each) for key, each in found.items()}


def _figures(report: dict[str, Any]) -> Figures:
    pages, stats = report["pages"], report["stats"]
    return Figures(
        pages, report["rate"], report["cpu"] / pages * 1e6, report["rate"] * PAGE_SIZE / 1e6,
        stats["suite/connections/opened"],
    )  # fmt: skip


def _medians(several: list[Figures]) -> Figures:
    return Figures(*(median(values) for values in zip(*several, strict=True)))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="20 hosts, once")
    parser.add_argument("--hosts", type=int, default=500, help="hosts of 20 pages (500)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each (3)")
    options = parser.parse_args()
    hosts, rounds = (20, 1) if options.small else (options.hosts, options.rounds)
    print(f"{hosts * PAGES:,} pages, a round trip of {ROUND_TRIP * 1000:.0f} ms")
    for (most, name), figures in compare(hosts, rounds).items():
        print(
            f"{most:4} connections, {name:20} {figures.rate:7,.0f} pages/s {figures.megabytes:6.1f}"
            f" MB/s {figures.cpu:7,.0f} µs of CPU a page {figures.opened:7,} connections opened"
        )


if __name__ == "__main__":
    main()
