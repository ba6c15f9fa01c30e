"""The little of HTTP/1.1 that the in-vitro web needs: a request's head read, an answer built.

Only requests are parsed, by RFC 9112, sections 3 and 5, as far as a server of pages has use for
it; a body is skipped by its Content-Length.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from scrapy_spider_suite.testing.wire import Wire

    Script = Callable[["Wire"], Awaitable[None]]

HEAD_LIMIT = 1 << 20
"""Bytes of a request's head after which it is refused."""

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
    """The bytes that came are not a request that this server understands."""


class Request(NamedTuple):
    """One request. ``target`` is as sent, ``path`` the same up to the question mark.

    ``host`` is lower case without port and trailing dot; ``body`` the number of bytes to skip;
    ``tags`` and ``since`` are those of a conditional request, ``codings`` is its Accept-Encoding.
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


class Reply(NamedTuple):
    """One answer: *data* (head and body) after *delay* seconds, or else what *script* does.

    ``keep`` says whether the connection may be used again.
    """

    status: int
    data: bytes
    delay: float = 0.0
    keep: bool = True
    script: Script | None = None


class Site(Protocol):
    """Whatever answers the requests to some hosts."""

    def answer(self, request: Request) -> Reply:
        """Answer *request*; must not block for longer than a page takes to make."""
        ...


def parse_head(head: bytes) -> Request:
    """Read a request's *head*, without the empty line at its end.

    Raises:
        BadRequest: it has no request line, or fields that cannot be understood.
    """
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


def reply(
    status: int,
    body: bytes | str = b"",
    kind: str = TEXT,
    *fields: str,
    delay: float = 0.0,
) -> Reply:
    """Build an answer with a correct head; *fields* are further header lines, *kind* the type."""
    if isinstance(body, str):
        body = body.encode("utf-8")
    more = "".join(f"{line}\r\n" for line in fields)
    head = (
        f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}\r\nServer: fakeweb\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    )
    return Reply(status, head.encode("latin-1") + body, delay)
