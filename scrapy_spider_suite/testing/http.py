"""HTTP/1.1 for the in-vitro web: requests (RFC 9112 §3, §5), replies, scripts, connections.

An answer ends when the kernel takes its last byte: the high-water mark is 0. Where one write does
it, the clock is read before: else a polite crawler might look impolite.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import importlib
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import cache
from http import HTTPStatus
from importlib.util import find_spec
from time import time
from typing import Final, NamedTuple, Protocol, TypeAlias, cast
from zlib import crc32

from scrapy_spider_suite.testing.arrivals import Arrival, ArrivalLog

Script: TypeAlias = Callable[["AnswerWriter"], Awaitable[None]]

HEAD_LIMIT = 1 << 20

HTML = "text/html; charset=utf-8"
TEXT = "text/plain; charset=utf-8"

_FIELD = re.compile(
    rb"\r\n(host|connection|content-length|accept-encoding|if-none-match|if-modified-since):"
    rb"[ \t]*([^\r\n]*)",
    re.IGNORECASE,
)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class Request(NamedTuple):
    """*path*: *target* without the query. *body*: bytes to skip. *tags*, *since*: conditions."""

    method: str
    target: str
    path: str
    host: str
    keep: bool
    body: int
    tags: str = ""
    since: str = ""
    codings: str = ""


class ServerReply(NamedTuple):
    """One answer: *data* (head and body) after *delay* seconds, or the bytes of *script*."""

    status: int
    data: bytes
    delay: float = 0.0
    keep: bool = True
    script: Script | None = None


class HostSite(Protocol):
    def answer(self, request: Request) -> ServerReply: ...


def parse_head(head: bytes) -> Request:
    words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise ValueError(f"request line {' '.join(words)[:80]!r}")
    method, target, version = words
    fields = {name.lower(): value for name, value in _FIELD.findall(head)}
    host = fields.get(b"host", b"").decode("latin-1").strip().lower()
    if target.startswith("http://"):
        host, _, rest = target.removeprefix("http://").partition("/")
        target = "/" + rest
    connection = fields.get(b"connection", b"").lower()
    keep = b"close" not in connection and (version != "HTTP/1.0" or b"keep-alive" in connection)
    length = fields.get(b"content-length", b"0").strip()
    if not length.isdigit() or _CHUNKED.search(head):
        raise ValueError("a body whose length is not given")
    path = target.partition("?")[0]
    names = (b"if-none-match", b"if-modified-since", b"accept-encoding")
    conditions = (fields.get(each, b"").decode("latin-1").strip() for each in names)
    host = host.partition(":")[0].rstrip(".")
    return Request(method, target, path, host, keep, int(length), *conditions)


def make_reply(
    status: int, body: bytes | str = b"", kind: str = TEXT, *fields: str, delay: float = 0.0
) -> ServerReply:
    """Return an answer with a correct head; *fields* are further header lines."""
    if isinstance(body, str):
        body = body.encode("utf-8")
    more = "".join(f"{line}\r\n" for line in fields)
    head = (
        f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}\r\nServer: fakeweb\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    )
    return ServerReply(status, head.encode("latin-1") + body, delay)


PIECES: Final = (1, 1000, 8192)  # bytes of the first chunk, the second, each further one

_LENGTH = re.compile(rb"\r\nContent-Length: \d+")
_FAST = 4  # of 11: a server has no time for more


def encode_reply(answer: ServerReply, request: Request, share: float) -> ServerReply:
    """Encode a *share* of the URLs' answers as *request* accepts it; a URL's always the same."""
    draw = crc32(f"{request.host}{request.target}".encode("latin-1", "replace"))
    head, _, body = answer.data.partition(b"\r\n\r\n")
    if answer.status != 200 or not body or draw >= share * (1 << 32) or not _LENGTH.search(head):
        return answer
    accepted = {each.partition(";")[0].strip().lower() for each in request.codings.split(",")}
    names = ["", *sorted(accepted & _encoders().keys())]
    name, chunked = names[draw % len(names)], bool(draw & 64)
    fields = b""
    if name:
        body = _encoders()[name](body)
        fields = b"\r\nContent-Encoding: " + name.encode()
    if chunked or not name:
        fields += b"\r\nTransfer-Encoding: chunked"
        body = _chunks(body)
    else:
        fields += b"\r\nContent-Length: %d" % len(body)
    head = _LENGTH.sub(fields, head, count=1)
    return answer._replace(data=head + b"\r\n\r\n" + body)


def set_cookie(answer: ServerReply, request: Request, share: float) -> ServerReply:
    """Let a *share* of the URLs' answers set a cookie of their host; always the same URLs."""
    if not share or answer.status != 200 or answer.script is not None:
        return answer
    draw = crc32(f"{request.target}{request.host}".encode("latin-1", "replace"))
    if draw >= share * (1 << 32):
        return answer
    field = b"\r\nSet-Cookie: visit%d=%08x; Path=/\r\n" % (draw % 4, draw)
    return answer._replace(data=answer.data.replace(b"\r\n", field, 1))


