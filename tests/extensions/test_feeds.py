"""What a feed was given is with the system before its page is done: a kill takes no item."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.http import Response
from support.inprocess_crawls import Crawled, crawl_here
from support.websites import Site, running

from scrapy_spider_suite.extensions.persistence import DurableFeeds
from scrapy_spider_suite.operate.machine import feed_folders


class Counts(Spider):
    """Yields an item for each page."""

    name = "counts"

    def parse(self, response: Response) -> Iterator[Any]:
        """Give one item."""
        yield {"url": response.url}


class Look:
    """Reads the feed whenever an item is through, as it is found on disk after a kill."""

    def __init__(self, crawler: Crawler) -> None:
        (self.feed,) = crawler.settings.getdict("FEEDS")
        self.items = 0
        self.stats = crawler.stats
        crawler.signals.connect(self.item_scraped, signals.item_scraped)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Look:
        """Build it for *crawler*."""
        return cls(crawler)

    def item_scraped(self) -> None:
        """Count where the feed is behind."""
        self.items += 1
        if Path(self.feed).read_bytes().count(b"/page") != self.items:
            assert self.stats is not None
            self.stats.inc_value("behind")


@pytest.mark.parametrize("kind", ["jsonl", "csv", "json", "xml"])
def test_each_item_is_in_the_feed_before_its_page_is_done(
    kind: str, tmp_path: Path, run: Callable[[Any], Crawled]
) -> None:
    """In every format that is written as it comes."""
    feed = tmp_path / f"items.{kind}"
    with running(Site({f"/page{number}": "<p>" for number in range(4)})) as site:
        Counts.start_urls = [f"{site.url}/page{number}" for number in range(4)]
        done = run(
            crawl_here(
                Counts, FEEDS={str(feed): {"format": kind}}, JOBDIR=str(tmp_path / "job"),
                EXTENSIONS={Look: 900}, SUITE_ALLOW_PRIVATE_ADDRESSES=True, DOWNLOAD_DELAY=0,
                ROBOTSTXT_OBEY=False,
            )
        )  # fmt: skip
    assert done.stat("item_scraped_count") == 4
    assert done.stat("behind") == 0


def test_only_where_a_job_is_resumed() -> None:
    """Without JOBDIR a kill loses everything anyway."""
    with pytest.raises(NotConfigured):
        DurableFeeds.from_crawler(Crawler(Spider))


def crawl_into(feed: str, job: Path, run: Callable[[Any], Crawled], **more: Any) -> Crawled:
    """Crawl what `Counts` starts with."""
    return run(
        crawl_here(
            Counts, FEEDS={feed: {"format": "jsonlines"}}, JOBDIR=str(job), DOWNLOAD_DELAY=0,
            SUITE_ALLOW_PRIVATE_ADDRESSES=True, ROBOTSTXT_OBEY=False, **more,
        )
    )  # fmt: skip


def test_a_page_whose_item_a_full_disk_did_not_take_is_pending(
    tmp_path: Path, run: Callable[[Any], Crawled]
) -> None:
    """The crawl pauses; with room again, the next run loses nothing."""
    feed, job = tmp_path / "items.jsonl", tmp_path / "job"
    with running(Site({f"/page{number}": "<p>" for number in range(5)})) as site:
        Counts.start_urls = [f"{site.url}/page{number}" for number in range(5)]
        full = crawl_into("/dev/full", job, run, CLOSESPIDER_TIMEOUT=1)
        assert full.reason == "closespider_timeout"
        assert full.stat("suite/disk/pauses") == 1
        assert full.stat("suite/job/done") == 0
        crawl_into(str(feed), job, run)
    lines = feed.read_text().splitlines()
    assert sorted(line.rpartition("/")[2] for line in lines) == [f'page{n}"}}' for n in range(5)]


def test_what_cannot_be_exported_is_a_fault_of_its_page(
    tmp_path: Path, run: Callable[[Any], Crawled]
) -> None:
    """A feed in a folder that is none: the page failed, with the reason of a failed pipeline."""
    (tmp_path / "file").touch()
    with running(Site({"/page": "<p>"})) as site:
        Counts.start_urls = [f"{site.url}/page"]
        done = crawl_into(str(tmp_path / "file" / "items.jsonl"), tmp_path / "job", run)
    assert (done.stat("suite/job/done"), done.stat("suite/job/failed")) == (0, 1)
    assert done.stat("suite/outcome/pipeline_error") == 1


def test_the_disks_of_feeds_are_looked_at(
    tmp_path: Path, run: Callable[[Any], Crawled]
) -> None:
    """Those of files, whether they are there yet or not; a device has no room of its own."""
    found: list[list[Path]] = []

    def watch(crawler: Crawler) -> None:
        def look() -> None:
            found.append(feed_folders(crawler))

        looks.append(look)
        crawler.signals.connect(look, signals.spider_idle)

    looks: list[Callable[[], None]] = []
    feeds = {str(tmp_path / "a" / "items.csv"): {"format": "csv"}, "/dev/null": {"format": "csv"}}
    run(crawl_here(Spider, watch=watch, FEEDS=feeds, arguments={"name": "none"}))
    assert found == [[tmp_path / "a"]]
