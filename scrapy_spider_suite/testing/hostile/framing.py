"""Answers that break the rules of HTTP messages: status lines, fields, lengths, chunks."""

from __future__ import annotations

from scrapy_spider_suite.testing.hostile.registry import (
    PAGE,
    Scene,
    behaviour,
    endlessly,
    fixed,
    head,
    sized,
)
from scrapy_spider_suite.testing.wire import Wire

_CHUNKED = "Transfer-Encoding: chunked"
_LENGTH = f"Content-Length: {len(PAGE)}"
_FLOOD = 10_000
_LONG = 10 << 20

# Status lines
fixed("status-line-garbage", "a status that is no number", b"HTTP/1.1 abc OK\r\n\r\n" + PAGE)
fixed("status-line-only", "a status line and nothing else", b"HTTP/1.1 200 OK\r\n")
fixed("status-999", "a status outside of the range", sized(PAGE, status="999 Request denied"))
fixed("status-0", "status 000", sized(PAGE, status="000 Nothing"))
fixed("version-unknown", "HTTP/9.9", sized(PAGE).replace(b"HTTP/1.1", b"HTTP/9.9", 1))
fixed("http-0.9", "a body without any head", PAGE)
fixed("not-http", "the banner of a mail server", b"220 mail.hostile.test ESMTP ready\r\n")
fixed("binary", "1 MB of bytes that are no HTTP at all", bytes(range(256)) * 4096)
fixed("switching-protocols", "101, unasked", head("Upgrade: x", status="101 Switching Protocols"))
fixed("body-with-204", "a body where none may be", sized(PAGE, status="204 No Content"), keep=True)
fixed("unasked-304", "304 to an unconditional request", head(status="304 Not Modified"))

# Lengths
fixed("truncated-body", "half of the body, then the end", head("Content-Length: 10000") + PAGE)
fixed(
    "length-too-short", "more body than was declared", head("Content-Length: 20") + PAGE, keep=True
)
fixed("length-negative", "Content-Length: -5", head("Content-Length: -5") + PAGE)
fixed("length-text", "Content-Length: many", head("Content-Length: many") + PAGE)
fixed("length-huge", "Content-Length: 10**30", head(f"Content-Length: {10**30}") + PAGE)
fixed("length-10gb", "10 GB announced, little sent", head(f"Content-Length: {10**10}") + PAGE)
fixed("length-twice", "two lengths that differ", head("Content-Length: 20", _LENGTH) + PAGE)
fixed("length-list", "Content-Length: 20, 30", head("Content-Length: 20, 30") + PAGE)
fixed(
    "length-and-chunked",
    "a length and chunks, which disagree",
    head("Content-Length: 5", _CHUNKED) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(PAGE), PAGE),
    keep=True,
)

# Chunks
fixed("chunk-size-text", "a chunk size that is no number", head(_CHUNKED) + b"zz\r\n" + PAGE)
fixed("chunk-size-huge", "a chunk of 2**64 bytes", head(_CHUNKED) + b"1" + b"0" * 16 + b"\r\nx")
fixed("chunk-size-negative", "a chunk of -1 bytes", head(_CHUNKED) + b"-1\r\n" + PAGE)
fixed("chunk-cut", "the end in the middle of a chunk", head(_CHUNKED) + b"ffff\r\n" + PAGE)
fixed("chunk-no-last", "no last chunk", head(_CHUNKED) + b"%x\r\n%b\r\n" % (len(PAGE), PAGE))
fixed("coding-unknown", "an unknown transfer coding", head("Transfer-Encoding: klingon") + PAGE)

# Fields
fixed("header-nul", "NUL bytes in a field", head("X-Nul: a\0b", _LENGTH) + PAGE)
fixed("header-no-colon", "a field without a colon", head("this is no field", _LENGTH) + PAGE)
fixed("header-folded", "a folded field", head("X-Folded: a\r\n  b", _LENGTH) + PAGE)
fixed("header-binary", "bytes above 127", head("X-Bytes: \xff\xfe\x80", _LENGTH) + PAGE)
fixed("header-name-space", "a space before the colon", head("X-Space : a", _LENGTH) + PAGE)
fixed("header-bare-lf", "lines that end with LF only", sized(PAGE).replace(b"\r\n", b"\n"))


@behaviour("a Content-Length that is too long, and silence after the body")
async def length_too_long(wire: Wire, scene: Scene) -> None:
    """The client waits for bytes that never come."""
    await wire.send(head("Content-Length: 10000") + PAGE)
    await wire.rest(scene.seconds)


@behaviour("10,000 header fields, then a page")
async def header_flood(wire: Wire, scene: Scene) -> None:
    """Half a megabyte of fields."""
    fields = (f"X-Field-{number}: {'x' * 30}" for number in range(_FLOOD))
    await wire.send(sized(PAGE, *fields))


@behaviour("one header field of 10 MB, then a page")
async def header_long(wire: Wire, scene: Scene) -> None:
    """No line end for ten megabytes."""
    await wire.send(sized(PAGE, "X-Long: " + "x" * _LONG))


@behaviour("header fields without end")
async def header_endless(wire: Wire, scene: Scene) -> None:
    """The empty line never comes."""
    await wire.send(b"HTTP/1.1 200 OK\r\n")
    await endlessly(wire, scene, b"X-Field: more\r\n" * 1000)


@behaviour("5,000 cookies, then a page")
async def cookie_flood(wire: Wire, scene: Scene) -> None:
    """More than any jar should keep."""
    fields = (f"Set-Cookie: c{number}={'x' * 50}; Max-Age=9999999" for number in range(5000))
    await wire.send(sized(PAGE, *fields))


@behaviour("one cookie of 1 MB, then a page")
async def cookie_huge(wire: Wire, scene: Scene) -> None:
    """It would be sent back with each request."""
    await wire.send(sized(PAGE, "Set-Cookie: big=" + "x" * (1 << 20)))


@behaviour("100 Continue without end")
async def continue_endless(wire: Wire, scene: Scene) -> None:
    """The real answer never comes."""
    await endlessly(wire, scene, b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


@behaviour("a chunk extension without end")
async def chunk_extension_endless(wire: Wire, scene: Scene) -> None:
    """The line of the chunk's size never ends."""
    await wire.send(head(_CHUNKED) + b"5;x=")
    await endlessly(wire, scene, b"x" * 10_000)


@behaviour("trailer fields without end")
async def trailer_endless(wire: Wire, scene: Scene) -> None:
    """The body is complete, the message is not."""
    await wire.send(head(_CHUNKED) + b"%x\r\n%b\r\n0\r\n" % (len(PAGE), PAGE))
    await endlessly(wire, scene, b"X-Trailer: more\r\n" * 1000)


@behaviour("a page in chunks of one byte")
async def chunk_tiny(wire: Wire, scene: Scene) -> None:
    """Correct, but 200,000 chunks."""
    await wire.send(head(_CHUNKED) + b"1\r\nx\r\n" * 200_000 + b"0\r\n\r\n")
    wire.keep = True
