"""Sitemaps from bytes: the protocol's examples, what sites make of it, and what attackers do."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest

from scrapy_spider_suite.urls import sitemaps
from scrapy_spider_suite.urls.sitemaps import BadSitemap, SitemapEntry, parse_w3c_date, read_sitemap

SPACE = "http://www.sitemaps.org/schemas/sitemap/0.9"
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))


def urlset(entries: str, root: str = "urlset", space: str = f' xmlns="{SPACE}"') -> bytes:
    """A sitemap with *entries*."""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{root}{space}>{entries}</{root}>'.encode()


def page(url: str, lastmod: int | None = None) -> SitemapEntry:
    """A page in a sitemap."""
    return SitemapEntry(url, lastmod, False)


def test_the_example_of_the_protocol() -> None:
    """Locations with what is known of them, entities of XML undone."""
    body = urlset(
        "<url><loc>http://www.example.com/</loc><lastmod>2005-01-01</lastmod>"
        "<changefreq>monthly</changefreq><priority>0.8</priority></url>\n"
        "<url><loc>\n http://www.example.com/catalog?item=73&amp;desc=vacation </loc>"
        "<lastmod>2004-12-23T18:00:15+00:00</lastmod></url>"
    )
    assert [*read_sitemap(body)] == [
        page("http://www.example.com/", 1104537600),
        page("http://www.example.com/catalog?item=73&desc=vacation", 1103824815),
    ]


def test_an_index() -> None:
    """Names sitemaps, and says so."""
    body = urlset("<sitemap><loc>http://a.t/1.xml.gz</loc></sitemap>", "sitemapindex")
    assert [*read_sitemap(body)] == [SitemapEntry("http://a.t/1.xml.gz", None, True)]


@pytest.mark.parametrize("space", ["", ' xmlns="http://www.google.com/schemas/sitemap/0.84"'])
def test_what_sites_write(space: str) -> None:
    """No namespace, or an old one; pictures and languages, whose locations are no pages."""
    other = "http://www.google.com/schemas/sitemap-image/1.1"
    entry = (
        f'<url><image:image xmlns:image="{other}"><image:loc>http://a.t/i.png</image:loc>'
        "</image:image><loc>http://a.t/1</loc></url>"
    )
    assert [*read_sitemap(urlset(entry, space=space))] == [page("http://a.t/1")]


def test_gzip_text_and_other_encodings() -> None:
    """By what the bytes are, not by their name; a file of several members is one."""
    body = urlset("<url><loc>http://a.t/1</loc></url>")
    assert [*read_sitemap(gzip.compress(body))] == [page("http://a.t/1")]
    members = gzip.compress(body[:60]) + gzip.compress(body[60:])
    assert [*read_sitemap(members)] == [page("http://a.t/1")]
    wide = body.decode().replace("UTF-8", "UTF-16").encode("utf-16")
    assert [*read_sitemap(wide)] == [page("http://a.t/1")]
    text = b"\xef\xbb\xbfhttp://a.t/1\r\n\r\n# no URL\nhttps://a.t/\xff\nhttp://a.t/"
    assert [*read_sitemap(text + b"x" * 9_999)] == [page("http://a.t/1"), page("https://a.t/�")]


def test_what_is_broken_counts_as_far_as_it_goes() -> None:
    """A bare ampersand, a file that is cut, an element that never ends."""
    bare = urlset("<url><loc>http://a.t/?a=1&b=2&amp;c&#61;3</loc></url>")
    assert [*read_sitemap(bare)] == [page("http://a.t/?a=1&b=2&c=3")]
    body = urlset("".join(f"<url><loc>http://a.t/{n}</loc></url>" for n in range(100)))
    assert len([*read_sitemap(body[:-1_000])]) > 60
    packed = gzip.compress(body)
    assert len([*read_sitemap(packed[: len(packed) * 2 // 3])]) > 10
    with pytest.raises(BadSitemap, match="no gzip file"):
        list(read_sitemap(gzip.compress(b"x" * 10)[:5]))


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", b"<", b"<html><body>No such page</body></html>", b"not here\n", b"\x1f\x8bnot",
     b"<!DOCTYPE html><url>", urlset(""), urlset("<url><loc></loc></url><loc>http://a.t/</loc>"),
     urlset(f"<url><loc>http://a.t/{'x' * 3_000}</loc></url>")],
)  # fmt: skip
def test_what_is_no_sitemap(body: bytes) -> None:
    """Says so, and nothing worse: most of these are error pages with status 200."""
    with pytest.raises(BadSitemap):
        list(read_sitemap(body))


def read_until_bad(body: bytes) -> tuple[list[SitemapEntry], str]:
    """The entries of *body*, and what is wrong with it."""
    found, entries = [], read_sitemap(body)
    while True:
        try:
            found.append(next(entries))
        except BadSitemap as error:
            return found, str(error)


def test_no_more_entries_than_the_protocol_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones count."""
    monkeypatch.setattr(sitemaps, "URLS_MAX", 5)
    found, wrong = read_until_bad(b"".join(b"http://a.t/%d\n" % n for n in range(9)))
    assert len(found) == 5
    assert wrong == "more than 5 entries"


