"""A project's own downloader in place of the gate: nothing stops, and visits keep the delay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from scrapy.core.downloader import Downloader
from support.inprocess_crawls import Crawled, crawl_here
from support.visiting_spider import Walker, visitor
from support.websites import Answer, Site, links, moved, running


class OwnDownloader(Downloader):
    """A project's own."""


@pytest.fixture
def site() -> Iterator[Site]:
    """Pages, one of which is missing, one slow and one moved."""
    pages = {
        "/": links("/1", "/missing", "/moved"), "/1": Answer(links("/2").encode(), wait=0.1),
        "/2": links(), "/moved": moved("/3"), "/3": links(),
    }  # fmt: skip
    with running(Site(pages)) as server:
        yield server


def test_every_page_is_fetched(site: Site, run: Callable[[Any], Crawled]) -> None:
    """Answers, errors and redirects all give their visits back."""
    spider = type("Walk", (Walker,), {"site": site.url})
    done = run(crawl_here(spider, DOWNLOADER=OwnDownloader, CONCURRENT_REQUESTS_PER_DOMAIN=1))
    assert sorted(site.paths()) == ["/", "/1", "/2", "/3", "/missing", "/moved"]
    assert done.reason == "finished"
    assert done.stat("suite/outcome/success") == 4
    assert done.stat("suite/outcome/client_error") == 1


def test_visits_keep_the_delay(site: Site, run: Callable[[Any], Crawled]) -> None:
    """From the end of a visit to the start of the next, as far as visits go."""
    delay = {"DOWNLOADER": OwnDownloader, "SUITE_HOST_DELAY": 0.3}
    run(crawl_here(visitor(site, "/1", "/2", "/3"), **delay))
    gaps = [after.began - before.ended for before, after in pairwise(site.visits)]
    assert len(gaps) == 2
    assert min(gaps) >= 0.3
