"""One HTTP/1 response from bytes: fields, framing, body, and bounds against hostile servers.

No sockets or clocks here: bytes go in through :meth:`ResponseReader.feed`, the end of the
connection through :meth:`ResponseReader.end`, and what has been read stands in attributes.

llhttp (through ``httptools``) reads every head and every chunked body. It refuses heads that
browsers, and Scrapy's own handler, read: lines without a colon, two equal ``Content-Length``, an
``HTTP/2`` in the status line. Such a head is mended (see ``heads``), once, and given to it again.
What llhttp does not do is done here: where a head ends (so that its size is bounded before anything
is built from it), ``Content-Length`` and close-delimited bodies, and answers to HEAD. A fresh
parser per response costs 2 µs and leaves no state of one response to the next.
"""

from __future__ import annotations

import contextlib
import re
from enum import Enum
from typing import Final

import httptools

from scrapy_spider_suite.handlers.errors import MalformedResponseError, ResponseBoundsError
from scrapy_spider_suite.handlers.heads import (
    content_length,
    head_end,
    keep_alive_seconds,
    last_coding,
    repair,
)

MAX_HEAD_BYTES: Final = 65_536
"""Status line and fields, those of interim responses included (Chrome reads 256 KiB, Apache
sends 8 KiB a line)."""
MAX_FIELDS: Final = 1_000
MAX_INTERIM: Final = 16
"""1xx responses before the final one (RFC 9110 §15.2 has no bound)."""
MAX_CHUNK_OVERHEAD: Final = 65_536
"""Bytes of chunk sizes, extensions and trailers that a chunked body may have ..."""
CHUNK_OVERHEAD_RATIO: Final = 16
"""... and for each byte of body this many more: chunks of one byte need five."""

_CHUNKED_HEAD: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_OTHER_BLANKS = re.compile(rb"[\t\v\f]")


class Framing(Enum):
    """How the end of a response's body is told (RFC 9112 §6.3)."""

    LENGTH = "length"  # by Content-Length, or because such a response has no body
    CHUNKED = "chunked"
    CLOSE = "close"  # by the end of the connection


class End(Enum):
    """What the end of the connection means for the response that was being read."""

    NOTHING = "nothing"  # not one byte of it had come
    CUT = "cut"  # it lacks the rest of its head or body
    CLOSED = "closed"  # the body is what came; nobody can tell if it is whole


