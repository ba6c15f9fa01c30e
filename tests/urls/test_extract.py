"""Links in bulk: what counts as one, what a page says of itself, and how much a page can cost."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import lxml.html  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor

from scrapy_spider_suite.urls.extract import ElementCounts, PageContext, PageLinks, extract
from scrapy_spider_suite.urls.normalize import LinkResolver, normalize

URL = "http://a.example/x/page.html"
HERE = "http://a.example/x/"
PAGES = Path(__file__).parent.parent / "data" / "pages"


def read(html: str, **options: object) -> PageLinks:
    """Extract from *html*, found at `URL`."""
    return extract(html.encode(), PageContext(URL, encoding="utf-8", **options))  # type: ignore[arg-type]


def test_sources_in_document_order() -> None:
    """Every kind of element that links, in any case, each link once."""
    page = read(
        "<meta http-equiv=Refresh content='9; URL=r'><a href=a><AREA HREF=b><Frame Src=c>"
        "<iframe src='d'></iframe><img src=no><link rel=next href=no><a href=b><a name=no>"
    )
    assert page.links == [HERE + name for name in "rabcd"]
    assert page.refresh == HERE + "r"
    assert page.counts == ElementCounts(found=6, duplicate=1)
    assert not page.truncated


def test_what_is_dropped_is_counted() -> None:
    """Each reason for which an element adds no link has its count."""
    page = read(
        f"<a href=mailto:x><a href='http://['><a href={'a' * 50}><a href={'b' * 400}>"
        "<a href=c rel='Foo NOFOLLOW'><a rel=nofollow href=d><area rel=nofollow href=e>"
        '<a href="f" rel="nofollow"><a class="x" href="g" rel="no&#102;ollow"><a href=h rel=x>'
        '<a href="i" data-rel="nofollow">',
        max_url_length=50,
    )
    assert page.links == [HERE + "h", HERE + "i"]
    assert page.counts == ElementCounts(found=11, not_http=1, malformed=1, too_long=2, nofollow=5)


def test_empty_and_fragment_links() -> None:
    """They lead to the page itself."""
    assert read('<a href=""><a href><a href="#x">').links == [URL]


@pytest.mark.parametrize("encoding", [None, "utf-8"])
def test_empty_page(encoding: str | None) -> None:
    """No bytes, no links."""
    page = extract(b"", PageContext(URL, encoding=encoding))
    assert page == PageLinks([], None, False, False, URL, None, False, ElementCounts())


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("<base href=/b/>", "http://a.example/b/"),
        ("<base target=_top><BASE HREF='b/'>", HERE + "b/"),
        ("<base href=//b.example><base href=/c/>", "http://b.example/"),
        ("<base href='http://['><base href=/c/>", HERE),
        ("<base href=ftp://b.example/>", HERE),
        ("<base href=javascript:x>", HERE),
        ("<base href=''>", HERE),
    ],
)
def test_base(base: str, expected: str) -> None:
    """The first base with an href counts, for the links before it too, if it can be used."""
    after = read(f"{base}<link rel=canonical href=c><a href=y>")
    before = read(f"<a href=y><link rel=canonical href=c>{base}")
    assert after.links == before.links == [expected + "y"]
    assert after.canonical == before.canonical == expected + "c"
    for page in (after, before):
        assert LinkResolver(page.base).resolve("y") == expected + "y"
    assert after.counts == before.counts


def test_page_that_is_not_on_the_web() -> None:
    """Of a page without an http URL the absolute links are found."""
    page = extract(b"<a href=/x><a href=http://b.example>", PageContext("file:///tmp/x.html"))
    assert page.links == ["http://b.example/"]
    assert page.base == ""


@pytest.mark.parametrize(
    ("html", "canonical"),
    [
        ("<link rel=canonical href=/c>", "http://a.example/c"),
        ("<LINK HREF='/c' REL='alternate Canonical'>", "http://a.example/c"),
        ("<link rel=canonical href=/c><link rel=canonical href=/d>", "http://a.example/c"),
        ("<link rel=canonical><link rel=canonical href=/d>", "http://a.example/d"),
        ("<link rel=canonicals href=/c>", None),
        ("<link rel=canonical href=mailto:x>", None),
        ("<a rel=canonical href=/c>", None),
    ],
)
def test_canonical(html: str, canonical: str | None) -> None:
    """The first usable canonical link, of which nothing is added to the links."""
    page = read(html)
    assert page.canonical == canonical
    assert page.links == (["http://a.example/c"] if html.startswith("<a") else [])


def test_refresh() -> None:
    """The first refresh that leads somewhere; one that only reloads is none."""
    assert read("<meta http-equiv=refresh content=5>").refresh is None
    assert read("<meta http-equiv=refresh content='5; url=mailto:x'>").refresh is None
    page = read(
        "<META content='0;url=/a?x=1&amp;y' HTTP-EQUIV=REFRESH>"
        "<meta http-equiv=refresh content='0;/b'>"
    )
    assert page.refresh == "http://a.example/a?x=1&y"
    assert page.links == [page.refresh]


@pytest.mark.parametrize(
    ("html", "header", "noindex", "nofollow"),
    [
        ("<meta name=robots content=nofollow>", [], False, True),
        ("<META CONTENT='NOINDEX' NAME=' ROBOTS '>", [], True, False),
        ("<meta name=Robots content=none>", [], True, True),
        ("<meta name=suite content=nofollow>", [], False, True),
        ("<meta name=robots content=noindex><meta name=SUITE content=nofollow>", [], True, True),
        ("<meta name=googlebot content=none>", [], False, False),
        ("<meta name=description content=none>", [], False, False),
        ("", ["noindex"], True, False),
        ("", ["Suite: nofollow", "other: noindex"], False, True),
        ("<meta name=robots content=noindex>", ["nofollow"], True, True),
    ],
)
def test_robots(html: str, header: list[str], noindex: bool, nofollow: bool) -> None:
    """Rules for everyone and for this robot, of page and header, add up; the links are told."""
    page = read(html + "<a href=y>", x_robots_tag=header, robot="Suite")
    assert (page.noindex, page.nofollow) == (noindex, nofollow)
    assert page.links == [HERE + "y"]


def test_robots_without_a_name() -> None:
    """Rules for a robot by name are not for one that has none."""
    page = read("<meta name='' content=none>", x_robots_tag=["suite: none"])
    assert (page.noindex, page.nofollow) == (False, False)


def test_at_most_max_links() -> None:
    """Reading stops at the last link that is allowed, and says so."""
    html = "".join(f"<a href={number}>" for number in range(100))
    page = read(html, max_links=10)
    assert page.links == [f"{HERE}{number}" for number in range(10)]
    assert page.truncated
    assert not read(html, max_links=101).truncated
    assert read("<a href=x>" * 100, max_links=10).counts.found == 40


def expected_links(body: bytes, url: str, encoding: str) -> list[str]:
    """The links of *body* by lxml's tree and the plain rules, one element at a time."""
    parser = lxml.html.HTMLParser(encoding=encoding)
    tree = lxml.html.document_fromstring(body, parser=parser)
    base = tree.xpath("//base/@href")
    resolver = LinkResolver(base[0] if base else url)
    found = []
    for node in tree.iter("a", "area", "frame", "iframe", "meta"):
        reference = node.get("src" if "frame" in node.tag else "href")
        if node.get("http-equiv", "").lower() == "refresh":
            reference = node.get("content").partition("=")[2].strip("'")
        if reference is not None and "nofollow" not in node.get("rel", ""):
            found.append(resolver.resolve(reference))
    return list(dict.fromkeys(link for link in found if isinstance(link, str)))


