"""Pages to put into packs, and what other people's tools say of the packs."""

from __future__ import annotations

import gzip
import io
import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Any

from fastwarc.warc import ArchiveIterator as FastIterator
from msgspec.structs import replace
from warcio.archiveiterator import ArchiveIterator

from scrapy_spider_suite.packs.cdxj import bundle_records
from scrapy_spider_suite.packs.containers import Container
from scrapy_spider_suite.packs.pack_file import (
    Damage,
    PackFile,
    format_of,
    is_pack,
    make_container,
    scan,
)
from scrapy_spider_suite.packs.warc import (
    Capture,
    CrawlInfo,
    Link,
    Record,
    format_capture,
    format_record,
    parse_record,
    record_ids,
    warc_date,
    warcinfo,
)
from scrapy_spider_suite.packs.writer import PackPlan, PackWriter, RecordLocation
from support.lzop import Lzop

NOW = 1_795_000_000.25
CRAWL = CrawlInfo(name="news", software="suite/1", operator="A", contact="a@example.org")
WORDS = ("links", "pages", "crawl", "of", "the", "web", "and", "archive", "record", "block")


def body(number: int, size: int = 900) -> bytes:
    """Text of *size* bytes that no other *number* has."""
    draws = random.Random(number)
    words = " ".join(f"{draws.choice(WORDS)}{draws.randrange(1000)}" for _ in range(500))
    return (f"<title>{number}</title>" + words * (1 + size // len(words))).encode()[:size]


def head(size: int, extra: str = "") -> bytes:
    """A head that announces *size* bytes."""
    lines = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n{extra}"
    return f"{lines}Content-Length: {size}\r\n\r\n".encode()


def fetch(number: int, content: bytes | None = None, **changes: Any) -> Capture:
    """The fetch of ``http://www.example.com/number``."""
    content = body(number) if content is None else content
    plain = Capture(
        url=f"http://www.example.com/{number}",
        time=NOW + number,
        head=head(len(content)),
        body=content,
        request=b"GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n",
        address="192.0.2.1",
        protocols=("http/1.1",),
        via="http://www.example.com/",
        hops="L",
        links=[Link(f"http://www.example.com/{number + 1}"), Link("http://a.test/", "frame", True)],
    )
    return replace(plain, **changes)


def resource(url: str, block: bytes, content_type: str) -> Record:
    """What did not come by HTTP."""
    fields = f"WARC-Target-URI: {url}\r\n"
    [id] = islice(record_ids(1), 1)
    data = format_record("resource", id, warc_date(NOW), block, content_type, fields)
    return parse_record(data)[0]


def make_records(page: Capture) -> list[Record]:
    """The records of a page, parsed."""
    return [parse_record(data)[0] for data in format_capture(page, record_ids(3)).records]


def hand_in(writer: PackWriter, *pages: Capture) -> Future[RecordLocation]:
    """Have *pages* written side by side; the future gets the place of the first."""
    future: Future[RecordLocation] = Future()
    writer.append(pages, future)
    return future


def write_records(path: Path, bundles: Iterable[Sequence[Record]]) -> None:
    """A closed pack of these records, whatever they are: a group for each bundle."""
    pack = PackFile(path, make_container(format_of(path)), NOW)
    for bundle in bundles:
        pack.append([bundle_records(bundle)])
    pack.close()


def gzipped(number: int) -> Capture:
    """A page that came compressed, and in chunks."""
    packed = gzip.compress(body(number), mtime=0)
    lines = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n\r\n"
    return fetch(number, packed, head=lines)


def plan(folder: Path, form: str = "lzo", **more: Any) -> PackPlan:
    """A plan for packs in *folder*."""
    return PackPlan(folder=folder, crawl=CRAWL, agent="a", form=form, **more)


def whole_file(
    form: Container, groups: Iterable[list[Record]], name: str = "x.warc"
) -> tuple[bytes, list[int]]:
    """A pack as bytes, and where in it each group begins."""
    data, starts = form.begin(name, int(NOW)), []
    for group in ([parse_record(warcinfo(CRAWL, name, NOW))[0]], *groups):
        starts.append(len(data))
        data += form.encode([record.to_bytes() for record in group])[0]
    return data + form.end(), starts


def some(count: int) -> list[list[Record]]:
    """The records of *count* pages, in groups."""
    return [make_records(fetch(number)) for number in range(count)]


def tiny(count: int) -> list[list[Record]]:
    """The smallest records, for what is done at every byte."""
    bare: dict[str, Any] = {"request": b"", "via": "", "hops": "", "links": (), "address": ""}
    return [make_records(fetch(number, b"", protocols=(), **bare)) for number in range(count)]


def warcio_records(data: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Type, URL and stored block of each record, as warcio sees them; digests are checked."""
    for record in ArchiveIterator(io.BytesIO(data), check_digests="raise", no_record_parse=False):
        raw = record.raw_stream.read()
        start = record.http_headers.to_bytes() if record.http_headers else b""
        yield record.rec_type, record.rec_headers.get_header("WARC-Target-URI") or "", start + raw


def fastwarc_records(data: bytes) -> Iterator[tuple[str, str, bytes]]:
    """The same as FastWARC sees them; digests are checked."""
    for record in FastIterator(io.BytesIO(data), parse_http=False, verify_digests=True):
        kind = record.headers["WARC-Type"]
        yield kind, record.headers.get("WARC-Target-URI") or "", record.reader.read()


def accepted(path: Path, lzop: Lzop | None) -> int:
    """How many records the tools of others find in the pack *path*, with digests that are right.

    Raises what they raise where they do not accept it. *lzop*: needed for one of its format.
    """
    form = format_of(path)
    data = path.read_bytes()
    if form == "lzo":
        assert lzop is not None
        lzop.test(path)
        data = lzop("-dc", path)
    assert not [part for part in scan(path) if isinstance(part, Damage)]
    found = list(fastwarc_records(data))
    assert form == "zst" or found == list(warcio_records(data))
    return len(found)


def all_accepted(folder: Path, lzop: Lzop | None) -> int:
    """The same of all packs in *folder*."""
    return sum(accepted(path, lzop) for path in folder.iterdir() if is_pack(path))


def gunzip_all(data: bytes) -> bytes:
    """What all members of *data* hold."""
    out = b""
    while data:
        engine = zlib.decompressobj(31)
        out += engine.decompress(data)
        data = engine.unused_data
    return out
