"""HTTP/1.1 without I/O: a request as bytes, a response from bytes, with bounds and repairs.

llhttp (``httptools``) reads heads and chunked bodies. It refuses heads that browsers read (no
colon, two equal ``Content-Length``, ``HTTP/2``): such a head is repaired once and read again.

Requests are as Scrapy's, but ``Host`` comes first (RFC 9110 §7.2), and ``Content-Length`` or
``Transfer-Encoding`` cannot contradict the body.
"""

from __future__ import annotations

import contextlib
import re
from enum import Enum
from functools import lru_cache
from typing import Final

import httptools
from msgspec import Struct
from scrapy.exceptions import DownloadFailedError, UnsupportedURLSchemeError


class MalformedResponseError(DownloadFailedError):
    """The bytes that came back are not an HTTP/1 response."""


class ResponseBoundsError(MalformedResponseError):
    """Too many head bytes, fields, interim responses or chunk headers."""


class UnsendableRequestError(ValueError):
    """URL, method or a header name cannot be written as HTTP/1.1."""


_STATUS_LINE = re.compile(rb"HTTP(?:/(\d)(?:\.(\d))?)?[ \t]+(\d{3})(?!\d)[ \t]*(.*)", re.IGNORECASE)
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_KEEP_ALIVE_TIMEOUT = re.compile(rb"timeout\s*=\s*(\d{1,9})(?!\d)", re.IGNORECASE)
_CR_OR_NUL = re.compile(rb"[\r\x00]+")


@lru_cache(1_024)
def _canonical(name: bytes) -> bytes:
    # A space before the colon is no part of it (RFC 9112 §5.1).
    return name.rstrip().title()


def head_end(data: bytes | bytearray, start: int = 0) -> int:
    """Return the index behind the first empty line that ends after *start*, or -1."""
    crlf = data.find(b"\n\r\n", start)
    lone = data.find(b"\n\n", start, crlf if crlf >= 0 else len(data))
    if lone >= 0:
        return lone + 2
    return crlf + 3 if crlf >= 0 else -1


def content_length(values: list[bytes]) -> int:
    """Return the length that *values* agree on (RFC 9110 §8.6)."""
    if len(values) == 1 and len(values[0]) <= 18 and values[0].isdigit():
        return int(values[0])
    numbers = {part.strip() for part in b",".join(values).split(b",")}
    if len(numbers) > 1:
        numbers = {number.lstrip(b"0") or b"0" for number in numbers}
    number = numbers.pop()
    if numbers or not number.isdigit() or len(number) > 18:
        raise MalformedResponseError(f"Content-Length {b', '.join(values)[:80]!r}")
    return int(number)


def repair_head(head: bytes) -> bytes:
    """*head* for a strict parser: no line without a field (Scrapy issue 210), none folded."""
    start, *lines = _unfold(head)
    match = _STATUS_LINE.match(start)
    if match is None:
        raise MalformedResponseError(f"no status line: {start[:80]!r}")
    minor = b"0" if match[1] == b"1" and match[2] == b"0" else b"1"
    fixed = [b"HTTP/1.%b %b %b" % (minor, match[3], match[4])]
    lengths: list[bytes] = []
    for line in lines:
        name, colon, value = line.partition(b":")
        name = name.strip()
        if not colon or not _TOKEN.fullmatch(name):
            continue
        if name.lower() == b"content-length":
            lengths.append(value.strip())
        else:
            fixed.append(name + b": " + value.strip())
    if lengths:
        fixed.insert(1, b"Content-Length: %d" % content_length(lengths))
    return b"\r\n".join(fixed) + b"\r\n\r\n"


def _unfold(head: bytes) -> list[bytes]:
    # Folded lines: RFC 9112 §5.2.
    lines: list[bytes] = []
    for raw in head.split(b"\n"):
        line = _CR_OR_NUL.sub(b" ", raw.removesuffix(b"\r"))
        if line[:1] in (b" ", b"\t") and len(lines) > 1:
            lines[-1] += b" " + line.strip()
        else:
            lines.append(line)
    return lines


