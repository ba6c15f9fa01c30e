"""What was fetched as WARC records: `Fetch` in, response, request and metadata out.

The fields follow ISO 28500:2017 (WARC 1.1) and its community's additions, the lines of a metadata
record those of Heritrix: ``via``, ``hopsFromSeed``, ``outlink: URL HOP CONTEXT``.

``WARC-Payload-Digest`` is of the body *as it stands in the record*, chunks and compression
included: what warcio's ``check`` computes, FastWARC's ``verify_payload_digest`` accepts and pywb
takes over into its index (the standard's §5.9 can be read otherwise). So bodies of ``Form.JOINED``
are worth handing in: the same page has the same digest, however it was cut into chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from scrapy_spider_suite import __version__
from scrapy_spider_suite.packs.heads import Form, fit
from scrapy_spider_suite.packs.warc import (
    IDENTICAL,
    Record,
    clean,
    clean_url,
    date,
    digest,
    is_clean,
    make,
)

SOFTWARE: Final = f"scrapy-spider-suite/{__version__}"
"""What the suite is called in what it writes."""
RESPONSE: Final = "application/http; msgtype=response"
REQUEST: Final = "application/http; msgtype=request"
FIELDS: Final = "application/warc-fields"

LATER: Final = "linksRead"
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


class Original(NamedTuple):
    """The record that a revisit refers to. *time* in seconds since the epoch."""

    url: str
    time: float
    digest: str
    id: str = ""


class Fetch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    form: Form = Form.WIRE
    method: str = "GET"
    request: bytes = b""
    address: str = ""
    truncated: str = ""
    protocols: tuple[str, ...] = ()
    original: Original | None = None
    profile: str = IDENTICAL
    via: str = ""
    hops: str = ""
    links: Sequence[tuple[str, str, bool]] = ()
    notes: Mapping[str, str] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crawl:
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


def payload_digest(body: bytes) -> str:
    """Return the digest of a body as it will stand in the record: what duplicates share."""
    return digest(body)


def size_of(fetch: Fetch) -> int:
    """Return how many bytes the records of *fetch* will have, or it has until then: roughly."""
    links = sum([_LINK + len(link[0]) for link in fetch.links])
    return len(fetch.head) + len(fetch.body) + len(fetch.request) + links + _FIELDS


def records(fetch: Fetch) -> list[Record]:
    """Return the records of a fetch: response (or revisit), request, metadata, as far as known."""
    time = date(fetch.time)
    first = _revisit(fetch, time) if fetch.original else _response(fetch, time)
    found = [first]
    tie = ("WARC-Concurrent-To", first.id)
    if fetch.request:
        more = (("WARC-IP-Address", fetch.address), tie)
        found.append(make("request", time, fetch.request, REQUEST, url=fetch.url, more=more))
    block = _metadata(fetch)
    if block:
        found.append(make("metadata", time, block, FIELDS, url=fetch.url, more=(tie,)))
    return found


def warcinfo(crawl: Crawl, filename: str, time: float) -> Record:
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
    block = "".join(f"{_name(name)}: {clean(value)}\r\n" for name, value in lines.items() if value)
    more = (("WARC-Filename", filename),)
    return make("warcinfo", date(time), block.encode("utf-8", "replace"), FIELDS, more=more)


def resource(url: str, time: float, body: bytes, content_type: str) -> Record:
    """Return a record of something that did not come by HTTP (``file:``, ``ftp:``, ``data:``)."""
    more = (("WARC-Payload-Digest", digest(body)),)
    kind = clean(content_type) or "application/octet-stream"
    return make("resource", date(time), body, kind, url=url, more=more)


def links(metadata: Record) -> list[Link]:
    """Return the links that a metadata record names."""
    found = []
    for name, value in lines(metadata):
        if name == "outlink":
            url, _, rest = value.partition(" ")
            context = rest.partition(" ")[2]
            nofollow = context.endswith(" nofollow")
            context = context.removesuffix(" nofollow")
            found.append(Link(url, _KINDS.get(context, context), nofollow))
    return found


def lines(record: Record) -> list[tuple[str, str]]:
    """Return the names and values in a record of ``application/warc-fields``."""
    text = record.block.decode("utf-8", "replace")
    pairs = (line.partition(": ") for line in text.split("\r\n") if line)
    return [(name, value) for name, _, value in pairs]


def _response(fetch: Fetch, time: str) -> Record:
    head = fit(fetch.head, len(fetch.body), fetch.form, method=fetch.method,
               cut=bool(fetch.truncated))  # fmt: skip
    more = [*_wire(fetch), ("WARC-Payload-Digest", digest(fetch.body)),
            ("WARC-Truncated", fetch.truncated)]  # fmt: skip
    return make("response", time, head + fetch.body, RESPONSE, url=fetch.url, more=more)


def _revisit(fetch: Fetch, time: str) -> Record:
    """A revisit's block is the new head, as it was: it announces a body that is elsewhere."""
    original = fetch.original
    assert original is not None
    more = [
        *_wire(fetch),
        ("WARC-Profile", fetch.profile),
        ("WARC-Refers-To", original.id),
        ("WARC-Refers-To-Target-URI", clean_url(original.url)),
        ("WARC-Refers-To-Date", date(original.time)),
        ("WARC-Payload-Digest", original.digest),
    ]
    head = fit(fetch.head, 0, method="HEAD")
    return make("revisit", time, head, RESPONSE, url=fetch.url, more=more)


def _wire(fetch: Fetch) -> list[tuple[str, str]]:
    """Whom it came from, and how."""
    protocols = [("WARC-Protocol", name) for name in fetch.protocols]
    return [("WARC-IP-Address", fetch.address), *protocols]


def _metadata(fetch: Fetch) -> bytes:
    found = []
    if fetch.via:
        found.append(f"via: {clean_url(fetch.via)}\r\n")
    if fetch.hops:
        found.append(f"hopsFromSeed: {clean(fetch.hops)}\r\n")
    found += [f"{_name(name)}: {clean(value)}\r\n" for name, value in fetch.notes.items()]
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
