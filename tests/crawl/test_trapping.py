"""What pages teach of traps, and which URLs are made of theirs, whatever spelling they came in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from scrapy.http import HtmlResponse
from support.virtual_crawl import Crawl, Web

from scrapy_spider_suite.crawl.links import TrapFilter
from scrapy_spider_suite.crawl.queue.leases import Lease
from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.urls.traps import TrapLimits

BODY = b"<p>There is nothing here, and there has never been anything here.</p>"


@pytest.mark.parametrize(
    ("url", "mined"),
    [
        ("http://a.test", []),
        ("HTTP://A.test?x=1", []),
        ("http://A.test/b/../c/d", ["http://a.test/c/", "http://a.test/"]),
        ("data:,x", []),
    ],
)
def test_a_request_of_the_spider_as_it_was_spelt(url: str, mined: list[str]) -> None:
    """It need not have a path, nor be a URL of the web at all."""
    limits = TrapLimits(same=2, query=2, hosts=2, sessions=2, prefix=50, permuted=1)
    frontier = Crawl(MemoryStore(), Web({}), Policy(traps=limits)).frontier
    settings = SimpleNamespace(guess_urls="ancestors")
    its_crawl = SimpleNamespace(
        frontier=frontier, settings=settings, normalizer=SimpleNamespace(is_plain=True)
    )
    trapping = TrapFilter(cast("Any", its_crawl))
    lease = Lease(Entry("a.test", url, flags=Flag.USER), None)
    for _ in range(3):
        trapping.learn(lease, HtmlResponse(url, body=BODY), ["http://a.test/b"])
    trapping.mine(lease, lambda url, depth: depth == 1)
    assert [child.url for child in lease.children] == mined
    ground = frontier.trap_stats.get("a.test")
    assert (ground is None) is url.startswith("data:")