@pytest.mark.parametrize(
    ("name", "encoding", "count"),
    [("manual.html", "utf-8", 16), ("frames.html", "utf-8", 3), ("cyrillic.html", "cp1251", 3)],
)
def test_against_lxml(name: str, encoding: str, count: int) -> None:
    """The links of whole pages are those of another parser's tree, in the same order."""
    body = (PAGES / name).read_bytes()
    links = extract(body, PageContext(URL)).links
    # lxml knows nothing of queries in the encoding of their page.
    assert [link.partition("?")[0] for link in links] == [
        link.partition("?")[0] for link in expected_links(body, URL, encoding)
    ]
    assert len(links) == count
    assert not [link for link in links if "in-" in link]


@pytest.mark.parametrize("name", ["manual.html", "cyrillic.html"])
def test_against_the_link_extractor(name: str) -> None:
    """The links of a and area are those of Scrapy's extractor, but for nofollow, normalised."""
    body = (PAGES / name).read_bytes()
    response = HtmlResponse(URL, body=body)
    found = LinkExtractor(deny_extensions=[]).extract_links(response)
    expected = {normalize(link.url) for link in found if not link.nofollow} - {None}
    links = extract(body, PageContext(URL)).links
    assert {link for link in links if not link.endswith("/frame.html")} == expected


