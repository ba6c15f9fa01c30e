"""Heads of responses as text: where one ends, what its length says, how a broken one is mended."""

from __future__ import annotations

import re

from scrapy_spider_suite.handlers.errors import MalformedResponseError

_STATUS_LINE = re.compile(rb"HTTP(?:/(\d)(?:\.(\d))?)?[ \t]+(\d{3})(?!\d)[ \t]*(.*)", re.IGNORECASE)
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_KEEP_ALIVE_TIMEOUT = re.compile(rb"timeout\s*=\s*(\d{1,9})(?!\d)", re.IGNORECASE)
_CR_OR_NUL = re.compile(rb"[\r\x00]+")


def head_end(data: bytes | bytearray, start: int = 0) -> int:
    """Return the index behind the first empty line that ends after *start*; -1: there is none."""
    crlf = data.find(b"\n\r\n", start)
    lone = data.find(b"\n\n", start, crlf if crlf >= 0 else len(data))
    if lone >= 0:
        return lone + 2
    return crlf + 3 if crlf >= 0 else -1


def content_length(values: list[bytes]) -> int:
    """Return the length that *values* agree on (RFC 9110 §8.6 allows repetition)."""
    numbers = {part.strip() for part in b",".join(values).split(b",")}
    if len(numbers) > 1:
        numbers = {number.lstrip(b"0") or b"0" for number in numbers}
    number = numbers.pop()
    if numbers or not number.isdigit() or len(number) > 18:
        raise MalformedResponseError(f"Content-Length {b', '.join(values)[:80]!r}")
    return int(number)


def last_coding(values: list[bytes]) -> bytes:
    """Return the last of the codings in the ``Transfer-Encoding`` *values*, in lower case."""
    return b",".join(values).lower().rpartition(b",")[2].strip()


def keep_alive_seconds(values: list[bytes]) -> int | None:
    """Return the ``timeout`` in the ``Keep-Alive`` *values*, None if there is none."""
    match = _KEEP_ALIVE_TIMEOUT.search(b",".join(values))
    return int(match[1]) if match else None


def repair(head: bytes) -> bytes:
    """Return *head* as a strict parser wants it, dropping only lines that no one could use.

    Kept are the status, folded lines, and every field whose name is a token. Dropped are lines
    without a colon (Scrapy issue 210) or a usable name, and a ``Content-Length`` that repeats.
    """
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
    """Return the lines of *head*, folded ones joined (RFC 9112 §5.2), without stray CR and NUL."""
    lines: list[bytes] = []
    for raw in head.split(b"\n"):
        line = _CR_OR_NUL.sub(b" ", raw.removesuffix(b"\r"))
        if line[:1] in (b" ", b"\t") and len(lines) > 1:
            lines[-1] += b" " + line.strip()
        else:
            lines.append(line)
    return lines
