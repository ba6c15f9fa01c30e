"""start(), the end of a crawl, pauses, signals and extensions under the suite."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider, signals
from scrapy.exceptions import CloseSpider, DontCloseSpider, DropItem
from scrapy.extensions.memusage import MemoryUsage
from scrapy.http import Response
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.engine import get_engine_status
from support.inprocess_crawls import Crawling
from support.scrapy_versions import NEWEST
from support.visiting_spider import Visitor, visitor, walker
from support.websites import Answer, Site, Visit, links


def chain(site: Site, length: int) -> None:
    """Give *site* so many pages, each of which links to the next."""
    site.pages |= {"/": links("/1")}
    site.pages |= {f"/{n}": links(f"/{n + 1}") for n in range(1, length - 1)}
    site.pages[f"/{length - 1}"] = links()


# start()


def test_start_may_await_and_yield_items(site: Site, either: Crawling) -> None:
    """start() is an async generator: it sleeps, yields an item, fetches and goes on."""

    class Slow(Visitor):
        async def start(self) -> AsyncIterator[Any]:
            yield {"item": 1}
            await asyncio.sleep(0.05)
            response = await self.crawler.engine.download_async(Request(f"{site.url}/list"))
            for path in response.text.split():
                yield Request(site.url + path, self.keep)

    site.pages |= {"/list": "/a /b", "/a": links(), "/b": links()}
    done = either(Slow)
    assert done.items == [{"item": 1}]
    assert {response.url for response in done.spider.came} == {f"{site.url}/a", f"{site.url}/b"}


def test_an_endless_start_is_read_lazily(site: Site, either: Crawling) -> None:
    """start() is told when enough requests wait, and CloseSpider ends it."""

    class Endless(Visitor):
        async def start(self) -> AsyncIterator[Any]:
            n = 0
            while True:
                n += 1
                while self.crawler.engine.needs_backout():
                    await asyncio.sleep(0.005)
                yield Request(f"{site.url}/?{n}", self.keep)

        def keep(self, response: Response) -> Any:
            super().keep(response)
            if len(self.came) == 20:
                raise CloseSpider("enough")

    site.pages |= {f"/?{n}": "" for n in range(200)}
    done = either(Endless)
    assert done.reason == "enough"
    assert len(done.spider.came) >= 20
    assert done.stat("scheduler/enqueued") < 200


@NEWEST
def test_start_that_raises(site: Site, either: Crawling) -> None:
    """What start() yielded before it raised is fetched; the error is counted."""

    class Broken(Visitor):
        async def start(self) -> AsyncIterator[Any]:
            yield Request(f"{site.url}/", self.keep)
            raise RuntimeError("broken")

    site.pages["/"] = links()
    done = either(Broken)
    assert len(done.spider.came) == 1
    assert done.stat("spider_exceptions/RuntimeError") == 1


# The end


def test_closing_from_a_callback(site: Site, either: Crawling) -> None:
    """CloseSpider ends the crawl with its reason."""

    class Closing(Visitor):
        def keep(self, response: Response) -> Any:
            raise CloseSpider("seen it")

    Closing.site = site.url
    site.pages["/"] = links()
    assert either(Closing).reason == "seen it"


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("CLOSESPIDER_PAGECOUNT", "closespider_pagecount"),
        ("CLOSESPIDER_ITEMCOUNT", "closespider_itemcount"),
        ("CLOSESPIDER_ERRORCOUNT", "closespider_errorcount"),
        ("CLOSESPIDER_PAGECOUNT_NO_ITEM", "closespider_pagecount_no_item"),
    ],
)
def test_closespider_counts(setting: str, reason: str, site: Site, either: Crawling) -> None:
    """Each of the extension's counters ends the crawl long before the site does."""

    class Counted(Visitor):
        def keep(self, response: Response) -> Any:
            for link in response.css("a::attr(href)").getall():
                yield response.follow(link, self.keep)
            if setting == "CLOSESPIDER_ERRORCOUNT":
                raise ValueError
            if not setting.endswith("NO_ITEM"):
                yield {"url": response.url}

    Counted.site = site.url
    chain(site, 60)
    limit: dict[str, Any] = {setting: 3}
    done = either(Counted, **limit)
    assert done.reason == reason
    assert len(site.visits) < 60


