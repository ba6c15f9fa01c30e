"""Which pages say the same."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.urls.page_digests import (
    NEWS,
    RecentNumbers,
    content_hash,
    content_pieces,
    content_start,
)

HOST = "h.example"
TEXT = "There are no events on this day, but there may be some on another one."


def page(text: str = TEXT, head: str = "", more: str = "") -> bytes:
    """A page that says *text*."""
    return f"<html><head><title>A</title>{head}</head><p>{text}</p>{more}</html>".encode()


@pytest.mark.parametrize(
    "other",
    [
        page(f"7 {TEXT} 2031"),
        page(TEXT.replace(" ", "\n  ")),
        page(head="<script nonce=r4nd0m>let token = 'a1b2'</script><style>p {}</style>"),
        page(more="<a href=/other?sid=12ab></a>"),
        page().replace(b"<p>", b"<p class=x>"),
        page(f"{TEXT}{HOST}"),
    ],
)
def test_the_same(other: bytes) -> None:
    """Numbers, white space, mark-up, scripts and the host's own name do not count."""
    assert content_hash(other, HOST) == content_hash(page(), HOST)


@pytest.mark.parametrize(
    "other",
    [
        page(TEXT + " Or not."),
        page(more='<img src="/photo-1.jpg">'),
        page(more="<iframe src=/a></iframe>"),
        page(more='<IMG SRC = "/photo-1.jpg">'),
        page(more='<img srcset="/photo-1.jpg 2x, /photo-1b.jpg 3x">'),
        page(more="<video poster=/a.jpg></video>"),
        page(more='<object type="image/svg+xml" data="/a.svg"></object>'),
        b"",
    ],
)
def test_something_else(other: bytes) -> None:
    """Words count, and what is shown."""
    assert content_hash(other, HOST) != content_hash(page(), HOST)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from([
            "a", "word ", "9", "\n", HOST, "<b>", "<p class='x>'>", "<script>let x</script>", TEXT,
            "x" * 400, "<img src=/1.png>", "<scr",
        ]),
        max_size=60,
    ),
    st.lists(st.integers(0, 60), max_size=4),
)  # fmt: skip
def test_what_begins_otherwise_is_not_the_same(parts: list[str], places: list[int]) -> None:
    """Whatever mark-up, numbers and white space a page has more than another one."""
    more = list(parts)
    for at in places:
        more[at:at] = ["<b id=7>", "\n 7"]
    one, two = (b"<body>" + "".join(each).encode() for each in (parts, more))
    starts = {content_start(one, HOST), content_start(two, HOST)} - {0}
    assert len(starts) < 2 or content_hash(one, HOST) != content_hash(two, HOST)


def test_a_start_is_had_of_most_pages() -> None:
    """Unless it says little, or scripts come first."""
    start = content_start(page(TEXT * 2), HOST)
    assert start == content_start(page(f"{TEXT}\n 7 {TEXT}", more="<b>" * 5_000), HOST) != 0
    assert start == content_start(page(f"{TEXT * 2} Or not."), HOST)
    assert start != content_start(page(f"No. {TEXT * 2}"), HOST) != 0
    assert content_start(page("few"), HOST) == content_start(page(head="<style>"), HOST) == 0


def test_numbers_count_where_they_are_asked_for() -> None:
    """White space does not, even then."""
    seven = content_hash(page(f"7 {TEXT}"), HOST, numbers=True)
    assert seven != content_hash(page(f"8 {TEXT}"), HOST, numbers=True)
    assert seven == content_hash(page(f"7  {TEXT}\n"), HOST, numbers=True)


def test_pictures_without_words_are_different_pages() -> None:
    """A gallery whose pages differ by a number in the address of their picture."""
    for element in ('<img src="/{}.jpg">', "<IMG ALT=x SRC='/{}.jpg'>"):
        pictures = {content_hash(page(more=element.format(n)), HOST) for n in range(50)}
        assert len(pictures) == 50


def test_where_hardly_anything_is_said_only_equal_pages_are_the_same() -> None:
    """The shell of an application, or a list of links."""
    assert content_hash(b"<a href=/1>1</a>", HOST) != content_hash(b"<a href=/2>2</a>", HOST)
    assert content_hash(b"<a href=/1>1</a>", HOST) == content_hash(b"<a href=/1>1</a>", HOST)
    assert content_hash(b"", HOST) == content_hash(b" \n", HOST) == 0


@pytest.mark.parametrize(
    "part", [b"<script", b"<", b">", b"src=", b"<script>", b"<!--", b" src", b"<object data "]
)
def test_no_page_takes_long(part: bytes) -> None:
    """Linear in the page: of a quarter of a megabyte some milliseconds."""
    began = time.process_time()
    content_hash(part * (300_000 // len(part)), HOST)
    content_pieces(part * (300_000 // len(part)), HOST)
    assert time.process_time() - began < 1.0


def test_recent_numbers() -> None:
    """By whose they are; the table stays as large as it is."""
    recent = RecentNumbers(slots=64)
    assert not recent.meets("a", 1)
    assert recent.meets("a", 1)
    assert not recent.meets("b", 1)
    for number in range(10_000):
        recent.meets("c", number)
    assert sum(recent.meets("c", number) for number in range(10_000)) < 200


def test_pieces_that_are_put_together_anew() -> None:
    """Whatever their order, and whether a list or a sentence has them."""
    titles = ["A red chair", "Two green tables", "Three blue lamps"]
    whole = content_pieces(page(more="".join(f"<li>{each}</li>" for each in titles)), HOST).keys()
    for part in (f"<li>{titles[2]}", f"<p>{titles[1]}; {titles[0]}!</p>", f"<li>9 {titles[0]}"):
        assert content_pieces(page(more=part), HOST).keys() <= whole
    for new in ("<li>A pink chair</li>", "<img src=/1.jpg>", f"<p>{titles[0]} and {titles[1]}"):
        assert content_pieces(page(more=new), HOST).keys() - whole


def test_what_is_learnt() -> None:
    """How much of several numbers is new; all of them are known then."""
    recent = RecentNumbers(slots=1 << 10)
    assert not recent.knows("a", 1)
    assert recent.learns("a", {1: 10, 2: 5}) == 15
    assert recent.knows("a", 1)
    assert not recent.knows("b", 1)
    assert recent.learns("a", {2: 5, 1: 10}) == 0
    assert recent.learns("a", {1: 10, 3: 7}) == 7
    assert recent.learns("a", {}) == 0
    said = content_pieces(b"<p>Twelve letters 12</p><img src=/a.png>", HOST)
    assert sorted(said.values()) == [len("Twelveletters"), NEWS]
