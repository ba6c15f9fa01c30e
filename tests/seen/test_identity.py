"""Ids: slots as everywhere else, hosts together, every str told from every other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seen_contract import some_urls

from scrapy_spider_suite.frontier.entries import host_key
from scrapy_spider_suite.seen.segments import UrlIds, decode, encode, host_bytes
from scrapy_spider_suite.urls.normalize import host_of


@pytest.mark.parametrize(
    "url",
    ["http://a.t/", "https://a.t/x/y", "http://a.t:8080/", "http://[::1]/", "http://[::1]:81/a:b"],
)
def test_the_slot_is_that_of_the_host(url: str) -> None:
    """The unit of assignment and hand-over, whatever scheme, port and path."""
    slot = int.from_bytes(host_key(host_of(url))[:2], "big")
    for _ in range(2):  # from memory, too
        assert UrlIds(5).hash_id(url.encode()) >> 48 == slot
    assert host_bytes(url.encode()) == host_of(url).encode()


@settings(max_examples=50)
@given(st.lists(some_urls(), min_size=1, max_size=20), st.integers(0, 30))
def test_ids_do_not_depend_on_what_came_before(urls: list[str], cut: int) -> None:
    """Hosts that are remembered change nothing; URLs with a prefix have ids within its span."""
    known = UrlIds(5)
    for url in urls:
        key = encode(url)
        assert decode(key) == url
        assert known.hash_id(key) == UrlIds(5).hash_id(key)
        low, high = UrlIds.span(key[:cut])
        assert low <= known.hash_id(key) < high


def test_a_seed_of_its_own() -> None:
    """Nobody outside can know which URLs have the same id; their slot is the same."""
    one, other = UrlIds(1).hash_id(b"http://a.t/"), UrlIds(2).hash_id(b"http://a.t/")
    assert one != other
    assert one >> 48 == other >> 48