@pytest.mark.parametrize("setting", ["CLOSESPIDER_TIMEOUT", "CLOSESPIDER_TIMEOUT_NO_ITEM"])
def test_closespider_timeouts(setting: str, site: Site, crawl: Crawling) -> None:
    """The extension's time limits end a crawl whose hosts only wait, without waiting for them."""
    site.pages |= {f"/{n}": "" for n in range(3)}
    limit: dict[str, Any] = {setting: 1}
    done = crawl(visitor(site, "/0", "/1", "/2"), DOWNLOAD_DELAY=600, within=100, **limit)
    assert done.reason.startswith("closespider_timeout")


def test_an_idle_spider_can_be_kept_open(site: Site, either: Crawling) -> None:
    """spider_idle with engine.crawl() and DontCloseSpider goes on at once; then the crawl ends."""

    class Refilled(Visitor):
        left = 3

        @classmethod
        def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
            spider = super().from_crawler(crawler, *args, **kwargs)
            crawler.signals.connect(spider.idle, signals.spider_idle)
            return spider

        def idle(self) -> None:
            if self.left:
                self.left -= 1
                self.crawler.engine.crawl(Request(f"{site.url}/{self.left}", self.keep))
                raise DontCloseSpider

    Refilled.site = site.url
    site.pages |= dict.fromkeys(("/", "/0", "/1", "/2"), "")
    began = time.monotonic()
    done = either(Refilled)
    assert site.paths() == ["/", "/2", "/1", "/0"]
    assert done.reason == "finished"
    assert time.monotonic() - began < 14  # Scrapy's heartbeat would take 5 s for each of three


def test_pause_and_unpause(site: Site, either: Crawling) -> None:
    """Nothing is sent while the engine is paused; unpause goes on."""

    class Pausing(Visitor):
        async def keep(self, response: Response) -> AsyncIterator[Any]:
            self.came.append(response)
            if len(self.came) == 2:
                self.crawler.engine.pause()
                asyncio.get_running_loop().call_later(0.5, self.go_on)
            for link in response.css("a::attr(href)").getall():
                yield response.follow(link, self.keep)

        def go_on(self) -> None:
            self.held = len(site.visits)
            self.crawler.engine.unpause()
            assert self.crawler.engine._slot is not None
            self.crawler.engine._slot.nextcall.schedule()

    Pausing.site = site.url
    chain(site, 5)
    done = either(Pausing)
    assert done.spider.held == 2
    assert len(done.spider.came) == 5


# Items


class AsyncPipeline:
    """Awaits, marks and drops."""

    @classmethod
    def from_crawler(cls, crawler: Any) -> AsyncPipeline:
        """See Scrapy."""
        return cls()

    async def process_item(self, item: Any) -> Any:
        """See the class."""
        await asyncio.sleep(0.01)
        if item["url"].endswith("/2"):
            raise DropItem("no twos")
        if item["url"].endswith("/3"):
            raise ValueError("no threes")
        return {**item, "marked": True}


def test_pipelines_may_await_drop_and_fail(site: Site, either: Crawling) -> None:
    """Coroutine pipelines, DropItem and errors: the same items and stats."""
    chain(site, 5)
    done = either(walker(site), ITEM_PIPELINES={AsyncPipeline: 1}, LOG_LEVEL="CRITICAL")
    assert {item["url"].removeprefix(site.url) for item in done.items} == {"/", "/1", "/4"}
    assert all(item["marked"] for item in done.items)
    assert done.stat("item_scraped_count") == 3
    assert done.stat("item_dropped_count") == 1
    assert [item["url"] for item in done.dropped] == [f"{site.url}/2"]


@pytest.mark.parametrize("ending", ["json", "jsonl", "csv", "xml"])
def test_feeds(ending: str, site: Site, either: Crawling, tmp_path: Path) -> None:
    """FEEDS are written as ever."""
    chain(site, 4)
    feed = tmp_path / f"items.{ending}"
    either(walker(site), FEEDS={str(feed): {"format": ending}})
    text = feed.read_text()
    assert all(f"{site.url}/{n}" in text for n in ("", 1, 2, 3))
    if ending == "json":
        assert len(json.loads(text)) == 4


