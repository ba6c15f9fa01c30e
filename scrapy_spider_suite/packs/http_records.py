"""HTTP heads as WARC records hold them, and bodies decoded within bounds.

Where the stored body is joined or decompressed, fields that no longer fit get the prefix
``X-Crawler-`` and ``Content-Length`` is that of the stored body, as in Common Crawl's records.
"""

from __future__ import annotations

import importlib
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from types import ModuleType
from typing import Final, NamedTuple

from backports import zstd

from scrapy_spider_suite.errors import PackDamagedError, PackError

PREFIX: Final = b"X-Crawler-"

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(rb"HTTP/(\d(?:\.\d)?) +(\d{3})(?: +([^\r\n]*))?")
_TYPE = re.compile(rb"\ncontent-type[ \t]*:([^\n]*(?:\n[ \t][^\n]*)*)", re.IGNORECASE)
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE = re.compile(rb"\r?\n(?![ \t])")
_FOLD = re.compile(rb"\r?\n[ \t]+")
_CODINGS: Final = (b"transfer-encoding", b"content-encoding")
_NO_BODY: Final = frozenset({204, 304})


class BodyForm(IntEnum):
    """How much of a body's encoding on the wire is left."""

    WIRE = 0
    """Chunked and compressed as it came."""
    JOINED = 1
    """``Transfer-Encoding`` is undone."""
    DECODED = 2
    """``Content-Encoding`` is undone, too."""


class Head(NamedTuple):
    """The first line and the fields of an HTTP response."""

    version: str
    status: int
    reason: str
    fields: tuple[tuple[str, str], ...]

    def get(self, name: str, default: str = "") -> str:
        """The first field of that *name*, in any case."""
        lower = name.lower()
        for field, value in self.fields:
            if field == name or field.lower() == lower:
                return value
        return default

    def all(self, name: str) -> list[str]:
        """All values of that *name*, lists split, in lower case."""
        name = name.lower()
        joined = ",".join(value for field, value in self.fields if field.lower() == name)
        return [word.strip().lower() for word in joined.split(",") if word.strip()]


def fit_head(
    head: bytes, length: int, form: BodyForm = BodyForm.WIRE, *, method: str = "GET",
    cut: bool = False,
) -> bytes:  # fmt: skip
    """Return *head* for a stored body of *length* bytes in *form*. Unchanged if right, for *cut*
    bodies of ``BodyForm.WIRE``, and for answers without a body (HEAD, 1xx, 204, 304).
    """
    head = _closed(head)
    lower = head.lower()
    if (
        b"\r\ncontent-length: %d\r\n" % length in lower
        and lower.count(b"content-length") == 1
        and not any(name in lower for name in _CODINGS[:form])
    ):
        return head
    status = _STATUS.match(head)
    number = int(status[2]) if status else 0
    if method == "HEAD" or number in _NO_BODY or 100 <= number < 200:
        return head
    lines = _LINE.split(head[: -len(b"\r\n\r\n")])
    names = [line.partition(b":")[0].strip().lower() for line in lines]
    gone = set(_CODINGS[:form])
    chunked = b"transfer-encoding" in names and b"transfer-encoding" not in gone
    right = b"%d" % length
    lengths = [line.partition(b":")[2].strip() for line, name in zip(lines, names, strict=True)
               if name == b"content-length"]  # fmt: skip
    wrong = not chunked and not (cut and form is BodyForm.WIRE) and lengths not in ([], [right])
    if wrong:
        gone.add(b"content-length")
    if gone.isdisjoint(names):
        return head
    lines = [PREFIX + line if name in gone else line
             for line, name in zip(lines, names, strict=True)]  # fmt: skip
    if not chunked and (wrong or not lengths):
        lines.append(b"Content-Length: " + right)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _closed(head: bytes) -> bytes:
    if head.find(b"\n\r\n") == len(head) - 3 and b"\n\n" not in head and head[-4:-3] == b"\r":
        return head
    found = _HEAD_END.search(head)
    return (head[: found.start()] if found else head.rstrip(b"\r\n")) + b"\r\n\r\n"


def build_head(
    status: int,
    fields: Mapping[bytes, Iterable[bytes]],
    reason: str = "",
    version: str = "1.1",
) -> bytes:
    """Return a head for a response without one. Line breaks in values become spaces; invalid field
    names are left out.
    """
    phrase = re.sub(rb"[^\t\x20-\x7e\x80-\xff]", b" ", reason.encode("latin-1", "replace"))
    lines = [b"HTTP/%b %03d %b" % (version.encode(), status, phrase)]
    for name, values in fields.items():
        if _TOKEN.fullmatch(name):
            lines += [name + b": " + re.sub(rb"[\r\n\0]", b" ", value) for value in values]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def split_message(block: bytes) -> tuple[bytes, bytes]:
    """Split an HTTP message into its head, with the empty line, and its body."""
    found = _HEAD_END.search(block)
    end = found.end() if found else len(block)
    return block[:end], block[end:]


