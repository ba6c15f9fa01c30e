"""Records: what is in them, what other tools read, and that nothing can add a field."""

from __future__ import annotations

import gzip
import math
import uuid
from datetime import UTC, datetime
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.packs import (
    NOW,
    body,
    fastwarc_records,
    fetch,
    gzipped,
    head,
    make_records,
    resource,
    warcio_records,
)

from scrapy_spider_suite.errors import PackDamagedError
from scrapy_spider_suite.packs import http_records, warc
from scrapy_spider_suite.packs.warc import CrawlInfo, Link, Record, RefersTo, parse_record, warcinfo

OTHERS = (warcio_records, fastwarc_records)


def as_bytes(found: list[Record]) -> bytes:
    """All of *found* in a row."""
    return b"".join(record.to_bytes() for record in found)


@pytest.mark.parametrize("others", OTHERS)
def test_other_tools_read_every_record_byte_for_byte(others) -> None:
    """Response, request, metadata, revisit, resource and warcinfo, with right digests."""
    original = RefersTo("http://www.example.com/1", NOW, warc.sha1_digest(body(1)))
    found = [
        parse_record(warcinfo(CrawlInfo(name="n", software="s"), "x.warc.gz", NOW))[0],
        *make_records(fetch(1)),
        *make_records(gzipped(2)),
        *make_records(fetch(3, original=original)),
        *make_records(fetch(4, b"", head=head(0).replace(b"200 OK", b"304 Not Modified"),
                       original=original, profile=warc.NOT_MODIFIED)),
        resource("ftp://a.test/x", b"\0\xff", "application/x-y"),
    ]  # fmt: skip
    seen = list(others(as_bytes(found)))
    assert [(kind, url) for kind, url, _ in seen] == [(r.kind, r.url) for r in found]
    assert [block for _, _, block in seen] == [r.block for r in found]


def test_a_decompressed_page_does_not_stand_under_the_length_of_the_compressed_one() -> None:
    """The case of 6,013 bytes below ``Content-Length: 76``."""
    decoded = b"x" * 6013
    response = make_records(fetch(1, decoded, head=head(76, "Content-Encoding: gzip\r\n"),
                             decoded=True))[0]  # fmt: skip
    start, stored = http_records.split_message(response.block)
    found = http_records.parse_head(start)
    assert stored == decoded
    assert found.all("Content-Length") == ["6013"]
    assert found.all("Content-Encoding") == []
    assert found.get("X-Crawler-Content-Length") == "76"
    assert found.get("X-Crawler-Content-Encoding") == "gzip"


@pytest.mark.parametrize(
    ("lines", "decoded", "kept"),
    [
        ("Content-Length: 5\r\n", False, True),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", False, False),
        ("Server: x\r\n", False, True),
        ("Content-Length: 9\r\n", False, False),
        ("transfer-encoding : chunked\r\nServer: x\r\n", False, False),
        ("Content-Encoding: br\r\nContent-Length: 5\r\n", False, True),
        ("Content-Encoding: br\r\nContent-Length: 5\r\n", True, False),
    ],
)
def test_a_head_is_changed_only_where_it_would_be_wrong(
    lines: str, decoded: bool, kept: bool
) -> None:
    """Fields that no longer fit keep their text, under another name."""
    before = f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode()
    after = http_records.fit_head(before, 5, decoded=decoded)
    assert (after == before) is kept
    if not kept:
        assert http_records.parse_head(after).all("Content-Length") == ["5"]
        assert not http_records.parse_head(after).all("Transfer-Encoding")


def test_heads_of_answers_without_a_body_stay() -> None:
    """HEAD and 304 announce what is not there."""
    announced = head(500)
    assert http_records.fit_head(announced, 0, method="HEAD") == announced
    not_modified = announced.replace(b"200 OK", b"304 Not Modified")
    assert http_records.fit_head(not_modified, 0) == not_modified
    response = make_records(fetch(1, b"x" * 9, head=announced, truncated="length"))[0]
    assert response.get("WARC-Truncated") == "length"


