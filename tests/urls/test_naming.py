"""A name is found however the text around it is written, and what only looks like it is not."""

from __future__ import annotations

import json
import string
from urllib.parse import quote

import pytest

from scrapy_spider_suite.urls.hosts import host_mentions, url_mentions

HOST = "example.com"
URL = "https://example.com/a?b=c&d=%20e"
SPELLINGS = {
    "plain": str,
    "json": json.dumps,
    "query": lambda text: quote(text, safe=""),
    "query twice": lambda text: quote(quote(text, safe=""), safe=""),
    "slashes": lambda text: json.dumps(text).replace("/", "\\/"),
    "units": lambda text: "".join(c if c.isalnum() or c in "-._" else f"\\u{ord(c):04X}"
                                  for c in text),
    "codes": lambda text: "".join(c if c.isalnum() or c in "-._" else f"\\x{ord(c):02x}"
                                  for c in text),
}  # fmt: skip
PART = string.ascii_letters + string.digits + "-_"


def found(pattern: str, text: str) -> bool:
    """Whether a host or a URL is found in *text*."""
    made = url_mentions(pattern) if "://" in pattern else host_mentions(pattern)
    return made.search(text.encode()) is not None


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_neighbour(spelling: str) -> None:
    """Any ASCII character ends a name that cannot be part of one, however it is spelled."""
    spelled = SPELLINGS[spelling]
    for sign in map(chr, range(128)):
        assert found(HOST, spelled(f"x{sign}{HOST} y")) == (sign not in PART + "."), sign
        assert found(f"*.{HOST}", spelled(f"x{sign}{HOST} y")) == (sign not in PART), sign
        assert found(HOST, spelled(f"x {HOST}{sign} y")) == (sign not in PART), sign
        assert not found(HOST, spelled(f"x{sign}my{HOST}{sign}y"))
        assert not found(HOST, spelled(f"x{sign}{HOST}.y{sign}"))


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("url", [URL, "https://example.com/a", "http://example.com:8080/a_b/"])
def test_a_url(spelling: str, url: str) -> None:
    """That one, at the end of a sentence too, and none that begins with it."""
    spelled = SPELLINGS[spelling]
    for behind in ("", ".", ". And", '"', "\n", " b", ",", ")", "<", "..."):
        assert found(url, spelled(f'see "{url}{behind}')), behind
    for behind in ("b", "/b", "?b", ".html", "%20", "-b", "=b", "é"):
        assert found(url, spelled(f'see "{url}{behind}"')) == (behind == "é" and spelling in (
            "plain", "json", "slashes", "units", "codes")), behind  # fmt: skip


@pytest.mark.parametrize("text", [
    '{"t": "Contact:\\nexample.com"}', '{"t": "\\texample.com"}',
    "/?u=https%3A%2F%2Fexample.com%2F", "http%253A%252F%252fEXAMPLE.com",
    "https:\\u002F\\u002Fexample.com", "\\u201cexample.com\\u201d",
])  # fmt: skip
def test_hosts_that_were_missed(text: str) -> None:
    """Names behind escapes."""
    assert found(HOST, text)


@pytest.mark.parametrize("text", [
    "see https://example.com/a.", "?u=https://example.com/a&v=1",
    "?u=https%3A%2F%2Fexample.com%2Fa&v=1",
    '{"u":"https:\\/\\/example.com\\/a"}', "%22https%3A%2F%2Fexample.com%2Fa%22%7D",
])  # fmt: skip
def test_urls_that_were_missed(text: str) -> None:
    """In a sentence, in a script, in another URL."""
    assert found("https://example.com/a", text)


def test_a_url_in_markup() -> None:
    """Where ``&`` is ``&amp;``; one more parameter makes another URL."""
    assert found(URL, f'<a href="{URL.replace("&", "&amp;")}">')
    assert not found(URL, f'<a href="{URL}&f=1">')


def test_backwards() -> None:
    """As in keys: below it, if these are meant."""
    assert host_mentions(HOST, "com.example").search(b"\0com.example\0")
    assert not host_mentions(HOST, "com.example").search(b"\0com.example.www\0")
    assert host_mentions(f"*.{HOST}", "com.example").search(b"\0com.example.www\0")
    assert not host_mentions(f"*.{HOST}", "com.example").search(b"\0com.examples\0")
