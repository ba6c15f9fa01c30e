"""Item pipelines that write later than they get an item, and one that has packs indexed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.utils.asyncio import is_asyncio_available

from scrapy_spider_suite.analysis.search import require
from scrapy_spider_suite.analysis.search.index_process import IndexProcess
from scrapy_spider_suite.crawl.sinks.commit_log import CommitLog, PlainLog, Sink
from scrapy_spider_suite.crawl.sinks.item_packs import ItemPacks
from scrapy_spider_suite.crawl.sinks.link_counts import LinkCountSink
from scrapy_spider_suite.crawl.sinks.page_packs import PagePacks
from scrapy_spider_suite.errors import SearchError, SettingsError
from scrapy_spider_suite.items import PageItem
from scrapy_spider_suite.settings.declarations import setting_name
from scrapy_spider_suite.settings.project import is_crawl, uses_job, uses_suite_scheduler
from scrapy_spider_suite.settings.suite import suite_settings

logger = logging.getLogger(__name__)

_RESTART_MAX: Final = 300.0
"""Most seconds between two starts of a process that ends again and again."""
_STOP_TIME: Final = 5.0
"""Seconds that the process has to write its last batch once it is told to stop."""


class SinkPipeline:
    """Base: the suite's scheduler makes the sink and calls it, or else the pipeline does."""

    needs: ClassVar = ""  # the setting without which it is off; "" where there is none
    last: ClassVar = False  # whether its sink ends after the other sinks

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self._plain: PlainLog | None = None
        self._sink: Any = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Raises `NotConfigured` without the setting that it needs, or where nothing is crawled."""
        _require(crawler, *filter(None, [cls.needs]))
        return cls(crawler)

    def sink(self, log: CommitLog) -> Sink:
        """Make the sink. Raises `SuiteError`."""
        self._sink = sink = self.make_sink(log)
        return sink

    def make_sink(self, log: CommitLog) -> Sink:
        raise NotImplementedError

    def open_spider(self) -> None:
        """Make the sink unless the scheduler, which was opened before, has. Raises `SuiteError`."""
        if self._sink is None:
            if not is_asyncio_available():
                raise SettingsError(f"{type(self).__name__} needs Scrapy's asyncio reactor")
            log = PlainLog(self.crawler)
            log.start(self.sink(log))
            self._plain = log

    def process_item(self, item: Any) -> Any:
        """Give the sink the page of a `PageItem`; return every item."""
        if isinstance(item, PageItem) and self._sink is not None:
            self._sink.add_page(item)
        return item

    async def close_spider(self) -> None:
        """Have everything written, unless the scheduler will."""
        if self._plain is not None:
            await self._plain.stop()


def sink_pipelines(crawler: Crawler) -> list[SinkPipeline]:
    """The sink pipelines of *crawler*, in the order in which their sinks end."""
    engine = crawler.engine
    found = [] if engine is None else getattr(engine.scraper.itemproc, "middlewares", ())
    ours = (each for each in found if isinstance(each, SinkPipeline))
    return sorted(ours, key=attrgetter("last"))


def _require(crawler: Crawler, *names: str) -> None:
    for name in names:
        if not getattr(suite_settings(crawler), name):
            raise NotConfigured(f"{setting_name(name)} is not set")
    # A command that only looks at a page must not upload packs, and delete them, beside that.
    if not is_crawl(crawler):
        raise NotConfigured("it works in crawls only")


class PagePackPipeline(SinkPipeline):
    """Packs the pages of a crawl in SUITE_PACKS_DIR. Pages come beside the items, or as items
    (`PageItem`): with SUITE_PAGE_ITEMS, and where the scheduler is not the suite's.
    """

    needs = "packs_dir"

    def make_sink(self, log: CommitLog) -> Sink:
        assert log.settings.packs_dir is not None  # see `from_crawler`
        return PagePacks(log, log.settings.packs_dir)


class ItemPackPipeline(SinkPipeline):
    """Writes items to SUITE_ITEMS_DIR, as they are after all pipelines."""

    needs, last = "items_dir", True

    def make_sink(self, log: CommitLog) -> Sink:
        assert log.settings.items_dir is not None  # see `from_crawler`
        packs = ItemPacks(log, log.settings.items_dir)
        log.crawler.signals.connect(packs.add_item, signals.item_scraped)
        return packs

    def process_item(self, item: Any) -> Any:
        """Return *item*; ``item_scraped`` brings it to the sink."""
        return item


class LinkStatsPipeline(SinkPipeline):
    """Counts the links of pages, as SUITE_LINK_STATS says; pages come as to `PagePackPipeline`."""

    needs = "link_stats"

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Raises `NotConfigured`, also if there is nowhere to keep the counts."""
        if not uses_suite_scheduler(crawler) and not uses_job(crawler):
            raise NotConfigured("without the suite's scheduler, counts need a JOBDIR to be kept in")
        return super().from_crawler(crawler)

    def make_sink(self, log: CommitLog) -> Sink:
        return LinkCountSink(log)


