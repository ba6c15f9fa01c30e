"""One line of an index: which page, and where it is (CDXJ, as pywb and cdxj-indexer write it).

::

    com,example)/page 20261122101500 {"url": "http://example.com/page", "mime": "text/html",
    "status": "200", "digest": "sha1:...", "length": "1234", "offset": "5678",
    "filename": "news-20261122101458-00001-a.warc.lzo", "start": 8230, "size": 6543,
    "metadata": [14773, 910]}

*length* bytes at *offset* of the file have to be read. In a pack that groups its records they hold
several: this one is the *size* bytes from *start* on, decompressed. *metadata* is where the page's
links are: start and size there, offset and length in other packs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from scrapy_spider_suite.errors import PackDamagedError
from scrapy_spider_suite.packs import heads
from scrapy_spider_suite.packs.container import Place
from scrapy_spider_suite.packs.pages import FIELDS
from scrapy_spider_suite.packs.surt import surt
from scrapy_spider_suite.packs.warc import Record, clean_url
from scrapy_spider_suite.runtime.http_fields import media_type

REVISIT: Final = "warc/revisit"
"""The type of a revisit, as indexes have it."""
_LATER: Final = frozenset({408, 425, 429})
"""RFC 9110, 8470 and 6585: statuses of a server that has no time, and says nothing of the page."""
_KINDS = frozenset({"response", "revisit", "resource"})
_NO_TIME = "19700101000000"


Located: TypeAlias = tuple[Record, Place]


class Entry(NamedTuple):
    """A page in an index. *stamp*: 14 digits, UTC. *status* is 0 where there is none."""

    key: str
    stamp: str
    url: str
    mime: str
    status: int
    digest: str
    filename: str
    place: Place
    metadata: Place | None = None

    @property
    def time(self) -> datetime:
        """When it was fetched, to the second."""
        return datetime.strptime(self.stamp, "%Y%m%d%H%M%S").replace(tzinfo=UTC)

    @property
    def says_nothing(self) -> bool:
        """Whether it says nothing of a page: robots.txt, or an answer for now (5xx, 429)."""
        return self.status >= 500 or self.status in _LATER or is_robots(self.url)

    def line(self) -> bytes:
        """The entry as a line, without its end."""
        fields: dict[str, Any] = {"url": self.url}
        if self.mime:
            fields["mime"] = self.mime
        if self.status:
            fields["status"] = str(self.status)
        place, metadata = self.place, self.metadata
        fields |= {"digest": self.digest, "length": str(place.length),
                   "offset": str(place.offset), "filename": self.filename}  # fmt: skip
        grouped = place.start or (metadata and metadata.offset == place.offset)
        if grouped:
            fields |= {"start": place.start, "size": place.size}
        if metadata is not None:
            fields["metadata"] = [*(metadata[2:] if grouped else metadata[:2])]
        return f"{self.key} {self.stamp} {json.dumps(fields)}".encode()


def parse(line: bytes) -> Entry:
    """Return the entry of a line, of another tool's index too. Raises `PackDamagedError`."""
    try:
        key, stamp, text = line.decode().rstrip("\r\n").split(" ", 2)
        fields = json.loads(text)
        place = Place(int(fields["offset"]), int(fields["length"]), int(fields.get("start", 0)),
                      int(fields.get("size", 0)))  # fmt: skip
        metadata = None
        if "metadata" in fields:
            first, second = map(int, fields["metadata"])
            grouped = "size" in fields
            metadata = (place._replace(start=first, size=second) if grouped
                        else Place(first, second, 0, 0))  # fmt: skip
        status = str(fields.get("status", ""))
        entry = Entry(key, stamp, str(fields["url"]), str(fields.get("mime", "")),
                      int(status) if status.isdigit() else 0, str(fields.get("digest", "")),
                      str(fields["filename"]), place, metadata)  # fmt: skip
        datetime.strptime(stamp, "%Y%m%d%H%M%S")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise PackDamagedError(f"not a line of an index: {line[:80]!r}") from error
    if min(entry.place) < 0 or (metadata is not None and min(metadata) < 0):
        raise PackDamagedError(f"an index leads nowhere: {line[:80]!r}")
    return entry


def key_of(url: str) -> str:
    """Return the key of *url* as a line begins with it: no white space ends it early."""
    return clean_url(surt(url)) or "-"


def belongs(record: Record, bundle: Sequence[Located]) -> bool:
    """Return whether *record* is of the same fetch as those of *bundle*, which precede it."""
    ids = {other.id for other, _ in bundle}
    return any(tie in ids for tie in record.all("WARC-Concurrent-To"))


def entries(records: Sequence[Located], filename: str) -> list[Entry]:
    """Return the entries for *records* that lie in *filename* one after another."""
    metadata = {
        tie: place
        for record, place in records
        if record.kind == "metadata" and record.get("Content-Type") == FIELDS
        for tie in record.all("WARC-Concurrent-To")
    }
    return [
        _entry(record, place, filename, metadata.get(record.id))
        for record, place in records
        if record.kind in _KINDS
    ]


def _entry(record: Record, place: Place, filename: str, metadata: Place | None) -> Entry:
    mime, status = record.get("Content-Type"), 0
    if mime.startswith("application/http"):
        try:
            head = heads.parse(heads.split(record.block)[0])
            mime, status = head.get("Content-Type"), head.status
        except PackDamagedError:  # it was stored as it came
            mime = ""
    if record.kind == "revisit":
        mime = REVISIT
    time, url = record.time, record.url
    return Entry(
        key_of(url),
        f"{time:%Y%m%d%H%M%S}" if time and time.year > 999 else _NO_TIME,
        url,
        media_type(mime)[:200],
        status,
        record.get("WARC-Payload-Digest"),
        filename,
        place,
        metadata,
    )


def is_robots(url: str) -> bool:
    """Whether *url* is that of a robots.txt; what is no URL is not."""
    try:
        return "/robots.txt" in url and urlsplit(url).path == "/robots.txt"
    except ValueError:
        return False
