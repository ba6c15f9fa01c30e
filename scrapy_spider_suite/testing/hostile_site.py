"""The hostile hosts: each behaviour at a path, on a host and as a robots.txt.

* ``http://hostile.test/NAME`` and ``http://NAME.hostile.test/`` play NAME; a host has an address;
* ``http://robots-NAME.hostile.test/robots.txt`` plays it; the host's other pages are harmless;
* ``http://hostile.test/`` links to all hosts, ``/paths`` to all paths; ``/ok`` is harmless.
"""

from __future__ import annotations

import asyncio
import gzip
import struct
import zlib
from collections.abc import Awaitable, Callable
from functools import lru_cache
from html import escape
from typing import NamedTuple

from scrapy_spider_suite.testing.http import (
    HTML,
    TEXT,
    AnswerWriter,
    Request,
    ServerReply,
    make_reply,
)

PAGE = b"<html><head><title>hostile</title></head><body><p>text</p></body></html>\n"


class HostileRequest(NamedTuple):
    """*rest*: the path behind *base*. *pace*: between pieces. *seconds*: of an endless answer."""

    base: str
    rest: str = ""
    pace: float = 1.0
    seconds: float = 600.0


Play = Callable[[AnswerWriter, HostileRequest], Awaitable[None]]


class Behaviour(NamedTuple):
    name: str
    about: str
    play: Play
    deep: bool


BEHAVIOURS: dict[str, Behaviour] = {}


def behaviour(about: str, *, deep: bool = False) -> Callable[[Play], Play]:
    """Register the decorated coroutine function; *about* is a line for people."""

    def register(play: Play) -> Play:
        name = getattr(play, "__name__", "").replace("_", "-")
        BEHAVIOURS[name] = Behaviour(name, about, play, deep)
        return play

    return register


def fixed(
    name: str, about: str, answer: bytes | Callable[[HostileRequest], bytes], *,
    keep: bool = False, deep: bool = False,
) -> None:  # fmt: skip
    """Register an *answer* that is sent at once; a function makes it when it is asked for."""

    async def play(wire: AnswerWriter, scene: HostileRequest) -> None:
        await wire.send(answer(scene) if callable(answer) else answer)
        wire.keep = keep

    BEHAVIOURS[name] = Behaviour(name, about, play, deep)


def endless(name: str, about: str, front: bytes, piece: bytes) -> None:
    async def play(wire: AnswerWriter, scene: HostileRequest) -> None:
        if front:
            await wire.send(front)
        loop = asyncio.get_running_loop()
        end = loop.time() + scene.seconds
        while loop.time() < end:
            await wire.send(piece)
            await wire.rest(0.01)

    BEHAVIOURS[name] = Behaviour(name, about, play, deep=False)


def bulk(name: str, about: str, line: bytes, size: int, front: bytes, kind: str) -> None:
    """Register an answer of *front* and some *size* bytes of lines: *line* % 0, *line* % 1, …, all
    of one length. They are made in pieces, so that the server does not stall.
    """

    async def play(wire: AnswerWriter, scene: HostileRequest) -> None:
        count = size // len(line)
        length = len(front) + count * len(line % 0)
        await wire.send(head(f"Content-Type: {kind}", f"Content-Length: {length}") + front)
        for first in range(0, count, 1000):
            await wire.send(b"".join([line % n for n in range(first, min(first + 1000, count))]))

    BEHAVIOURS[name] = Behaviour(name, about, play, deep=False)


def head(*lines: str, status: str = "200 OK") -> bytes:
    """A head of *lines*, HTML unless one of them gives a type."""
    kind = () if any(line.startswith("Content-Type") for line in lines) else _HTML
    return "\r\n".join((f"HTTP/1.1 {status}", *kind, *lines, "", "")).encode("latin-1")


def sized(body: bytes, *lines: str, status: str = "200 OK") -> bytes:
    return head(*lines, f"Content-Length: {len(body)}", status=status) + body


def page(body: str, *lines: str) -> bytes:
    text = f"<html><head><title>hostile</title></head><body>{body}</body></html>\n"
    return sized(text.encode("utf-8"), *lines)


