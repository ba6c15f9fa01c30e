"""HTTP/1.1 for the in-vitro web: requests parsed (RFC 9112 §3, §5), replies built and encoded,
answers sent byte by byte.
"""

from __future__ import annotations

import asyncio
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
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from zlib import crc32

if TYPE_CHECKING:
    Script = Callable[["AnswerWriter"], Awaitable[None]]

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


class BadRequest(ValueError):
    """Not a request."""


class Request(NamedTuple):
    """*path*: *target* without the query. *host*: lower case, no port. *body*: bytes to skip.

    *tags*, *since*: conditions. *codings*: Accept-Encoding.
    """

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
    """One answer: *data* (head and body) after *delay* seconds, or the bytes of *script*.

    *keep*: the connection may be reused.
    """

    status: int
    data: bytes
    delay: float = 0.0
    keep: bool = True
    script: Script | None = None


class HostSite(Protocol):
    def answer(self, request: Request) -> ServerReply:
        """Answer *request*; must not block."""
        ...


def parse_head(head: bytes) -> Request:
    """Parse a request's *head*, without the empty line. Raises `BadRequest`."""
    words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(f"request line {' '.join(words)[:80]!r}")
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
        raise BadRequest("a body whose length is not given")
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


PIECES: Final = (1, 1000, 8192)
"""Bytes of the first chunk, the second, each further one."""

_LENGTH = re.compile(rb"\r\nContent-Length: \d+")
_FAST = 4  # of 11: a server has no time for more


def encode_reply(answer: ServerReply, request: Request, share: float) -> ServerReply:
    """Encode a *share* of the URLs' answers in a way that *request* accepts: chunks, gzip, br, or
    both; always the same for a URL. Answers other than 200, empty or scripted stay.
    """
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


class WriterConnection(Protocol):
    """The connection of an `AnswerWriter`."""

    @property
    def paused(self) -> bool:
        """Whether the transport's buffer holds bytes."""

    def saw(self, status: int) -> None:
        """The answer's first bytes claim *status*."""


class AnswerWriter:
    """Writes raw bytes, with pauses. *keep*: the connection may be reused.

    *status*: claimed by the first bytes. *acted*: time of the last action, 0 after a pause.
    """

    def __init__(
        self, transport: asyncio.Transport, connection: WriterConnection, request: Request
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
            self._note_status(data)
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
        """Wait *seconds*, or until the client has gone."""
        self.acted = 0.0
        await asyncio.sleep(seconds)

    def _note_status(self, data: bytes) -> None:
        self._first += data[:_STATUS_END]
        code = self._first[9:_STATUS_END]
        if self._first.startswith(b"HTTP/") and len(code) == 3 and code.isdigit():
            self.status = int(code)
            self._connection.saw(self.status)

    def flushed(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def reset(self) -> None:
        peer = self._transport.get_extra_info("socket")
        self.acted = time()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
