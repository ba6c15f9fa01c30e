"""Digests: what they ignore, what they tell apart, and that no page is slow."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.analysis.duplicates import Original, Originals
from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.store.interface import MemoryKV
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.urls import page_digests
from scrapy_spider_suite.urls.page_digests import sha1_of, structural_digest, warc_digest

PAGE = (
    b'<html><head><style>p {x:1}</style><script src="a.js">var a = 1;</script></head>'
    b'<body class="x">Intro<p id="1">On 24 May, 17 people</p><!-- note --> came.'
    b'<iframe src="/one"></iframe></body></html>'
)


def test_the_payload_digest_is_warcs() -> None:
    """That of nothing is in every archive; the example of WARC 1.1 §5.8 has its form."""
    assert warc_digest(sha1_of(b"")) == "sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b' class="x"', b' class="y" id=z'),
        (b"24 May, 17 people", b"7\n May, 1800  people"),
        (b"var a = 1;", b"other()"),
        (b"p {x:1}", b""),
        (b"<p id", b"<P id"),
        (b"a.js", b"b.js"),
    ],
)
def test_what_does_not_count(old: bytes, new: bytes) -> None:
    """Attributes, numbers, white space, scripts, styles (BUbiNG's 4.8), and case."""
    assert structural_digest(PAGE.replace(old, new)) == structural_digest(PAGE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"people", b"persons"),
        (b"came.", b"went."),
        (b"Intro", b"Outro"),
        (b"<p id", b"<div id"),
        (b"/one", b"/two"),
        (b"</p>", b""),
    ],
)
def test_what_counts(old: bytes, new: bytes) -> None:
    """Text, tags, what a frame shows."""
    changed = PAGE.replace(old, new)
    assert changed != PAGE
    assert structural_digest(changed) != structural_digest(PAGE)


def test_hosts() -> None:
    """A host's own pages compare, unless it is left out."""
    assert structural_digest(PAGE, "a.test") != structural_digest(PAGE, "b.test")
    assert structural_digest(b"", "a.test") == b""


def test_of_a_giant_the_rest_counts_byte_by_byte() -> None:
    """What is behind 256 KiB is not taken apart, and nothing there is overlooked."""
    head = PAGE + b"<p>word</p>" * 24_000
    one, same = (
        structural_digest(head.replace(b"17 people", b"%d people" % n) + b"<p id=a>1</p>")
        for n in (18, 19)
    )
    assert one == same
    for rest in (b"<p id=a>2</p>", b"<p id=b>1</p>", b""):
        assert structural_digest(head.replace(b"17", b"18") + rest) != one


@pytest.mark.parametrize("piece", [b"<a b=c>text 1 ", b"<", b"<iframe src="])
def test_a_giant_costs_no_more_than_its_head(
    piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first 256 KiB are all that the expressions are given."""
    given: list[int] = []

    class Watched:
        def __init__(self, pattern: re.Pattern[bytes]) -> None:
            self._pattern = pattern

        def sub(self, new: bytes, body: bytes) -> bytes:
            given.append(len(body))
            return self._pattern.sub(new, body)

        def findall(self, body: bytes) -> list[bytes]:
            given.append(len(body))
            return self._pattern.findall(body)

    for name in ("_TEXT_OF_SCRIPTS", "_FRAMES"):
        monkeypatch.setattr(page_digests, name, Watched(getattr(page_digests, name)))
    structural_digest(piece * ((8 << 20) // len(piece)))
    assert given == [1 << 18] * 2


@given(st.binary(max_size=300))
def test_any_bytes_have_one(body: bytes) -> None:
    """And the same ones the same."""
    assert structural_digest(body) == structural_digest(bytes(bytearray(body)))
    assert len(structural_digest(body)) == (16 if body else 0)


@pytest.mark.parametrize(
    "piece", [b"<", b"<a", b"<script", b"<style ", b"<iframe src", b"<iframe src=", b"<a b", b"</"]
)
def test_no_page_is_slow(piece: bytes) -> None:
    """Linear in the page: eight times the page takes no more than thirty times as long."""
    small, large = (piece * (size // len(piece)) for size in (1 << 15, 1 << 18))
    structural_digest(small)

    def seconds(body: bytes) -> float:
        began = time.thread_time()
        structural_digest(body)
        return time.thread_time() - began

    assert min(seconds(large) for _ in range(2)) < 0.02 + 30 * max(
        seconds(small) for _ in range(3)
    )


def test_originals(tmp_path: Path) -> None:
    """The first page with a digest is one, once its batch is written; then it stays."""
    store = RocksStore(tmp_path / "db")
    table = Originals(store.kv("payloads"))
    digest = sha1_of(PAGE)
    first, second = Original("http://a.test/", 1.5), Original("http://b.test/", 2.5)
    assert table.find(digest) is None
    table.add_original(digest, first)
    store.flush()
    table.add_original(digest, second)
    other = sha1_of(b"lost")
    table.add_original(other, second)
    store._release()  # as a kill leaves it
    again = RocksStore(tmp_path / "db")
    table = Originals(again.kv("payloads"))
    assert table.find(digest) == first
    assert table.find(other) is None
    table.replace(digest, second)
    assert table.find(digest) == second
    assert table.for_host("b.test", b"", 10) == ([digest], b"")
    assert table.for_host("a.test", b"", 10) == table.for_host("b.test", digest, 10) == ([], b"")
    table.forget(digest)
    assert table.find(digest) is None
    again.close()


def test_pages_that_say_nothing_are_no_duplicates() -> None:
    """They have no digest, and no row."""
    rows = MemoryKV()
    table = Originals(rows)
    table.add_original(b"", Original("http://a.test/", 1.0))
    assert table.find(b"") is None
    assert len(rows) == 0


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x92\x01\xa1x", b"\x92\xa1x\xa1x", b"\xc1"])
def test_a_damaged_row_is_named(data: bytes) -> None:
    """It is no original."""
    rows = MemoryKV()
    rows.put(b"digest", data)
    with pytest.raises(JobDamagedError, match=re.escape("digests")):
        Originals(rows).find(b"digest")
    with pytest.raises(JobDamagedError, match=re.escape("digests")):
        Originals(rows).for_host("a.test", b"", 10)
