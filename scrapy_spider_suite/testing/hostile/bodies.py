"""Answers that never end, never begin, break off or blow up, and bodies that lie."""

from __future__ import annotations

import gzip
import struct
import zlib
from functools import lru_cache

from scrapy_spider_suite.testing.hostile.registry import (
    PAGE,
    Scene,
    behaviour,
    endlessly,
    fixed,
    head,
    page,
    sized,
    slowly,
)
from scrapy_spider_suite.testing.wire import Wire

_MEGABYTE = 1 << 20
_PIECE = b"<p>more</p>\n" * 5000
_GZIP = "Content-Encoding: gzip"
_ZEROS = b"\0" * _MEGABYTE
_LAST_BLOCK = zlib.compressobj(9, zlib.DEFLATED, -15).flush()
_GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


@behaviour("the connection is closed without an answer")
async def close(wire: Wire, scene: Scene) -> None:
    """An orderly end after the request."""


@behaviour("the connection is reset without an answer")
async def reset(wire: Wire, scene: Scene) -> None:
    """A TCP reset after the request."""
    wire.reset()


@behaviour("the connection is reset in the middle of the body")
async def reset_in_body(wire: Wire, scene: Scene) -> None:
    """The client has seen the head and some bytes."""
    await wire.send(head("Content-Length: 100000") + PAGE)
    await wire.rest(0.05)
    wire.reset()


@behaviour("no answer at all")
async def silence(wire: Wire, scene: Scene) -> None:
    """Nothing is sent, and the connection stays open."""
    await wire.rest(scene.seconds)


@behaviour("a head that comes one byte at a time")
async def slow_head(wire: Wire, scene: Scene) -> None:
    """Slow loris, before the body."""
    await slowly(wire, scene, sized(PAGE))


@behaviour("a body that comes one byte at a time")
async def slow_body(wire: Wire, scene: Scene) -> None:
    """Slow loris, in the body."""
    await wire.send(head("Content-Length: 1000"))
    await slowly(wire, scene, PAGE.ljust(1000))


@behaviour("a body without end, as fast as one can read it, no length")
async def endless_body(wire: Wire, scene: Scene) -> None:
    """Framed by the end of the connection, which does not come."""
    await wire.send(head())
    await endlessly(wire, scene, _PIECE)


@behaviour("chunks without end")
async def endless_chunks(wire: Wire, scene: Scene) -> None:
    """No last chunk."""
    await wire.send(head("Transfer-Encoding: chunked"))
    await endlessly(wire, scene, b"%x\r\n%b\r\n" % (len(_PIECE), _PIECE))


@behaviour("1 MB that unpacks to 1 GB of zeros")
async def gzip_bomb(wire: Wire, scene: Scene) -> None:
    """A correct gzip member."""
    await wire.send(head(_GZIP) + _GZIP_HEAD)
    checksum = 0
    for _ in range(1024):
        checksum = zlib.crc32(_ZEROS, checksum)
        await wire.send(_packed_zeros())
    await wire.send(_LAST_BLOCK + struct.pack("<II", checksum, 1 << 30))


@behaviour("a gzip bomb of 100 MB that is packed twice")
async def gzip_bomb_twice(wire: Wire, scene: Scene) -> None:
    """A few kilobytes; both layers must be bounded."""
    checksum = 0
    for _ in range(100):
        checksum = zlib.crc32(_ZEROS, checksum)
    tail = _LAST_BLOCK + struct.pack("<II", checksum, 100 << 20)
    once = _GZIP_HEAD + _packed_zeros() * 100 + tail
    await wire.send(sized(gzip.compress(once), "Content-Encoding: gzip, gzip"))


@behaviour("a deflate bomb of 100 MB")
async def deflate_bomb(wire: Wire, scene: Scene) -> None:
    """The same zeros under the other name."""
    checksum = 1
    for _ in range(100):
        checksum = zlib.adler32(_ZEROS, checksum)
    tail = _LAST_BLOCK + struct.pack(">I", checksum)
    body = b"\x78\xda" + _packed_zeros() * 100 + tail
    await wire.send(sized(body, "Content-Encoding: deflate"))


@lru_cache(1)
def _packed_zeros() -> bytes:
    """1 MB of zeros as deflate blocks that can be repeated: they refer to nothing before them."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(_ZEROS) + packer.flush(zlib.Z_FULL_FLUSH)


fixed("gzip-garbage", "said to be gzip, is not", sized(PAGE, _GZIP))
fixed("gzip-cut", "half of a gzip member", sized(gzip.compress(PAGE * 99)[:80], _GZIP))
fixed("encoding-unknown", "Content-Encoding: klingon", sized(PAGE, "Content-Encoding: klingon"))
fixed("encoding-many", "100 codings", sized(PAGE, "Content-Encoding: " + ", ".join(["gzip"] * 100)))

_LATIN = "<p>caf\xe9 \xfcber <a href='/\xe9t\xe9'>\xe9t\xe9</a></p>".encode("latin-1")
fixed("charset-lie", "said to be UTF-8, is Latin-1", sized(_LATIN))
fixed(
    "charset-unknown",
    "a charset that nobody knows",
    sized(_LATIN, "Content-Type: text/html; charset=klingon"),
)
fixed(
    "charset-contradiction",
    "the header, the byte order mark and the page name three charsets",
    sized(
        b"\xef\xbb\xbf<meta charset=shift_jis>" + _LATIN,
        "Content-Type: text/html; charset=utf-16",
    ),
)
fixed("charset-utf16", "UTF-16, undeclared", sized("<a href='/ok'>ok</a>".encode("utf-16")))
fixed(
    "charset-utf7", "UTF-7", sized(b"+ADw-a href=/x+AD4-", "Content-Type: text/html; charset=utf-7")
)
fixed("utf8-broken", "sequences that are not UTF-8", sized(b"\xff\xfe\xc0\x80\xed\xa0\x80" * 999))
fixed(
    "nul-bytes", "NUL bytes in text, tags and links", sized(b"\0<a hr\0ef='/\0ok'>o\0k</a>\0" * 99)
)
fixed("type-lie", "an image that is said to be HTML", sized(b"\x89PNG\r\n\x1a\n" + bytes(5000)))
fixed("type-missing", "no Content-Type", sized(PAGE).replace(b"Content-Type", b"X-Type", 1))
fixed("type-garbage", "a Content-Type that is none", sized(PAGE, "Content-Type: ;;=/ \xff"))
fixed("empty", "no bytes at all", sized(b""))


@behaviour("10 MB of text without a tag")
async def one_line(wire: Wire, scene: Scene) -> None:
    """Nothing for a parser to hold on to."""
    await wire.send(sized(b"x" * (10 * _MEGABYTE)))


@behaviour("200,000 elements inside each other")
async def deep_nesting(wire: Wire, scene: Scene) -> None:
    """For parsers that recurse."""
    await wire.send(page("<div>" * 200_000))


@behaviour("a tag of 5 MB that is never closed")
async def unclosed_tag(wire: Wire, scene: Scene) -> None:
    """An attribute without its closing quote."""
    await wire.send(page('<a href="/ok">ok</a><a href="' + "x" * (5 * _MEGABYTE)))


@behaviour("one element with 200,000 attributes")
async def many_attributes(wire: Wire, scene: Scene) -> None:
    """For parsers that compare each with each."""
    names = " ".join(f"a{number}=1" for number in range(200_000))
    await wire.send(page(f"<a {names} href='/ok'>ok</a>"))
