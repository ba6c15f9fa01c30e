"""What pages teach of traps, and which URLs are made of theirs, whatever spelling they came in."""

from __future__ import annotations

import pytest
from scrapy import Spider
from scrapy.http import HtmlResponse
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.links import LinkFollower
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.fetch.exchange import Exchange
from scrapy_spider_suite.frontier.entries import Entry, Flag
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
    settings = {"SUITE_PROFILE": "broad", "SUITE_GUESS_URLS": "ancestors"}
    crawl = get_crawl(get_crawler(Spider, settings))
    crawl.frontier.policy.update(traps=limits)
    follower = LinkFollower(crawl, Spider("name"), None, None)
    fetch = Fetch(Entry("a.test", url, flags=Flag.USER), None)
    page = Exchange.of_handler(url, "GET", HtmlResponse(url, body=BODY))
    for _ in range(3):
        follower.learn_traps(fetch, page, ["http://a.test/b"])
    follower.guess_urls(fetch, page)
    assert [child.url for child in fetch.children] == mined
    ground = crawl.frontier.traps.stats.get("a.test")
    crawl.close_job()
    assert (ground is None) is url.startswith("data:")
