"""Refresh targets and robots rules, in every form in which pages write them."""

from __future__ import annotations

import time

import pytest

from scrapy_spider_suite.urls.extract import header_directives, parse_directives, refresh_target


@pytest.mark.parametrize(
    ("content", "target"),
    [
        ("5; url=/x", "/x"),
        ("0;URL=/x", "/x"),
        ("0, url = /x ", "/x"),
        ("0 url=/x", "/x"),
        ("5; Url='/x'", "/x"),
        ('5; url="/x"y', "/x"),
        ("5; url='/x", "/x"),
        ("5;/x", "/x"),
        ("5; '/x'", "/x"),
        ("5 ; , /x", ", /x"),
        (".5;url=/x", "/x"),
        ("1.5.2;url=/x", "/x"),
        ("\t5\n;\nurl\n=\n/x", "/x"),
        ("5;url", "url"),
        ("5;urls=/x", "urls=/x"),
        ("5", None),
        ("5;", None),
        ("5; ", None),
        ("5;url=", None),
        ("5;url=''", None),
        ("5x;url=/x", None),
        ("x;url=/x", None),
        ("-1;url=/x", None),
        ("url=/x", None),
        ("", None),
    ],
)
def test_refresh(content: str, target: str | None) -> None:
    """As the HTML standard parses it, in any case and with any quotes."""
    assert refresh_target(content) == target


@pytest.mark.parametrize("content", ["0" * 100_000, "0" + " " * 100_000, "0;url" + " " * 100_000])
def test_refresh_takes_linear_time(content: str) -> None:
    """Long contents are read once, not once for each of their characters."""
    began = time.process_time()
    refresh_target(content)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("content", "rules"),
    [
        ("noindex", (True, False)),
        ("NoFollow", (False, True)),
        ("noindex, nofollow", (True, True)),
        ("NOINDEX,NOFOLLOW,noarchive", (True, True)),
        ("noindex nofollow", (True, True)),
        (" none ", (True, True)),
        ("index, follow", (False, False)),
        ("all", (False, False)),
        ("nofollowing", (False, False)),
        ("", (False, False)),
    ],
)
def test_robots_meta(content: str, rules: tuple[bool, bool]) -> None:
    """Directives are whole words in any case; none is both."""
    assert parse_directives(content) == rules


@pytest.mark.parametrize(
    ("values", "rules"),
    [
        ([], (False, False)),
        (["noindex"], (True, False)),
        (["noarchive, NOFOLLOW"], (False, True)),
        (["noindex", "nofollow"], (True, True)),
        (["suite: nofollow"], (False, True)),
        (["Suite : none"], (True, True)),
        (["other: nofollow"], (False, False)),
        (["other: noindex, nofollow"], (False, False)),
        (["other: noindex, suite: nofollow"], (False, True)),
        (["noindex, other: nofollow"], (True, False)),
        (["other: noindex", "nofollow"], (False, True)),
        (["max-snippet: 5, noindex"], (True, False)),
        (["unavailable_after: Wed, 25 Jun 2031 15:00:00 GMT, nofollow"], (False, True)),
        ([":::,,,"], (False, False)),
    ],
)
def test_robots_header(values: list[str], rules: tuple[bool, bool]) -> None:
    """A robot's name holds for the directives after it; a directive with a colon is no name."""
    assert header_directives(values, "suite") == rules
