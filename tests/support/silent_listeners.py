"""Listeners that must stay silent, and a public server that tries to lead a crawler to them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from selectors import EVENT_READ, DefaultSelector
from threading import Event, Thread

import pytest

PUBLIC = "127.9.0.1"
PUBLIC_NETWORK = "127.9.0.0/16"
"""Stands for the public internet: what a crawl is allowed to connect to."""
INSIDE = ("127.0.0.1", "127.8.0.1", "::1")
"""Stands for the inside: loopback addresses that a crawl is not allowed to connect to."""


class Silent:
    """Sockets that listen at `INSIDE`, all on one port, and note who connects."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.port = 0
        self._sockets = [self._listen(address) for address in INSIDE]

    def _listen(self, address: str) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listener = self._stack.enter_context(socket.socket(family))
            listener.bind((address, self.port))
        except OSError as error:
            pytest.skip(f"{address} cannot be listened on: {error}")
        self.port = listener.getsockname()[1]
        listener.listen(50)
        listener.setblocking(False)
        return listener

    def callers(self) -> list[str]:
        """The addresses that somebody has connected to."""
        called = []
        for listener in self._sockets:
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                continue
            connection.close()
            called.append(listener.getsockname()[0])
        return called

    def close(self) -> None:
        """Let go."""
        self._stack.close()


def ways_inside(port: int) -> list[str]:
    """URLs of the silent listeners, in many ways of writing them; h000000.fake.test is one."""
    hosts = (
        "127.0.0.1", "0x7f.1", "2130706433", "017700000001", "127.1", "0", "0.0.0.0", "localhost",
        "127.8.0.1", "127.524289", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f08:1]",
        "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "\u2460\u2461\u2466.0.0.1", "127\u30020\u30020.1",
        "127.0.0.1.", "h000000.fake.test", "H000000.Fake.Test.",
    )  # fmt: skip
    private = ("10.0.0.1", "169.254.169.254", "[::ffff:10.0.0.1]", "private.test", "mapped.test")
    return [f"http://{host}:{port}/" for host in (*hosts, *private)]


class Tempter:
    """A public server on 127.9.0.1 and one address more for each way inside.

    ``/`` of the first links to the ways themselves, to ``/to/N``, which redirects there, and to
    ``/refresh/N``; the others redirect their robots.txt there.
    """

    def __init__(self, ways: list[str]) -> None:
        self.ways = ways
        first = self._serve(PUBLIC, 0)
        self.port = first.server_address[1]
        self._servers = [first]
        for number in range(len(ways)):
            self._servers.append(self._serve(f"127.9.1.{number + 1}", self.port))
        self._closing = Event()
        self._thread = Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _serve(self, address: str, port: int) -> ThreadingHTTPServer:
        return ThreadingHTTPServer((address, port), type("Bound", (_Answer,), {"tempter": self}))

    def _accept(self) -> None:
        # One thread for all of them: each that polled would take processor time of its own.
        with DefaultSelector() as selector:
            for server in self._servers:
                selector.register(server, EVENT_READ)
            while not self._closing.is_set():
                for key, _ in selector.select(0.1):
                    key.fileobj.handle_request()  # type: ignore[union-attr]

    @property
    def start(self) -> str:
        """The page that leads to everything."""
        return f"http://{PUBLIC}:{self.port}/"

    def links(self) -> Iterator[str]:
        """All links of the start page."""
        for number, way in enumerate(self.ways):
            yield way
            yield f"/to/{number}"
            yield f"/refresh/{number}"
            yield f"http://127.9.1.{number + 1}:{self.port}/"

    def close(self) -> None:
        """Stop serving."""
        self._closing.set()
        self._thread.join()
        for server in self._servers:
            server.server_close()


class _Answer(BaseHTTPRequestHandler):
    tempter: Tempter
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer."""
        where, path = str(self.server.server_address[0]), self.path
        ways = self.tempter.ways
        if path.startswith("/to/"):
            self._send(302, "", ways[int(path[4:])])
        elif path == "/robots.txt" and where != PUBLIC:
            self._send(302, "", ways[int(where.rpartition(".")[2]) - 1])
        elif path.startswith("/refresh/"):
            target = ways[int(path[9:])]
            self._send(200, f'<meta http-equiv="refresh" content="0; url={target}">')
        elif path == "/" and where == PUBLIC:
            self._send(200, "".join(f'<a href="{url}">x</a>' for url in self.tempter.links()))
        elif path == "/":
            self._send(200, "<p>a page</p>")
        else:
            self._send(404, "")

    def _send(self, status: int, text: str, location: str = "") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if location:
            # Bytes beyond Latin-1 travel as UTF-8.
            self.send_header("Location", location.encode().decode("latin-1"))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""
