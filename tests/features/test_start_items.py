"""Items that start() yields: it has run to its end when they are through the pipelines."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from scrapy import Spider, signals
from scrapy.exceptions import DropItem
from support.inprocess_crawls import Crawling
from twisted.python.failure import Failure

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.empty_runs import STARTED
from scrapy_spider_suite.spidermiddlewares.pages import PageOutputMiddleware


class Handed(Spider):
    """Yields two items, and nothing else."""

    name = "handed"
    runs = 0
    at_end = False

    async def start(self) -> AsyncIterator[Any]:
        """Yield them."""
        type(self).runs += 1
        yield {"number": 1}
        yield {"number": 2}
        self.at_end = True


class Slow:
    """A pipeline that looks what is stored when start() has yielded all, and its items are on
    their way."""

    seen: ClassVar[list[object]] = []

    def __init__(self, crawler: Any) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Any) -> Slow:
        """Build it for *crawler*."""
        return cls(crawler)

    async def process_item(self, item: Any) -> Any:
        """Pass it on when start() has no more to come, and some turns of the loop are over."""
        while not self._crawler.spider.at_end:
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0)
        self.seen.append(get_crawl(self._crawler).store.kv("start").get(STARTED))
        if item["number"] == 2:
            raise DropItem("seen enough")
        return item


def test_a_start_is_over_with_its_items(crawl: Crawling, tmp_path: Path) -> None:
    """Killed while they are in a pipeline, the job runs start() again; not afterwards."""
    Slow.seen.clear()
    Handed.runs = 0
    job: dict[str, Any] = {"JOBDIR": str(tmp_path / "job"), "ITEM_PIPELINES": {Slow: 1}}
    for _ in range(2):
        assert crawl(Handed, **job).reason == "finished"
        assert Handed.runs == 1
    assert Slow.seen == [None, None]


@pytest.mark.parametrize(
    ("error", "stored"),
    [(None, True), (ValueError(), True), (OSError(errno.ENOSPC, "full"), False)],
)
def test_what_a_full_disk_did_not_take_comes_again(
    error: Exception | None, stored: bool, run: Any, tmp_path: Path
) -> None:
    """Any other error of a pipeline is the end of an item, as with those of pages."""
    from scrapy.utils.test import get_crawler

    async def scenario() -> None:
        crawler = get_crawler(Handed, {"JOBDIR": str(tmp_path / "job")})
        crawler.crawling = True
        crawl = get_crawl(crawler)
        crawl.engine = cast("Any", object())
        start = PageOutputMiddleware(crawler).process_start(Handed().start())
        send, kv = crawler.signals.send_catch_log, crawl.store.kv("start")
        assert [(await anext(start))["number"] for _ in range(2)] == [1, 2]
        end = asyncio.ensure_future(anext(start, None))
        about: dict[str, Any] = {"item": {}, "spider": None}
        # Those of pages say nothing.
        send(signals.item_scraped, response=object(), **about)
        send(signals.item_scraped, response=None, **about)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not end.done()
        assert kv.get(STARTED) is None
        if error is None:
            send(signals.item_scraped, response=None, **about)
        else:
            send(signals.item_error, response=None, failure=Failure(error), **about)
        await end
        assert (kv.get(STARTED) is not None) is stored
        crawl.frontier.close()
        crawl.close_job()

    run(scenario())
