"""Pages as a Parquet table in Common Crawl's schema (github.com/commoncrawl/cc-index-table), and
their text.

The columns up to ``subset`` are Common Crawl's; offsets have 64 bits. In a grouped pack offset and
length are of the group; the record is ``warc_record_size`` bytes from ``warc_record_start`` on.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from tldextract import TLDExtract
from tldextract.tldextract import ExtractResult

from scrapy_spider_suite.analysis.page_text import extract_text
from scrapy_spider_suite.errors import PackError
from scrapy_spider_suite.packs.cdxj import is_robots, line_key
from scrapy_spider_suite.packs.export import ExportResult, bodies
from scrapy_spider_suite.packs.reader import Packs, Page, Selection
from scrapy_spider_suite.runtime import files
from scrapy_spider_suite.urls.hosts import host_of_any

ROWS: Final = 10_000
BYTES: Final = 32 << 20
"""Limits of a group of rows: rows, characters of text."""

_LAST_PARTS = (
    "url_host_tld", "url_host_2nd_last_part", "url_host_3rd_last_part", "url_host_4th_last_part",
    "url_host_5th_last_part",
)  # fmt: skip
_COLUMNS = (
    "url_surtkey", "url", "url_host_name", *_LAST_PARTS, "url_host_registry_suffix",
    "url_host_registered_domain", "url_host_private_suffix", "url_host_private_domain",
    "url_host_name_reversed", "url_protocol", "url_port", "url_path", "url_query", "fetch_time",
    "fetch_status", "fetch_redirect", "content_digest", "content_mime_type",
    "content_mime_detected", "content_charset", "content_languages", "content_truncated",
    "warc_record_id", "warc_filename", "warc_record_offset", "warc_record_length", "warc_segment",
    "crawl", "subset", "warc_record_start", "warc_record_size", "title", "language", "text",
)  # fmt: skip
_TYPES = {
    "url_port": pa.int32(), "fetch_status": pa.int16(), "warc_record_id": pa.binary(),
    "fetch_time": pa.timestamp("ms"),  # in UTC; with a zone DuckDB's users would need pytz
    "warc_record_offset": pa.int64(), "warc_record_length": pa.int64(),
    "warc_record_start": pa.int64(), "warc_record_size": pa.int64(),
}  # fmt: skip
SCHEMA: Final = pa.schema([(name, _TYPES.get(name, pa.string())) for name in _COLUMNS])

# The list of suffixes that came with the package; nothing is fetched.
_split = TLDExtract(suffix_list_urls=(), cache_dir=None)
_PACK = re.compile(r"(.+)-\d{14}-\d{5,}-(.+)\.warc\.\w+")
_UUID = re.compile(r"<urn:uuid:([0-9a-fA-F-]{36})>")


def export_parquet(
    packs: Packs, selection: Selection, target: Path, progress: Callable[[int], object]
) -> ExportResult:
    """Write the selected pages to *target*. Raises `PackError` (it exists) and `OSError`."""
    if target.exists():
        raise PackError(f"it is there already: {target}")
    done = ExportResult(files=[target])
    rows: list[dict[str, Any]] = []
    size = 0
    with (
        files.replacing_file(target) as new,
        pq.ParquetWriter(new, SCHEMA, compression="zstd") as writer,
    ):
        for page, body in bodies(packs, selection, done):
            rows.append(row_of(page, body))
            size += len(rows[-1]["text"] or "")
            done.pages += 1
            progress(1)
            if len(rows) >= ROWS or size >= BYTES:
                writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
                rows, size = [], 0
        writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
    return done


def row_of(page: Page, body: bytes) -> dict[str, Any]:
    """Return the row of *page*; unknown values are None, as in Common Crawl's."""
    said = extract_text(body, page.head.get("Content-Type"))
    pack = _PACK.fullmatch(page.path.name)
    found = _UUID.fullmatch(page.record.id)
    subset = "warc" if page.status == 200 else "crawldiagnostics"
    if is_robots(page.url):
        subset = "robotstxt"
    row = {
        **_url(page.url),
        "fetch_time": page.time and page.time.replace(tzinfo=None),
        "fetch_status": page.status,
        "fetch_redirect": page.head.get("Location") if 300 <= page.status < 400 else None,
        "content_digest": page.digest.removeprefix("sha1:"),
        "content_mime_type": page.mime,
        "content_mime_detected": said.mime,
        "content_charset": said.charset,
        "content_languages": said.languages,
        "content_truncated": page.record.get("WARC-Truncated"),
        "warc_record_id": uuid.UUID(found[1]).bytes if found else None,
        "warc_filename": page.path.name, "warc_record_offset": page.place.offset,
        "warc_record_length": page.place.length, "warc_segment": pack[2] if pack else "",
        "crawl": pack[1] if pack else "", "subset": subset, "warc_record_start": page.place.start,
        "warc_record_size": page.place.size, "title": said.title, "language": said.language,
        "text": said.text,
    }  # fmt: skip
    # Nothing is None where there may be none; what every row has stays "".
    return {name: None if value == "" and name not in _ALWAYS else value
            for name, value in row.items()}  # fmt: skip


_ALWAYS: Final = frozenset({"url_surtkey", "url", "url_host_name", "url_protocol", "url_path",
                            "warc_segment", "crawl"})  # fmt: skip


def _url(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # it was fetched all the same
        parts, port = urlsplit(""), None
    return {
        "url_surtkey": line_key(url), "url": url, **_host(host_of_any(url)),
        "url_protocol": parts.scheme, "url_port": port, "url_path": parts.path,
        "url_query": parts.query,
    }  # fmt: skip


@lru_cache(maxsize=16_384)
def _host(host: str) -> dict[str, str]:
    is_address = ":" in host or host.replace(".", "").isdigit()
    labels = [] if not host or is_address else host.split(".")[::-1]
    row = {"url_host_name": host, **dict(zip(_LAST_PARTS, labels, strict=False))}
    if labels:
        public = _split(host, include_psl_private_domains=False)
        private = _split(host, include_psl_private_domains=True)
        row |= {
            "url_host_registry_suffix": public.suffix,
            "url_host_registered_domain": _registered(public),
            "url_host_private_suffix": private.suffix,
            "url_host_private_domain": _registered(private),
            "url_host_name_reversed": ".".join(labels),
        }
    return row


def _registered(parts: ExtractResult) -> str:
    return f"{parts.domain}.{parts.suffix}" if parts.domain and parts.suffix else ""