async def slowly(wire: AnswerWriter, scene: HostileRequest, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + scene.seconds
    for at in range(len(data)):
        if loop.time() > end:
            return
        await wire.send(data[at : at + 1])
        await wire.rest(scene.pace)


_HTML = ("Content-Type: text/html; charset=utf-8",)
_MEGABYTE = 1 << 20
_PIECE = b"<p>more</p>\n" * 5000
_GZIP = "Content-Encoding: gzip"
_CHUNKED = "Transfer-Encoding: chunked"
_ZEROS = b"\0" * _MEGABYTE
_LAST_BLOCK = zlib.compressobj(9, zlib.DEFLATED, -15).flush()
_GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


@behaviour("the connection is closed without an answer")
async def close(wire: AnswerWriter, scene: HostileRequest) -> None:
    """An orderly end after the request."""


@behaviour("the connection is reset without an answer")
async def reset(wire: AnswerWriter, scene: HostileRequest) -> None:
    wire.reset()


@behaviour("the connection is reset in the middle of the body")
async def reset_in_body(wire: AnswerWriter, scene: HostileRequest) -> None:
    await wire.send(head("Content-Length: 100000") + PAGE)
    await wire.rest(0.05)
    wire.reset()


@behaviour("no answer at all")
async def silence(wire: AnswerWriter, scene: HostileRequest) -> None:
    await wire.rest(scene.seconds)


@behaviour("a head that comes one byte at a time")
async def slow_head(wire: AnswerWriter, scene: HostileRequest) -> None:
    await slowly(wire, scene, sized(PAGE))


@behaviour("a body that comes one byte at a time")
async def slow_body(wire: AnswerWriter, scene: HostileRequest) -> None:
    await wire.send(head("Content-Length: 1000"))
    await slowly(wire, scene, PAGE.ljust(1000))


endless("endless-body", "a body without end, as fast as one can read it, no length", head(), _PIECE)
endless(
    "endless-chunks", "chunks without end",
    head(_CHUNKED), b"%x\r\n%b\r\n" % (len(_PIECE), _PIECE),
)  # fmt: skip


@behaviour("1 MB that unpacks to 1 GB of zeros")
async def gzip_bomb(wire: AnswerWriter, scene: HostileRequest) -> None:
    await wire.send(head(_GZIP) + _GZIP_HEAD)
    checksum = 0
    for _ in range(1024):
        checksum = zlib.crc32(_ZEROS, checksum)
        await wire.send(_packed_zeros())
    await wire.send(_LAST_BLOCK + struct.pack("<II", checksum, 1 << 30))


@behaviour("a gzip bomb of 100 MB that is packed twice")
async def gzip_bomb_twice(wire: AnswerWriter, scene: HostileRequest) -> None:
    checksum = 0
    for _ in range(100):
        checksum = zlib.crc32(_ZEROS, checksum)
    tail = _LAST_BLOCK + struct.pack("<II", checksum, 100 << 20)
    once = _GZIP_HEAD + _packed_zeros() * 100 + tail
    await wire.send(sized(gzip.compress(once), "Content-Encoding: gzip, gzip"))


@behaviour("a deflate bomb of 100 MB")
async def deflate_bomb(wire: AnswerWriter, scene: HostileRequest) -> None:
    checksum = 1
    for _ in range(100):
        checksum = zlib.adler32(_ZEROS, checksum)
    tail = _LAST_BLOCK + struct.pack(">I", checksum)
    body = b"\x78\xda" + _packed_zeros() * 100 + tail
    await wire.send(sized(body, "Content-Encoding: deflate"))


@lru_cache(1)
def _packed_zeros() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(_ZEROS) + packer.flush(zlib.Z_FULL_FLUSH)


fixed("gzip-garbage", "said to be gzip, is not", sized(PAGE, _GZIP))
fixed("gzip-cut", "half of a gzip member", sized(gzip.compress(PAGE * 99)[:80], _GZIP))
fixed("encoding-unknown", "Content-Encoding: klingon", sized(PAGE, "Content-Encoding: klingon"))
fixed("encoding-many", "100 codings", sized(PAGE, "Content-Encoding: " + ", ".join(["gzip"] * 100)))

_LATIN = "<p>caf\xe9 \xfcber <a href='/\xe9t\xe9'>\xe9t\xe9</a></p>".encode("latin-1")
fixed("charset-lie", "said to be UTF-8, is Latin-1", sized(_LATIN))
fixed(
    "charset-unknown", "a charset that nobody knows",
    sized(_LATIN, "Content-Type: text/html; charset=klingon"),
)  # fmt: skip
fixed(
    "charset-contradiction", "the header, the byte order mark and the page name three charsets",
    sized(
        b"\xef\xbb\xbf<meta charset=shift_jis>" + _LATIN, "Content-Type: text/html; charset=utf-16"
    ),
)  # fmt: skip
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
fixed("one-line", "10 MB of text without a tag", lambda _: sized(b"x" * (10 * _MEGABYTE)))
fixed("deep-nesting", "200,000 elements inside each other", lambda _: page("<div>" * 200_000))
fixed(
    "unclosed-tag", "a tag of 5 MB that is never closed",
    lambda _: page('<a href="/ok">ok</a><a href="' + "x" * (5 * _MEGABYTE)),
)  # fmt: skip
fixed(
    "many-attributes", "one element with 200,000 attributes",
    lambda _: page(f"<a {' '.join(f'a{n}=1' for n in range(200_000))} href='/ok'>ok</a>"),
)  # fmt: skip


_LENGTH = f"Content-Length: {len(PAGE)}"

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
    "length-and-chunked", "a length and chunks, which disagree",
    head("Content-Length: 5", _CHUNKED) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(PAGE), PAGE), keep=True,
)  # fmt: skip

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
async def length_too_long(wire: AnswerWriter, scene: HostileRequest) -> None:
    await wire.send(head("Content-Length: 10000") + PAGE)
    await wire.rest(scene.seconds)