@NEWEST
def test_feeds_over_a_resumed_job(site: Site, either: Crawling, tmp_path: Path) -> None:
    """With JOBDIR a feed that is appended to holds every item once after a stop and a resume."""
    chain(site, 12)
    feed = tmp_path / "items.jsonl"
    feeds = {str(feed): {"format": "jsonl"}}
    settings: dict[str, Any] = {"FEEDS": feeds, "JOBDIR": str(tmp_path / "job")}
    first = either(walker(site), CLOSESPIDER_PAGECOUNT=4, **settings)
    assert first.reason == "closespider_pagecount"
    assert either(walker(site), **settings).reason == "finished"
    urls = [json.loads(line)["url"] for line in feed.read_text().splitlines()]
    assert {url.removeprefix(site.url + "/") for url in urls} == {"", *map(str, range(1, 12))}


# Extensions, stats, logs


class Counting(MemoryStatsCollector):
    """A stats collector of the project's own."""

    calls = 0

    def inc_value(self, *args: Any, **kwargs: Any) -> None:
        """Count the call."""
        type(self).calls += 1
        super().inc_value(*args, **kwargs)


def test_the_projects_own_stats(site: Site, either: Crawling) -> None:
    """STATS_CLASS collects the suite's stats, too."""
    site.pages["/"] = links()
    done = either(visitor(site, "/"), STATS_CLASS=Counting, STATS_DUMP=False)
    assert isinstance(done.crawler.stats, Counting)
    assert done.stat("scheduler/enqueued") == done.stat("scheduler/dequeued") == 1
    assert done.stat("finish_reason") == "finished"


def test_log_stats(site: Site, either: Crawling, caplog: Any) -> None:
    """LogStats tells pages and items per minute."""
    site.pages["/"] = Answer(b"", wait=0.3)
    with caplog.at_level("INFO"):
        either(visitor(site, "/"), LOGSTATS_INTERVAL=0.1)
    assert "Crawled 0 pages (at 0 pages/min)" in caplog.text


def test_periodic_log(site: Site, either: Crawling, caplog: Any) -> None:
    """PeriodicLog, switched on, sees the stats."""
    site.pages["/"] = Answer(b"", wait=0.3)
    with caplog.at_level("INFO"):
        either(
            visitor(site, "/"), PERIODIC_LOG_STATS=True, LOGSTATS_INTERVAL=0.1,
            EXTENSIONS={"scrapy.extensions.periodic_log.PeriodicLog": 0},
        )  # fmt: skip
    assert "scheduler/enqueued" in caplog.text


def test_memory_usage(site: Site, either: Crawling, monkeypatch: pytest.MonkeyPatch) -> None:
    """MemoryUsage measures, and ends a crawl that is over its limit.

    Not from the beginning: a spider that is closed before its start() was asked leaves the engine's
    heartbeat running, in Scrapy itself.
    """
    measure = MemoryUsage.get_virtual_size
    grown = 0

    def page(visit: Visit) -> Answer:
        nonlocal grown
        grown = 1 << 40
        return Answer(b"", wait=1)

    monkeypatch.setattr(MemoryUsage, "get_virtual_size", lambda self: measure(self) + grown)
    site.pages["/"] = page
    done = either(
        visitor(site, "/"), MEMUSAGE_ENABLED=True, MEMUSAGE_LIMIT_MB=1 << 19,
        MEMUSAGE_CHECK_INTERVAL_SECONDS=0.1,
    )  # fmt: skip
    assert done.reason == "memusage_exceeded"
    assert done.stat("memusage/startup") > 1_000_000


def test_the_engines_status_can_be_asked_for(site: Site, either: Crawling) -> None:
    """``est()`` of the telnet console shows the engine, and what is pending as its queues."""
    seen: list[dict[str, Any]] = []

    class Asking(Visitor):
        def keep(self, response: Response) -> Any:
            seen.append(dict(get_engine_status(self.crawler.engine)))

    Asking.site = site.url
    site.pages["/"] = links()
    either(Asking)
    (status,) = seen
    assert status["engine.spider.name"] == "visitor"
    assert status["len(engine._slot.inprogress)"] == 1
    assert not [name for name, value in status.items() if "(exception)" in str(value)]


def test_the_telnet_console_listens(site: Site, either: Crawling) -> None:
    """TELNETCONSOLE_* are the project's business in the spider profile."""
    site.pages["/"] = links()
    done = either(visitor(site, "/"), TELNETCONSOLE_ENABLED=True, TELNETCONSOLE_PORT=[0])
    from scrapy.extensions.telnet import TelnetConsole

    assert done.crawler.get_extension(TelnetConsole) is not None
    assert len(done.spider.came) == 1


