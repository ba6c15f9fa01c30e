"""``scrapy packs export --parquet``: queries for Common Crawl's index, by DuckDB."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from support.packs import CRAWL, fetch
from support.packs_command import Packs, write

from scrapy_spider_suite.analysis.page_text import TEXT_MIN, extract_text, sniff
from scrapy_spider_suite.packs import open_packs
from scrapy_spider_suite.packs.containers import RecordPlace
from scrapy_spider_suite.packs.pack_file import read_records

GERMAN = "Der Wanderer geht am Abend durch das Tal, und über den Bergen steht der Mond. " * 3
ENGLISH = "The traveller walks through the valley in the evening, and the moon is above. " * 3
PAGE = "<html><head><title> On\n{0} &amp; more </title></head><body><main><p>{1}</p></main></body>"


def page(number: int, url: str, content: str, mime: str = "text/html", status: str = "200 OK",
         more: str = "", charset: str = "utf-8") -> Any:  # fmt: skip
    """A page that came so."""
    body = content.encode(charset)
    head = f"HTTP/1.1 {status}\r\nContent-Type: {mime}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return fetch(number, body, url=url, head=head.encode())


@pytest.fixture(params=["lzo", "gz"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Packs of some sites."""
    write(
        tmp_path / "packs", request.param,
        page(1, "http://www.a.co.uk/en/?q=1", PAGE.format("moons", ENGLISH)),
        page(2, "https://blog.github.io:8443/de", PAGE.format("Mond", GERMAN),
             "text/html; charset=iso-8859-1", charset="latin-1"),
        page(3, "http://a.co.uk/robots.txt", "User-agent: *\nDisallow:\n", "text/plain"),
        page(4, "http://a.co.uk/old", "", status="301 Moved", more="Location: /new\r\n"),
        page(5, "http://192.0.2.7/x", "%PDF-1.7 x", "text/html"),
        page(6, "http://a.co.uk/lost", "no", "text/plain", status="404 Not Found"),
    )  # fmt: skip
    return tmp_path / "packs"


@pytest.fixture
def query(packs: Packs, folder: Path, tmp_path: Path) -> Any:
    """Ask the table."""
    target = tmp_path / "x.parquet"
    said = packs("export", folder, "--parquet", target, "--json")
    assert (said.code, said.rows[0]["pages"]) == (0, 6)
    assert packs("export", folder, "--parquet", target).code == 2
    connection = duckdb.connect()
    connection.execute(f"CREATE VIEW ccindex AS SELECT * FROM read_parquet('{target}')")
    yield lambda text: connection.execute(text).fetchall()
    connection.close()


def test_common_crawls_queries(query: Any, folder: Path) -> None:
    """Those of its examples, in short."""
    assert query(
        "SELECT COUNT(*) AS n, url_host_tld AS tld, COUNT(DISTINCT url_host_name),"
        " COUNT(DISTINCT url_host_registered_domain) FROM ccindex"
        f" WHERE crawl = '{CRAWL.name}' AND subset = 'warc' GROUP BY url_host_tld ORDER BY tld"
    ) == [(1, "io", 1, 1), (1, "uk", 1, 1), (1, None, 1, 0)]
    assert query(
        "SELECT fetch_status, COUNT(*) FROM ccindex WHERE subset = 'crawldiagnostics'"
        " GROUP BY fetch_status ORDER BY fetch_status"
    ) == [(301, 1), (404, 1)]
    assert query(
        "SELECT content_mime_detected, AVG(warc_record_length) > 0 FROM ccindex"
        " WHERE subset = 'warc' GROUP BY 1 ORDER BY COUNT(*) DESC, 1"
    ) == [("text/html", True), ("application/pdf", True)]
    assert query("SELECT url FROM ccindex WHERE subset = 'robotstxt'"
                 " AND fetch_time < TIMESTAMP '2027-01-01 00:00:00'") == [
        ("http://a.co.uk/robots.txt",)
    ]  # fmt: skip
    [(name, *place)] = query(
        "SELECT warc_filename, warc_record_offset, warc_record_length, warc_record_start,"
        " warc_record_size FROM ccindex WHERE content_languages LIKE '%deu%'"
    )
    assert read_records(folder / name, RecordPlace(*place))[0].url == "https://blog.github.io:8443/de"


def test_columns(query: Any) -> None:
    """Of a URL, and what a page says."""
    assert query(
        "SELECT url_surtkey, url_host_registry_suffix, url_host_registered_domain,"
        " url_host_private_suffix, url_host_private_domain, url_host_name_reversed, url_protocol,"
        " url_port, url_path, url_query FROM ccindex WHERE language = 'de'"
    ) == [("io,github,blog:8443)/de", "io", "github.io", "github.io", "blog.github.io",
           "io.github.blog", "https", 8443, "/de", None)]  # fmt: skip
    assert query(
        "SELECT title, language, trim(text), content_charset, url_query,"
        " octet_length(warc_record_id) FROM ccindex WHERE url LIKE '%/en/%'"
    ) == [("On moons & more", "en", ENGLISH.strip(), "UTF-8", "q=1", 16)]
    [(text,)] = query("SELECT text FROM ccindex WHERE language = 'de'")
    assert "über den Bergen" in text
    assert query("SELECT fetch_redirect, title, text FROM ccindex WHERE fetch_status = 301") == [
        ("/new", None, None)
    ]
    assert query("SELECT url_host_tld, url_host_registered_domain FROM ccindex"
                 " WHERE url_host_name = '192.0.2.7'") == [(None, None)]  # fmt: skip


def test_a_url_that_is_none(packs: Packs, tmp_path: Path) -> None:
    """It came from somewhere: its row has less, and costs the others nothing."""
    urls = ["http://[::1/robots.txt", "http://a.test:x/", "http://a.test/robots.txt"]
    write(tmp_path, "gz", *(page(number, url, ENGLISH) for number, url in enumerate(urls)))
    assert packs("export", tmp_path, "--parquet", tmp_path / "x.parquet").code == 0
    rows = duckdb.sql(f"SELECT url, subset FROM '{tmp_path}/x.parquet' ORDER BY 1").fetchall()
    assert rows == list(zip(sorted(urls), ("warc", "robotstxt", "warc"), strict=True))


def test_types_by_content() -> None:
    """The first bytes tell, else the header."""
    assert sniff(b"\xef\xbb\xbf <!-- x -->\n<!DOCTYPE HTML>", "text/plain") == "text/html"
    assert sniff(b"<?xml version='1.0'?>", "application/rss+xml") == "application/rss+xml"
    assert sniff(b"\x89PNG\r\n\x1a\n", "text/html") == "image/png"
    assert sniff(b"hello", "text/html") == "text/html"


def test_any_text() -> None:
    """Nothing that a page says stops the export."""
    for body in (b"", b"\xff\xfe\x00", b"<title>" * 1000, b"<p>" * 50_000, bytes(range(256)) * 10):
        assert extract_text(body, "text/html; charset=no-such").mime == "text/html"
    assert extract_text(b"<title>t</title>" + b"<div>" * 800_000, "text/html").text == ""
    assert extract_text(b"x" * (TEXT_MIN - 1), "text/plain").language == ""


def test_without_the_extra(packs: Packs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said what to install."""
    write(tmp_path, "gz", fetch(1))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "scrapy_spider_suite.analysis.parquet", raising=False)
    said = packs("export", tmp_path, "--parquet", tmp_path / "x.parquet")
    assert said.code == 2
    assert "scrapy-spider-suite[parquet]" in said.err
    assert len(list(open_packs(tmp_path))) == 1
