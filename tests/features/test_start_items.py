"""Items that start() yields: it has run to its end when they are through the pipelines."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from inprocess import Crawling
from scrapy import Spider, signals
from scrapy.exceptions import DropItem
from twisted.python.failure import Failure

from scrapy_spider_suite.core import core_of
from scrapy_spider_suite.spidermiddlewares.lineage import STARTED, LineageMiddleware


class Handed(Spider):
    """Yields two items, and nothing else."""

    name = "handed"
    runs = 0

    async def start(self) -> AsyncIterator[Any]:
        """Yield them."""
        type(self).runs += 1
        yield {"number": 1}
        yield {"number": 2}


class Slow:
    """A pipeline that looks what is stored while start() is at its end, and its items are not."""

    seen: ClassVar[list[object]] = []

    def __init__(self, crawler: Any) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Any) -> Slow:
        """Build it for *crawler*."""
        return cls(crawler)

    async def process_item(self, item: Any) -> Any:
        """Pass it on when start() has no more to come."""
        while self._crawler.engine._start is not None:
            await asyncio.sleep(0.001)
        self.seen.append(core_of(self._crawler).store.kv("start").get(STARTED))
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
        core = core_of(crawler)
        start = LineageMiddleware(crawler).process_start(Handed().start())
        send, kv = crawler.signals.send_catch_log, core.store.kv("start")
        assert [output["number"] async for output in start] == [1, 2]
        # Those of pages say nothing.
        send(signals.item_scraped, item={}, response=object(), spider=None)
        send(signals.item_scraped, item={}, response=None, spider=None)
        assert kv.get(STARTED) is None
        if error is None:
            send(signals.item_scraped, item={}, response=None, spider=None)
        else:
            send(signals.item_error, item={}, response=None, spider=None, failure=Failure(error))
        assert (kv.get(STARTED) is not None) is stored
        core.close()
        core._let_go()

    run(scenario())