@pytest.mark.parametrize(
    "broken",
    [
        b"HTTP/1.1 200 OK\r\nA: 1\r\n",
        b"HTTP/1.1 200 OK\nA: 1\n\n",
        b"HTTP/1.1 200 OK\r\nA: 1\r\n\r\nHTTP/1.1 200 OK\r\nB: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: 1",
    ],
)
def test_a_head_ends_once(broken: bytes) -> None:
    """Where it ends, others begin to read the body, and digest it."""
    response = make_records(fetch(1, head=broken))[0]
    start, stored = http_records.split_message(response.block)
    assert start.endswith(b"\r\n\r\n")
    assert http_records.parse_head(start).get("A") == "1"
    assert stored == body(1)
    assert len(list(warcio_records(response.to_bytes()))) == 1


@given(st.text(max_size=40), st.text(max_size=40))
@hypothesis_settings(max_examples=60)
def test_no_value_adds_a_field_or_a_line(text: str, other: str) -> None:
    """Line breaks of any kind in URLs, names and values."""
    page = fetch(
        1,
        url=f"http://a.test/{text}",
        address=other,
        via=text,
        hops=other,
        links=[Link(text, other), Link(f"http://b.test/{other}", text, True)],
        notes={text: other},
        truncated=text,
        protocols=(other,),
    )
    plain = make_records(fetch(1, notes={"a": "b"}))
    for record, model in zip(make_records(page), plain, strict=True):
        again, end = parse_record(record.to_bytes())
        assert again.block == record.block
        assert end == len(record.to_bytes())
        allowed = {name for name, _ in model.fields} | {"WARC-Truncated"}
        assert {name for name, _ in again.fields} <= allowed
    lines = warc.warc_fields(make_records(page)[-1])
    assert len(lines) == 3 + bool(text) + bool(other)


def test_a_hostile_url_is_percent_encoded() -> None:
    """A line break in it ends no field."""
    record = make_records(fetch(1, url="http://a.test/\r\nWARC-Type: request\r\n\r\n x"))[0]
    assert record.url == "http://a.test/%0D%0AWARC-Type:%20request%0D%0A%0D%0A%20x"
    assert record.kind == "response"


def test_a_built_head_has_no_more_lines_than_fields() -> None:
    """Where no head was kept."""
    built = http_records.build_head(200, {b"A": [b"1\r\nX: 2", b"3"], b"B\r\n": [b"4"]})
    assert built == b"HTTP/1.1 200 \r\nA: 1  X: 2\r\nA: 3\r\n\r\n"


def test_the_links_of_a_page_come_back() -> None:
    """With their kind and nofollow, in Heritrix's form."""
    links = [Link("http://a.test/", "a"), Link("http://b.test/", "redirect", True),
             Link("http://c.test/", "poster"), Link("http://d.test/", "canonical")]  # fmt: skip
    metadata = make_records(fetch(1, links=links))[-1]
    assert b"outlink: http://a.test/ L a/@href\r\n" in metadata.block
    assert b"outlink: http://b.test/ R Location: nofollow\r\n" in metadata.block
    assert warc.outlinks_of(metadata) == links
    assert dict(warc.warc_fields(metadata))["via"] == "http://www.example.com/"
    assert dict(warc.warc_fields(metadata))["hopsFromSeed"] == "L"


def test_the_records_of_a_fetch_name_each_other_and_the_server() -> None:
    """WARC-Concurrent-To, -IP-Address, -Protocol; every id is a new one."""
    found = make_records(fetch(1, protocols=("http/1.1", "tls/1.3")))
    response = found[0]
    assert [record.kind for record in found] == ["response", "request", "metadata"]
    assert [record.get("WARC-Concurrent-To") for record in found[1:]] == [response.id] * 2
    assert response.all("WARC-Protocol") == ["http/1.1", "tls/1.3"]
    assert response.get("WARC-IP-Address") == "192.0.2.1"
    ids = {record.id for _ in range(50) for record in make_records(fetch(1))}
    assert len(ids) == 150
    assert make_records(fetch(1, request=b"", via="", hops="", links=()))[1:] == []


def test_a_digest_that_is_known_is_not_computed_again() -> None:
    """The log has it already; that of a revisit's body is the original's."""
    known = fetch(1, digest="sha1:KNOWN")
    assert make_records(known)[0].get("WARC-Payload-Digest") == "sha1:KNOWN"
    again = replace(known, original=RefersTo("http://a.test/", NOW, "sha1:ABC"))
    assert make_records(again)[0].all("WARC-Payload-Digest") == ["sha1:ABC"]


