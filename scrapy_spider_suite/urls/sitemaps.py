"""Sitemaps (https://www.sitemaps.org/protocol.html), read piece by piece, within bounds.

XML or text, plain or gzip. Mistakes are forgiven; no entity is expanded, and one entry is kept.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple

from lxml import etree  # type: ignore[import-untyped]

BYTES_MAX: Final = 50 << 20
"""Bytes of a sitemap, unpacked, that are read; the protocol allows as many."""
URLS_MAX: Final = 50_000  # entries of a sitemap that are read; the protocol allows as many
URL_MAX: Final = 2_048  # characters of a URL; the protocol asks for fewer
_ELEMENTS_MAX: Final = 5_000_000
_KEPT_MAX: Final = 20_000  # elements inside of one entry
_PIECE: Final = 1 << 16
_MEMBERS_MAX: Final = 1_000  # of a gzip file
_ENTRIES: Final = {"url": False, "sitemap": True}
_GZIP: Final = b"\x1f\x8b"
_BEGIN_OF_XML: Final = re.compile(rb"(?:\xef\xbb\xbf|\xff\xfe|\xfe\xff)?[\0\s]*<")
_BARE_OR_CDATA: Final = re.compile(
    rb"&(?!(?:[A-Za-z]\w{0,30}|#\d{1,7}|#x[0-9A-Fa-f]{1,6});)|(<!\[CDATA\[.*?(?:\]\]>|\Z))",
    re.DOTALL,
)
_SHORT_DATE: Final = re.compile(r"(\d{4})(?:-(\d\d))?")


class BadSitemap(ValueError):
    """The body is no sitemap, or only the beginning of one; earlier entries count."""


class SitemapEntry(NamedTuple):
    url: str  # as it is written
    lastmod: int | None  # seconds since the epoch
    sitemap: bool


def read_sitemap(body: bytes) -> Iterator[SitemapEntry]:
    """Yield the entries of *body*, as it came from the wire. Raises `BadSitemap` at its end."""
    data = _unpacked(body)
    entries = _of_xml(data) if _BEGIN_OF_XML.match(data) else _of_text(data)
    number = 0
    for number, entry in enumerate(entries, 1):
        if number > URLS_MAX:
            raise BadSitemap(f"more than {URLS_MAX} entries")
        yield entry
    if len(data) > BYTES_MAX:
        raise BadSitemap(f"more than {BYTES_MAX >> 20} MB")
    if not number:
        raise BadSitemap("no entries")


def _unpacked(body: bytes) -> bytes:
    if not body.startswith(_GZIP):
        return body[: BYTES_MAX + 1]
    found, at, rest = bytearray(), 0, memoryview(body)
    for _ in range(_MEMBERS_MAX):
        if not body.startswith(_GZIP, at) or len(found) > BYTES_MAX:
            break
        packed = zlib.decompressobj(31)
        try:
            # By the piece: what lies behind a member is copied.
            while at < len(rest) and len(found) <= BYTES_MAX and not packed.eof:
                piece = rest[at : at + _PIECE]
                found += packed.decompress(piece, BYTES_MAX + 1 - len(found))
                at += len(piece) - len(packed.unused_data)
        except zlib.error:
            break  # a cut or damaged file: what came before the damage counts
    if not found:
        raise BadSitemap("no gzip file")
    return bytes(found)


def _of_text(data: bytes) -> Iterator[SitemapEntry]:
    for line in data[:BYTES_MAX].splitlines():
        url = line[: 4 * URL_MAX].decode("utf-8-sig", "replace").strip()
        if url.lower().startswith(("http://", "https://")) and len(url) <= URL_MAX:
            yield SitemapEntry(url, None, False)


def _of_xml(data: bytes) -> Iterator[SitemapEntry]:
    wide = b"\0" in data[:1_000]  # UTF-16
    if b"<!ENTITY" in data or (wide and b"<!ENTITY" in data.replace(b"\0", b"")):
        # No sitemap has any, and what they do in attributes no option of the parser keeps off.
        raise BadSitemap("it declares entities")
    if b"&" in data and not wide:
        data = _BARE_OR_CDATA.sub(lambda found: found[1] or b"&amp;", data)
    elements = kept = 0
    for element in _elements(data[:BYTES_MAX]):
        elements, kept = elements + 1, kept + 1
        if elements > _ELEMENTS_MAX or kept > _KEPT_MAX:
            raise BadSitemap("too many elements")
        parent = element.getparent()
        if parent is None or parent.getparent() is not None:
            continue  # the document, or a part of an entry
        entry = _entry(element)
        if entry is not None:
            yield entry
        kept = 0
        element.clear()
        while element.getprevious() is not None:
            del parent[0]


def _elements(data: bytes) -> Iterator[etree._Element]:
    parser = etree.XMLPullParser(
        events=("end",), recover=True, resolve_entities=False, no_network=True, load_dtd=False,
        huge_tree=False, remove_comments=True, remove_pis=True,
    )  # fmt: skip
    events = parser.read_events()
    with suppress(etree.XMLSyntaxError):  # nothing more can be made of it
        for at in range(0, len(data), _PIECE):
            parser.feed(data[at : at + _PIECE])
            yield from (element for _, element in events)
        parser.close()
    yield from (element for _, element in events)


def _entry(element: etree._Element) -> SitemapEntry | None:
    """The entry of *element*, right below the root; None if it is none."""
    space, _, name = element.tag.rpartition("}")
    kind = _ENTRIES.get(name.lower())
    if kind is None:
        return None
    prefix = f"{space}}}" if space else ""
    url = (element.findtext(f"{prefix}loc") or "").strip()
    if not url or len(url) > URL_MAX:
        return None
    return SitemapEntry(url, parse_w3c_date(element.findtext(f"{prefix}lastmod") or ""), kind)


def parse_w3c_date(text: str) -> int | None:
    """A W3C date and time in seconds since the epoch; None outside of 1970 to 2105."""
    text = text.strip()
    short = _SHORT_DATE.fullmatch(text)
    try:
        when = (
            datetime(int(short[1]), int(short[2] or 1), 1) if short
            else datetime.fromisoformat(text[:40])
        )  # fmt: skip
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        found = int(when.timestamp())
    except (ValueError, OverflowError):
        return None
    return found if 0 <= found <= 0xFFFFFFFF else None
