"""Item pipelines that write later than they get an item: page packs, item packs, link counts."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.utils.asyncio import is_asyncio_available

from scrapy_spider_suite.crawl.sinks.commit_log import CommitLog, PlainLog, Sink
from scrapy_spider_suite.crawl.sinks.item_packs import ItemPacks
from scrapy_spider_suite.crawl.sinks.link_counts import LinkCountSink
from scrapy_spider_suite.crawl.sinks.page_packs import PagePacks
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.items import PageItem
from scrapy_spider_suite.settings.project import is_crawl, uses_job, uses_suite_scheduler
from scrapy_spider_suite.settings.suite import suite_settings

if TYPE_CHECKING:
    from typing import Self

    from scrapy.crawler import Crawler


class SinkPipeline:
    """Base: the suite's scheduler makes the sink as it opens, and calls it.

    With another scheduler the pipeline itself does.
    """

    last: ClassVar = False
    """Whether its sink ends after the other sinks."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self._plain: PlainLog | None = None
        self._has_sink = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Raises `NotConfigured` without the setting that it needs."""
        return cls(crawler)

    def sink(self, log: CommitLog) -> Sink:
        """Make the sink. Raises `SuiteError`."""
        self._has_sink = True
        return self.make_sink(log)

    def make_sink(self, log: CommitLog) -> Sink:
        """Make the sink; called once per crawl."""
        raise NotImplementedError

    def open_spider(self) -> None:
        """Make the sink unless the scheduler, which was opened before, has. Raises `SuiteError`."""
        if not self._has_sink:
            if not is_asyncio_available():
                raise SettingsError(f"{type(self).__name__} needs Scrapy's asyncio reactor")
            self._plain = PlainLog(self.crawler)
            self._plain.start(self.sink(self._plain))

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


def _require_crawl(crawler: Crawler, what: str) -> None:
    # A command that only looks at a page must not upload packs, and delete them, beside that.
    if not is_crawl(crawler):
        raise NotConfigured(f"{what} are written of crawls only")


class PagePackPipeline(SinkPipeline):
    """Packs the pages of a crawl in SUITE_PACKS_DIR.

    Pages come beside the items, or as items (`PageItem`): with SUITE_PAGE_ITEMS, and where the
    scheduler is not the suite's.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._packs: PagePacks | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Raises `NotConfigured` without SUITE_PACKS_DIR, or where nothing is crawled."""
        if suite_settings(crawler).packs_dir is None:
            raise NotConfigured("SUITE_PACKS_DIR is not set: no folder for pages")
        _require_crawl(crawler, "pages")
        return cls(crawler)

    def make_sink(self, log: CommitLog) -> Sink:
        folder = log.settings.packs_dir
        assert folder is not None  # see `from_crawler`
        self._packs = PagePacks(log, folder)
        return self._packs

    def process_item(self, item: Any) -> Any:
        """Pack the page of a `PageItem`; return every item."""
        if isinstance(item, PageItem) and self._packs is not None:
            self._packs.take(item)
        return item


class ItemPackPipeline(SinkPipeline):
    """Keeps items in SUITE_ITEMS_DIR.

    Wherever it stands among the pipelines, it gets an item after all of them.
    """

    last = True

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Raises `NotConfigured` without SUITE_ITEMS_DIR, or where nothing is crawled."""
        if suite_settings(crawler).items_dir is None:
            raise NotConfigured("SUITE_ITEMS_DIR is not set: no folder for items")
        _require_crawl(crawler, "items")
        return cls(crawler)

    def make_sink(self, log: CommitLog) -> Sink:
        folder = log.settings.items_dir
        assert folder is not None  # see `from_crawler`
        packs = ItemPacks(log, folder)
        log.crawler.signals.connect(packs.take, signals.item_scraped, weak=False)
        return packs

    def process_item(self, item: Any) -> Any:
        """Return *item*; ``item_scraped`` brings it to the sink."""
        return item


class LinkStatsPipeline(SinkPipeline):
    """Counts the links of pages, as SUITE_LINK_STATS says; pages come as to `PagePackPipeline`."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._counting: LinkCountSink | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Raises `NotConfigured` if nothing is to be counted, or nowhere."""
        if not suite_settings(crawler).link_stats:
            raise NotConfigured("SUITE_LINK_STATS is not set: nothing is to be counted")
        if not uses_suite_scheduler(crawler) and not uses_job(crawler):
            raise NotConfigured("without the suite's scheduler, counts need a JOBDIR to be kept in")
        return cls(crawler)

    def make_sink(self, log: CommitLog) -> Sink:
        self._counting = LinkCountSink(log)
        return self._counting

    def process_item(self, item: Any) -> Any:
        """Count the page of a `PageItem`; return every item."""
        if isinstance(item, PageItem) and self._counting is not None:
            self._counting.take(item)
        return item
