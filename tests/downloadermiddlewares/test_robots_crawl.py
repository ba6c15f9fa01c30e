"""Tests of the robots middleware in a crawl over a socket, with Scrapy's own other parts."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import Request, Response
from support import forks
from support.projects import environment

CLOSED = b"User-agent: *\nDisallow: /private\nCrawl-delay: 7"


class Site(BaseHTTPRequestHandler):
    """Serves what its server's table says, and counts what was asked for."""

    server: Server

    def do_GET(self) -> None:
        """Answer from the table, or with 404."""
        self.server.hits[self.path] += 1
        status, headers, body = self.server.pages.get(self.path, (404, {}, b""))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # who has had enough hangs up
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """A site on loopback."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Site)
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.hits: Counter[str] = Counter()
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    """A running site without pages."""
    site = Server()
    thread = threading.Thread(target=site.serve_forever, args=(0.01,))
    thread.start()
    yield site
    site.shutdown()
    thread.join()
    site.server_close()


class Visitor(Spider):
    """Visits the paths of one site and notes what came of each."""

    name = "visitor"

    def __init__(self, site: str, paths: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.site = site
        self.paths = paths.split()
        self.outcome: dict[str, Any] = {}

    async def start(self) -> AsyncIterator[Request]:
        """Visit each, repeated ones too."""
        for path in self.paths:
            yield Request(self.site + path, self.note, errback=self.fail, dont_filter=True)

    def note(self, response: Response) -> None:
        """Note the status of a page that came."""
        self.outcome[response.url.removeprefix(self.site)] = response.status

    def fail(self, failure: Any) -> None:
        """Note the error of one that did not."""
        path = failure.request.url.removeprefix(self.site)
        self.outcome[path] = type(failure.value).__name__


def main(site: str, paths: str, more: str) -> None:
    """Crawl as a process of its own, with the middleware in place of Scrapy's; print the result.

    *more*: further settings as JSON.
    """
    settings: dict[str, Any] = {
        "ROBOTSTXT_OBEY": True,
        "TELNETCONSOLE_ENABLED": False,
        "RETRY_TIMES": 1,
        "HTTPERROR_ALLOW_ALL": True,
        "DOWNLOADER_MIDDLEWARES": {
            "scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware": None,
            "scrapy_spider_suite.downloadermiddlewares.robotstxt.RobotsMiddleware": 100,
        },
        **json.loads(more),
    }
    process = AsyncCrawlerProcess(settings)
    crawler = process.create_crawler(Visitor)
    process.crawl(crawler, site=site, paths=paths)
    process.start()
    assert isinstance(crawler.spider, Visitor)
    assert crawler.stats is not None
    print(json.dumps([crawler.spider.outcome, crawler.stats.get_stats()], default=str))


def crawl(server: Server, *paths: str, **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what came of each of *paths*, and the stats."""
    done = forks.run(
        Path(__file__).read_text(), server.url, " ".join(paths), json.dumps(settings),
        folder=Path.cwd(), environment=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcome, stats = json.loads(done.stdout)
    return outcome, stats


def test_a_crawl_obeys(server: Server) -> None:
    """Over the wire: a redirected robots.txt, fetched once, allowed and forbidden pages."""
    server.pages = {
        "/robots.txt": (302, {"Location": "/r.txt"}, b""),
        "/r.txt": (200, {}, CLOSED),
        "/a": (200, {}, b"a"),
        "/private": (200, {}, b"never"),
    }
    found, stats = crawl(server, "/a", "/private", "/missing")
    assert found == {"/a": 200, "/private": "RobotsForbidden", "/missing": 404}
    assert server.hits == {"/robots.txt": 1, "/r.txt": 1, "/a": 1, "/missing": 1}
    assert stats["robotstxt/request_count"] == 1
    assert stats["robotstxt/response_status_count/200"] == 1
    assert stats["robotstxt/forbidden"] == 1
    assert stats["downloader/exception_type_count/scrapy_spider_suite.exceptions.RobotsForbidden"]


def test_a_crawl_waits_out_no_error(server: Server) -> None:
    """Alone, RetryMiddleware has its turn with a 503; then the pages are refused."""
    server.pages = {"/robots.txt": (503, {}, b""), "/a": (200, {}, b"a")}
    found, stats = crawl(server, "/a")
    assert found == {"/a": "RobotsUnavailable"}
    assert server.hits == {"/robots.txt": 2}
    assert stats["robotstxt/unavailable"] == 1


@pytest.mark.parametrize(
    ("size", "outcome"), [(1 << 20, "RobotsForbidden"), (12 << 20, "RobotsUnavailable")]
)
def test_a_crawl_bounds_the_body(server: Server, size: int, outcome: str) -> None:
    """Scrapy's handler does not cut: up to 8 MiB the beginning counts, beyond it no answer."""
    body = CLOSED + b"\n" + b"#" * size
    server.pages = {"/robots.txt": (200, {}, body), "/private": (200, {}, b"a")}
    assert crawl(server, "/private")[0] == {"/private": outcome}


def test_the_suites_handler_reads_no_more_than_counts(server: Server) -> None:
    """Of 50 MB it takes the first 500 KiB and closes the connection."""
    server.pages = {"/robots.txt": (200, {}, CLOSED + b"\n" + b"#" * 50_000_000)}
    outcome, stats = crawl(
        server,
        "/private",
        DOWNLOAD_HANDLERS={"http": "scrapy_spider_suite.fetch.http1.Http1Handler"},
        SUITE_ALLOW_PRIVATE_ADDRESSES=True,
    )
    assert outcome == {"/private": "RobotsForbidden"}
    assert stats["downloader/response_bytes"] < 520_000


if __name__ == "__main__":
    main(*sys.argv[1:])
