"""Lists of pages over one connection, with 50 and 300 connections, as KSpider's.

    python -m benchmarks pipelining

Each host has a start page and 19 others. The server answers a request one round trip after the
request came, and the first request of a connection after two. Three crawls take turns: one page a
visit, 20 pages a visit one after the other, and 20 pages a visit in a pipeline. No delays.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from threading import Thread
from typing import Any, Final, NamedTuple

from support import forks
from support.crawls import loopback_settings
from support.dns_server import NameServer
from support.projects import environment

from benchmarks.report import Report

CONNECTIONS: Final = (50, 300)
PAGES: Final = 20
"""Pages of a host; the longest list that KSpider's URL manager makes (K16)."""
PAGE_SIZE: Final = 10_000
"""Bytes of a page: KSpider's 6 MB/s at 618 pages/s."""
ROUND_TRIP: Final = 0.1
"""Seconds."""
DOMAIN: Final = "test"
_SCRIPT: Final = "from benchmarks.pipelining import crawl; crawl()"
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

    def __init__(self, round_trip: float, transports: set[Any]) -> None:
        self._round_trip = round_trip
        self._transports = transports
        self._due = 0.0
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._transports.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transports.discard(self._transport)

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
        # No two pages are the same, so no host looks like a copy of another.
        text = b"".join(head.split(b"\r\n")[:2]) + b" "
        body = b"<html><body>" + links + text * ((PAGE_SIZE - len(links)) // len(text))
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        if re.search(rb"\r\nConnection: close", head):
            self._transport.close()


@contextlib.contextmanager
def serving(round_trip: float) -> Iterator[int]:
    """Serve from a thread, while this process waits for crawls; give the port."""
    ready: SimpleQueue[tuple[int, Callable[[], object]]] = SimpleQueue()

    async def serve() -> None:
        loop, over, transports = asyncio.get_running_loop(), asyncio.Event(), set[Any]()
        server = await loop.create_server(
            lambda: PageServer(round_trip, transports), "127.0.0.1", 0, backlog=1024
        )
        port = server.sockets[0].getsockname()[1]
        ready.put((port, lambda: loop.call_soon_threadsafe(over.set)))
        await over.wait()
        server.close()
        for transport in list(transports):
            transport.abort()
        await asyncio.sleep(0)  # they end in the next turn

    thread = Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    port, end = ready.get(timeout=60)
    try:
        yield port
    finally:
        end()
        thread.join()


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
            seeds = [f"http://list{number}.{DOMAIN}:{port}/" for number in range(hosts)]
            for _ in range(rounds):
                for most in connections:
                    for name, rule in VISITS.items():
                        rules.write_text(f".{DOMAIN} {rule}\n")
                        settings = loopback_settings(
                            CONCURRENT_REQUESTS=most, ROBOTSTXT_OBEY=False, LOG_LEVEL="WARNING",
                            SUITE_MEMORY="64M",
                            SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0, SUITE_IP_CONCURRENCY=0,
                            SUITE_DNS_SERVERS=[names.address], SUITE_OVERRIDES=str(rules),
                        )
                        found.setdefault((most, name), []).append(measure(settings, seeds))
    finally:
        names.close()
    return {key: _medians(each) for key, each in found.items()}


def measure(settings: dict[str, Any], seeds: list[str]) -> Figures:
    """Crawl in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "job").write_text(json.dumps([settings, seeds]))
        done = forks.run(_SCRIPT, folder=Path(name), environment=environment(), timeout=3_600.0)
    assert done.returncode == 0, done.stderr[-3000:]
    return Figures(*json.loads(done.stdout.splitlines()[-1]))


def crawl() -> None:
    """Crawl as the JSON in the file ``job`` says; print the `Figures`."""
    from scrapy.crawler import AsyncCrawlerProcess
    from support.spiders import Bulk

    settings, seeds = json.loads(Path("job").read_text())
    process = AsyncCrawlerProcess(settings)
    crawler = process.create_crawler(Bulk)
    process.crawl(crawler, seeds=",".join(seeds))
    began = time.process_time()
    process.start()
    stats = crawler.stats.get_stats()
    pages = stats["response_received_count"]
    rate, cpu = pages / stats["elapsed_time_seconds"], time.process_time() - began
    opened = stats["suite/connections/opened"]
    print(json.dumps([pages, rate, cpu / pages * 1e6, rate * PAGE_SIZE / 1e6, opened]))


def _medians(several: list[Figures]) -> Figures:
    return Figures(*(median(values) for values in zip(*several, strict=True)))


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """The options of the command line."""
    parser.add_argument("--hosts", type=int, default=500, help="hosts of 20 pages (500)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each (3)")


def run(options: argparse.Namespace, report: Report) -> None:
    """Measure, and fill a table."""
    hosts, rounds = (5, 1) if options.small else (options.hosts, options.rounds)
    connections = CONNECTIONS[:1] if options.small else CONNECTIONS
    table = report.table(
        f"{hosts * PAGES:,} pages, a round trip of {ROUND_TRIP * 1000:.0f} ms",
        ["connections", "visits", "pages/s", "MB/s", "CPU µs a page", "opened"],
        "opened: connections.",
    )
    for (most, name), figures in compare(hosts, rounds, connections).items():
        table.rows.append(
            [most, name, figures.rate, figures.megabytes, figures.cpu, figures.opened]
        )
        if figures.pages != hosts * PAGES:
            report.wrong.append(f"{name}: {figures.pages} pages")
    report.show(table)
