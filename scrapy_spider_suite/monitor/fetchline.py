"""One fetch as one line of text, and back: the format of the fetch log (architecture, §4.10).

Twelve fields at most, with one space between them, in this order; ``-`` stands for what is not
known or does not apply:

1. when it ended, UTC to the millisecond, as in RFC 3339 (``2026-11-21T19:03:59.123Z``)
2. HTTP status
3. bytes of the body as it came over the wire, before decompression
4. milliseconds from the start of the request to the end of the answer
5. URL
6. via: the page that led there
7. depth: links from a seed
8. media type, without parameters
9. digest: SHA-1 of those bytes in base 32, as in a WARC's payload digest
10. IP address that was connected to
11. reason: what came of it, an event of the outcome table
12. remarks about it, separated by commas (``robots``, ``aside``, ``POST``, ``cut``, …)

Whatever is not a visible ASCII character is percent-encoded as UTF-8, so nothing that a server or
a page says can end a field or a line. URLs are cut at `URL_MAX` characters, with the remark
``cut``, and every other field has its own limit: no line is longer than `LINE_MAX` bytes.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from scrapy_spider_suite.wording import counted

URL_MAX = 2_100
LINE_MAX = 5_120
CUT = "cut"
FIELDS = (
    "time", "status", "bytes", "ms", "url", "via", "depth", "type", "digest", "address", "reason",
    "remarks",
)  # fmt: skip
HEAD = b"# fetch log 1: " + " ".join(FIELDS).encode() + b"\n"
"""The first line of every file. Lines that begin with ``#`` are comments."""

_NONE = "-"
_SHORT = 64
"""Most characters of a field that is no URL."""
_REMARKS_MAX = 8
_COUNT_MAX = (1 << 53) - 1
_LATEST = 253_402_300_799.0  # the end of the year 9999
_UNSAFE = re.compile(r"[^\x21-\x7e]+")
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class Fetch(NamedTuple):
    """One fetch. *time* is when it ended, in seconds since the epoch; None and "": not known."""

    time: float
    status: int | None
    bytes: int
    ms: int
    url: str
    via: str = ""
    depth: int | None = None
    type: str = ""
    digest: str = ""
    address: str = ""
    reason: str = ""
    remarks: tuple[str, ...] = ()


def write(fetch: Fetch) -> bytes:
    """Return the line for *fetch*, with its line break."""
    when, status, size, ms, url, via, depth, type_, digest, address, reason, remarks = fetch
    url, via = _escape(url), _escape(via)
    if len(url) > URL_MAX or len(via) > URL_MAX:
        url, via = url[:URL_MAX], via[:URL_MAX]
        if CUT not in remarks:
            remarks = (CUT, *remarks)
    line = (
        f"{stamp(when)} {_count(status)} {_count(size)} {_count(ms)} {url} {via} {_count(depth)} "
        f"{_word(type_)} {_short(digest)} {_word(address)} {_word(reason)}"
    )
    if said := ",".join(_remark(remark) for remark in remarks[:_REMARKS_MAX] if remark):
        line += " " + said
    return line.encode("ascii") + b"\n"


def read(line: bytes) -> Fetch:
    """Return the fetch that *line* tells of, fields as they stand there (percent-encoded).

    Raises:
        ValueError: the line is a comment, torn, or was not made by `write`.
    """
    fields = line.rstrip(b"\n").decode("ascii").split(" ")
    if len(fields) not in (11, 12):
        raise ValueError(f"a line of the fetch log with {counted(len(fields), 'field')}")
    when, status, size, ms, url, via, depth, type_, digest, address, reason, *remarks = fields
    return Fetch(
        read_stamp(when.encode()), _number(status), _number(size) or 0, _number(ms) or 0,
        _text(url), _text(via), _number(depth), _text(type_), _text(digest), _text(address),
        _text(reason), tuple(remarks[0].split(",")) if remarks else (),
    )  # fmt: skip


def url_field(url: str) -> str:
    """Return *url* as a line has it: percent-encoded where need be, and cut if it is too long."""
    return _escape(url)[:URL_MAX]


def stamp(when: float) -> str:
    """Return *when*, seconds since the epoch, as the first field has it."""
    thousandths = round(max(0.0, min(when, _LATEST)) * 1_000)
    return f"{_second(thousandths // 1_000)}.{thousandths % 1_000:03}Z"


def read_stamp(text: bytes) -> float:
    """Return the seconds since the epoch that *text* stands for. Raises ValueError."""
    if not _STAMP.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no time of the fetch log")
    return datetime.strptime(text.decode(), "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp()


@lru_cache(256)  # many lines tell of the same second
def _second(when: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when))


def _escape(text: str) -> str:
    """Return *text* as one field."""
    if not text:
        return _NONE
    if text == _NONE:
        return "%2D"
    if text.isascii() and text.isprintable() and " " not in text:
        return text
    return _UNSAFE.sub(_percent, text)


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _short(text: str) -> str:
    return _escape(text[:_SHORT])[:_SHORT]


@lru_cache(4_096)  # there are few media types, reasons, and addresses at a time
def _known_word(text: str) -> str:
    return _short(text)


def _word(text: str) -> str:
    # Cut first: a server's header may have 64 KiB, which must not be kept thousands of times.
    return _known_word(text[:_SHORT])


def _remark(text: str) -> str:
    return _word(text.replace(",", "%2C"))


def _count(number: int | None) -> int | str:
    if number is None:
        return _NONE
    return number if 0 <= number <= _COUNT_MAX else max(0, min(number, _COUNT_MAX))


def _number(field: str) -> int | None:
    if field == _NONE:
        return None
    if not (field.isascii() and field.isdigit()):
        raise ValueError(f"{field[:40]!r} is no number of the fetch log")
    return int(field)


def _text(field: str) -> str:
    if not field:
        raise ValueError("an empty field in the fetch log")
    return "" if field == _NONE else field
