"""WARC 1.1 records (ISO 28500:2017), and the records of one capture.

Metadata lines are Heritrix's: ``via``, ``hopsFromSeed``, ``outlink: URL HOP CONTEXT``.
``WARC-Payload-Digest`` is of the body as stored, as in warcio, FastWARC and pywb.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from scrapy_spider_suite import __version__
from scrapy_spider_suite.errors import PackDamagedError
from scrapy_spider_suite.packs.http_records import fit_head
from scrapy_spider_suite.urls.page_digests import sha1_of, warc_digest

VERSION: Final = b"WARC/1.1"
END: Final = b"\r\n\r\n"
"""Stands between a record's fields and its block, and after the block."""
HEAD_MAX: Final = 1 << 20
"""Limit of the fields of a record when it is read, in bytes."""
URL_MAX: Final = 1 << 16
"""Limit of a URL in characters: it may become three times as many bytes, twice (revisits)."""

IDENTICAL: Final = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
NOT_MODIFIED: Final = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"

_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
_UNSAFE_IN_URL = re.compile(r"[\x00-\x20\x7f\s\ud800-\udfff]")
_LATEST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
_DATE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z")
_ID: Final = b"<urn:uuid:00000000-0000-4000-8000-000000000000>"
_DIGITS: Final = [place for place, digit in enumerate(_ID) if digit in b"0"]
_VARIANT: Final = _ID.index(b"-8") + 1
_VARIANTS: Final = bytes.maketrans(b"0123456789abcdef", b"89ab" * 4)
_STARTS = (b"WARC/1.1\r\n", b"WARC/1.0\r\n")


class Record(NamedTuple):
    """A record; *fields* are in order, ``Content-Length`` among them."""

    fields: tuple[tuple[str, str], ...]
    block: bytes

    def get(self, name: str, default: str = "") -> str:
        lower = name.lower()
        for key, value in self.fields:
            if key == name or key.lower() == lower:
                return value
        return default

    def all(self, name: str) -> list[str]:
        name = name.lower()
        return [value for field, value in self.fields if field.lower() == name]

    @property
    def kind(self) -> str:
        """``response``, ``request``, ``revisit``, ``metadata``, ``resource``, ``warcinfo``, ..."""
        return self.get("WARC-Type")

    @property
    def id(self) -> str:
        return self.get("WARC-Record-ID")

    @property
    def url(self) -> str:
        return self.get("WARC-Target-URI").strip("<>")  # as WARC 1.0 has them

    @property
    def time(self) -> datetime | None:
        """Time of the fetch, UTC, or None."""
        return parse_date(self.get("WARC-Date"))

    def to_bytes(self) -> bytes:
        head = "".join([f"{name}: {value}\r\n" for name, value in self.fields])
        return b"WARC/1.1\r\n%b\r\n%b\r\n\r\n" % (head.encode(), self.block)


def format_record(
    kind: str, id: str, date: str, block: bytes, content_type: str, fields: str = ""
) -> bytes:
    """Return a record. *id*: of `record_ids`; *date*: of `warc_date`; *fields*: lines of more."""
    head = (
        f"WARC/1.1\r\nWARC-Type: {kind}\r\nWARC-Record-ID: {id}\r\nWARC-Date: {date}\r\n{fields}"
        f"WARC-Block-Digest: {sha1_digest(block)}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(block)}\r\n\r\n"
    )
    return b"%b%b\r\n\r\n" % (head.encode(), block)


def record_ids(count: int) -> Iterator[str]:
    """Yield random ids (UUID version 4) without end; entropy is read for *count* at a time."""
    text, width = bytearray(_ID * count), len(_ID)
    while True:
        digits = os.urandom(16 * count).hex().encode()
        for number, place in enumerate(_DIGITS):  # of all ids at once
            text[place::width] = digits[number * count : (number + 1) * count]
        text[_VARIANT::width] = digits[-count:].translate(_VARIANTS)
        ids = text.decode()
        yield from [ids[place : place + width] for place in range(0, len(ids), width)]


def parse_record(data: bytes, start: int = 0) -> tuple[Record, int]:
    """Return the record at *start* of *data* and its end. Raises `PackDamagedError`."""
    block, end = record_extent(data, start) or (0, 0)
    if not end or end > len(data):
        raise PackDamagedError("a record is cut off")
    head = data[start : block - len(END)].decode("utf-8", "replace")
    lines = head.replace("\r\n ", " ").replace("\r\n\t", " ").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines)
    fields = tuple([(name.strip(), value.strip()) for name, _, value in pairs])
    if data[end - len(END) : end] != END:
        raise PackDamagedError("a record does not end where it says")
    return Record(fields, data[block : end - len(END)]), end