@cache
def _encoders() -> dict[str, Callable[[bytes], bytes]]:
    found: dict[str, Callable[[bytes], bytes]] = {"gzip": lambda body: gzip.compress(body, _FAST)}
    if find_spec("brotli"):  # an optional dependency of Scrapy
        brotli = importlib.import_module("brotli")
        found["br"] = lambda body: bytes(brotli.compress(body, quality=_FAST))
    return found


def _chunks(body: bytes) -> bytes:
    parts: list[bytes] = []
    place = 0
    while place < len(body):
        piece = body[place : place + PIECES[min(len(parts), 2)]]
        parts.append(b"%x\r\n%b\r\n" % (len(piece), piece))
        place += len(piece)
    return b"".join(parts) + b"0\r\n\r\n"


_STATUS_END = len(b"HTTP/1.1 200")


class AnswerWriter:
    """Writes raw bytes, with pauses. *status*: as the bytes say. *acted*: 0 after a pause."""

    def __init__(
        self, transport: asyncio.Transport, connection: ServerConnection, request: Request
    ) -> None:
        self.request = request
        self.keep = False
        self.status = 0
        self.acted = 0.0
        self._transport = transport
        self._connection = connection
        self._first = b""
        self._drained: asyncio.Future[None] | None = None

    async def send(self, data: bytes) -> None:
        """Write *data* and wait until the kernel has taken it."""
        if self._transport.is_closing():
            raise ConnectionResetError
        if len(self._first) < _STATUS_END:
            self._first += data[:_STATUS_END]
            code = self._first[9:_STATUS_END]
            if self._first.startswith(b"HTTP/") and len(code) == 3 and code.isdigit():
                self.status = self._connection.status = int(code)
        self.acted = time()
        self._transport.write(data)
        if self._connection.paused:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
            self.acted = time()
        else:
            # A turn of the loop for the others: an endless answer must not stop the server.
            await asyncio.sleep(0)

    async def rest(self, seconds: float) -> None:
        self.acted = 0.0
        await asyncio.sleep(seconds)

    def resume(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def reset(self) -> None:
        peer = self._transport.get_extra_info("socket")
        self.acted = time()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


class OpenConnections:
    """Invariant: *idle* has those without a request, the longest idle first."""

    def __init__(
        self, route: Callable[[Request], ServerReply], log: ArrivalLog, *,
        keep_alive: float = 15.0, limit: int = 10_000,
    ) -> None:  # fmt: skip
        self.route = route
        self.log = log
        self.keep_alive = keep_alive
        self.limit = limit
        self.open: set[ServerConnection] = set()
        self.idle: dict[ServerConnection, float] = {}
        self.accepted = 0

    def enter(self, connection: ServerConnection) -> int:
        """Add a connection; return its number. Beyond the limit the longest idle one is closed."""
        self.accepted += 1
        self.open.add(connection)
        self.idle[connection] = time()
        if len(self.open) > self.limit:
            next(iter(self.idle)).abort()
        return self.accepted

    def leave(self, connection: ServerConnection) -> None:
        self.open.discard(connection)
        self.idle.pop(connection, None)

    def sweep(self) -> None:
        """Close connections idle for *keep_alive*; call once a second."""
        oldest = time() - self.keep_alive
        for connection, since in list(self.idle.items()):
            if since > oldest:
                break
            connection.close()


class ServerConnection(asyncio.Protocol):
    def __init__(self, reception: OpenConnections, address: str) -> None:
        self._reception = reception
        self._address = address
        self._number = 0
        self._transport = cast(asyncio.Transport, None)
        self._buffer = b""
        self._skip = 0
        self._first = self._latest = self._started = 0.0
        self._request: Request | None = None
        self.status = 0
        self._keep = True
        self.paused = False
        self._wire: AnswerWriter | None = None
        self._waiting: asyncio.TimerHandle | asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        self._number = self._reception.enter(self)

    def data_received(self, data: bytes) -> None:
        self._latest = time()
        if self._buffer:
            self._buffer += data
        else:
            self._first, self._buffer = self._latest, data
        if self._request is None:
            self._advance()

    def eof_received(self) -> bool:
        self._keep = False  # it gets its answer, unless that is a script, which may be endless
        return self._request is not None and self._wire is None

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self._wire is not None:
            self._wire.resume()
        elif self._request is not None:
            self._finish(time())
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._reception.leave(self)
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if self._request is not None:
            self._record(time())

    def close(self) -> None:
        self._reception.idle.pop(self, None)
        self._transport.close()

    def abort(self) -> None:
        self._reception.idle.pop(self, None)
        self._transport.abort()

    def _advance(self) -> None:
        while self._request is None and self._buffer and not self._transport.is_closing():
            if self._skip:
                skipped = min(self._skip, len(self._buffer))
                self._skip -= skipped
                self._buffer = self._buffer[skipped:]
                self._first = self._latest
                continue
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > HEAD_LIMIT:
                    self._refuse(431, "the head is too long")
                return
            head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
            try:
                request = parse_head(head)
            except ValueError as error:
                self._refuse(400, str(error))
                return
            self._begin(request)

    def _refuse(self, status: int, reason: str) -> None:
        self._buffer = b""
        self._start_request(Request("", "", "", "", False, 0))
        self._send(make_reply(status, reason + "\n"))

    def _start_request(self, request: Request) -> None:
        self._request = request
        self._started, self._first = self._first, self._latest
        self._reception.idle.pop(self, None)
        self.status = 0
        self._keep = self._keep and request.keep and self._reception.keep_alive > 0

    def _begin(self, request: Request) -> None:
        self._start_request(request)
        self._skip = request.body
        answer = self._reception.route(request)
        loop = asyncio.get_running_loop()
        if answer.script is not None:
            self._waiting = loop.create_task(self._play(answer.script, request))
        elif answer.delay > 0:
            self._waiting = loop.call_later(answer.delay, self._send_late, answer)
        else:
            self._send(answer)

    def _send_late(self, answer: ServerReply) -> None:
        self._send(answer)
        self._advance()

    def _send(self, answer: ServerReply) -> None:
        request, data = self._request, answer.data
        self.status = answer.status
        self._keep = self._keep and answer.keep
        if request is not None and request.method == "HEAD":
            data = data[: data.index(b"\r\n\r\n") + 4]
        if not self._keep:
            data = data.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        # Read before the write: the client may have the answer before this process runs again.
        handed = time()
        self._transport.write(data)
        # With TLS the write may pause and resume at once: then it is finished already.
        if not self.paused and self._request is request:
            self._finish(handed)

    def _finish(self, ended: float) -> None:
        self._record(ended)
        self._request = None
        if not self._keep:
            self._transport.close()
        elif not self._transport.is_closing():
            self._reception.idle[self] = self._latest

    def _record(self, ended: float) -> None:
        request = cast(Request, self._request)
        host, path, status = request.host, request.target, self.status
        self._reception.log.add(
            Arrival(self._started, ended, host, self._address, path, status, self._number)
        )

    async def _play(self, script: Script, request: Request) -> None:
        self._wire = wire = AnswerWriter(self._transport, self, request)
        try:
            with contextlib.suppress(ConnectionError):
                await script(wire)
        except BaseException:
            # Cancelled because the connection is lost, or a fault: the client must not wait. A
            # task that is cancelled once it is over would keep its fault to itself.
            self._waiting = None
            self._transport.abort()
            raise
        self.status, self._wire = wire.status, None
        self._keep = self._keep and wire.keep
        self._finish(wire.acted or time())
        self._advance()
