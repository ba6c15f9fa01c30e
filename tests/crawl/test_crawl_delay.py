"""Crawl-delay, whoever had robots.txt fetched: a page, an image, another origin of the host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from scrapy import Request, Spider
from scrapy.http import Response
from support.inprocess_crawls import Crawled, crawl_here
from support.websites import Answer, Site, Visit, links, running

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.preparation import HostPreparation
from scrapy_spider_suite.crawl.queue.frontier import UrlEdits
from scrapy_spider_suite.frontier.robots_rules import origin_of
from scrapy_spider_suite.store.job_reader import StoreReader

DELAY = 1.2
SLOW = Answer(f"User-agent: *\nCrawl-delay: {DELAY}\n".encode())
OBEYING = {
    "CONCURRENT_REQUESTS_PER_DOMAIN": 1, "ROBOTSTXT_OBEY": True,
    "SUITE_ALLOW_PRIVATE_ADDRESSES": True,
}  # fmt: skip

Run = Callable[[Any], Crawled]


@pytest.fixture
def site() -> Iterator[Site]:
    """A running site that asks for a Crawl-delay."""
    pages = {"/robots.txt": SLOW, "/image": b"", "/1": links(), "/2": links()}
    with running(Site(pages)) as server:
        yield server


def shortest_gap(site: Site) -> float:
    """Seconds from the end of a request to *site* to the start of the next."""
    return min(after.began - before.ended for before, after in pairwise(site.visits))


class Visitor(Spider):
    """Downloads an image by itself, where it is given one, then visits pages."""

    name = "visitor"
    image = ""
    pages = ""

    async def start(self) -> AsyncIterator[Any]:
        """See the class."""
        if self.image:
            await self.crawler.engine.download_async(Request(self.image))
        for page in self.pages.split():
            yield Request(page)

    def parse(self, response: Response) -> None:
        """See the class."""


def test_an_image_had_robots_txt_fetched(site: Site, run: Run) -> None:
    """What an image found out holds for the image, and for the pages after it."""
    arguments = {"image": f"{site.url}/image", "pages": f"{site.url}/1 {site.url}/2"}
    run(crawl_here(Visitor, arguments=arguments, **OBEYING))
    assert site.paths() == ["/robots.txt", "/image", "/1", "/2"]
    assert shortest_gap(site) >= DELAY


class Robots:
    """Knows the robots.txt of a host over http and over https."""

    listener: Any = None

    def crawl_delay(self, url: str) -> float | None:
        """See the class."""
        return {"http://a.test": 7.0, "https://a.test": None}.get(origin_of(url))


def test_the_longest_of_what_a_hosts_origins_ask_for_holds() -> None:
    """A host has one clock for both schemes: no origin takes back what the other asked for."""
    parts = MagicMock(**{"crawl.settings.broad": False, "crawl.robots": Robots()})
    preparation = HostPreparation(parts)
    assert preparation._crawl_delay("https://a.test/") == 7.0
    assert preparation._crawl_delay("http://b.test/") == 0.0


def test_it_is_on_disk_as_soon_as_robots_txt_is(site: Site, run: Run, tmp_path: Path) -> None:
    """A kill before the host's first page must not lose it: robots.txt would not be read again."""
    kept: list[float] = []

    def image(visit: Visit) -> Answer:
        with StoreReader(tmp_path / "suite") as reader:
            record = reader.store.record("127.0.0.1")
            kept.append(0.0 if record is None else record.crawl_delay)
        return Answer(links().encode())

    site.pages["/image"] = image
    arguments = {"image": f"{site.url}/image", "pages": f"{site.url}/1"}
    run(crawl_here(Visitor, arguments=arguments, JOBDIR=str(tmp_path), **OBEYING))
    assert kept == [DELAY]


class Returning(Visitor):
    """Visits a page, forgets its host as a hand-over does, and visits the other pages."""

    name = "returning"

    async def start(self) -> AsyncIterator[Any]:
        """See the class."""
        first, *others = self.pages.split()
        yield Request(first)
        crawl = get_crawl(self.crawler)
        assert crawl.job is not None
        rework = UrlEdits(crawl.frontier, crawl.job.store)
        while not (crawl.frontier.counters.done and rework.forget_host("127.0.0.1", crawl.now())):
            await asyncio.sleep(0.01)
        for page in others:
            yield Request(page)


def test_a_host_that_is_begun_anew_is_left_alone(site: Site, run: Run, tmp_path: Path) -> None:
    """Another agent had it, and nothing but its robots.txt has stayed here."""
    site.pages["/3"] = links()
    arguments = {"pages": f"{site.url}/1 {site.url}/2 {site.url}/3"}
    run(crawl_here(Returning, arguments=arguments, JOBDIR=str(tmp_path), **OBEYING))
    assert site.paths() == ["/robots.txt", "/1", "/2", "/3"]
    assert shortest_gap(site) >= DELAY