class ResponseReader:
    """Reads one final response.

    Invariant: :attr:`head_done` is set before the first byte of body, :attr:`done` after the last,
    and nothing changes after :attr:`done` but :attr:`excess`.

    Attributes:
        status: status code, 200 to 999.
        version: as Scrapy writes it, such as ``HTTP/1.1``.
        fields: name, in the case of Scrapy's ``Headers`` (``Content-Type``), to values in order.
        head: the final head as it was sent, with the empty line.
        framing: how the body ends; meaningful once :attr:`head_done`.
        length: bytes of body to come as the head says it, None when it does not.
        size: bytes of body that have come.
        head_done: the head has been read.
        done: the response is complete.
        excess: the server sent bytes beyond the response.
        touched: at least one byte has come.
    """

    __slots__ = (
        "_body", "_buffer", "_head_bytes", "_interim", "_no_body", "_pairs", "_parser",
        "_searched", "_wire", "done", "excess", "fields", "framing", "head", "head_done", "length",
        "size", "status", "touched", "version",
    )  # fmt: skip

    def __init__(self, method: str = "GET") -> None:
        self._no_body = method == "HEAD"
        self._body: bytes | bytearray = b""
        self._buffer = bytearray()
        self._searched = 0  # so many bytes of the buffer have no end of a head in them
        self._head_bytes = 0
        self._interim = 0
        self._pairs: list[tuple[bytes, bytes]] = []
        self._parser: httptools.HttpResponseParser | None = None
        self._wire = 0  # bytes of the chunked body as sent, framing included
        self.status = 0
        self.version = ""
        self.head = b""
        self.fields: dict[bytes, list[bytes]] = {}
        self.framing = Framing.LENGTH
        self.length: int | None = None
        self.size = 0
        self.head_done = self.done = self.excess = self.touched = False

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the connection.

        Raises:
            MalformedResponseError: they are no HTTP/1 response; after the head, only for a chunked
                body that breaks off in nonsense (what came before it is kept).
            ResponseBoundsError: one of the bounds of this module.
        """
        self.touched = True
        if not self.head_done:
            data = self._read_heads(data)
            if not self.head_done:
                return
        if self.done:
            self.excess = self.excess or bool(data)
        elif data:
            self._read_body(data)

    def end(self) -> End:
        """Tell the reader that the connection ended; return what that means."""
        self._parser = None
        if not self.touched:
            return End.NOTHING
        if self.head_done and self.framing is Framing.CLOSE:
            self.done = True
            return End.CLOSED
        return End.CUT

    def release(self) -> None:
        """Let go of the parser, which holds this object, which holds it; nothing more is read."""
        self._parser = None

    def body(self, start: int = 0) -> bytes:
        """Return the body read so far, from byte *start* on."""
        return bytes(self._body[start:] if start else self._body)

    def cut_body(self, size: int) -> None:
        """Drop all but the first *size* bytes of the body."""
        self._body = self._body[:size]

    @property
    def keeps_alive(self) -> bool:
        """Whether the server will take another request on this connection (RFC 9112 §9.3)."""
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
        """Seconds that the server keeps an idle connection, from ``Keep-Alive: timeout=``."""
        values = self.fields.get(b"Keep-Alive")
        return keep_alive_seconds(values) if values else None

    # Heads

    def _read_heads(self, data: bytes) -> bytes:
        """Read up to and including the final head; return what follows it.

        No byte is looked at more than twice, even if every one comes by itself.
        """
        unread: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            unread = self._buffer
        while not self.head_done:
            if not self._buffer:  # empty lines before a response are skipped (RFC 9112 §2.2)
                before = len(unread)
                unread = unread.lstrip(b"\r\n")
                self._skip(before - len(unread))
            end = head_end(unread, self._searched)
            if end < 0:
                self._keep(unread)
                return b""
            self._skip(end)
            self._buffer, self._searched = bytearray(), 0
            self._read_head(bytes(unread[:end]))
            unread = bytes(unread[end:])
        return bytes(unread)

    def _keep(self, unread: bytes | bytearray) -> None:
        """Keep a head that has no end yet until more of it comes."""
        if self._head_bytes + len(unread) > MAX_HEAD_BYTES:
            raise ResponseBoundsError(f"head of more than {MAX_HEAD_BYTES} bytes")
        if unread is not self._buffer:
            self._buffer = bytearray(unread)
        self._searched = max(0, len(unread) - 2)  # its end may begin with the last two

    def _skip(self, size: int) -> None:
        """Count *size* bytes of heads as read."""
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ResponseBoundsError(f"head of more than {MAX_HEAD_BYTES} bytes")

    def _read_head(self, head: bytes) -> None:
        """Read one whole head, an interim one (1xx) or the final one."""
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
            key = name.rstrip().title()  # a space before the colon is no part of it (§5.1)
            if key in fields:
                fields[key].append(value.strip())
            else:
                fields[key] = [value.strip()]
        self._frame(parser, head)
        self.head_done = True

    def _parse(self, head: bytes) -> httptools.HttpResponseParser:
        """Have llhttp read *head*, after a repair if it refuses it as it is."""
        try:
            return self._new_parser(head)
        except httptools.HttpParserError:
            repaired = repair(head)
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
        parser.set_dangerous_leniencies(
            True, True, True, True, True, True, True, True, False, True
        )
        with contextlib.suppress(httptools.HttpParserUpgrade):  # a 101, refused by its status
            parser.feed_data(head)
        return parser

    def _frame(self, parser: httptools.HttpResponseParser, head: bytes) -> None:
        """Decide how the body ends, as RFC 9112 §6.3 orders the rules."""
        if self._no_body or self.status in (204, 304):
            self.length, self.done = 0, True
            return
        codings = self.fields.get(b"Transfer-Encoding")
        if codings is not None:
            last = last_coding(codings)
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

    # Bodies

    def _read_body(self, data: bytes) -> None:
        if self.framing is Framing.CHUNKED:
            self._read_chunked(data)
            return
        if self.length is not None:
            missing = self.length - self.size
            if len(data) > missing:
                self.excess = True
                data = data[:missing]
            self.done = len(data) == missing
        self._add(data)

    def _add(self, data: bytes) -> None:
        """Add *data* to the body: no copy for one piece, no object for each of very many."""
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

    # Called by llhttp

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header field, or a trailer field, which is dropped."""
        if not self.head_done:
            self._pairs.append((name, value))
        elif self.done:
            self.excess = True

    def on_body(self, data: bytes) -> None:
        """Take bytes of a chunked body; a second message's are not ours."""
        if self.done:
            self.excess = True
            return
        self._add(data)

    def on_message_begin(self) -> None:
        """Notice a second message behind the first one."""
        if self.done:
            self.excess = True

    def on_message_complete(self) -> None:
        """Notice the end of a chunked body (the end of a head is not told apart by it)."""
        if self.head_done:
            self.done = True
