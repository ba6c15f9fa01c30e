"""A small website on loopback for tests of real crawls: pages from a table, visits on a list."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


@dataclass(frozen=True)
class Answer:
    """What the site sends back; *wait* is the seconds before it does."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    wait: float = 0.0


class Visit(NamedTuple):
    """One request that reached the site; monotonic seconds, *ended* just before the answer."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    began: float
    ended: float


Page = Answer | str | bytes | Callable[[Visit], Answer]


def links(*paths: str, title: str = "") -> str:
    """An HTML page that links to *paths*."""
    anchors = "".join(f'<a href="{path}">{path}</a>' for path in paths)
    return f"<html><head><title>{title}</title></head><body>{anchors}</body></html>"


def moved(to: str, status: int = 302) -> Answer:
    """A redirect."""
    return Answer(status=status, headers={"Location": to})


class _Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        """Answer from the table, or with 404, and note the visit."""
        began = time.monotonic()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        visit = Visit(self.command, self.path, dict(self.headers), body, began, began)
        answer = self.server.answer(visit)
        if answer.wait:
            self.server.stopped.wait(answer.wait)
        # Noted before it is sent: the crawl may be over as soon as the last answer is.
        self.server.visits.append(visit._replace(ended=time.monotonic()))
        with contextlib.suppress(ConnectionError):
            self._send(answer)

    do_POST = do_HEAD = do_PUT = do_GET

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        fields = {"Content-Type": "text/html", "Content-Length": str(len(answer.body))}
        for name, value in {**fields, **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


class Site(ThreadingHTTPServer):
    """A site on loopback; its port is free for each one.

    Attributes:
        pages: path (with its query) to what is sent; text and bytes are HTML pages.
        visits: what was asked for, in the order of the answers' ends.
    """

    daemon_threads = True

    def __init__(
        self, pages: Mapping[str, Page] | None = None, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        super().__init__((host, port), _Handler)
        self.pages: dict[str, Page] = dict(pages or {})
        self.visits: list[Visit] = []
        self.stopped = threading.Event()
        self.host = host
        self.url = f"http://{host}:{self.server_port}"
        self.local = f"http://localhost:{self.server_port}"

    def answer(self, visit: Visit) -> Answer:
        """What *visit* gets."""
        page = self.pages.get(visit.path, Answer(b"no such page", 404))
        if callable(page):
            return page(visit)
        if isinstance(page, str):
            page = page.encode()
        return Answer(page) if isinstance(page, bytes) else page

    def paths(self) -> list[str]:
        """The paths that were asked for."""
        return [visit.path for visit in self.visits]

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing about clients that hang up."""


@contextlib.contextmanager
def running(site: Site) -> Iterator[Site]:
    """Serve *site* from a thread."""
    thread = threading.Thread(target=site.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.stopped.set()
        site.shutdown()
        thread.join()
        site.server_close()
