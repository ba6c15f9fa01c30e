"""One WARC 1.1 record: its fields, its block, and both as bytes (ISO 28500:2017)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

from scrapy_spider_suite.errors import PackDamagedError
from scrapy_spider_suite.urls.page_digests import sha1_of, warc_digest

VERSION: Final = b"WARC/1.1"
END: Final = b"\r\n\r\n"
"""What stands between a record's fields and its block, and after the block."""
HEAD_MAX: Final = 1 << 20
"""Bytes that the fields of a record may take when it is read."""
URL_MAX: Final = 1 << 16
"""Characters of a URL, which may become three times as many bytes, and come twice (revisits)."""

IDENTICAL: Final = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
NOT_MODIFIED: Final = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"

_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
_UNSAFE_IN_URL = re.compile(r"[\x00-\x20\x7f\x85\xa0\u2028\u2029\ud800-\udfff]")
_LATEST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
_DATE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z")
_VARIANTS: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
_STARTS = (b"WARC/1.1\r\n", b"WARC/1.0\r\n")


class Record(NamedTuple):
    """A record. *fields* are the named fields in their order, ``Content-Length`` among them."""

    fields: tuple[tuple[str, str], ...]
    block: bytes

    def get(self, name: str, default: str = "") -> str:
        """The first field of that *name*, in any case."""
        lower = name.lower()
        for field, value in self.fields:
            if field == name or field.lower() == lower:
                return value
        return default

    def all(self, name: str) -> list[str]:
        """All fields of that *name*: ``WARC-Concurrent-To`` and ``WARC-Protocol`` may be many."""
        name = name.lower()
        return [value for field, value in self.fields if field.lower() == name]

    @property
    def kind(self) -> str:
        """``response``, ``request``, ``revisit``, ``metadata``, ``resource``, ``warcinfo``, ..."""
        return self.get("WARC-Type")

    @property
    def id(self) -> str:
        """``<urn:uuid:...>``."""
        return self.get("WARC-Record-ID")

    @property
    def url(self) -> str:
        """What was fetched; "" in a warcinfo."""
        return self.get("WARC-Target-URI").strip("<>")  # as WARC 1.0 has them

    @property
    def time(self) -> datetime | None:
        """When it was fetched, in UTC; None if the date is none."""
        return parse_date(self.get("WARC-Date"))

    def to_bytes(self) -> bytes:
        """The record as it stands in a pack."""
        head = "".join([f"{name}: {value}\r\n" for name, value in self.fields])
        return b"WARC/1.1\r\n%b\r\n%b\r\n\r\n" % (head.encode(), self.block)


def make(
    kind: str,
    time: str,
    block: bytes,
    content_type: str,
    *,
    url: str = "",
    more: Iterable[tuple[str, str]] = (),
) -> Record:
    """Return a new record with an id of its own. *time* as `date` gives it.

    No value can add a field: line breaks and other control characters become ``%0D`` and the like
    in the URL and a space elsewhere. Fields without a value are left out. Raises ValueError: the
    URL has more than `URL_MAX` characters, so that nobody might read the record.
    """
    fields = [
        ("WARC-Type", kind),
        ("WARC-Record-ID", _new_id()),
        ("WARC-Date", time),
    ]
    if url:
        if len(url) > URL_MAX:
            raise ValueError(f"a URL of {len(url)} characters: {url[:200]!r}")
        fields.append(("WARC-Target-URI", clean_url(url)))
    fields += [(name, clean(value)) for name, value in more if value]
    fields += [
        ("WARC-Block-Digest", digest(block)),
        ("Content-Type", content_type),
        ("Content-Length", str(len(block))),
    ]
    return Record(tuple(fields), block)


def parse(data: bytes, start: int = 0) -> tuple[Record, int]:
    """Return the record at *start* of *data*, and where the next one begins.

    Raises `PackDamagedError`: there is none, or not all of it.
    """
    block, end = extent(data, start) or (0, 0)
    if not end or end > len(data):
        raise PackDamagedError("a record is cut off")
    fields = _fields(data[start : block - len(END)])
    if data[end - len(END) : end] != END:
        raise PackDamagedError("a record does not end where it says")
    return Record(fields, data[block : end - len(END)]), end


def extent(data: bytes | bytearray, start: int = 0) -> tuple[int, int] | None:
    """Return where the block of the record at *start* begins and where the record ends.

    Its end may lie beyond *data*. None if its fields are not all there yet. Raises
    `PackDamagedError`: no record begins there.
    """
    if not data.startswith(_STARTS, start):
        if len(data) - start < len(_STARTS[0]) and _STARTS[0].startswith(data[start:-1]):
            return None
        raise PackDamagedError("no record begins here")
    head = data.find(END, start, start + HEAD_MAX)
    if head < 0:
        if len(data) - start >= HEAD_MAX:
            raise PackDamagedError("the fields of a record have no end")
        return None
    # Of two lengths the first would be as good as the second: a record has one.
    lengths = re.findall(rb"(?i)\r\ncontent-length:[ \t]*(\d{1,15})[ \t]*(?=\r\n)",
                         data[start : head + 2])  # fmt: skip
    if len(lengths) != 1:
        raise PackDamagedError("a record does not say how long it is")
    block = head + len(END)
    return block, block + int(lengths[0]) + len(END)


def _fields(head: bytes) -> tuple[tuple[str, str], ...]:
    """Take the fields apart; continuation lines (RFC 2822's folding) belong to the one before."""
    text = head.decode("utf-8", "replace").replace("\r\n ", " ").replace("\r\n\t", " ")
    pairs = (line.partition(":") for line in text.split("\r\n")[1:])
    return tuple([(name.strip(), value.strip()) for name, _, value in pairs])


def digest(data: bytes) -> str:
    """Return the SHA-1 of *data* as archives write it: ``sha1:`` and base 32."""
    return warc_digest(sha1_of(data))


def date(time: float) -> str:
    """Return *time* (seconds since the epoch) as a WARC-Date; what is no time is 1970 or 9999."""
    seconds = min(max(time, 0.0), _LATEST) if time == time else 0.0
    whole = int(seconds)
    return f"{_second(whole)}.{int((seconds - whole) * 1000):03d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def parse_date(text: str) -> datetime | None:
    """Return the moment that a WARC-Date names, in UTC; None if it names none."""
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    try:
        return datetime.fromisoformat(f"{match[1]}.{(match[2] or '0')[:6]:0<6}+00:00")
    except ValueError:
        return None


def clean(value: str) -> str:
    """Return *value* with spaces for line breaks and other control characters."""
    return value if value.isascii() and value.isprintable() else _CONTROL.sub(" ", value)


def clean_url(url: str) -> str:
    """Return *url* with white space and control characters percent-encoded."""
    return url if is_clean(url) else _UNSAFE_IN_URL.sub(_escape, url)


def is_clean(url: str) -> bool:
    """Return whether `clean_url` has nothing to do, for several URLs in a row too."""
    return url.isascii() and url.isprintable() and " " not in url


def _new_id() -> str:
    """A random UUID (RFC 9562 §5.4): `uuid.uuid4` takes six times as long."""
    text = os.urandom(16).hex()
    variant = _VARIANTS[text[16]]
    return (f"<urn:uuid:{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-"
            f"{text[20:]}>")  # fmt: skip


def _escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "replace"))