def record_extent(data: bytes | bytearray, start: int = 0) -> tuple[int, int] | None:
    """Return where the block of the record at *start* begins and where the record ends, which may
    be beyond *data*. None if the fields are incomplete. Raises `PackDamagedError`: no record.
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


def sha1_digest(data: bytes) -> str:
    """Return the SHA-1 of *data* as archives write it: ``sha1:`` and base 32."""
    return warc_digest(sha1_of(data))


def warc_date(time: float) -> str:
    """Return *time* (seconds since the epoch) as a WARC-Date, from 1970 to 9999."""
    seconds = min(max(time, 0.0), _LATEST) if time == time else 0.0
    whole = int(seconds)
    return f"{_second(whole)}.{int((seconds - whole) * 1000):03d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def parse_date(text: str) -> datetime | None:
    """Return the time of a WARC-Date, UTC, or None."""
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    try:
        return datetime.fromisoformat(f"{match[1]}.{(match[2] or '0')[:6]:0<6}+00:00")
    except ValueError:
        return None


def clean_value(value: str) -> str:
    return value if value.isascii() and value.isprintable() else _CONTROL.sub(" ", value)


def clean_url(url: str) -> str:
    """Percent-encode white space and control characters."""
    return url if is_clean(url) else _UNSAFE_IN_URL.sub(_escape, url)


def is_clean(url: str) -> bool:
    """Whether `clean_url` changes nothing; *url* may be several URLs in a row."""
    return url.isascii() and url.isprintable() and " " not in url


def _escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "replace"))


SOFTWARE: Final = f"scrapy-spider-suite/{__version__}"
RESPONSE: Final = "application/http; msgtype=response"
REQUEST: Final = "application/http; msgtype=request"
FIELDS: Final = "application/warc-fields"

LINKS_READ_LATER: Final = "linksRead"
"""A metadata line ``linksRead: later ROBOT``: links of a page that ROBOT may follow are missing."""
_CONTEXTS: Final = {
    "a": "L a/@href", "area": "L area/@href", "frame": "E frame/@src", "redirect": "R Location:",
    "refresh": "R meta/@content", "canonical": "X link[@rel='canonical']/@href",
    "sitemap": "M sitemap",
}  # fmt: skip
_KINDS: Final = {context.partition(" ")[2]: kind for kind, context in _CONTEXTS.items()}


class Link(NamedTuple):
    """A link of a page. *kind*: as in `_CONTEXTS`, or the caller's own word."""

    url: str
    kind: str = "a"
    nofollow: bool = False


class RefersTo(NamedTuple):
    """The record that a revisit refers to. *time*: seconds since the epoch."""

    url: str
    time: float
    digest: str