def test_ids_are_random_uuids() -> None:
    """Of version 4 (RFC 9562 §5.4), whatever they are cut from, and none comes twice."""
    found = list(islice(warc.record_ids(3), 100))
    assert len(set(found)) == 100
    for id in found:
        parsed = uuid.UUID(id.removeprefix("<").removesuffix(">"))
        assert (parsed.version, parsed.variant) == (4, uuid.RFC_4122)
        assert parsed.urn == id[1:-1]


def test_a_revisit_names_the_record_that_has_the_page() -> None:
    """And has its digest, and no body."""
    original = RefersTo("http://a.test/", NOW, "sha1:ABC")
    record = make_records(fetch(5, original=original))[0]
    assert record.kind == "revisit"
    assert record.get("WARC-Profile") == warc.IDENTICAL
    assert record.get("WARC-Refers-To-Target-URI") == "http://a.test/"
    assert record.get("WARC-Refers-To-Date") == warc.warc_date(NOW)
    assert record.get("WARC-Payload-Digest") == "sha1:ABC"
    assert record.block == fetch(5).head


@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf, -5.0, 1e18, 0.0])
def test_a_bad_time_is_a_date_all_the_same(time: float) -> None:
    """A clock that is wrong must not lose the page."""
    record = make_records(fetch(1, time=time))[0]
    assert record.time is not None
    assert len(list(warcio_records(record.to_bytes()))) == 1


@pytest.mark.parametrize("text", ["", "2026", "2026-13-01T00:00:00Z", "0000-00-00T00:00:00Z",
                                  "2026-01-01T00:00:00", "٢٠٢٦-01-01T00:00:00Z"])  # fmt: skip
def test_a_bad_date_is_none(text: str) -> None:
    """In a record of whoever wrote it."""
    assert warc.parse_date(text) is None
    assert warc.parse_date("2026-01-01T00:00:00.1Z") == datetime(2026, 1, 1, 0, 0, 0, 100_000, UTC)


@pytest.mark.parametrize("change", [
    (b"WARC/1.1", b"WARX/1.1"), (b"Content-Length: ", b"Content-Lengti: "),
    (b"Content-Length: ", b"Content-Length: -"), (b"Content-Length: ", b"Content-Length: 9"),
    (b"WARC-Type", b"Content-Length: 3\r\nWARC-Type"),
])  # fmt: skip
def test_damaged_records_are_refused(change: tuple[bytes, bytes]) -> None:
    """Lengths that are none, are two, or lead elsewhere."""
    data = make_records(fetch(1))[0].to_bytes().replace(*change, 1)
    with pytest.raises(PackDamagedError):
        parse_record(data)


def test_a_url_that_is_too_long_is_refused() -> None:
    """Rather than a record written that cannot be read."""
    longest = f"http://a.test/{'x' * 60_000}"
    response = make_records(fetch(1, url=longest))[0]
    assert parse_record(response.to_bytes())[0].url == longest
    with pytest.raises(ValueError, match=r"a\.test"):
        make_records(fetch(1, url=longest * 2))


def test_warcinfo_says_who_crawls() -> None:
    """Empty fields are left out."""
    crawl = CrawlInfo(name="news", software="suite/1", contact="a@b", operator="A\r\nrobots: x",
                  settings_digest="sha1:X")  # fmt: skip
    record, _ = parse_record(warcinfo(crawl, "f.warc.gz", NOW))
    found = dict(warc.warc_fields(record))
    assert found["isPartOf"] == "news"
    assert found["operator"] == "A  robots: x"
    assert found["robots"] == "classic"
    assert found["settings-digest"] == "sha1:X"
    assert "hostname" not in found
    assert record.get("WARC-Filename") == "f.warc.gz"


def test_gzip_of_a_record_is_what_gzip_reads() -> None:
    """The body of a compressed page decompresses to what was compressed."""
    stored = http_records.split_message(make_records(gzipped(3))[0].block)[1]
    assert gzip.decompress(stored) == body(3)