MAX_HEAD_BYTES: Final = 65_536
"""Status line and fields, with those of interim responses (Chrome reads 256 KiB)."""
MAX_FIELDS: Final = 1_000
MAX_INTERIM: Final = 16  # 1xx responses before the final one (RFC 9110 §15.2 has no bound)
MAX_CHUNK_OVERHEAD: Final = 65_536
"""Bytes of chunk sizes, extensions and trailers in a chunked body ..."""
CHUNK_OVERHEAD_RATIO: Final = 16
"""... and so many more for each byte of body: chunks of one byte need five."""

_CHUNKED_HEAD: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_OTHER_BLANKS = re.compile(rb"[\t\v\f]")
_EMPTY_LINE = re.compile(rb"(?:\A|(?<=\n))\r?\n")
"""The end of an empty line, which may have begun in the bytes before."""


class Framing(Enum):
    """How the end of a response's body is marked (RFC 9112 §6.3)."""

    LENGTH = "length"  # by Content-Length, or because such a response has no body
    CHUNKED = "chunked"
    CLOSE = "close"  # by the end of the connection


class StreamEnd(Enum):
    """The meaning of the connection's end for a response."""

    NOTHING = "nothing"  # not one byte of it had come
    CUT = "cut"  # it lacks the rest of its head or body
    CLOSED = "closed"  # the body is what came; nobody can tell if it is whole