def test_no_more_bytes_than_the_protocol_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small file that unpacks to a large one, too, of which little is ever in memory."""
    body = urlset("<url><loc>http://a.t/1</loc></url>" + " " * (8 << 20))
    packed = gzip.compress(body)
    assert len(packed) < 20_000
    monkeypatch.setattr(sitemaps, "BYTES_MAX", 1 << 20)
    tracemalloc.start()
    found, wrong = read_until_bad(packed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [page("http://a.t/1")]
    assert wrong == "more than 1 MB"
    assert peak < 5 << 20


BOMBS = {
    "laughs": f'<!DOCTYPE u [<!ENTITY l0 "ha">{LAUGHS}]><u><url><loc>http://a.t/&l9;</loc></url></u>',
    "attribute": f'<!DOCTYPE u [<!ENTITY l0 "ha">{LAUGHS}]><u><url a="&l9;"><loc>x</loc></url></u>',
    "quadratic": f'<!DOCTYPE u [<!ENTITY x "{"x" * 100_000}">]><u>{"&x;" * 10_000}</u>',
    "file": '<!DOCTYPE u [<!ENTITY f SYSTEM "file:///etc/passwd">]><u><url><loc>&f;</loc></url></u>',
    "parameter": '<!DOCTYPE u [<!ENTITY % p SYSTEM "http://127.0.0.1:9/d"> %p;]><u/>',
    "deep": "<a>" * 1_000_000,
    "wide": "<u><url>" + "<a/>" * 1_000_000,
    "attributes": "<u><url " + " ".join(f'a{n}=""' for n in range(100_000)) + "/></u>",
    "long": "<u><url><loc>" + "x" * (20 << 20) + "</loc></url></u>",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_bombs(bomb: str) -> None:
    """Nothing is expanded, fetched or piled up, and nothing comes of it."""
    for body in (bomb.encode(), bomb.encode("utf-16")):
        with pytest.raises(BadSitemap):
            list(read_sitemap(body))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2005", 1104537600), ("2005-01", 1104537600), (" 2005-01-01\n", 1104537600),
     ("2005-01-01T00:00Z", 1104537600), ("2005-01-01T01:00:00.5+01:00", 1104537600),
     ("2005-13", None), ("0001-01-01", None), ("9999-12-31", None), ("yesterday", None),
     ("", None), ("2005-01-01T00:00:00" + "Z" * 999, None), ("20050101", 1104537600)],
)  # fmt: skip
def test_times(text: str, expected: int | None) -> None:
    """Every form of the W3C's, and what is none."""
    assert parse_w3c_date(text) == expected


def test_ampersands_that_are_right() -> None:
    """In CDATA sections, ended or not, and in two bytes a character; bare ones beside them."""
    entries = (
        "<url><loc><![CDATA[http://a.t/?a=1&b=2]]></loc></url>"
        "<url><loc>http://a.t/?c=3&d=4</loc></url>"
    )
    expected = [page("http://a.t/?a=1&b=2"), page("http://a.t/?c=3&d=4")]
    assert [*read_sitemap(urlset(entries))] == expected
    cut = urlset(entries) + b"<![CDATA[" * 1_000_000 + b"&"
    assert [*read_sitemap(cut)] == expected
    wide = urlset("<url><loc>http://a.t/?a=1&amp;b=2</loc></url>").decode()
    assert [*read_sitemap(wide.replace("UTF-8", "UTF-16").encode("utf-16"))] == expected[:1]


def test_a_gzip_file_of_empty_members() -> None:
    """Each costs a piece of the file, not all of it, and there are no more than so many."""
    body, empty = urlset("<url><loc>http://a.t/1</loc></url>"), gzip.compress(b"")
    assert [*read_sitemap(empty * 500 + gzip.compress(body))] == [page("http://a.t/1")]
    with pytest.raises(BadSitemap, match="no gzip file"):
        list(read_sitemap(empty * 500_000 + gzip.compress(body)))
