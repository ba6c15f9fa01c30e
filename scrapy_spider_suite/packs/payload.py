"""A stored body back to what the author wrote: chunks joined, decompressed, within bounds."""

from __future__ import annotations

import importlib
import re
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Final

from backports import zstd

from scrapy_spider_suite.errors import PackDamagedError, PackError
from scrapy_spider_suite.packs.heads import Head

try:
    brotli: ModuleType | None = importlib.import_module("brotli")
except ImportError:  # an optional dependency of Scrapy
    brotli = None

MAX_BYTES: Final = 256 << 20
"""Bytes that a body may have, decompressed, unless the reader says otherwise."""

_WINDOW: Final = 4096
"""Bytes at a time: what follows a member is copied, and a hostile body may have many members."""

_CHUNK = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,15})[^\r\n]*\r?\n")


def decode(head: Head, body: bytes, limit: int = MAX_BYTES) -> bytes:
    """Return the payload of *body*, a body as it is stored under *head*.

    A body that was cut off gives what is there of it.

    Raises:
        PackDamagedError: it is not encoded as *head* says, or is larger than *limit* bytes.
        PackError: it is encoded in a way that is not known here (``br`` needs Brotli).
    """
    if "chunked" in head.all("Transfer-Encoding"):
        body = join_chunks(body)
    for name in reversed(head.all("Content-Encoding")):
        if name != "identity" and body:
            body = _decoder(name)(body, limit)
    if len(body) > limit:
        raise PackDamagedError(f"a page has more than {limit} bytes")
    return body


def join_chunks(body: bytes) -> bytes:
    """Return *body* without the framing of chunks (RFC 9112 §7.1); what has none as it is."""
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
    """Return what zlib makes of *data*, all members of it; see `decode` for what is raised."""
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
    """``deflate`` is zlib's format (RFC 9110 §8.4.1.2), and from some servers raw."""
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


def _decoder(name: str) -> Callable[[bytes, int], bytes]:
    if name not in _DECODERS:
        raise PackError(f"a page is compressed in a way that is not known: {name[:40]}")
    return _DECODERS[name]
