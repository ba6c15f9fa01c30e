"""Edges: what `extract` finds, and how each link links."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.urls.extract import (
    ELEMENTS_PER_LINK,
    PageContext,
    extract,
    extract_edges,
    link_texts,
)

URL = "http://a.test/dir/page.html"
PAGE = b"""<html><head><link rel="canonical" href="/dir/page">
<meta http-equiv="refresh" content="5; url=/moved"></head><body>
<a href="x">One</a> <a href="x#part">again</a> <a rel="nofollow" href="y">Two</a>
<a href="z" rel="nofollow">Three &amp; <b>more</b></a> <a href="z">followed</a>
<iframe src="x"></iframe> <area href="x"> <a href="mailto:me@a.test">no</a>
<a href="y" rel="NoFollow ugc">still</a></body></html>"""


def test_every_kind_of_edge() -> None:
    """Each once for each kind, in the order of the page."""
    _, edges = extract_edges(PAGE, PageContext(URL))
    assert edges == [
        ("http://a.test/moved", "refresh", False),
        ("http://a.test/dir/x", "a", False),
        ("http://a.test/dir/y", "a", True),
        ("http://a.test/dir/z", "a", False),
        ("http://a.test/dir/x", "frame", False),
        ("http://a.test/dir/x", "area", False),
        ("http://a.test/dir/page", "canonical", False),
    ]


def test_a_page_may_ask_it_of_all_its_links() -> None:
    """By a robots meta or header; its canonical name is no recommendation."""
    _, edges = extract_edges(PAGE, PageContext(URL, x_robots_tag=["nofollow"]))
    assert {(kind == "canonical", nofollow) for _, kind, nofollow in edges} == {
        (True, False), (False, True),
    }  # fmt: skip


def test_a_base_that_comes_late() -> None:
    """All edges are resolved against it."""
    body = b'<a rel=nofollow href=x></a><a href=y><base href="/b/">'
    _, edges = extract_edges(body, PageContext(URL))
    assert edges == [("http://a.test/b/x", "a", True), ("http://a.test/b/y", "a", False)]


pieces = st.lists(
    st.sampled_from([
        b'<a href="x">', b'<a href="x#y">', b"<a href=x rel=nofollow>", b"<iframe src=x>",
        b'<area href="y">', b'<base href="/b/">', b'<link rel=canonical href="/c">', b"<a href=",
        b"<meta name=robots content=nofollow>", b'<meta http-equiv=refresh content="0;x">', b"text",
        b'<a href="javascript:x">', b"<!-- <a href=z> -->", b"<script>", b"</script>", b"<a>",
    ]),
    max_size=25,
).map(b"".join)  # fmt: skip


@given(pieces, st.integers(1, 5))
def test_what_is_followed_is_what_extract_finds(body: bytes, most: int) -> None:
    """The same links and counts; each link has an edge, and each followed edge is a link."""
    found, edges = extract_edges(body, PageContext(URL, max_links=most))
    assert found == extract(body, PageContext(URL, max_links=most))
    links = [(to, nofollow) for to, kind, nofollow in edges if kind != "canonical"]
    assert set(found.links) <= {to for to, nofollow in links if nofollow <= found.nofollow}
    assert {to for to, nofollow in links if not nofollow} <= set(found.links)
    assert len(edges) <= ELEMENTS_PER_LINK * most + 1


@given(st.binary(max_size=200))
def test_any_bytes(body: bytes) -> None:
    """Nothing raises."""
    assert extract_edges(body, PageContext(URL))[0] == extract(body, PageContext(URL))
    assert all(link_texts(body))


def test_texts_of_links() -> None:
    """In the page's encoding, with references resolved, as far as the first tag."""
    assert link_texts(PAGE) == ["One", "again", "Two", "Three &", "followed", "no", "still"]
    assert link_texts("<a href=x>Größe</a>".encode("latin-1"), "iso-8859-1") == ["Größe"]


@pytest.mark.parametrize(
    "piece", [b"<a", b"<a ", b"<a x", b"<", b"<a>", b"<a rel=nofollow href=x>"]
)
def test_no_page_is_slow_by_its_edges(piece: bytes) -> None:
    """The work is bounded by elements; what a hostile page repeats is noted once."""
    body = piece * (40_000 // len(piece))
    found, edges = extract_edges(body, PageContext(URL))
    assert len(edges) <= 1
    assert len(link_texts(body)) == 0
    assert found == extract(body, PageContext(URL))


def test_many_different_links() -> None:
    """Nofollow ones are bounded as all elements are."""
    draw = random.Random(1)
    body = b"".join(b"<a rel=nofollow href=%d>" % draw.randrange(10**9) for _ in range(1000))
    assert len(extract_edges(body, PageContext(URL, max_links=50))[1]) == 50 * ELEMENTS_PER_LINK
