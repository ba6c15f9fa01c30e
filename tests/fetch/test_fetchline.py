"""The format of the fetch log: what goes out comes in, and nothing can forge a line."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.fetch.fetch_log import (
    CUT,
    HEAD,
    LINE_MAX,
    URL_MAX,
    FetchLine,
    format_line,
    format_time,
    parse_line,
)

PAGE = FetchLine(
    1_795_287_839.123, 200, 5_120, 87, "http://a.test/x?y=1", "http://a.test/", 3, "text/html",
    "3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ", "192.0.2.7", "success",
)  # fmt: skip

# Whatever a URL or a header may hold: line breaks, spaces, NUL, lone surrogates.
anything = st.text(st.characters(), max_size=80)
numbers = st.integers(-5, 1 << 70)
fetches = st.builds(
    FetchLine,
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
    FetchLine,
    time=st.integers(0, 253_402_300_799_000).map(lambda ms: ms / 1_000),
    status=st.none() | st.integers(0, 999), bytes=counts, ms=counts, url=tokens, via=tokens,
    depth=st.none() | counts, type=tokens, digest=tokens, address=tokens, reason=tokens,
    remarks=st.lists(tokens.filter(lambda t: t and "," not in t), max_size=8).map(tuple),
)  # fmt: skip


def test_a_line() -> None:
    """As the documentation shows it."""
    assert format_line(*PAGE) == (
        b"2026-11-21T19:03:59.123Z 200 5120 87 http://a.test/x?y=1 http://a.test/ 3 text/html "
        b"3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ 192.0.2.7 success\n"
    )
    failed = FetchLine(0.0, None, 0, 60_000, "http://b.test/robots.txt", reason="timeout",
                   remarks=("robots", "POST"))  # fmt: skip
    assert format_line(*failed) == (
        b"1970-01-01T00:00:00.000Z - 0 60000 http://b.test/robots.txt - - - - - timeout "
        b"robots,POST\n"
    )


@given(plain_fetches)
def test_what_goes_out_comes_in(fetch: FetchLine) -> None:
    """Field by field, where nothing had to be escaped."""
    back = parse_line(format_line(*fetch))
    assert back._replace(time=0.0) == fetch._replace(time=0.0)
    assert format_time(back.time) == format_time(fetch.time)


@given(fetches)
def test_one_line_whatever_it_holds(fetch: FetchLine) -> None:
    """Visible ASCII, as many fields as there are, none empty, bounded, stable when read."""
    line = format_line(*fetch)
    assert re.fullmatch(rb"[\x21-\x7e]+( [\x21-\x7e]+){10,11}\n", line)
    assert len(line) <= LINE_MAX
    assert format_line(*parse_line(line)) == line


@given(st.text(min_size=10, max_size=20), st.text(max_size=20))
def test_long_urls_are_cut_and_say_so(url: str, via: str) -> None:
    """However much longer they get by escaping."""
    line = format_line(*PAGE._replace(url=url * (URL_MAX // 9), via=via * 200, remarks=("robots",)))
    assert len(line) <= LINE_MAX
    back = parse_line(line)
    assert back.remarks == (CUT, "robots")
    assert len(back.url) == URL_MAX
    assert format_line(*back) == line


def test_a_line_as_long_as_it_can_be() -> None:
    """Every field at its limit."""
    huge = "é" * 10_000
    longest = FetchLine(
        1e12, 1 << 70, 1 << 70, 1 << 70, huge, huge, 1 << 70, *[huge] * 4, (huge,) * 99
    )  # fmt: skip
    assert LINE_MAX * 0.9 < len(format_line(*longest)) <= LINE_MAX


def test_a_forged_line_stays_one_field() -> None:
    """A URL and a media type that try to end the line and begin another."""
    url = "http://a.test/\n" + format_line(*PAGE).decode()
    forged = PAGE._replace(url=url, type="a/b c\r\nd -")
    fields = format_line(*forged).split(b" ")
    assert len(fields) == 11
    assert fields[4].startswith(b"http://a.test/%0A2026-11-21T19:03:59.123Z%20200%20")
    assert fields[7] == b"a/b%20c%0D%0Ad%20-"


def test_a_value_that_looks_like_none() -> None:
    """Is told from it."""
    assert parse_line(format_line(*PAGE._replace(type="-"))).type == "%2D"


@pytest.mark.parametrize(
    "line",
    [
        HEAD, b"", b"\n", format_line(*PAGE)[:60], format_line(*PAGE)[30:],
        format_line(*PAGE).replace(b"200", b"2x0"),
        format_line(*PAGE).replace(b"2026", b"x026"), format_line(*PAGE).replace(b"-21T", b"-41T"),
        format_line(*PAGE).replace(b" 3 ", b"  "), "2026 é".encode(),
    ],
)  # fmt: skip
def test_other_lines_are_refused(line: bytes) -> None:
    """Comments, torn lines, and what is something else."""
    with pytest.raises(ValueError):  # noqa: PT011 (each reader of a field words its own)
        parse_line(line)


def test_the_head_names_the_fields() -> None:
    """In their order."""
    assert HEAD.decode().split(": ")[1].split() == list(FetchLine._fields)