@settings(deadline=None)
@given(st.binary())
def test_any_bytes(body: bytes) -> None:
    """No bytes make it raise, as a page, in a tag, or as values."""
    for page in (body, b"<a href=" + body, b'<a href="' + body + b'"><meta content=' + body):
        extract(page, PageContext(URL))
        extract(page, PageContext(URL, content_type=body, encoding=None))


@settings(deadline=None)
@given(st.text(), st.text(), st.text())
def test_any_text(url: str, href: str, header: str) -> None:
    """No URL, reference or header makes it raise."""
    body = f'<base href="{href}"><a href="{href}">'.encode("utf-8", "surrogatepass")
    extract(body, PageContext(url, content_type=header, x_robots_tag=[header], robot=header))


HOSTILE = {
    "links": b"<a href=/1>x</a>" * 65_000,
    "long links": (b'<a href="' + b"x" * 100_000 + b'">') * 10,
    "escaped links": (b'<a href="' + b"%" * 8000 + b'">') * 130,
    "references": (b'<a href="' + b"&amp;&#65" * 900 + b'">') * 130,
    "climbing links": (b'<a href="' + b"../" * 2700 + b'">') * 130,
    "names": (b'<a href="http://' + "é.".encode() * 2700 + b'/">') * 130,
    "accents": b"".join(
        b'<a href="http://a%b/%d">' % ("\u0301\u0316".encode() * 2050, n) for n in range(480)
    ),
    "dots": (b'<a href="http://a' + b"." * 8000 + b'/">') * 130,
    "nested": b"<div>" * 200_000,
    "formatting": b"<p>" + b"".join(b"<b id=%d>" % n for n in range(50_000)) + b"</p><p>x" * 50_000,
    "attributes": b"<a " + b"".join(b"a%d=1 " % number for number in range(100_000)) + b">",
    "unclosed": b'<a href="x ' * 90_000,
    "unclosed single": b"<a class='x\" " * 80_000,
    "unclosed tags": b"<a x=y " * 150_000,
    "blanks": b"<a" + b" " * 1_000_000,
    "slashes": (b"<a " + b"/" * 60_000 + b">") * 16,
    "slashes after a name": (b"<a x= " + b" /" * 30_000 + b">") * 16,
    "slashes in odd quotes": (b'<a x /= "' + b"/" * 60_000 + b'>">') * 16,
    "comments": b"<!-- " * 200_000,
    "dashes": b"<!--" + b"-" * 1_000_000,
    "scripts": b"<script><!--" * 90_000,
    "brackets": b"<" * 1_000_000,
    "nul": b"\0" * 1_000_000,
    "refresh": b"<meta http-equiv=refresh content='" + b"0" * 8000 + b"'>" * 130,
    "late base": b"<a href=/1>x</a>" * 65_000 + b"<base href=/b>",
    "wide": b"\xff\xfe" + b"<a href=x>" * 100_000,
    "escapes": b"<meta charset=iso-2022-jp>" + b"\x1b$B" * 330_000,
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_hostile_pages(body: bytes) -> None:
    """A megabyte of anything takes bounded time and memory, however it is built.

    The limit is far above what is measured (half a second at most), and far below what quadratic
    time takes.
    """
    began = time.process_time()
    page = extract(body, PageContext(URL))
    assert time.process_time() - began < 4
    assert len(page.links) <= 10_000


def test_memory() -> None:
    """Reading a page of many links takes memory for the links that are kept, not for all."""
    body = b"".join(b"<a href=/%d>x</a>" % number for number in range(100_000))
    tracemalloc.start()
    try:
        page = extract(body, PageContext(URL, max_links=1000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(page.links) == 1000
    assert peak < 500_000
