"""The scanner of tags, with lexbor's tree of the same bytes as the measure."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from scrapy_spider_suite.urls.extract import LINK, MAX_TAG, TAG, TAGS, attributes, unescape

# Pieces of which broken and whole markup is made, unlike text, in a few draws.
PIECES = st.sampled_from(
    [
        *("<", ">", '"', "'", "=", " ", "/", "\n", "\f", "\0", "a", "x", "é", "&amp;", "&copy"),
        *("<a ", "<a href=", '<a href="', "<A HREF='", ' href="x1"', " href='x2'", " href=x3"),
        *("href", "</a>", "<p>", "<div ", 'class="y"', ' title="<a href=z>"', "<img alt='"),
        *("<!--", "-->", "--!>", "<!-->", "<!", "<?", "</", "<![CDATA[", "]]>", "<br/>"),
        *("<style>", "</style>", "<textarea>", "</textarea>", "<title>", "</title>", "<xmp>"),
        *("<script>", "</script>", "</script >", "<area href=r1>", "<area ", "<abbr href=no>"),
        *("<base href=/b/>", "<base>", "<link rel=canonical href=/c>", "<meta name=robots>"),
        *("<a\thref=t1>", "<a/href=t2>", '<a href = "t3" >', '<a x=1 href="t4" y>'),
        *('<a class="q" href="t5" rel="n">', '<a href="t6" href="t7">', '<a b="q" HREF="t8">'),
        *("<a href='t9' c>", "<a d='>' href='t10'>", "<a e='q\" href=\"t11\">"),
    ]
)
SOUP = st.lists(PIECES, max_size=40).map("".join)
NAMES = ("a", "area", "base", "link", "meta")


def scanned(page: bytes) -> list[tuple[str, str]]:
    """The distinct linking tags with an ``href`` in *page*, as the scanner finds them."""
    found = []
    for match in TAGS.finditer(page):
        if match.lastindex == LINK:
            found.append(("a", match[1][1:-1]))
        elif match.lastindex == TAG and (href := attributes(match[5]).get(b"href")) is not None:
            found.append((match[4].lower().decode(), href))
    return list(dict.fromkeys((name, text(value)) for name, value in found))


def text(value: bytes) -> str:
    """The text of an attribute value."""
    return unescape(value.decode("utf-8", "replace").replace("\0", "\ufffd"))


def parsed(page: bytes) -> list[tuple[str, str]]:
    """The same, of the tree that lexbor makes of *page*."""
    nodes = LexborHTMLParser(page).css(",".join(NAMES))
    found = [(str(node.tag), node.attributes) for node in nodes]
    return list(dict.fromkeys((name, kept["href"] or "") for name, kept in found if "href" in kept))


@settings(deadline=None, max_examples=500)
@given(SOUP)
def test_same_tags_as_a_browser(page: str) -> None:
    """Whatever the markup, the linking tags are those of a tree built by the HTML standard."""
    if page.count("<script>") > 1 and "<!--" in page:
        return  # A script within a comment within a script: documented to end earlier.
    assert scanned(page.encode()) == parsed(page.encode())


@pytest.mark.parametrize(
    "page",
    [
        '<p title="<a href=no>"><a href=yes>',
        "<p title='>'><a href=yes>",
        "<p title=a'b><a href=yes><p title='c'>",
        "<p don't><a href=yes><p don't>",
        '<p ="x><a href=yes>',
        "<!-- <a href=no> --><a href=yes>",
        "<!--><a href=yes><!-- -->",
        "<!---><a href=yes><!-- -->",
        "<!-- --!><a href=yes>",
        "<! <a href=yes>",
        "<?php <a href=yes> ?>",
        "</ <a href=no><a href=yes>",
        "</p title='<a href=no>'><a href=yes>",
        "<![CDATA[ <a href=no> ]]><a href=yes>",
        "< a href=no><a href=yes>",
        "<a href=no",
        "<a href='no>",
        '<a href="no>',
        '<a href="no" title="',
        "<script>'<a href=no>'</scripty></script><a href=yes>",
        "<SCRIPT>'<a href=no>'</Script ><a href=yes>",
        "<script><!-- <a href=no></script><a href=yes> -->",
        "<style><a href=no></style ><a href=yes>",
        "<title><a href=no></title\n><a href=yes>",
        "<textarea><a href=no></textarea/><a href=yes>",
        "<xmp><a href=no></xmp><a href=yes>",
        "<script><a href=no>",
        "<plaintext></plaintext><a href=no>",
        "<abbr href=no><linker href=no><a href=yes>",
        "<a href>",
        "<a href=>",
        "<a href=''>",
        "<a hrefs=no xhref=no>",
        "<a href=a/b/>",
        "<a href='yes'href='no'>",
        '<a class="x" rel="y" href="yes">',
        '<a class="x" href="yes" href="no">',
        '<a href = \n "yes" >',
        "<A\fHREF=yes>",
        "<a/href=yes/>",
    ],
)
def test_as_a_browser_by_example(page: str) -> None:
    """The ways to write a tag, and the ways to hide one, by name."""
    found = scanned(page.encode())
    assert found == parsed(page.encode())
    assert "no" not in [href for _, href in found]


@pytest.mark.parametrize("name", ["noscript", "noframes", "noembed", "iframe", "template"])
def test_contents_for_simple_agents(name: str) -> None:
    """What is there for agents without scripts and frames is read, unlike in a browser's tree."""
    page = f"<{name}><a href=inside></{name}><a href=outside>".encode()
    assert scanned(page) == [("a", "inside"), ("a", "outside")]


