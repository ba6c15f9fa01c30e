"""Pages of a visit in a pipeline: answers in order, and nothing lost or mixed up by any server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest
from scrapy.http import Response
from support.byte_servers import answer, begin_connections
from support.dns_server import NameServer
from support.inprocess_crawls import Crawled, crawl_here

from scrapy_spider_suite.spiders import BroadSpider

PAGES = [f"/{number}" for number in range(12)]
HOME = "".join(f'<a href="{path}">x</a>' for path in PAGES).encode()
Serve = Callable[[list[str]], bytes]
"""What is sent for the requests that came together; the connection is closed behind it."""


def page(path: str, *fields: str) -> bytes:
    """The right answer to *path*, which says for what it is."""
    bodies = {"/": HOME, "/robots.txt": b"User-agent: *\nDisallow: /5\n"}
    return answer(bodies.get(path, f"<p>{path}</p>".encode()), *fields)


def chunked(path: str) -> bytes:
    """The same in chunks, with an empty line inside, and one of the trailer."""
    body = f"<p>{path}</p>\n\r\n\n".encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    return head + pieces + b"0\r\nTrailer: x\r\n\r\n"


def in_order(paths: list[str]) -> bytes:
    return b"".join(map(page, paths))


class Server:
    """Answers several requests that come together by *serve*, and others as they come.

    With *early*, it closes the first connection, and answers the second before a request.

    Attributes:
        batches: the paths that came together.
    """

    def __init__(
        self, serve: Serve = in_order, *, piecewise: int = 0, closes: bool = True,
        early: bool = False,
    ) -> None:  # fmt: skip
        self.batches: list[list[str]] = []
        self._serve = serve
        self._early = early
        self._connections = 0
        self._piecewise = piecewise
        self._closes = closes
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await begin_connections()
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._connections += 1
        first = self._connections == 1
        try:
            if self._early and self._connections == 2:
                writer.write(page("/stolen"))
            while data := await reader.read(1 << 16):
                paths = [path.decode() for path in re.findall(rb"GET (\S+) HTTP", data)]
                self.batches.append(paths)
                several = len(paths) > 1
                sent = self._serve(paths) if several else in_order(paths)
                size = self._piecewise or len(sent) or 1
                for begin in range(0, len(sent), size):
                    writer.write(sent[begin : begin + size])
                    await writer.drain()
                    await asyncio.sleep(0)
                if (several and self._closes) or (first and self._early):
                    break
                if several:
                    await reader.read()
        except (asyncio.CancelledError, ConnectionError):
            writer.transport.abort()  # the test is over, or the client has gone
        finally:
            writer.close()


class Pages(BroadSpider):
    """Items with the server and path of a page and what came as its body."""

    name = "pages"

    def parse_page(self, response: Response) -> Iterator[Any]:
        """Yield them."""
        _, _, where, path = response.url.split("/", 3)
        yield {
            "port": int(where.partition(":")[2]), "path": f"/{path}", "body": response.body.strip()
        }  # fmt: skip


Fetch = Callable[..., Crawled]
RULE = "requests_per_visit=20 pipelining=yes"


@pytest.fixture
def fetch(tmp_path: Path, run: Callable[[Any], Any]) -> Iterator[Fetch]:
    """Crawl servers to the end, each a host with a rule in the overrides, all beside each other."""
    names = NameServer()

    def fetch(*servers: Server, rules: Sequence[str] = (), **settings: Any) -> Crawled:
        settings.setdefault("ROBOTSTXT_OBEY", False)
        hosts = [f"pipe{number}.example" for number in range(len(servers))]
        lines = []
        for host, rule in zip(hosts, rules or [RULE] * len(hosts), strict=True):
            names.add(host, "127.0.0.1")
            lines.append(f"{host} {rule}\n")
        (tmp_path / "overrides").write_text("".join(lines))

        async def crawl() -> Crawled:
            async with AsyncExitStack() as running:
                for server in servers:
                    await running.enter_async_context(server)
                places = zip(hosts, servers, strict=True)
                seeds = ",".join(f"http://{host}:{server.port}/" for host, server in places)
                return await crawl_here(
                    Pages, arguments={"seeds": seeds},
                    USER_AGENT="tests (a@b.example)", SUITE_PROFILE="broad",
                    SUITE_HOST_DELAY=0.01, SUITE_IP_DELAY=0, SUITE_IP_CONCURRENCY=0,
                    SUITE_BACKOFF_BASE=0.01, SUITE_OVERRIDES=str(tmp_path / "overrides"),
                    SUITE_ALLOW_PRIVATE_ADDRESSES=["127.0.0.0/8"],
                    SUITE_DNS_SERVERS=[names.address], within=60.0, **settings,
                )  # fmt: skip

        return cast("Crawled", run(crawl()))

    yield fetch
    names.close()


def _check(crawled: Crawled, server: Server) -> None:
    # Each page once, and each with its own body.
    found = sorted(
        (item["path"], item["body"]) for item in crawled.items if item["port"] == server.port
    )
    expected = [("/", HOME), *((path, f"<p>{path}</p>".encode()) for path in PAGES)]
    assert found == sorted(expected)


def test_pages_come_together(fetch: Fetch) -> None:
    """In one connection, by one write; the last request asks for the end of the connection.

    Whether the answers have lengths or chunks, and in whatever pieces they come.
    """

    def serving(one: Callable[[str], bytes], piecewise: int) -> Server:
        return Server(lambda paths: b"".join(map(one, paths)), piecewise=piecewise)

    servers = [serving(one, piecewise) for one in (page, chunked) for piecewise in (0, 1, 7)]
    crawled = fetch(*servers)
    for server in servers:
        _check(crawled, server)
        assert server.batches == [["/"], PAGES]
    assert crawled.stat("suite/connections/pipelined") == len(servers) * (len(PAGES) - 1)
    assert crawled.stat("suite/connections/pipelines_broken") == 0
    assert crawled.stat("downloader/request_count") == len(servers) * (len(PAGES) + 1)


def test_it_is_off_without_the_override(fetch: Fetch) -> None:
    rules = ["requests_per_visit=20", "pipelining=yes", "pipelining=no"]
    servers = [Server() for _ in rules]
    crawled = fetch(*servers, rules=rules)
    for server in servers:
        _check(crawled, server)
        assert all(len(batch) == 1 for batch in server.batches)


def _lengthened(path: str, by: int) -> bytes:
    right = page(path)
    length = len(right.partition(b"\r\n\r\n")[2])
    return right.replace(b"Content-Length: %d" % length, b"Content-Length: %d" % (length + by))


HOSTILE: dict[str, Serve] = {
    "the first twice": lambda paths: in_order([paths[0], *paths]),
    "one in the middle twice": lambda paths: in_order([*paths[:4], paths[3], *paths[4:]]),
    "one too many at the end": lambda paths: in_order([*paths, "/stolen"]),
    "one before the first": lambda paths: in_order(["/stolen", *paths]),
    "one twice and two missing": lambda paths: in_order([paths[0], *paths[:-2]]),
    "nothing": lambda paths: b"",
    "the first alone": lambda paths: page(paths[0]),
    "half of them": lambda paths: in_order(paths[:5]),
    "an announced end": lambda paths: in_order(paths[:4]) + page(paths[4], "Connection: close"),
    "cut in a head": lambda paths: in_order(paths)[:300],
    "cut in the first body": lambda paths: page(paths[0])[:-2],
    "cut in the last body": lambda paths: in_order(paths)[:-2],
    "the first too long": lambda paths: _lengthened(paths[0], 30) + in_order(paths[1:]),
    "one too long": lambda paths: (
        in_order(paths[:3]) + _lengthened(paths[3], 30) + in_order(paths[4:])
    ),
    "one too long by a whole answer": lambda paths: (
        in_order(paths[:3]) + _lengthened(paths[3], len(page(paths[4]))) + in_order(paths[4:])
    ),
    "one too short": lambda paths: (
        in_order(paths[:3]) + _lengthened(paths[3], -3) + in_order(paths[4:])
    ),
    "an answer inside of one too short": lambda paths: (
        in_order(paths[:3]) + answer(b"") + page("/stolen") + in_order(paths[4:])
    ),
    "without a length": lambda paths: in_order(paths[:3]) + (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + in_order(paths[3:])
    ),
    "garbage": lambda paths: in_order(paths[:3]) + b"garbage\r\n\r\n" + in_order(paths[3:]),
    "a broken chunk": lambda paths: (
        page(paths[0]) + chunked(paths[1]).replace(b"0\r\nTrailer", b"zz\r\nTrailer")
        + in_order(paths[2:])
    ),
    "HTTP/1.0": lambda paths: in_order(paths).replace(b"HTTP/1.1", b"HTTP/1.0"),
}  # fmt: skip


def test_nothing_is_lost_or_mixed_up(fetch: Fetch) -> None:
    """All pages are asked for again, one by one, and no second pipeline is tried."""
    servers = {name: Server(serve) for name, serve in HOSTILE.items()}
    crawled = fetch(*servers.values())
    wrong = {}
    for name, server in servers.items():
        _check(crawled, server)
        several = [batch for batch in server.batches if len(batch) > 1]
        after = server.batches[server.batches.index(PAGES) + 1 :]
        if several != [PAGES] or sorted(after) != sorted([path] for path in PAGES):
            wrong[name] = server.batches
    assert wrong == {}
    assert crawled.stat("suite/connections/pipelines_broken") == len(servers)


def test_an_answer_before_the_request(fetch: Fetch) -> None:
    """No answer of its connection counts."""
    server = Server(early=True)
    _check(fetch(server), server)
    assert [batch for batch in server.batches if len(batch) > 1] == [PAGES]


def test_a_server_that_does_not_end_the_connection(
    fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer too many could still come: none counts."""
    monkeypatch.setattr("scrapy_spider_suite.crawl.loop_exchange._UNTIL_CLOSED", 0.1)
    server = Server(closes=False)
    crawled = fetch(server)
    _check(crawled, server)
    assert [batch for batch in server.batches if len(batch) > 1] == [PAGES]
    assert crawled.stat("suite/connections/pipelines_broken") == 1


