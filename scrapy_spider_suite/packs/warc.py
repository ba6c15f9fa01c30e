"""One WARC 1.1 record: its fields, its block, and both as bytes (ISO 28500:2017).

What was fetched as WARC records: `Capture` in, response, request and metadata out.

The fields follow ISO 28500:2017 (WARC 1.1) and its community's additions, the lines of a metadata
record those of Heritrix: ``via``, ``hopsFromSeed``, ``outlink: URL HOP CONTEXT``.

``WARC-Payload-Digest`` is of the body *as it stands in the record*, chunks and compression
included: what warcio's ``check`` computes, FastWARC's ``verify_payload_digest`` accepts and pywb
takes over into its index (the standard's §5.9 can be read otherwise). So bodies of ``Form.JOINED``
are worth handing in: the same page has the same digest, however it was cut into chunks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from scrapy_spider_suite import __version__
from scrapy_spider_suite.errors import PackDamagedError
from scrapy_spider_suite.packs.http_records import BodyForm, fit_head
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
        """The first key of that *name*, in any case."""
        lower = name.lower()
        for key, value in self.fields:
            if key == name or key.lower() == lower:
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


def make_record(
    kind: str,
    time: str,
    block: bytes,
    content_type: str,
    *,
    url: str = "",
    more: Iterable[tuple[str, str]] = (),
) -> Record:
    """Return a new record with an id of its own. *time* as `warc_date` gives it.

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
    fields += [(name, clean_value(value)) for name, value in more if value]
    fields += [
        ("WARC-Block-Digest", sha1_digest(block)),
        ("Content-Type", content_type),
        ("Content-Length", str(len(block))),
    ]
    return Record(tuple(fields), block)


def parse_record(data: bytes, start: int = 0) -> tuple[Record, int]:
    """Return the record at *start* of *data*, and where the next one begins.

    Raises `PackDamagedError`: there is none, or not all of it.
    """
    block, end = record_extent(data, start) or (0, 0)
    if not end or end > len(data):
        raise PackDamagedError("a record is cut off")
    fields = _fields(data[start : block - len(END)])
    if data[end - len(END) : end] != END:
        raise PackDamagedError("a record does not end where it says")
    return Record(fields, data[block : end - len(END)]), end


def record_extent(data: bytes | bytearray, start: int = 0) -> tuple[int, int] | None:
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


def sha1_digest(data: bytes) -> str:
    """Return the SHA-1 of *data* as archives write it: ``sha1:`` and base 32."""
    return warc_digest(sha1_of(data))


def warc_date(time: float) -> str:
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


def clean_value(value: str) -> str:
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


SOFTWARE: Final = f"scrapy-spider-suite/{__version__}"
"""What the suite is called in what it writes."""
RESPONSE: Final = "application/http; msgtype=response"
REQUEST: Final = "application/http; msgtype=request"
FIELDS: Final = "application/warc-fields"

LINKS_READ_LATER: Final = "linksRead"
"""The line of a metadata record that says ``later NAME``: no links were read as the page came. NAME
is the robot by which the page may have addressed the crawl."""
_FIELDS: Final = 1800
"""Bytes of the fields of three records."""
_LINK: Final = 120
"""Bytes of a link in memory, beside its characters."""
_CONTEXTS: Final = {
    "a": "L a/@href",
    "area": "L area/@href",
    "frame": "E frame/@src",
    "redirect": "R Location:",
    "refresh": "R meta/@content",
    "canonical": "X link[@rel='canonical']/@href",
    "sitemap": "M sitemap",
}
_KINDS: Final = {context.partition(" ")[2]: kind for kind, context in _CONTEXTS.items()}


class Link(NamedTuple):
    """A link of a page.

    *kind*: ``a``, ``area``, ``frame``, ``redirect``, ``refresh``, ``canonical``, ``sitemap``, or
    another word of the caller's.
    """

    url: str
    kind: str = "a"
    nofollow: bool = False


class RefersTo(NamedTuple):
    """The record that a revisit refers to. *time* in seconds since the epoch."""

    url: str
    time: float
    digest: str
    id: str = ""


