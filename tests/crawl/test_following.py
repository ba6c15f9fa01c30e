"""Links of a page: whom its robots directives address."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scrapy import Request, Spider
from scrapy.http import HtmlResponse
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.links import LinkFollower, product_token, read_links
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.fetch.exchange import Exchange
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.settings.suite import SuiteSettings


@pytest.fixture
def settings() -> Iterator[SuiteSettings]:
    """Those of a crawl as mybot."""
    agent = "Mozilla/5.0 (compatible; mybot/1.0; +https://example.org/bot)"
    crawler = get_crawler(Spider, {"SUITE_PROFILE": "broad", "USER_AGENT": agent})
    crawl = get_crawl(crawler)
    yield crawl.settings
    crawl.close_job()


@pytest.mark.parametrize(
    ("agent", "product"),
    [
        ("mybot/1.0 (+https://example.org/bot)", "mybot"),
        ("My-Bot_2 me@example.org", "My-Bot_2"),
        ("Mozilla/5.0 (compatible; mybot/1.0; +https://example.org)", "mybot"),
        ("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36", ""),
        ("", ""),
        ("(nobody)", ""),
    ],
)
def test_the_product_token_of_a_user_agent(agent: str, product: str) -> None:
    """The name by which robots.txt and pages address a robot."""
    assert product_token(agent) == product


@pytest.mark.parametrize(
    ("meta", "header", "nofollow"),
    [
        ("robots", "", True),
        ("MyBot", "", True),
        ("otherbot", "", False),
        ("", "mybot: nofollow", True),
        ("", "otherbot: nofollow", False),
    ],
)
def test_pages_may_address_us_by_name(
    settings: SuiteSettings, meta: str, header: str, nofollow: bool
) -> None:
    """All robots, or this one; what is said to others is not heard."""
    body = f'<meta name="{meta}" content="nofollow"><a href="/x">x</a>'
    headers = {"X-Robots-Tag": header} if header else {}
    response = HtmlResponse("http://a.test/", body=body.encode(), headers=headers)
    answer = Exchange.of_handler(response.url, "GET", response)
    page, edges = read_links(answer, settings)
    assert page.nofollow is nofollow
    assert page.links == ["http://a.test/x"]
    assert edges == ()  # nobody packs it


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [("http://a.test/x/", 2), ("http://a.test/", 2)]),
        ({"SUITE_FOLLOW_FILTER": "false"}, []),
        ({"SUITE_SCHEDULE_FILTER": "HopsBeyondScopeLessThan(2)"}, []),
        (
            {"SUITE_SCHEDULE_FILTER": "HopsBeyondScopeLessThan(3)"},
            [("http://a.test/x/", 2), ("http://a.test/", 2)],
        ),
    ],
)
def test_what_is_mined_is_asked_about_like_links(
    settings: dict[str, str], expected: list[tuple[str, int]]
) -> None:
    """By the follow filter, too, and as far beyond the scope as a link there would be."""
    broad = {"SUITE_PROFILE": "broad", "SUITE_GUESS_URLS": "ancestors"}
    crawler = get_crawler(Spider, broad | settings)
    crawl = get_crawl(crawler)
    crawl.filters.use_scope(["in.test"])
    request = Request("http://a.test/x/y")
    fetch = crawl.fetches[request] = Fetch(Entry("a.test", request.url, hops_outside=1), None)
    response = HtmlResponse(request.url, body=b"<p>", request=request)
    page = Exchange.of_handler(response.url, "GET", response)
    LinkFollower(crawl, Spider("name"), None, None).follow(fetch, page)
    assert [(entry.url, entry.hops_outside) for entry in fetch.children] == expected
    crawl.close_job()


@pytest.mark.parametrize("beyond", [0, 1])
def test_what_is_fetched_once_more_is_out_of_the_scope_as_before(beyond: int) -> None:
    """Its row does not say how far out it was: that is one hop at least, and no link gains one."""
    settings = {"SUITE_PROFILE": "broad", "SUITE_SCHEDULE_FILTER": "HopsBeyondScopeLessThan(3)"}
    crawl = get_crawl(get_crawler(Spider, settings))
    crawl.filters.use_scope(["in.test"])
    request = Request("http://a.test/x/y")
    fetch = crawl.fetches[request] = Fetch(Entry("a.test", request.url, hops_outside=beyond), None)
    response = HtmlResponse(request.url, body=b"<a href=http://far.test/>", request=request)
    page = Exchange.of_handler(response.url, "GET", response)
    LinkFollower(crawl, Spider("name"), None, None).follow(fetch, page)
    found = [(entry.url, entry.hops_outside) for entry in fetch.children]
    assert found == [("http://far.test/", 2)]
    crawl.close_job()