def test_a_pipeline_holds_back_no_more_than_it_may(
    fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrapy_spider_suite.crawl.loop_exchange._MOST_HELD", 300)
    server = Server()
    crawled = fetch(server)
    _check(crawled, server)
    assert crawled.stat("suite/connections/pipelines_broken") == 1


def test_an_answer_that_asks_for_a_pause_ends_the_visit(fetch: Fetch) -> None:
    """What came behind it is asked for in a later visit."""
    refused = answer(b"", "Retry-After: 0", status="503 Service Unavailable")

    def serve(paths: list[str]) -> bytes:
        busy = len(server.batches) == 2
        return b"".join(refused if busy and path == "/3" else page(path) for path in paths)

    server = Server(serve)
    crawled = fetch(server)
    _check(crawled, server)
    assert server.batches[:2] == [["/"], PAGES]
    assert sorted(chain(*server.batches[2:])) == sorted(PAGES[3:])
    assert crawled.stat("suite/connections/pipelines_broken") == 0


def test_what_robots_txt_forbids_is_not_sent(fetch: Fetch) -> None:
    """The pipeline goes up to there, and another begins behind it; the refusal counts once."""
    server = Server()
    crawled = fetch(server, ROBOTSTXT_OBEY=True)
    assert server.batches == [["/robots.txt"], ["/"], PAGES[:5], PAGES[6:]]
    assert sorted(item["path"] for item in crawled.items) == sorted({"/", *PAGES} - {"/5"})
    assert crawled.stat("robotstxt/forbidden") == 1