class Capture(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One fetch. *time*: of the request, seconds since the epoch."""

    url: str
    time: float
    head: bytes  # as on the wire, or of `build_head`
    body: bytes = b""  # without chunks
    decoded: bool = False  # the body is decompressed, too
    method: str = "GET"
    request: bytes = b""  # as sent; empty: no request record
    address: str = ""  # of the server, IP
    truncated: str = ""  # or ``length``, ``time``, ``disconnect``, ``unspecified``
    protocols: tuple[str, ...] = ()  # such as ``http/1.1`` and ``tls/1.3``
    digest: str = ""  # of the body, as of `sha1_digest`, where it is known
    original: RefersTo | None = None  # makes it a revisit, without a body
    profile: str = IDENTICAL  # of the revisit
    via: str = ""  # the page that led here
    hops: str = ""  # L for each link, R for each redirect from the seed
    links: Sequence[tuple[str, str, bool]] = ()
    notes: Mapping[str, str] = msgspec.field(default_factory=dict)  # more lines of metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlInfo:
    """The crawl that a pack belongs to, for its warcinfo record."""

    name: str
    software: str
    operator: str = ""
    contact: str = ""
    robots: str = "classic"
    user_agent: str = ""
    hostname: str = ""
    settings_digest: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)


def estimated_size(fetch: Capture) -> int:
    """Return the approximate bytes of the records of *fetch*."""
    # Of the fields of three records, and of a link in memory beside its characters.
    links = 1800 + 120 * len(fetch.links) + sum([len(link[0]) for link in fetch.links])
    return len(fetch.head) + len(fetch.body) + len(fetch.request) + links


class CaptureRecords(NamedTuple):
    """The records of a capture, and what an index says of it; *digest*: of the payload."""

    records: list[bytes]
    url: str
    date: str
    head: bytes
    digest: str
    has_metadata: bool


def format_capture(fetch: Capture, ids: Iterator[str]) -> CaptureRecords:
    """Return the records of *fetch*: response or revisit, request, metadata. *ids*: `record_ids`.

    Control characters are escaped in URLs, spaces elsewhere; empty fields are left out. Raises
    ValueError: the URL is longer than `URL_MAX`.
    """
    if len(fetch.url) > URL_MAX:
        raise ValueError(f"a URL of {len(fetch.url)} characters: {fetch.url[:200]!r}")
    url, date, first = clean_url(fetch.url), warc_date(fetch.time), next(ids)
    target = f"WARC-Target-URI: {url}\r\n"
    address, tie = _field("WARC-IP-Address", fetch.address), f"WARC-Concurrent-To: {first}\r\n"
    fields = target + address + "".join([f"WARC-Protocol: {each}\r\n" for each in fetch.protocols])
    if fetch.original is None:
        kind, digest = "response", fetch.digest or sha1_digest(fetch.body)
        head = fit_head(fetch.head, len(fetch.body), decoded=fetch.decoded, method=fetch.method)
        block = head + fetch.body
        fields += _field("WARC-Truncated", fetch.truncated)
    else:
        kind, digest = "revisit", clean_value(fetch.original.digest)
        head = block = fit_head(fetch.head, 0, method="HEAD")
        fields += (
            f"WARC-Profile: {fetch.profile}\r\n"
            f"WARC-Refers-To-Target-URI: {clean_url(fetch.original.url)}\r\n"
            f"WARC-Refers-To-Date: {warc_date(fetch.original.time)}\r\n"
        )
    fields += f"WARC-Payload-Digest: {digest}\r\n"
    records = [format_record(kind, first, date, block, RESPONSE, fields)]
    if fetch.request:
        fields = target + address + tie
        records.append(format_record("request", next(ids), date, fetch.request, REQUEST, fields))
    if metadata := _metadata(fetch):
        records.append(format_record("metadata", next(ids), date, metadata, FIELDS, target + tie))
    return CaptureRecords(records, url, date, head, digest, bool(metadata))


def _field(name: str, value: str) -> str:
    return f"{name}: {clean_value(value)}\r\n" if value else ""


def warcinfo(crawl: CrawlInfo, filename: str, time: float) -> bytes:
    """Return the first record of the pack *filename*. *time*: seconds since the epoch."""
    lines = {
        "software": crawl.software,
        "format": "WARC File Format 1.1",
        "conformsTo": "https://iipc.github.io/warc-specifications/specifications/warc-format/"
        "warc-1.1/",
        "isPartOf": crawl.name, "operator": crawl.operator, "http-header-from": crawl.contact,
        "robots": crawl.robots,
        "http-header-user-agent": crawl.user_agent, "hostname": crawl.hostname,
        "settings-digest": crawl.settings_digest, **crawl.notes,
    }  # fmt: skip
    block = "".join([_field(_name(name), value) for name, value in lines.items()])
    return format_record(
        "warcinfo", next(record_ids(1)), warc_date(time), block.encode("utf-8", "replace"), FIELDS,
        _field("WARC-Filename", filename),
    )  # fmt: skip


def outlinks_of(metadata: Record) -> list[Link]:
    found = []
    for name, value in warc_fields(metadata):
        if name == "outlink":
            url, _, rest = value.partition(" ")
            context = rest.partition(" ")[2]
            nofollow = context.endswith(" nofollow")
            context = context.removesuffix(" nofollow")
            found.append(Link(url, _KINDS.get(context, context), nofollow))
    return found


def warc_fields(record: Record) -> list[tuple[str, str]]:
    text = record.block.decode("utf-8", "replace")
    pairs = (line.partition(": ") for line in text.split("\r\n") if line)
    return [(name, value) for name, _, value in pairs]


def _metadata(fetch: Capture) -> bytes:
    found = []
    if fetch.via:
        found.append(f"via: {clean_url(fetch.via)}\r\n")
    if fetch.hops:
        found.append(f"hopsFromSeed: {clean_value(fetch.hops)}\r\n")
    found += [f"{_name(name)}: {clean_value(value)}\r\n" for name, value in fetch.notes.items()]
    links = fetch.links
    # One look at all URLs together: most pages have none that needs to be cleaned.
    if not is_clean("".join([link[0] for link in links])):
        links = [(clean_url(url), kind, nofollow) for url, kind, nofollow in links]
    found += [f"outlink: {url} {_context(kind, nofollow)}\r\n" for url, kind, nofollow in links]
    return "".join(found).encode("utf-8", "replace")


@lru_cache(maxsize=256)
def _context(kind: str, nofollow: bool) -> str:
    context = _CONTEXTS.get(kind) or f"X {_name(kind)}"
    return f"{context} nofollow" if nofollow else context


def _name(name: str) -> str:
    return clean_url(name).replace(":", "%3A")
