"""HTTP heads as WARC records hold them, and bodies decoded within bounds.

Chunks are joined in a stored body, and it may be decompressed. Fields that no longer fit get the
prefix ``X-Crawler-``, ``Content-Length`` is that of the stored body: as in Common Crawl's records.
"""

from __future__ import annotations

import importlib
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import ModuleType
from typing import Final, NamedTuple

from backports import zstd

from scrapy_spider_suite.errors import PackDamagedError, PackError

PREFIX: Final = b"X-Crawler-"

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(rb"HTTP/\d(?:\.\d)? +(\d{3})")
_TYPE = re.compile(rb"\ncontent-type[ \t]*:([^\n]*(?:\n[ \t][^\n]*)*)", re.IGNORECASE)
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE = re.compile(rb"\r?\n(?![ \t])")
_FOLD = re.compile(rb"\r?\n[ \t]+")
_CODINGS: Final = (b"transfer-encoding", b"content-encoding")
_NO_BODY: Final = frozenset({204, 304})


class Head(NamedTuple):
    status: int
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


def fit_head(head: bytes, length: int, *, decoded: bool = False, method: str = "GET") -> bytes:
    """Return *head* for a stored body of *length* bytes without ``Transfer-Encoding``, and without
    ``Content-Encoding`` if *decoded*. Unchanged if right, and for answers without a body.
    """
    head = _closed(head)
    lower = head.lower()
    codings = _CODINGS if decoded else _CODINGS[:1]
    if (
        b"\r\ncontent-length: %d\r\n" % length in lower
        and lower.count(b"content-length") == 1
        and not any(name in lower for name in codings)
    ):
        return head
    status = _STATUS.match(head)
    number = int(status[1]) if status else 0
    if method == "HEAD" or number in _NO_BODY or 100 <= number < 200:
        return head
    lines = _LINE.split(head[: -len(b"\r\n\r\n")])
    pairs = [line.partition(b":")[::2] for line in lines]
    names = [name.strip().lower() for name, _ in pairs]
    lengths = [value.strip() for name, (_, value) in zip(names, pairs, strict=True)
               if name == b"content-length"]  # fmt: skip
    right = b"%d" % length
    gone = {*codings, *([] if lengths in ([], [right]) else [b"content-length"])}
    if gone.isdisjoint(names):
        return head
    lines = [PREFIX + line if name in gone else line
             for line, name in zip(lines, names, strict=True)]  # fmt: skip
    if lengths != [right]:
        lines.append(b"Content-Length: " + right)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _closed(head: bytes) -> bytes:
    if head.find(b"\n\r\n") == len(head) - 3 and b"\n\n" not in head and head[-4:-3] == b"\r":
        return head
    found = _HEAD_END.search(head)
    return (head[: found.start()] if found else head.rstrip(b"\r\n")) + b"\r\n\r\n"


def build_head(status: int, fields: Mapping[bytes, Iterable[bytes]]) -> bytes:
    """Return a head; line breaks in values become spaces, invalid fields are left out."""
    lines = [b"HTTP/1.1 %03d " % status]
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
    return Head(int(status[1]), tuple(fields))


def status_and_type(head: bytes) -> tuple[int, str]:
    """Return status and ``Content-Type`` in the *head* of a response; 0 and "" if it is none."""
    status = _STATUS.match(head)
    if status is None:
        return 0, ""
    found = _TYPE.search(head)
    value = b"" if found is None else _FOLD.sub(b" ", found[1]).strip()
    return int(status[1]), value.decode("latin-1")


try:
    brotli: ModuleType | None = importlib.import_module("brotli")
except ImportError:  # an optional dependency of Scrapy
    brotli = None

MAX_BYTES: Final = 256 << 20

_WINDOW: Final = 4096  # bytes at a time: a hostile body may have many members


def decode_body(head: Head, body: bytes, limit: int = MAX_BYTES) -> bytes:
    """Return the payload of *body*, of a cut body its readable part. Raises `PackDamagedError`
    (wrongly encoded, over *limit* bytes) and `PackError` (unknown encoding; ``br`` needs Brotli).
    """
    for name in reversed(head.all("Content-Encoding")):
        if name != "identity" and body:
            if name not in _DECODERS:
                raise PackError(f"a page is compressed in a way that is not known: {name[:40]}")
            try:
                body = _DECODERS[name](body, limit + 1)
            except _ERRORS as error:
                raise PackDamagedError(f"bad compressed data: {error}") from error
            if len(body) > limit:
                break
    if len(body) > limit:
        raise PackDamagedError(f"a page has more than {limit} bytes when it is decompressed")
    return body


def _inflate(bits: int, data: bytes, room: int) -> bytes:
    out: list[bytes] = []
    engine = zlib.decompressobj(bits)
    for place in range(0, len(data), _WINDOW):
        window = data[place : place + _WINDOW]
        while window and room > 0:
            if engine.eof:
                if not window.startswith(b"\x1f"):  # padding after the last member is none
                    return b"".join(out)
                engine = zlib.decompressobj(bits)
            out.append(engine.decompress(window, room))
            room -= len(out[-1])
            window = engine.unused_data
    return b"".join(out)


def _deflate(data: bytes, room: int) -> bytes:
    raw = (data[0] & 0x0F) != 8 or int.from_bytes(data[:2], "big") % 31
    return _inflate(-zlib.MAX_WBITS if raw else zlib.MAX_WBITS, data, room)


def _brotli(data: bytes, room: int) -> bytes:
    if brotli is None:
        raise PackError("a page is compressed with br: pip install brotli")
    engine = brotli.Decompressor()
    out = []
    part = engine.process(data, output_buffer_limit=1 << 16)
    while part and room > 0:
        out.append(part)
        room -= len(part)
        part = engine.process(b"", output_buffer_limit=1 << 16)
    return b"".join(out)


_gzip = partial(_inflate, zlib.MAX_WBITS | 16)
_DECODERS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "gzip": _gzip, "x-gzip": _gzip, "deflate": _deflate, "br": _brotli,
    "zstd": lambda data, room: zstd.ZstdDecompressor().decompress(data, room),
}  # fmt: skip
"""They return at most as many bytes as there is room, or a few more."""
_ERRORS: Final[tuple[type[Exception], ...]] = (
    zlib.error, zstd.ZstdError, *([] if brotli is None else [brotli.error]),
)  # fmt: skip
