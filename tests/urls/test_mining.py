"""Tarantula's own examples (§1, §5.1), and what they leave open."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.urls.normalize import normalize
from scrapy_spider_suite.urls.traps import ancestors, guess_folder, siblings

H = "http://www.example.com"


def test_ancestors_of_the_paper() -> None:
    """Figure 3: from one URL two that were not seen before; and §1's folder of a page."""
    assert ancestors(f"{H}/video/clips/") == [f"{H}/video/", f"{H}/"]
    assert ancestors(f"{H}/pics/page1.html") == [f"{H}/pics/", f"{H}/"]


def test_siblings_of_the_paper() -> None:
    """§5.1: ``pics1/Page1.html`` may have ``pics1/Page2.html`` and ``pics2/Page1.html``."""
    assert siblings(f"{H}/pics1/Page1.html") == [f"{H}/pics1/Page2.html", f"{H}/pics2/Page1.html"]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/", []),
        ("/a?x=/b/c/", ["/"]),
        ("/a/b?x=1", ["/a/", "/"]),
        ("//", ["/"]),
        ("/a//b", ["/a//", "/a/", "/"]),
    ],
)
def test_ancestors(path: str, found: list[str]) -> None:
    """The query is left out, and empty segments are segments."""
    assert ancestors(H + path) == [H + each for each in found]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/p7", ["/p8", "/p6"]),
        ("/p10", ["/p11", "/p9"]),
        ("/p007", ["/p008", "/p006"]),
        ("/p099", ["/p100", "/p098"]),
        ("/p9?x=1", []),
        ("/a%20b%2F", []),
        ("/id1234567/", []),
        ("/1/2/3/4", ["/1/2/3/5", "/1/2/3/3", "/1/2/4/4", "/1/2/2/4", "/1/3/3/4", "/1/1/3/4"]),
    ],
)
def test_siblings(path: str, found: list[str]) -> None:
    """Zeros in front stay, escapes and ids are no numbers, and the last three are enough."""
    assert siblings(H + path) == [H + each for each in found]


def test_the_host_has_no_siblings() -> None:
    """Nor has its port."""
    assert siblings("http://www2.example.com:8080/") == []
    assert ancestors("http://www2.example.com:8080/a") == ["http://www2.example.com:8080/"]


def test_misses_are_told_by_folder_and_kind() -> None:
    """A page that is not there says nothing about folders, nor about pages elsewhere."""
    assert guess_folder(f"{H}/pics2/Page1.html") == guess_folder(f"{H}/pics7/Page3.html")
    assert guess_folder(f"{H}/pics2/Page1.html") != guess_folder(f"{H}/Page1.html")
    assert guess_folder(f"{H}/a/b/") != guess_folder(f"{H}/a/b")


@settings(max_examples=60, deadline=None)
@given(st.text("ab01%20/.-?=", max_size=24))
def test_what_is_mined_is_normal_and_something_else(path: str) -> None:
    """From a normal URL come normal URLs of its host."""
    url = normalize(f"{H}/{path}")
    if url is None:
        return
    for each in ancestors(url) + siblings(url):
        assert normalize(each) == each
        assert each != url
        assert each.startswith(f"{H}/")