@pytest.mark.parametrize("name", ["title", "style"])
def test_empty_elements_of_drawings(name: str) -> None:
    """A self-closed title or style, as in inline SVG, does not hide the rest of the page."""
    assert scanned(f"<svg><{name}/></svg><a href=yes>".encode()) == [("a", "yes")]


def test_first_attribute_wins() -> None:
    """Of two attributes of a name the first counts; names are read in any case."""
    assert attributes(b" HREF=a href=\"b\" Rel x='c d'") == {
        b"href": b"a",
        b"rel": b"",
        b"x": b"c d",
    }


def test_bounded_attributes() -> None:
    """A tag of any size costs no more than its first bytes."""
    raw = b"href=x " + b"".join(b"a%d=1 " % number for number in range(100_000))
    assert len(attributes(raw)) < MAX_TAG
    assert attributes(raw)[b"href"] == b"x"
    assert scanned(b"<p " + raw + b"><a " + raw + b">") == [("a", "x")]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ("a&amp;b", "a&b"),
        ("?a=1&copy=2", "?a=1&copy=2"),
        ("?a=1&copy;=2", "?a=1\xa9=2"),
        ("&copy", "\xa9"),
        ("&copy/", "\xa9/"),
        ("&copyx", "&copyx"),
        ("&notit;&notin;", "&notit;\u2209"),
        ("&amp;amp;", "&amp;"),
        ("&amp;=x", "&=x"),
        ("&#47;&#x2f;&#X2F&#47", "////"),
        ("&#0;&#xD800;&#x110000;", "\ufffd" * 3),
        ("&#128;", "\u20ac"),
        ("&#14;&#x7f;&#xFFFE;", "\x0e\x7f\ufffe"),
        ("&#" + "9" * 100_000 + ";", "\ufffd"),
        ("&#" + "0" * 100_000 + "47;", "/"),
        ("&#;&#x;&;&", "&#;&#x;&;&"),
        ("&nope;", "&nope;"),
    ],
)
def test_character_references(value: str, plain: str) -> None:
    """References in attributes, which differ from those in text before ``=`` and letters."""
    assert unescape(value) == plain
    if len(value) < 1000:
        node = LexborHTMLParser(f"<a title='{value}'>").css_first("a")
        assert node is not None
        assert node.attributes["title"] == plain
