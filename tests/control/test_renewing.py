"""URLs that come with an action, and patterns of them."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_spider_suite.control.actions import Action
from scrapy_spider_suite.control.folder import ActionFolder
from scrapy_spider_suite.control.renewing import matches, parse_pattern
from scrapy_spider_suite.control.site import Site
from scrapy_spider_suite.control.verbs import VERBS
from scrapy_spider_suite.errors import ActionError
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.seeds.lines import LONGEST
from scrapy_spider_suite.storage.frontier import Frontier
from scrapy_spider_suite.storage.rocks import RocksStore


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A job that knows no URL yet."""
    store = RocksStore(tmp_path / "store")
    yield Site(tmp_path, store, Frontier(store, Policy(), now=0.0, wall=0.0, capacity=10))
    store.close()


def carried_out(site: Site, verb: str) -> dict[str, Any]:
    """The facts of the answer."""
    work = VERBS[verb](site, Action("1", verb, {}, "job", "me", 0.0))
    assert isinstance(work, Generator)
    while True:
        try:
            next(work)
        except StopIteration as end:
            _, facts = end.value
            return dict(facts)


@pytest.mark.parametrize("verb", ["add", "refetch"])
def test_urls_out_of_the_job_are_not_read(site: Site, verb: str, tmp_path: Path) -> None:
    """Neither what a link leads to nor what a pipe would bring some day."""
    path = ActionFolder(site.folder).urls_of("1")
    path.parent.mkdir()
    (tmp_path / "secret").write_text("http://a.test/\n")
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(ActionError, match="cannot be read"):
        carried_out(site, verb)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ActionError, match="cannot be read: it is no file"):
        carried_out(site, verb)


def test_a_line_without_end_is_read_in_pieces(site: Site) -> None:
    """What follows it is found all the same."""
    path = ActionFolder(site.folder).urls_of("1")
    path.parent.mkdir()
    path.write_text("http://a.test/b\n")
    assert carried_out(site, "add")["new"] == 1
    path.write_bytes(b"x" * (LONGEST * 3 - 1) + b"\nhttp://a.test/b\n")
    assert carried_out(site, "refetch") == {"urls": 0, "unknown": 3, "pending_already": 1}


def naive(text: str, pattern: str) -> bool:
    """Try everything that a star may stand for."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(naive(text[n:], pattern[1:]) for n in range(len(text) + 1))
    return text[:1] == pattern[0] and naive(text[1:], pattern[1:])


@given(st.text("ab", max_size=8), st.text("ab*", max_size=6))
@example("aba", "ab*ba")
@example("ab", "*a*b*")
def test_patterns_match_as_if_everything_was_tried(text: str, pattern: str) -> None:
    """With any number of stars."""
    assert matches(text, pattern.split("*")) is naive(text, pattern)


def test_many_stars_are_no_trap() -> None:
    """A regular expression would not be done with this one in the life of the crawl."""
    _, wanted = parse_pattern("http://a.test/" + "*a" * 30 + "*b")
    assert not wanted("http://a.test/" + "a" * 2000)
    assert wanted("http://a.test/" + "a" * 2000 + "b")
    assert parse_pattern("http://A.test/x?*=1")[1]("http://a.test/x?y=1")
