"""The format of the fetch log: what goes out comes in, and nothing can forge a line."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.fetch.fetch_log import (
    CUT,
    FIELDS,
    HEAD,
    LINE_MAX,
    URL_MAX,
    Fetch,
    read,
    stamp,
    write,
)

PAGE = Fetch(
    1_795_287_839.123, 200, 5_120, 87, "http://a.test/x?y=1", "http://a.test/", 3, "text/html",
    "3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ", "192.0.2.7", "success",
)  # fmt: skip

# Whatever a URL or a header may hold: line breaks, spaces, NUL, lone surrogates.
anything = st.text(st.characters(), max_size=80)
numbers = st.integers(-5, 1 << 70)
fetches = st.builds(
    Fetch,
    time=st.floats(-1e12, 1e12),
    status=st.none() | numbers, bytes=numbers, ms=numbers, url=anything, via=anything,
    depth=st.none() | numbers, type=anything, digest=anything, address=anything, reason=anything,
    remarks=st.lists(anything, max_size=12).map(tuple),
)  # fmt: skip
tokens = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=60).filter(
    lambda text: text != "-"
)
counts = st.integers(0, 1 << 40)
plain_fetches = st.builds(
    Fetch,
    time=st.integers(0, 253_402_300_799_000).map(lambda ms: ms / 1_000),
    status=st.none() | st.integers(0, 999), bytes=counts, ms=counts, url=tokens, via=tokens,
    depth=st.none() | counts, type=tokens, digest=tokens, address=tokens, reason=tokens,
    remarks=st.lists(tokens.filter(lambda t: t and "," not in t), max_size=8).map(tuple),
)  # fmt: skip


def test_a_line() -> None:
    """As the documentation shows it."""
    assert write(PAGE) == (
        b"2026-11-21T19:03:59.123Z 200 5120 87 http://a.test/x?y=1 http://a.test/ 3 text/html "
        b"3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ 192.0.2.7 success\n"
    )
    failed = Fetch(0.0, None, 0, 60_000, "http://b.test/robots.txt", reason="timeout",
                   remarks=("robots", "POST"))  # fmt: skip
    assert write(failed) == (
        b"1970-01-01T00:00:00.000Z - 0 60000 http://b.test/robots.txt - - - - - timeout "
        b"robots,POST\n"
    )


@given(plain_fetches)
def test_what_goes_out_comes_in(fetch: Fetch) -> None:
    """Field by field, where nothing had to be escaped."""
    back = read(write(fetch))
    assert back._replace(time=0.0) == fetch._replace(time=0.0)
    assert stamp(back.time) == stamp(fetch.time)


@given(fetches)
def test_one_line_whatever_it_holds(fetch: Fetch) -> None:
    """Visible ASCII, as many fields as there are, none empty, bounded, stable when read."""
    line = write(fetch)
    assert re.fullmatch(rb"[\x21-\x7e]+( [\x21-\x7e]+){10,11}\n", line)
    assert len(line) <= LINE_MAX
    assert write(read(line)) == line


@given(st.text(min_size=10, max_size=20), st.text(max_size=20))
def test_long_urls_are_cut_and_say_so(url: str, via: str) -> None:
    """However much longer they get by escaping."""
    line = write(PAGE._replace(url=url * (URL_MAX // 9), via=via * 200, remarks=("robots",)))
    assert len(line) <= LINE_MAX
    back = read(line)
    assert back.remarks == (CUT, "robots")
    assert len(back.url) == URL_MAX
    assert write(back) == line


def test_a_line_as_long_as_it_can_be() -> None:
    """Every field at its limit."""
    huge = "é" * 10_000
    longest = Fetch(1e12, 1 << 70, 1 << 70, 1 << 70, huge, huge, 1 << 70, *[huge] * 4, (huge,) * 99)
    assert LINE_MAX * 0.9 < len(write(longest)) <= LINE_MAX


def test_a_forged_line_stays_one_field() -> None:
    """A URL and a media type that try to end the line and begin another."""
    forged = PAGE._replace(url="http://a.test/\n" + write(PAGE).decode(), type="a/b c\r\nd -")
    fields = write(forged).split(b" ")
    assert len(fields) == 11
    assert fields[4].startswith(b"http://a.test/%0A2026-11-21T19:03:59.123Z%20200%20")
    assert fields[7] == b"a/b%20c%0D%0Ad%20-"


def test_a_value_that_looks_like_none() -> None:
    """Is told from it."""
    assert read(write(PAGE._replace(type="-"))).type == "%2D"


@pytest.mark.parametrize(
    "line",
    [
        HEAD, b"", b"\n", write(PAGE)[:60], write(PAGE)[30:], write(PAGE).replace(b"200", b"2x0"),
        write(PAGE).replace(b"2026", b"x026"), write(PAGE).replace(b"-21T", b"-41T"),
        write(PAGE).replace(b" 3 ", b"  "), "2026 é".encode(),
    ],
)  # fmt: skip
def test_other_lines_are_refused(line: bytes) -> None:
    """Comments, torn lines, and what is something else."""
    with pytest.raises(ValueError):  # noqa: PT011 (each reader of a field words its own)
        read(line)


def test_the_head_names_the_fields() -> None:
    """In their order."""
    assert HEAD.decode().split(": ")[1].split() == list(FIELDS) == list(Fetch._fields)
