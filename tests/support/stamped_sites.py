"""A website behind TLS that knows when each request reached the machine, however late it reads it.

What a busy server reads late looks nearer to the next request than it was. So the times are the
kernel's, of the arrival of the bytes; where it gives none, those of the reading.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import socketserver
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from support.tls_sites import Authority

T = TypeVar("T")

_SO_TIMESTAMPNS = 35
_STAMP = struct.Struct("qq")


class StampedSite(socketserver.ThreadingTCPServer):
    """Answers every request; some answers are slow, some close their connection.

    Attributes:
        arrivals: seconds since the epoch at which each request came.
        connections: how many were made.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, context: ssl.SSLContext, handshakes: Iterable[float]) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.context = context
        self.port: int = self.server_address[1]
        self.arrivals: list[float] = []
        self.connections = 0
        self._handshakes = itertools.cycle(handshakes)
        self._lock = threading.Lock()

    def connect(self) -> float:
        """One connection more; return the seconds that its handshake takes."""
        with self._lock:
            self.connections += 1
            return next(self._handshakes)

    def note(self, arrival: float) -> int:
        """One request more; return its number."""
        with self._lock:
            self.arrivals.append(arrival)
            return len(self.arrivals)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing about clients that hang up."""


class _Connection(socketserver.BaseRequestHandler):
    server: StampedSite

    def handle(self) -> None:
        """Take a handshake, slowly, and then requests."""
        self.request.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        time.sleep(self.server.connect())
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = self.server.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._finish(tls.do_handshake)
        self._flush()
        head = b""
        while data := self._finish(tls.read):
            head += data
            if not head.endswith(b"\r\n\r\n"):
                continue
            head = b""
            number = self.server.note(self._arrival)
            time.sleep(0.15 if number % 4 == 0 else 0.0)
            close = "Connection: close\r\n" if number % 3 == 0 else ""
            tls.write(f"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{close}\r\nok".encode())
            self._flush()
            if close:
                return

    def _finish(self, step: Callable[[], T]) -> T:
        """Do *step* of the TLS, reading and writing as it wants."""
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._flush()
                data, notes, _, _ = self.request.recvmsg(65536, 256)
                stamps = [_STAMP.unpack(note) for _, kind, note in notes if kind == _SO_TIMESTAMPNS]
                seconds, nanoseconds = stamps[-1] if stamps else (time.time(), 0)
                self._arrival = seconds + nanoseconds / 1e9
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()

    def _flush(self) -> None:
        if pending := self._outgoing.read():
            self.request.sendall(pending)


@contextlib.contextmanager
def stamped_site(authority: Authority, handshakes: Iterable[float]) -> Iterator[StampedSite]:
    """Serve on loopback; the handshakes take *handshakes* seconds, by turns."""
    with StampedSite(authority.server(), handshakes) as site:
        thread = threading.Thread(target=site.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()