fixed(
    "header-flood", "10,000 header fields, then a page",
    lambda _: sized(PAGE, *(f"X-Field-{number}: {'x' * 30}" for number in range(10_000))),
)  # fmt: skip
fixed(
    "header-long", "one header field of 10 MB, then a page",
    lambda _: sized(PAGE, "X-Long: " + "x" * (10 * _MEGABYTE)),
)  # fmt: skip
endless(
    "header-endless", "header fields without end",
    b"HTTP/1.1 200 OK\r\n", b"X-Field: more\r\n" * 1000,
)  # fmt: skip
fixed(
    "cookie-flood", "5,000 cookies, then a page",
    lambda _: sized(
        PAGE, *(f"Set-Cookie: c{n}={'x' * 50}; Max-Age=9999999" for n in range(5000))
    ),
)  # fmt: skip
fixed(
    "cookie-huge", "one cookie of 1 MB, then a page",
    lambda _: sized(PAGE, "Set-Cookie: big=" + "x" * _MEGABYTE),
)  # fmt: skip
endless("continue-endless", "100 Continue without end", b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
endless(
    "chunk-extension-endless", "a chunk extension without end",
    head(_CHUNKED) + b"5;x=", b"x" * 10_000,
)  # fmt: skip
endless(
    "trailer-endless", "trailer fields without end",
    head(_CHUNKED) + b"%x\r\n%b\r\n0\r\n" % (len(PAGE), PAGE), b"X-Trailer: more\r\n" * 1000,
)  # fmt: skip
fixed(
    "chunk-tiny", "a page in chunks of one byte",
    lambda _: head(_CHUNKED) + b"1\r\nx\r\n" * 200_000 + b"0\r\n\r\n", keep=True,
)  # fmt: skip


PRIVATE_URLS = (
    "http://127.0.0.1/", "http://127.1/", "http://0x7f.1/", "http://2130706433/",
    "http://017700000001/", "http://0/", "http://0.0.0.0/", "http://localhost/",
    "http://10.0.0.1/", "http://172.16.0.1/", "http://192.168.0.1/", "http://100.64.0.1/",
    "http://169.254.169.254/latest/meta-data/", "http://224.0.0.1/", "http://255.255.255.255/",
    "http://[::1]/", "http://[::]/", "http://[::ffff:10.0.0.1]/", "http://[::ffff:7f00:1]/",
    "http://[fe80::1]/", "http://[fc00::1]/", "http://[fec0::1]/", "http://[ff02::1]/",
    "http://[64:ff9b::a00:1]/", "http://[2002:a00:1::]/",
    "http://\u2460\u2461\u2466.0.0.1/", "http://127\u30020\u30020\u30021/",
)  # fmt: skip

BAD_HOSTS = (
    "http://", "http:///path", "http://./", "http://../", "http://a..b/", "http://-a.test/",
    "http://a_b.test/", "http://a b.test/", "http://a%20b.test/", "http://a%00b.test/",
    "http://a\tb.test/", "http://exa<mple.test/", "http://[::1/", "http://[zz]/",
    "http://1.2.3.4.5/", "http://1.2.3.999/", "http://a.test:99999/", "http://a.test:port/",
    "http://a.test:-1/", "http://user:secret@a.test/", "http://@/", "http://a.test\\@b.test/",
    "http://xn--/", "http://xn--a.test/", "http://xn--zn7c.test/", "http://" + "a" * 64 + ".test/",
    "http://" + "a." * 200 + "test/", "http://\u00fcber.test/", "http://\u65e5\u672c.test/",
    "http://fa\u00df.test/", "http://\u202eevil.test/", "http://\U0001f4a9.test/",
    "http://a\u00adb.test/", "http://\ufdd0.test/", "http://\u0661.test/", "http://test/",
)  # fmt: skip

BAD_LINKS = (
    "javascript:alert(1)", "mailto:a@b.test", "tel:+1", "data:text/html,x", "file:///etc/passwd",
    "ftp://a.test/", "gopher://a.test/", "s3://bucket/key", "about:blank", "blob:http://a.test/",
    "//", "///", "\\\\a.test\\x", "http:", "http:/ok", "http:ok", ":", "?", "#", "%", "%zz", "/%00",
    "/a/../../../../etc/passwd", "/..%2f..%2fetc", "/ok;x=1", "/ok?a=b&amp;c=d", "/ok?" + "&" * 999,
    "h\nttp://a.test/", " /ok ", "/\u00e9", "/%e9", "/\ufffd", "/\U0010ffff", "/a b",
)  # fmt: skip

_BULK = 10 << 20


def _anchors(urls: tuple[str, ...]) -> str:
    quoted = (url.replace('"', "&quot;").replace("<", "&lt;") for url in urls)
    return "\n".join(f'<a href="{url}">link</a>' for url in quoted)


fixed("private-links", "links to private addresses", page(_anchors(PRIVATE_URLS)))
fixed("bad-hosts", "links to invalid and international hosts", page(_anchors(BAD_HOSTS)))
fixed("bad-links", "links that are no web addresses", page(_anchors(BAD_LINKS)))
fixed("base-bad", "a base that is no URL", page("<base href='javascript:'><a href='ok'>ok</a>"))
fixed(
    "data-link", "a link of 1 MB of data",
    page(f'<a href="data:text/plain,{"x" * _MEGABYTE}">x</a>'),
)  # fmt: skip
fixed("redirect-none", "a redirect without Location", sized(b"", status="302 Found"))
fixed("redirect-empty", "an empty Location", sized(b"", "Location: ", status="302 Found"))
bulk(
    "many-links", "10 MB of links, all different, to one host that does not exist",
    b'<a href="http://nowhere.invalid/%07d">x</a>\n', _BULK, b"<html>\n", HTML,
)  # fmt: skip
bulk(
    "many-hosts", "10 MB of links, each to another host that does not exist",
    b'<a href="http://n%07d.nowhere.invalid/">x</a>\n', _BULK, b"<html>\n", HTML,
)  # fmt: skip


@behaviour("100 links of 100 KB each")
async def long_urls(wire: AnswerWriter, scene: HostileRequest) -> None:
    long = "x" * 100_000
    forms = (f"/{long}/", f"/ok?{long}=", f"http://{long}.test/", f"/{'a/' * 50_000}")
    await wire.send(page(_anchors(tuple(f"{forms[k % 4]}{k}" for k in range(100)))))


@behaviour("a calendar without end: each page links to two new ones", deep=True)
async def trap(wire: AnswerWriter, scene: HostileRequest) -> None:
    here = f"{scene.base}/{scene.rest}".rstrip("/")
    await wire.send(page(_anchors((f"{here}/next", f"{here}/{len(here)}?day=1"))))
    wire.keep = True


fixed(
    "refresh-loop", "a page that refreshes to itself",
    lambda scene: page(f"<meta http-equiv=refresh content='0; url={scene.base}'>"),
)  # fmt: skip


def redirect(
    name: str, about: str, target: Callable[[HostileRequest], str], *, deep: bool = False
) -> None:
    def answer(scene: HostileRequest) -> bytes:
        return sized(b"", f"Location: {target(scene)}", status="302 Found")

    fixed(name, about, answer, keep=True, deep=deep)


def _number(scene: HostileRequest, digits: int, default: int) -> int:
    return int(scene.rest) if scene.rest.isdecimal() and len(scene.rest) <= digits else default


def _private_url(scene: HostileRequest) -> str:
    return PRIVATE_URLS[_number(scene, 3, 8) % len(PRIVATE_URLS)].encode("utf-8").decode("latin-1")


redirect("redirect-loop", "a redirect to itself", lambda scene: f"{scene.base}/", deep=True)
redirect(
    "redirect-pair", "two redirects to each other",
    lambda scene: f"{scene.base}/{'' if scene.rest == 'other' else 'other'}", deep=True,
)  # fmt: skip
redirect(
    "redirect-endless", "redirects without end, each to a new URL",
    lambda scene: f"{scene.base}/{_number(scene, 8, 0) + 1}", deep=True,
)  # fmt: skip
redirect(
    "redirect-private", "a redirect to a private address; /0, /1, … give one each",
    _private_url, deep=True,
)  # fmt: skip
redirect("redirect-file", "a redirect to a file", lambda _: "file:///etc/passwd")
redirect(
    "redirect-long", "a redirect to a URL of 100 KB", lambda scene: f"{scene.base}/{'x' * 100_000}"
)
redirect("redirect-garbage", "a redirect to what is no URL", lambda _: "http://[::1\xff /%zz \x01")


_RULES = b"User-agent: *\n"
_STAR = b"User-agent: *\nDisallow: /*" + b"a*" * 200 + b"b$\n"
_AFTER_PAST = "Retry-After: Thu, 01 Jan 1970 00:00:00 GMT"
_UNAVAILABLE = "503 Service Unavailable"
fixed(
    "retry-after-text", "Retry-After: soon", sized(PAGE, "Retry-After: soon", status=_UNAVAILABLE)
)
fixed("retry-after-huge", "10**30 s", sized(PAGE, f"Retry-After: {10**30}", status=_UNAVAILABLE))
fixed("retry-after-past", "a date in the past", sized(PAGE, _AFTER_PAST, status=_UNAVAILABLE))
fixed("retry-after-negative", "-5 s", sized(PAGE, "Retry-After: -5", status=_UNAVAILABLE))
fixed("robots-html", "robots.txt that is a page", page("<p>Disallow: /</p>"))
fixed("robots-nul", "robots.txt with NUL bytes", sized(b"User-\0agent: *\0\nDis\0allow: /\n"))
fixed("robots-delay-huge", "Crawl-delay: 1e9", sized(_RULES + b"Crawl-delay: 1e9\n"))
fixed(
    "robots-delay-nan", "Crawl-delay: nan", sized(_RULES + b"Crawl-delay: nan\nCrawl-delay: -5\n")
)
fixed("robots-stars", "a rule that makes backtracking matchers hang", sized(_STAR))
fixed("robots-login", "robots.txt answers 401", sized(PAGE, status="401 Unauthorized"))
bulk(
    "robots-huge", "robots.txt of 50 MB",
    b"Disallow: /private/%09d/a/long/path/that/does/not/exist/on/this/host\n",
    50 << 20, _RULES, TEXT,
)  # fmt: skip
_MANY_RULES = b"Disallow: /*%06d*x$\n"
bulk(
    "robots-rules", "robots.txt with 100,000 rules",
    _MANY_RULES, 100_000 * len(_MANY_RULES), _RULES, TEXT,
)  # fmt: skip
endless(
    "robots-endless-line", "robots.txt that is one line without end",
    head("Content-Type: text/plain") + _RULES + b"Disallow: /", b"x" * 60_000,
)  # fmt: skip


HOST = "hostile.test"

_ROBOTS = "robots-"
ROBOTS_TOO = (
    "close", "endless-body", "gzip-bomb", "header-endless", "many-links", "redirect-loop",
    "redirect-endless", "redirect-private", "reset", "silence", "slow-body", "truncated-body",
)  # fmt: skip
"""Behaviours that the index also links to as a robots.txt."""


def hostile_hosts() -> list[str]:
    robots = [f"{_ROBOTS}{name}" for name in BEHAVIOURS if not name.startswith(_ROBOTS)]
    return [HOST, *(f"{label}.{HOST}" for label in [*BEHAVIOURS, *robots])]


def listing() -> str:
    return "\n".join(f"{each.name:<24} {each.about}" for each in BEHAVIOURS.values())


def address_number(host: str) -> int:
    """The index of the hostile address of *host*. Raises LookupError."""
    return 0 if host == HOST else 1 + list(BEHAVIOURS).index(_behaviour_of(host)[0].name)


def _behaviour_of(host: str) -> tuple[Behaviour, bool]:
    label = host.removesuffix("." + HOST)
    name = label.removeprefix(_ROBOTS)
    if label == host or (label not in BEHAVIOURS and name not in BEHAVIOURS):
        raise LookupError(f"no hostile host is called {host}")
    return BEHAVIOURS[label if label in BEHAVIOURS else name], label.startswith(_ROBOTS)


class HostileSite:
    def __init__(
        self, base_of: Callable[[str], str], *, pace: float = 1.0, seconds: float = 600.0
    ) -> None:
        self._base_of = base_of
        self._pace = pace
        self._seconds = seconds

    def answer(self, request: Request) -> ServerReply:
        path = request.path
        if path == "/ok":
            return make_reply(200, "<p>all is well</p>\n", HTML)
        if request.host == HOST:
            name, _, rest = path.removeprefix("/").partition("/")
            if name in BEHAVIOURS:
                return self._play(BEHAVIOURS[name], f"{self._base_of(HOST)}/{name}", rest)
            return self._index(path)
        found, for_robots = _behaviour_of(request.host)
        if for_robots and path.startswith("/robots.txt"):
            rest = path.removeprefix("/robots.txt").removeprefix("/")
            return self._play(found, f"{self._base_of(request.host)}/robots.txt", rest)
        if path == "/robots.txt":
            return make_reply(404, "no robots.txt here\n")
        if for_robots and path in ("/", "/a", "/b"):
            return make_reply(200, "<a href='/a'>a</a> <a href='/b'>b</a>\n", HTML)
        if for_robots:
            return make_reply(404, "no such page\n")
        return self._play(found, self._base_of(request.host), path.removeprefix("/"))

    def _play(self, found: Behaviour, base: str, rest: str) -> ServerReply:
        if rest and not found.deep:
            return make_reply(404, "no such page\n")
        scene = HostileRequest(base, rest, self._pace, self._seconds)
        return ServerReply(0, b"", script=lambda wire: found.play(wire, scene))

    def _index(self, path: str) -> ServerReply:
        base = self._base_of(HOST)
        if path == "/":
            labels = [*BEHAVIOURS, *(f"{_ROBOTS}{name}" for name in ROBOTS_TOO)]
            urls = [self._base_of(f"{label}.{HOST}") + "/" for label in labels] + [f"{base}/paths"]
            return make_reply(200, _list(dict.fromkeys(urls)), HTML)
        if path == "/paths":
            return make_reply(
                200, _list({f"{base}/{b.name}": b.about for b in BEHAVIOURS.values()}), HTML
            )
        return make_reply(404, "no such page\n")


def _list(links_: dict[str, str] | dict[str, None]) -> str:
    items = "".join(
        f'<li><a href="{url}">{url}</a> {escape(about or "")}\n' for url, about in links_.items()
    )
    return f"<title>hostile</title>\n<ul>\n{items}</ul>\n"