class IndexPipeline:
    """Has a process index the packs of SUITE_PACKS_DIR (SUITE_INDEX); restarts it when it ends.

    The process reads packs on disk: no page waits for it, and a restart loses nothing.
    """

    def __init__(self, crawler: Crawler, folder: Path) -> None:
        self._crawler = crawler
        self._folder = folder
        self._process: IndexProcess | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._ending = False
        # Packs are closed by then.
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Raises `NotConfigured`: SUITE_INDEX is off, its libraries are missing, or no crawl."""
        try:
            require()
        except SearchError as error:
            raise NotConfigured(str(error)) from error
        _require(crawler, "index", "packs_dir")
        folder = suite_settings(crawler).packs_dir
        assert folder is not None  # as required
        return cls(crawler, folder)

    def open_spider(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._start()

    def process_item(self, item: Any) -> Any:
        """Return *item*: pages come out of the packs."""
        return item

    async def spider_closed(self) -> None:
        """Have the rest read within SUITE_STOP_TIMEOUT; the next crawl goes on from there."""
        self._ending = True
        if self._timer is not None:
            self._timer.cancel()
        process, self._process = self._process, None
        if process is None:
            return
        process.finish()
        if not await asyncio.to_thread(process.wait, suite_settings(self._crawler).stop_timeout):
            logger.info("The index of texts is behind: the next crawl, or `scrapy packs index`, "
                        "goes on with it")  # fmt: skip
            process.stop()
            if not await asyncio.to_thread(process.wait, _STOP_TIME):
                process.kill()
                await asyncio.to_thread(process.wait)

    def _start(self) -> None:
        self._timer = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            calls = (partial(self._call_in_loop, self._add_stats),
                     partial(self._call_in_loop, self._restart_later))  # fmt: skip
            self._process = IndexProcess(self._folder, *calls)
        except OSError as error:
            self._restart_later(-1, str(error))

    def _call_in_loop(self, callback: Callable[..., object], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _add_stats(self, row: dict[str, Any]) -> None:
        self._failures = 0
        stats = self._crawler.stats
        for name in ("pages", "gone", "skipped"):
            stats.inc_value(f"suite/index/{name}", row[name])
        stats.set_value("suite/index/behind", row["behind"])
        for pack, (offset, length, why, _) in row["damaged"]:
            stats.inc_value("suite/index/damaged")
            logger.warning("%s, %d bytes at %d are not indexed: %s", pack, length, offset, why)
        if row["rebuilt"]:
            stats.inc_value("suite/index/rebuilt")
            logger.error("%s: the index is made anew of the packs that are here", row["rebuilt"])

    def _restart_later(self, code: int, words: str) -> None:
        if self._ending:
            if code:
                logger.error("The index of texts is behind: %s", words or f"exit code {code}")
            return
        self._process = None
        wait = min(_RESTART_MAX, 2.0 ** min(9, self._failures))
        self._failures += 1
        self._crawler.stats.inc_value("suite/index/restarts")
        logger.error("What indexes texts has ended (%s): again in %d s",
                     words or f"exit code {code}", wait)  # fmt: skip
        self._timer = self._loop.call_later(wait, self._start)
