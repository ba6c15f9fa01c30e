"""Sinks that write later: a page is done when what it brought is on disk, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from scrapy import signals
from scrapy.http import Response
from support.inprocess_crawls import Crawling
from support.visiting_spider import Visitor, walker
from support.websites import Site, links

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.sinks.commit_log import CommitLog
from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.pipelines import SinkPipeline
from scrapy_spider_suite.scheduler import hold


class Sink:
    """A pipeline that promises to write, and looks how many pages are done before it has."""

    outcomes: ClassVar[list[Callable[[asyncio.Future[None]], None]]] = []
    held: ClassVar[list[bool]] = []
    done: ClassVar[list[int]] = []
    signal: ClassVar[Any] = signals.item_scraped

    def __init__(self, crawler: Any) -> None:
        self._crawler = crawler
        crawler.signals.connect(self.told, self.signal)

    @classmethod
    def from_crawler(cls, crawler: Any) -> Sink:
        """Build it for *crawler*."""
        return cls(crawler)

    def process_item(self, item: Any) -> Any:
        """Pass the item on."""
        return item

    def told(self, response: Response) -> None:
        """Hold the page until what it brought was written, a while later."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.held.append(hold(self._crawler, response, written))
        asyncio.get_running_loop().call_later(0.05, self._write, written)

    def _write(self, written: asyncio.Future[None]) -> None:
        crawl = get_crawl(self._crawler)
        if crawl.fetches:  # not everything else about the page is over
            asyncio.get_running_loop().call_later(0.05, self._write, written)
            return
        self.done.append(crawl.frontier.counters.done)
        outcome = self.outcomes.pop(0) if self.outcomes else lambda future: future.set_result(None)
        outcome(written)


@pytest.fixture(params=["item_scraped", "response_received"])
def sink(request: pytest.FixtureRequest) -> type[Sink]:
    """A sink of its own for each test, told by either signal."""
    signal = getattr(signals, request.param)
    return type("Own", (Sink,), {"outcomes": [], "held": [], "done": [], "signal": signal})


def test_a_page_is_done_after_its_sink(site: Site, crawl: Crawling, sink: type[Sink]) -> None:
    """The crawl does not end before, either."""
    site.pages |= {"/": links("/1"), "/1": links()}
    done = crawl(walker(site), ITEM_PIPELINES={sink: 1}, CONCURRENT_REQUESTS=1)
    assert done.reason == "finished"
    assert sink.held == [True, True]
    assert sink.done[0] == 0
    assert done.stat("suite/job/done") == 2


@pytest.mark.parametrize(
    "outcome",
    [lambda future: future.set_exception(OSError("no")), lambda future: future.cancel()],
    ids=["failed", "cancelled"],
)
def test_what_was_not_written_is_fetched_again(
    outcome: Any, site: Site, crawl: Crawling, sink: type[Sink]
) -> None:
    """A write that failed leaves the page pending."""
    site.pages["/"] = links()
    sink.outcomes.append(outcome)
    done = crawl(walker(site), ITEM_PIPELINES={sink: 1})
    assert site.paths() == ["/", "/"]
    assert sink.done == [0, 0]
    assert done.stat("suite/job/done") == 1


def test_without_a_page_nothing_waits(site: Site, crawl: Crawling) -> None:
    """Items of start(), pages that are over, and schedulers that know of no pages."""
    held: list[bool] = []

    class Handing(Visitor):
        async def start(self) -> Any:
            yield {"item": 1}

    def watch(crawler: Any) -> None:
        def told(response: Response | None) -> None:
            future = asyncio.get_running_loop().create_future()
            held.append(hold(crawler, response, future))
            held.append(hold(crawler, Response("http://a.test/"), future))

        crawler.signals.connect(told, signals.item_scraped, weak=False)

    for addon in (True, False):
        crawl(Handing, addon=addon, watch=watch)
    assert held == [False] * 4


class Defective:
    """What a sink is, with a defect: *failing* raises *error* when it is first called."""

    def __init__(self, failing: str, error: Exception, told: list[str]) -> None:
        self._failing, self._error, self._told = failing, error, told

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> None:
            self._told.append(name)
            if name == self._failing and self._told.count(name) == 1:
                raise self._error

        async def called() -> None:
            call()

        return called if name in {"finish", "close"} else call


def defective(
    failing: str, error: Exception, told: list[str], name: str = "Pipeline"
) -> type[SinkPipeline]:
    """A pipeline with such a sink. *name*: to Scrapy two classes of one name are one component."""

    class Pipeline(SinkPipeline):
        def make_sink(self, log: CommitLog) -> Any:
            return Defective(failing, error, told)

        def process_item(self, item: Any) -> Any:
            return item

    Pipeline.__qualname__ = name
    return Pipeline


@pytest.mark.parametrize("failing", ["settled", "finish", "close"])
def test_a_sink_with_a_defect_keeps_nothing_from_its_end(
    failing: str, site: Site, crawl: Crawling, caplog: pytest.LogCaptureFixture
) -> None:
    """Its page failed, the others are done, and so is the crawl; other sinks write to their end."""
    site.pages |= {"/": links("/1"), "/1": links()}
    told: list[str] = []
    one, two = (defective(failing, LookupError("a defect"), told, name) for name in "AB")
    done = crawl(walker(site), ITEM_PIPELINES={one: 1, two: 2}, CONCURRENT_REQUESTS=1)
    assert done.reason == "finished"
    assert "a defect" in caplog.text
    assert told.count("finish") == told.count("close") == 2
    if failing == "settled":
        assert done.stat("suite/job/failed") == 1
    else:
        assert done.stat("suite/job/done") == 2


def test_damage_that_the_last_page_meets(site: Site, crawl: Crawling, tmp_path: Path) -> None:
    """The crawl is not finished."""
    site.pages["/"] = links()
    pipeline = defective("settled", JobDamagedError("a row cannot be read"), [])
    done = crawl(walker(site), ITEM_PIPELINES={pipeline: 1}, JOBDIR=str(tmp_path))
    assert done.reason == "damaged"
