"""Hosts that make a crawl wait, and a start() that would make everybody wait."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response
from support.inprocess_crawls import Crawling
from support.visiting_spider import Visitor, closed_port, visitor, walker
from support.websites import Answer, Site, links, moved


def test_a_start_without_end_leaves_the_others_their_turns(site: Site, crawl: Crawling) -> None:
    """While nothing more can be sent, Scrapy reads start() without a pause: no page would come."""

    class Greedy(Visitor):
        arrived = False

        async def start(self) -> AsyncIterator[Any]:
            while not self.arrived:
                yield Request(f"{site.url}/0", self.keep)

        def keep(self, response: Response) -> Any:
            super().keep(response)
            Greedy.arrived = response.url.endswith("/4")
            for link in response.css("a::attr(href)").getall():
                yield response.follow(link, self.keep)

    site.pages |= {f"/{n}": links(f"/{n + 1}") for n in range(4)} | {"/4": links()}
    done = crawl(Greedy, CONCURRENT_REQUESTS=1)
    assert done.reason == "finished"
    assert site.paths() == ["/0", "/1", "/2", "/3", "/4"]


def test_a_refused_connection_is_known_soon(
    site: Site, crawl: Crawling, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistyped port: its attempts are through at once, and the pause between is explained."""
    caplog.set_level(logging.INFO, "scrapy_spider_suite.crawl.visits")
    done = crawl(visitor(site, f"http://127.0.0.1:{closed_port()}/"), RETRY_TIMES=1)
    assert len(done.spider.failed) == 1
    said = [each.getMessage() for each in caplog.records if "has to wait" in each.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("127.0.0.1 has to wait 1 s: back-off after refused")


def test_the_longest_back_off_does_not_keep_a_crawl_open(site: Site, crawl: Crawling) -> None:
    """A host that is overloaded for ever: the crawl ends as waiting, with the URL pending."""
    site.pages["/"] = Answer(status=503)
    done = crawl(
        visitor(site, "/"), SUITE_BACKOFF_BASE=60, SUITE_BACKOFF_MAX=60, SUITE_MAX_WAIT=30
    )
    assert done.reason == "waiting"
    assert len(site.visits) == 1
    assert done.stat("suite/frontier/pending") == 1


def test_a_lazy_start_does_not_keep_a_crawl_open(site: Site, crawl: Crawling) -> None:
    """It has more to come, but waits for what waits for a host: that is no reason to stay."""

    class Lazy(Visitor):
        async def start(self) -> AsyncIterator[Any]:
            n = 0
            while True:
                n += 1
                yield Request(f"{site.url}/{n}", self.keep)
                while self.crawler.engine.needs_backout():
                    await asyncio.sleep(0.005)

    pause: dict[str, Any] = {"SUITE_BACKOFF_BASE": 60, "SUITE_BACKOFF_MAX": 60}
    site.pages["/1"] = Answer(status=503)
    done = crawl(
        Lazy, SUITE_MAX_WAIT=30, CONCURRENT_REQUESTS=2, CONCURRENT_REQUESTS_PER_DOMAIN=1, **pause
    )
    assert done.reason == "waiting"
    assert done.stat("scheduler/enqueued") < 10


def test_an_image_does_not_wait_longer_than_the_crawl_would(site: Site, crawl: Crawling) -> None:
    """What waits for a host without a visit fails, and says for how long it would have waited."""

    class Nested(Visitor):
        async def keep(self, response: Response) -> AsyncIterator[Any]:
            try:
                await self.crawler.engine.download_async(Request(f"{site.url}/image"))
            except Exception as error:
                yield {"error": f"{type(error).__name__}: {error}"}

    Nested.site = site.url
    site.pages["/"] = links()
    site.pages["/image"] = Answer(status=503, headers={"Retry-After": "7200"})
    (item,) = crawl(Nested).items
    assert item["error"].startswith("HostWaitsTooLong: 127.0.0.1 has to wait 7")
    assert "(Retry-After)" in item["error"]


@pytest.mark.parametrize("allowed", [True, False])
def test_a_redirect_to_another_host(allowed: bool, site: Site, either: Crawling) -> None:
    """Off-site it is dropped, else followed; either way both hosts go on."""

    class Redirected(Visitor):
        paths = ("/away", "/next")
        allowed_domains = [] if allowed else ["127.0.0.1"]

    Redirected.site = site.url
    there = site.url.replace("127.0.0.1", "localhost") + "/there"
    site.pages |= {"/away": moved(there), "/next": links(), "/there": links()}
    done = either(Redirected, SUITE_ALLOW_PRIVATE_ADDRESSES=True)
    assert done.reason == "finished"
    assert {response.url for response in done.spider.came} == (
        {f"{site.url}/next", there} if allowed else {f"{site.url}/next"}
    )
    assert done.stat("suite/frontier/leased") == done.stat("suite/frontier/pending") == 0


def test_cache_hits_cost_no_delay_where_several_may_be_out(
    site: Site, crawl: Crawling, tmp_path: Path
) -> None:
    """There the delay runs from the start of a request, which may turn out to touch no wire."""
    site.pages |= {f"/{n}": links() for n in range(6)}
    spider = visitor(site, *site.pages)
    cache: dict[str, Any] = {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path)}
    crawl(spider, **cache)
    done = crawl(
        spider, DOWNLOAD_DELAY=60, CONCURRENT_REQUESTS_PER_DOMAIN=2, within=50, **cache
    )
    assert done.stat("httpcache/hit") == 6
    assert len(site.visits) == 6


def test_an_item_count_ends_a_run_and_the_next_goes_on(
    site: Site, crawl: Crawling, tmp_path: Path
) -> None:
    """CLOSESPIDER_ITEMCOUNT with a job directory: between the two runs, each page once.

    Scrapy 2.16 hands out an item 0.1 s after its page came: the delay keeps pages for the next run.
    """
    site.pages["/"] = links(*(f"/{n}" for n in range(60)))
    site.pages |= {f"/{n}": links() for n in range(60)}
    job: dict[str, Any] = {
        "JOBDIR": str(tmp_path / "job"), "CONCURRENT_REQUESTS": 2, "DOWNLOAD_DELAY": 0.02
    }  # fmt: skip
    first = crawl(walker(site), CLOSESPIDER_ITEMCOUNT=5, **job)
    assert first.reason == "closespider_itemcount"
    assert len(first.items) < 61
    second = crawl(walker(site), **job)
    assert second.reason == "finished"
    items = Counter(item["url"] for item in first.items + second.items)
    assert set(items.values()) == {1}
    assert len(items) == 61