class ResponseReader:
    """Reads one final response.

    Invariant: `head_done` is set before the first byte of body, `done` after the last, and nothing
    but `excess` changes after `done`.
    """

    __slots__ = (
        "_body", "_buffer", "_head_bytes", "_interim", "_pairs", "_parser", "_searched", "_wire",
        "done", "excess", "fields", "framing", "head", "head_done", "length", "no_body",
        "pipelined", "rest", "size", "status", "touched", "version",
    )  # fmt: skip

    def __init__(self) -> None:
        self.no_body = False  # it answers a HEAD
        self._body: bytes | bytearray = b""
        self._buffer = bytearray()
        self._searched = 0  # so many bytes of the buffer have no end of a head in them
        self._head_bytes = 0
        self._interim = 0
        self._pairs: list[tuple[bytes, bytes]] = []
        self._parser: httptools.HttpResponseParser | None = None
        self._wire = 0  # bytes of the chunked body as sent, framing included
        self.status = 0
        self.version = ""  # such as ``HTTP/1.1``
        self.head = b""  # as sent, with the empty line
        self.fields: dict[bytes, list[bytes]] = {}  # names as in Scrapy's ``Headers``
        self.framing = Framing.LENGTH
        self.length: int | None = None  # bytes of body by the head
        self.size = 0  # bytes of body received
        # Bytes beyond the response came; at least one byte came.
        self.head_done = self.done = self.excess = self.touched = False
        self.pipelined = False  # bytes beyond it are the next response's, and become *rest*
        self.rest = b""

    def feed(self, data: bytes) -> None:
        """Read the next bytes. Raises `MalformedResponseError`, `ResponseBoundsError`."""
        self.touched = True
        if not self.head_done:
            data = self._read_heads(data)
            if not self.head_done:
                return
        if self.done:
            self._leave(data)
        elif data:
            self._read_body(data)

    def _leave(self, data: bytes) -> None:
        if self.pipelined:
            self.rest = data
        elif data:
            self.excess = True

    def close(self) -> StreamEnd:
        """Note the end of the connection; return its meaning."""
        self._parser = None
        if not self.touched:
            return StreamEnd.NOTHING
        if self.head_done and self.framing is Framing.CLOSE:
            self.done = True
            return StreamEnd.CLOSED
        return StreamEnd.CUT

    def release(self) -> None:
        """Stop reading: break the reference cycle with the parser."""
        self._parser = None

    def body(self, start: int = 0) -> bytes:
        """Return the body read so far, from byte *start* on."""
        return bytes(self._body[start:] if start else self._body)

    def cut_body(self, size: int) -> None:
        self._body = self._body[:size]

    @property
    def keeps_alive(self) -> bool:
        """Whether the server takes another request (RFC 9112 §9.3)."""
        if self.framing is Framing.CLOSE or self.excess or not self.done:
            return False
        doubtful = self.version != "HTTP/1.1" or b"Content-Length" in self.fields
        if doubtful and b"Transfer-Encoding" in self.fields:
            return False  # framed twice, or as its version cannot be (§6.1, §6.3)
        options = self.fields.get(b"Connection")
        if options is None:
            return self.version == "HTTP/1.1"
        words = b",".join(options).lower()
        return b"close" not in words and (self.version == "HTTP/1.1" or b"keep-alive" in words)

    @property
    def keep_alive_timeout(self) -> int | None:
        values = self.fields.get(b"Keep-Alive")
        if values is None:
            return None
        match = _KEEP_ALIVE_TIMEOUT.search(b",".join(values))
        return int(match[1]) if match else None

    def _read_heads(self, data: bytes) -> bytes:
        """Read through the final head; return the rest. No byte is searched three times."""
        unread: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            unread = self._buffer
        while not self.head_done:
            if not self._buffer:  # empty lines before a response are skipped (RFC 9112 §2.2)
                before = len(unread)
                unread = unread.lstrip(b"\r\n")
                if len(unread) < before:
                    self._skip(before - len(unread))
            end = head_end(unread, self._searched)
            if end < 0:
                self._skip(0, unread=len(unread))
                if unread is not self._buffer:
                    self._buffer = bytearray(unread)
                self._searched = max(0, len(unread) - 2)  # its end may begin with the last two
                return b""
            self._skip(end)
            self._buffer, self._searched = bytearray(), 0
            self._read_head(bytes(unread[:end]))
            unread = bytes(unread[end:])
        return bytes(unread)

    def _skip(self, size: int, unread: int = 0) -> None:
        self._head_bytes += size
        if self._head_bytes + unread > MAX_HEAD_BYTES:
            raise ResponseBoundsError(f"head of more than {MAX_HEAD_BYTES} bytes")

    def _read_head(self, head: bytes) -> None:
        parser = self._parse(head)
        status = parser.get_status_code()
        if status == 101 or status < 100:
            raise MalformedResponseError(f"status {status} answers no request that was made")
        if status < 200:
            self._interim += 1
            if self._interim > MAX_INTERIM:
                raise ResponseBoundsError(f"more than {MAX_INTERIM} interim responses")
            return
        if len(self._pairs) > MAX_FIELDS:
            raise ResponseBoundsError(f"more than {MAX_FIELDS} header fields")
        self.status, self.head = status, head
        self.version = f"HTTP/{parser.get_http_version()}"
        fields = self.fields
        for name, value in self._pairs:
            # The cache holds short names only: a server may send one of 64 KiB.
            key = _canonical(name) if len(name) < 64 else name.rstrip().title()
            if key in fields:
                fields[key].append(value.strip())
            else:
                fields[key] = [value.strip()]
        self._frame(parser, head)
        self.head_done = True

    def _parse(self, head: bytes) -> httptools.HttpResponseParser:
        try:
            return self._new_parser(head)
        except httptools.HttpParserError:
            repaired = repair_head(head)
        try:
            return self._new_parser(repaired)
        except httptools.HttpParserError as error:
            raise MalformedResponseError(f"unreadable head: {error}") from error

    def _new_parser(self, head: bytes) -> httptools.HttpResponseParser:
        self._pairs = []
        parser = httptools.HttpResponseParser(self)
        # By position, which is 1 µs faster: headers, chunked_length, keep_alive,
        # transfer_encoding, version, data_after_close, lf_after_cr, cr_before_lf,
        # crlf_after_chunk (off: a chunk's own bytes would be read as framing), spaces.
        parser.set_dangerous_leniencies(True, True, True, True, True, True, True, True, False, True)
        with contextlib.suppress(httptools.HttpParserUpgrade):  # a 101, refused by its status
            parser.feed_data(head)
        return parser

    def _frame(self, parser: httptools.HttpResponseParser, head: bytes) -> None:
        # The rules in the order of RFC 9112 §6.3.
        if self.no_body or self.status in (204, 304):
            self.length, self.done = 0, True
            return
        codings = self.fields.get(b"Transfer-Encoding")
        if codings is not None:
            last = b",".join(codings).lower().rpartition(b",")[2].strip()
            if last == b"chunked":
                self.framing = Framing.CHUNKED
                # With a tab behind it, which is allowed, llhttp does not know the word.
                odd = _OTHER_BLANKS.search(head)
                self._parser = self._new_parser(_CHUNKED_HEAD) if odd else parser
                return
            if last != b"identity":
                self.framing = Framing.CLOSE
                return
        lengths = self.fields.get(b"Content-Length")
        if lengths is None:
            self.framing = Framing.CLOSE
            return
        self.length = content_length(lengths)
        self.done = self.length == 0

    def _read_body(self, data: bytes) -> None:
        if self.framing is Framing.CHUNKED:
            self._read_chunked(data)
            return
        if self.length is not None:
            missing = self.length - self.size
            if len(data) > missing:
                self._leave(data[missing:])
                data = data[:missing]
            self.done = len(data) == missing
        self._add(data)

    def _add(self, data: bytes) -> None:
        # No copy for one piece, no object for each of very many.
        if not self.size:
            self._body = data
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += data
        self.size += len(data)

    def _read_chunked(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            return
        self._wire += len(data)
        try:
            if self.pipelined:
                self._feed_by_lines(parser, data)
            else:
                parser.feed_data(data)
        except httptools.HttpParserError as error:
            # After the last chunk it is not the body that is wrong but what follows it.
            if not self.done:
                raise MalformedResponseError(f"broken chunk: {error}") from error
            self.excess = True
        if self.done:
            self.release()
        elif self._wire - self.size > MAX_CHUNK_OVERHEAD + CHUNK_OVERHEAD_RATIO * self.size:
            raise ResponseBoundsError("far more chunk headers than body")

    def _feed_by_lines(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        # llhttp does not say where a body ended. It ends with an empty line (RFC 9112 §7.1).
        begin = 0
        for line in _EMPTY_LINE.finditer(data):
            parser.feed_data(data[begin : line.end()])
            begin = line.end()
            if self.done:
                self._leave(data[begin:])
                return
        if begin < len(data):
            parser.feed_data(data[begin:])

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by llhttp with a header field, or a trailer field, which is dropped."""
        if not self.head_done:
            self._pairs.append((name, value))
        elif self.done:
            self.excess = True

    def on_body(self, data: bytes) -> None:
        """Called by llhttp with bytes of a chunked body, or of a second message."""
        if self.done:
            self.excess = True
            return
        self._add(data)

    def on_message_begin(self) -> None:
        """Called by llhttp; after the body: a second message."""
        if self.done:
            self.excess = True

    def on_message_complete(self) -> None:
        """Called by llhttp, also at the end of a head."""
        if self.head_done:
            self.done = True


_PORTS: Final = {"http": 80, "https": 443}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)")
_TARGET = re.compile(rb"[\x21-\x7e]+")
_HOST = re.compile(r"[^\s\\/?#@:\[\]\x00-\x20\x7f]+|\[[0-9A-Fa-f:.]+\]")
_PORT = re.compile(r"[0-9]{0,5}")
_MAX_NETLOC: Final = 2048
"""Characters of user name, password, host and port: many are cached, and IDNA is slow."""
_NEVER_SENT: Final = frozenset({b"Content-Length", b"Transfer-Encoding", b"Proxy-Authorization"})
_WANTS_LENGTH: Final = frozenset({"POST", "PUT", "PATCH"})
"""Methods whose empty body is announced, since some servers answer 411 otherwise."""
_known_names: set[bytes] = set()


ADDRESS: Final = "suite_address"
KEEP_ALIVE: Final = "suite_keep_alive"
DEPARTURE: Final = "suite_departure"
TRUNCATE: Final = "suite_truncate"
MEDIA_TYPES: Final = "suite_media_types"
"""Keys of a request's meta; see `Http1Handler`."""


class Origin(Struct, frozen=True, gc=False):
    """The server of a URL; *host*: no brackets, no userinfo; *header*: the ``Host`` field."""

    scheme: str
    host: str
    port: int
    header: bytes


def split_url(url: str) -> tuple[Origin, bytes]:
    """The origin of *url*, and the unchanged request target: path and query.

    Raises `UnsupportedURLSchemeError`, `UnsendableRequestError`.
    """
    match = _URL.match(url)
    if match is None:
        raise UnsupportedURLSchemeError(f"not an absolute URL: {url[:200]!r}")
    scheme, netloc, rest = match.groups()
    if len(netloc) > _MAX_NETLOC:
        raise UnsendableRequestError(f"no host has such a name: {url[:200]!r}")
    origin = _origin(scheme, netloc)
    try:
        target = (rest if rest[:1] == "/" else f"/{rest}").encode("ascii")
    except UnicodeEncodeError as error:
        raise UnsendableRequestError(f"URL is not ASCII: {url[:200]!r}") from error
    if not _TARGET.fullmatch(target):
        raise UnsendableRequestError(f"URL has spaces or control characters: {url[:200]!r}")
    return origin, target


@lru_cache(maxsize=4096)
def _origin(scheme: str, netloc: str) -> Origin:
    scheme = scheme.lower()
    if scheme not in _PORTS:
        raise UnsupportedURLSchemeError(f"Unsupported scheme: {scheme!r}")
    hostport = netloc.rpartition("@")[2]
    host, colon, digits = hostport.rpartition(":")
    if not colon or hostport.endswith("]"):
        host, digits = hostport, ""
    # A backslash ends the host for browsers (WHATWG URL) but not for RFC 3986.
    if "\\" in netloc or not _HOST.fullmatch(host) or not _PORT.fullmatch(digits):
        raise UnsendableRequestError(f"no host to connect to: {netloc[:200]!r}")
    port = int(digits) if digits else _PORTS[scheme]
    if not 0 < port < 65_536:
        raise UnsendableRequestError(f"no such port: {port}")
    try:
        name = host.encode("ascii") if host.isascii() else host.encode("idna")
    except UnicodeError as error:
        raise UnsendableRequestError(f"host cannot be encoded: {host[:200]!r}") from error
    header = name if port == _PORTS[scheme] else b"%b:%d" % (name, port)
    return Origin(scheme, name.decode("ascii").strip("[]").lower(), port, header)


def request_bytes(
    method: str, target: bytes, host: bytes, headers: dict[bytes, list[bytes]], body: bytes
) -> bytes:
    """The whole request. Raises `UnsendableRequestError`: no token (RFC 9110 §5.6.2).

    Line breaks in a value become spaces: no value can add a field.
    """
    verb = method.encode("latin-1", "replace")
    if not _TOKEN.fullmatch(verb):
        raise UnsendableRequestError(f"not a method: {method!r}")
    lines = [b"%b %b HTTP/1.1" % (verb, target)]
    if not dict.__contains__(headers, b"Host"):
        lines.append(b"Host: " + host)
    lines += field_lines(headers)
    if body or method in _WANTS_LENGTH:
        lines.append(b"Content-Length: %d" % len(body))
    lines.append(b"\r\n")
    return b"\r\n".join(lines) + body


def field_lines(headers: dict[bytes, list[bytes]]) -> list[bytes]:
    """Return the lines of *headers*, without line breaks. Raises `UnsendableRequestError`."""
    lines: list[bytes] = []
    for name, values in dict.items(headers):
        if name in _NEVER_SENT:
            continue
        if name not in _known_names:
            if not _TOKEN.fullmatch(name):
                raise UnsendableRequestError(f"not a header name: {name[:200]!r}")
            if len(_known_names) < 1024:
                _known_names.add(name)
        for value in values:
            if b"\n" in value or b"\r" in value:
                value = b" ".join(value.splitlines())
            lines.append(name + b": " + value)
    return lines