def test_remote_control_listens(
    site: Site, either: Crawling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REMOTE_CONTROL_ENABLED (Scrapy 2.19) works beside the suite."""
    remote_control = pytest.importorskip("scrapy.extensions.remote_control")
    site.pages["/"] = links()
    done = either(
        visitor(site, "/"), EXTENSIONS={remote_control.RemoteControl: 0},
        REMOTE_CONTROL_ENABLED=True, REMOTE_CONTROL_JOBS_DIR=str(tmp_path),
    )  # fmt: skip
    assert done.crawler.get_extension(remote_control.RemoteControl) is not None
    assert len(done.spider.came) == 1


def test_spider_state_over_a_resume(site: Site, either: Crawling, tmp_path: Path) -> None:
    """spider.state survives from run to run of a job."""

    class Remembering(Visitor):
        state: dict[str, Any]

        def keep(self, response: Response) -> Any:
            self.state["runs"] = self.state.get("runs", 0) + 1

    Remembering.site = site.url
    site.pages["/"] = links()
    either(Remembering, JOBDIR=str(tmp_path / "job"))

    class Seeing(Remembering):
        def closed(self, reason: str) -> None:
            self.seen = dict(self.state)

    assert either(Seeing, JOBDIR=str(tmp_path / "job")).spider.seen["runs"] >= 1


# Spider middlewares


class Rewriting:
    """Replaces every request that a page brings by a copy with a mark, and drops one."""

    @classmethod
    def from_crawler(cls, crawler: Any) -> Rewriting:
        """See Scrapy."""
        return cls()

    async def process_spider_output(self, response: Response, result: Any) -> Any:
        """See the class."""
        async for output in result:
            if not isinstance(output, Request):
                yield output
            elif not output.url.endswith("/3"):
                yield output.replace(headers={"X-Mark": "1"})


def test_spider_middlewares_that_replace_requests(site: Site, either: Crawling) -> None:
    """Their copies are what is sent; the pages they came from are done all the same."""
    chain(site, 5)
    done = either(walker(site), SPIDER_MIDDLEWARES={Rewriting: 500})
    assert site.paths() == ["/", "/1", "/2"]
    assert [v.headers.get("X-Mark") for v in site.visits] == [None, "1", "1"]
    assert done.reason == "finished"


def test_url_length_limit(site: Site, either: Crawling) -> None:
    """URLLENGTH_LIMIT drops longer URLs and counts them."""
    site.pages |= {"/": links("/short", "/" + "long" * 50), "/short": links()}
    done = either(walker(site), URLLENGTH_LIMIT=100)
    assert site.paths() == ["/", "/short"]
    assert done.stat("urllength/request_ignored_count") == 1


def test_copied_meta_is_warned_of(site: Site, either: Crawling, caplog: Any) -> None:
    """MetaCopyDetectionMiddleware warns of copied keys as ever; the crawl goes on unharmed."""

    class Copying(Visitor):
        def keep(self, response: Response) -> Any:
            super().keep(response)
            for link in response.css("a::attr(href)").getall():
                yield Request(response.urljoin(link), self.keep, meta=response.meta)

    Copying.site = site.url
    chain(site, 3)
    done = either(Copying)
    assert len(done.spider.came) == 3


class Dull(Spider):
    """A spider without requests."""

    name = "dull"

    async def start(self) -> AsyncIterator[Any]:
        """Yield an item only."""
        yield {"only": "item"}


def test_a_spider_without_requests(either: Crawling) -> None:
    """A crawl of items only ends at once."""
    done = either(Dull)
    assert done.items == [{"only": "item"}]
    assert done.reason == "finished"


def test_stop_while_hosts_wait(site: Site, crawl: Crawling) -> None:
    """A stop is quick while hosts wait out long delays."""
    site.pages |= {"/0": "", "/1": ""}

    def stop_soon(crawler: Any) -> None:
        def opened() -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(0.4, lambda: loop.create_task(crawler.stop_async()))

        crawler.signals.connect(opened, signals.spider_opened, weak=False)

    done = crawl(visitor(site, "/0", "/1"), DOWNLOAD_DELAY=600, within=100, watch=stop_soon)
    assert done.reason == "shutdown"
