"""Redirects that become rows of the frontier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Spider
from scrapy.exceptions import IgnoreRequest
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.crawl.requests import HOPS_MAX, LinkRedirects, redirect_target
from scrapy_spider_suite.exceptions import RedirectLoop, TooManyHops
from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.outcomes import Event

A, B = "http://a.example/", "http://b.example/"


class Handler(Spider):
    """A spider that wants to see 302 itself."""

    name = "handler"
    handle_httpstatus_list = (302,)


class Followed:
    """The redirects of a crawl, and the rows that they make."""

    def __init__(self, spider: type[Spider], settings: dict[str, Any]) -> None:
        self.crawler = get_crawler(spider, {"SUITE_PROFILE": "broad", **settings})
        self.crawler.spider = self.crawler._create_spider("x")
        self.crawl = get_crawl(self.crawler)
        self.rows: list[Entry] = []
        engine: Any = SimpleNamespace(enqueue_entry=lambda entry, fetch: self.rows.append(entry))
        self.crawl.engine = engine
        self._redirects = LinkRedirects(self.crawl)

    def follow(self, page: Entry, location: str | None, status: int = 302) -> Entry | None:
        """The row that *page* makes by its answer; None: it is no redirect."""
        self.rows.clear()
        fetch = Fetch(page, None)
        place = None if location is None else location.encode()
        if not self._redirects.follow(fetch, page.url, status, place):
            return None
        assert fetch.event is Event.REPLACED
        [row] = self.rows
        return row

    def counts(self) -> dict[str, int]:
        """What was counted, without the common prefix."""
        found = self.crawler.stats.get_stats()
        return {
            name.removeprefix("suite/redirect/"): found[name]
            for name in found if name.startswith("suite/redirect/")
        }  # fmt: skip


Make = Callable[..., Followed]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Followed] = []

    def new(spider: type[Spider] = Spider, **settings: Any) -> Followed:
        made.append(Followed(spider, settings))
        return made[-1]

    yield new
    for each in made:
        each.crawl.engine = None
        each.crawl.close_job()


def page(url: str = A, **facts: Any) -> Entry:
    return Entry(url.split("/")[2], url, depth=3, **facts)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_a_link_of_the_same_depth(make: Make, status: int) -> None:
    """One hop further, with the page that linked to it."""
    tested = make()
    row = tested.follow(page(priority=7, referrer="http://page.example/"), B, status)
    assert row is not None
    assert (row.host, row.url, row.depth, row.hops) == ("b.example", B, 3, 1)
    assert (row.priority, row.referrer, row.flags) == (7, "http://page.example/", 0)
    assert tested.counts() == {"count": 1}


def test_a_page_that_redirects_to_itself_is_fetched_once_more(make: Make) -> None:
    """It may only have wanted to set a cookie; the second time it is a loop."""
    tested = make()
    again = tested.follow(page(), "HTTP://A.example:80/#x")
    assert again is not None
    assert again.flags == Flag.SELF_REDIRECT | Flag.DONT_FILTER
    with pytest.raises(RedirectLoop):
        tested.follow(again, "/")
    assert tested.counts() == {"count": 1, "loop": 1}
    # It may redirect elsewhere instead, and the next page to itself in turn.
    there = tested.follow(again, B)
    assert there is not None
    assert there.flags == 0
    assert tested.follow(there, B) is not None


def test_a_chain_ends_after_ten(make: Make) -> None:
    """The eleventh redirect in a row is refused."""
    tested, row = make(), page()
    for n in range(HOPS_MAX):
        found = tested.follow(row, f"/{n}")
        assert found is not None
        row = found
    with pytest.raises(TooManyHops) as refused:
        tested.follow(row, "/more")
    assert isinstance(refused.value, IgnoreRequest)
    assert tested.counts() == {"count": HOPS_MAX, "too_many": 1}


@pytest.mark.parametrize(
    "location", ["http://", "http://[::1", "mailto:me@a.example", "javascript:1", "ftp://b.example"]
)
def test_a_redirect_to_nowhere_is_a_page(make: Make, location: str) -> None:
    tested = make()
    assert tested.follow(page(), location) is None
    assert tested.counts() == {"invalid": 1}


def test_a_target_longer_than_the_limit_is_invalid(make: Make) -> None:
    """URLLENGTH_LIMIT holds for redirects as for links; 0 is no limit."""
    location = "/" + "x" * 3000
    assert make().follow(page(), location) is None
    assert make(URLLENGTH_LIMIT=0).follow(page(), location) is not None


@pytest.mark.parametrize(("location", "status"), [(None, 302), (B, 200), (B, 300), ("", 302)])
def test_what_is_no_redirect(make: Make, location: str | None, status: int) -> None:
    """No Location, or a status that does not send on: as Scrapy has it."""
    assert make().follow(page(), location, status) is None


def test_the_spider_may_want_a_status_itself(make: Make) -> None:
    """By its handle_httpstatus_list."""
    tested = make(Handler)
    assert tested.follow(page(), B, 302) is None
    assert tested.follow(page(), B, 301) is not None


def test_redirects_can_be_switched_off(make: Make) -> None:
    assert make(REDIRECT_ENABLED=False).follow(page(), B) is None


@pytest.mark.parametrize(
    ("location", "target"),
    [
        (b"/x y", "http://a.example/x%20y"),
        ("/\u00e9".encode(), "http://a.example/%C3%A9"),
        (b"/\xe9", "http://a.example/%E9"),
        ("http://b\u00fccher.example/".encode(), "http://xn--bcher-kva.example/"),
        (b"//b.example", "http://b.example/"),
        (b"?q=1", "http://a.example/p?q=1"),
        (b"  /x\t", "http://a.example/x"),
    ],
)
def test_locations_as_servers_write_them(location: bytes, target: str) -> None:
    """Raw bytes are escaped as they are, relative forms resolved."""
    assert redirect_target("http://a.example/p", 302, location) == target