def parse_head(head: bytes) -> Head:
    """Parse the head of a response. Raises `PackDamagedError`."""
    first, *lines = _LINE.split(head.rstrip(b"\r\n"))
    status = _STATUS.match(first)
    if status is None:
        raise PackDamagedError(f"no HTTP response: {first[:80]!r}")
    fields = []
    for line in lines:
        if b"\n" in line:
            line = _FOLD.sub(b" ", line)
        name, _, value = line.partition(b":")
        fields.append((name.strip().decode("latin-1"), value.strip().decode("latin-1")))
    reason = (status[3] or b"").decode("latin-1")
    return Head(status[1].decode(), int(status[2]), reason, tuple(fields))


def status_and_type(head: bytes) -> tuple[int, str]:
    """Return status and ``Content-Type`` in the *head* of a response, as `parse_head`; 0 and "" if
    it is none.
    """
    status = _STATUS.match(head)
    if status is None:
        return 0, ""
    found = _TYPE.search(head)
    value = b"" if found is None else _FOLD.sub(b" ", found[1]).strip()
    return int(status[2]), value.decode("latin-1")


try:
    brotli: ModuleType | None = importlib.import_module("brotli")
except ImportError:  # an optional dependency of Scrapy
    brotli = None

MAX_BYTES: Final = 256 << 20

_WINDOW: Final = 4096
"""Bytes at a time: a hostile body may have many members."""

_CHUNK = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,15})[^\r\n]*\r?\n")


def decode_body(head: Head, body: bytes, limit: int = MAX_BYTES) -> bytes:
    """Return the payload of *body*, of a cut body its readable part. Raises `PackDamagedError`
    (wrongly encoded, over *limit* bytes) and `PackError` (unknown encoding; ``br`` needs Brotli).
    """
    if "chunked" in head.all("Transfer-Encoding"):
        body = join_chunks(body)
    for name in reversed(head.all("Content-Encoding")):
        if name != "identity" and body:
            if name not in _DECODERS:
                raise PackError(f"a page is compressed in a way that is not known: {name[:40]}")
            body = _DECODERS[name](body, limit)
    if len(body) > limit:
        raise PackDamagedError(f"a page has more than {limit} bytes")
    return body


def join_chunks(body: bytes) -> bytes:
    """Remove the framing of chunks (RFC 9112 §7.1); a body without it is returned as it is."""
    parts: list[bytes] = []
    place = 0
    while match := _CHUNK.match(body, place):
        size = int(match[1], 16)
        if not size:
            return b"".join(parts)
        parts.append(body[match.end() : match.end() + size])
        place = match.end() + size
        place += 2 if body.startswith(b"\r\n", place) else body.startswith(b"\n", place)
    return b"".join(parts) if parts and place >= len(body) else body


def inflate(data: bytes, limit: int, bits: int) -> bytes:
    """Decompress all members of *data* by zlib. Raises as `decode_body`."""
    out: list[bytes] = []
    room = limit + 1
    engine = zlib.decompressobj(bits)
    for place in range(0, len(data), _WINDOW):
        window = data[place : place + _WINDOW]
        while window:
            if engine.eof:
                if not window.startswith(b"\x1f"):  # padding after the last member is none
                    return b"".join(out)
                engine = zlib.decompressobj(bits)
            try:
                out.append(engine.decompress(window, room))
            except zlib.error as error:
                raise PackDamagedError(f"bad compressed data: {error}") from error
            room -= len(out[-1])
            if room <= 0:
                raise PackDamagedError(f"more than {limit} bytes when it is decompressed")
            window = engine.unused_data
    return b"".join(out)


def _deflate(data: bytes, limit: int) -> bytes:
    raw = (data[0] & 0x0F) != 8 or int.from_bytes(data[:2], "big") % 31
    return inflate(data, limit, -zlib.MAX_WBITS if raw else zlib.MAX_WBITS)


def _gzip(data: bytes, limit: int) -> bytes:
    return inflate(data, limit, zlib.MAX_WBITS | 16)


def _zstd(data: bytes, limit: int) -> bytes:
    try:
        out = zstd.ZstdDecompressor().decompress(data, limit + 1)
    except zstd.ZstdError as error:
        raise PackDamagedError(f"bad compressed data: {error}") from error
    if len(out) > limit:
        raise PackDamagedError(f"more than {limit} bytes when it is decompressed")
    return out


def _brotli(data: bytes, limit: int) -> bytes:
    if brotli is None:
        raise PackError("a page is compressed with br: pip install brotli")
    engine = brotli.Decompressor()
    out, size = [], 0
    try:
        part = engine.process(data, output_buffer_limit=1 << 16)
        while part:
            out.append(part)
            size += len(part)
            if size > limit:
                raise PackDamagedError(f"more than {limit} bytes when it is decompressed")
            part = engine.process(b"", output_buffer_limit=1 << 16)
    except brotli.error as error:
        raise PackDamagedError(f"bad compressed data: {error}") from error
    return b"".join(out)


_DECODERS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
    "br": _brotli,
}