class Capture(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One fetch. `msgspec.structs.replace` gives one with other values.

    Attributes:
        url: what was asked for.
        time: when it was asked for, in seconds since the epoch.
        head: the response's head as it was on the wire, up to the empty line (`heads.build` makes
            one where it is lost).
        body: its body, in the *form* that the caller has.
        method: that of the request.
        request: the request as it was sent, head and body; b"" for no request record.
        address: the IP address that answered.
        truncated: why the body is not whole: ``length``, ``time``, ``disconnect``,
            ``unspecified``; "" if it is.
        protocols: such as ``http/1.1`` and ``tls/1.3``.
        original: the earlier record with the same payload: makes it a revisit record, of that
            *profile*, without a body.
        via: the page that led here. *hops*: how, from the seed: a letter for each hop (``LLR``).
        links: what leads on from it: `Link`s, or the same in other tuples.
        notes: more lines for the metadata record.
    """

    url: str
    time: float
    head: bytes
    body: bytes = b""
    form: BodyForm = BodyForm.WIRE
    method: str = "GET"
    request: bytes = b""
    address: str = ""
    truncated: str = ""
    protocols: tuple[str, ...] = ()
    original: RefersTo | None = None
    profile: str = IDENTICAL
    via: str = ""
    hops: str = ""
    links: Sequence[tuple[str, str, bool]] = ()
    notes: Mapping[str, str] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlInfo:
    """What a pack says about the crawl that it is of, in its warcinfo record."""

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
    """Return how many bytes the records of *fetch* will have, or it has until then: roughly."""
    links = sum([_LINK + len(link[0]) for link in fetch.links])
    return len(fetch.head) + len(fetch.body) + len(fetch.request) + links + _FIELDS


def make_records(fetch: Capture) -> list[Record]:
    """Return the records of a fetch: response (or revisit), request, metadata, as far as known."""
    time = warc_date(fetch.time)
    first = _revisit(fetch, time) if fetch.original else _response(fetch, time)
    found = [first]
    tie = ("WARC-Concurrent-To", first.id)
    if fetch.request:
        more = (("WARC-IP-Address", fetch.address), tie)
        found.append(make_record("request", time, fetch.request, REQUEST, url=fetch.url, more=more))
    block = _metadata(fetch)
    if block:
        found.append(make_record("metadata", time, block, FIELDS, url=fetch.url, more=(tie,)))
    return found


def warcinfo(crawl: CrawlInfo, filename: str, time: float) -> Record:
    """Return the record that begins the pack *filename*. *time* in seconds since the epoch."""
    lines = {
        "software": crawl.software,
        "format": "WARC File Format 1.1",
        "conformsTo": "https://iipc.github.io/warc-specifications/specifications/warc-format/"
        "warc-1.1/",
        "isPartOf": crawl.name,
        "operator": crawl.operator,
        "http-header-from": crawl.contact,
        "robots": crawl.robots,
        "http-header-user-agent": crawl.user_agent,
        "hostname": crawl.hostname,
        "settings-digest": crawl.settings_digest,
        **crawl.notes,
    }
    block = "".join(
        f"{_name(name)}: {clean_value(value)}\r\n" for name, value in lines.items() if value
    )
    more = (("WARC-Filename", filename),)
    return make_record(
        "warcinfo", warc_date(time), block.encode("utf-8", "replace"), FIELDS, more=more
    )


def outlinks_of(metadata: Record) -> list[Link]:
    """Return the links that a metadata record names."""
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
    """Return the names and values in a record of ``application/warc-fields``."""
    text = record.block.decode("utf-8", "replace")
    pairs = (line.partition(": ") for line in text.split("\r\n") if line)
    return [(name, value) for name, _, value in pairs]


def _response(fetch: Capture, time: str) -> Record:
    head = fit_head(fetch.head, len(fetch.body), fetch.form, method=fetch.method,
               cut=bool(fetch.truncated))  # fmt: skip
    more = [*_wire(fetch), ("WARC-Payload-Digest", sha1_digest(fetch.body)),
            ("WARC-Truncated", fetch.truncated)]  # fmt: skip
    return make_record("response", time, head + fetch.body, RESPONSE, url=fetch.url, more=more)


def _revisit(fetch: Capture, time: str) -> Record:
    """A revisit's block is the new head, as it was: it announces a body that is elsewhere."""
    original = fetch.original
    assert original is not None
    more = [
        *_wire(fetch),
        ("WARC-Profile", fetch.profile),
        ("WARC-Refers-To", original.id),
        ("WARC-Refers-To-Target-URI", clean_url(original.url)),
        ("WARC-Refers-To-Date", warc_date(original.time)),
        ("WARC-Payload-Digest", original.digest),
    ]
    head = fit_head(fetch.head, 0, method="HEAD")
    return make_record("revisit", time, head, RESPONSE, url=fetch.url, more=more)


def _wire(fetch: Capture) -> list[tuple[str, str]]:
    """Whom it came from, and how."""
    protocols = [("WARC-Protocol", name) for name in fetch.protocols]
    return [("WARC-IP-Address", fetch.address), *protocols]


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
    """Return a name for a line: no colon or space in it can end it early."""
    return clean_url(name).replace(":", "%3A")
