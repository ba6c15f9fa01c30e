"""Item pipelines that write later than they are given something, and how the scheduler has them.

Items into packs, as a component of Scrapy's: see `crawl.itempacks` for what it does.

Link statistics, as a component of Scrapy's: see `crawl.counting` for what it does.

Pages into packs, as a component of Scrapy's: see `crawl.packing` for what it does.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final

from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.utils.asyncio import is_asyncio_available
from scrapy.utils.misc import load_object

from scrapy_spider_suite.crawl.sinks.commit_log import CommitLog, PlainLog, Sink
from scrapy_spider_suite.crawl.sinks.item_packs import ItemPacks
from scrapy_spider_suite.crawl.sinks.link_counts import LinkCounting
from scrapy_spider_suite.crawl.sinks.page_packs import PagePacks
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.items import PageItem
from scrapy_spider_suite.settings.declarations import full_name
from scrapy_spider_suite.settings.project import is_crawl, uses_job
from scrapy_spider_suite.settings.suite import suite_settings

if TYPE_CHECKING:
    from typing import Self

    from scrapy.crawler import Crawler

SCHEDULER: Final = "scrapy_spider_suite.scheduler.FrontierScheduler"


class SinkPipeline:
    """What such pipelines have in common.

    With the suite's scheduler, that asks for the sink as it opens, and calls it. With another one
    the pipeline itself does.
    """

    last: ClassVar = False
    """Whether what its sink writes may wait for all others."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self._plain: PlainLog | None = None
        self._sunk = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build it for *crawler*. Raises `NotConfigured` without the setting that it needs."""
        return cls(crawler)

    def sink(self, log: CommitLog) -> Sink:
        """Make what writes. Raises the `SuiteError`s."""
        self._sunk = True
        return self.make_sink(log)

    def make_sink(self, log: CommitLog) -> Sink:
        """What `sink` returns."""
        raise NotImplementedError

    def open_spider(self) -> None:
        """Called after the scheduler was opened. Raises the `SuiteError`s."""
        if not self._sunk:
            if not is_asyncio_available():
                raise SettingsError(f"{type(self).__name__} needs Scrapy's asyncio reactor")
            self._plain = PlainLog(self.crawler)
            self._plain.start(self.sink(self._plain))

    async def close_spider(self) -> None:
        """Have everything written, unless the scheduler will."""
        if self._plain is not None:
            await self._plain.stop()


class FolderPipeline(SinkPipeline):
    """What those have in common that write *what* there is to a folder, named by *setting*."""

    setting: ClassVar[str]
    what: ClassVar[str]

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build it for *crawler*. Raises `NotConfigured`: no folder, nor a job whose operator may
        name one, or no crawl.

        What only looks at a page must not upload packs, and delete them, beside that.
        """
        settings = suite_settings(crawler)
        folder = getattr(settings, cls.setting)
        if folder is None and settings.project.jobdir is None:
            raise NotConfigured(f"{full_name(cls.setting)} is not set: no folder for {cls.what}")
        if not is_crawl(crawler):
            why = f"{cls.what} are written of crawls only"
            raise NotConfigured(*([] if folder is None else [why]))
        return cls(crawler)


def has_frontier(crawler: Crawler) -> bool:
    """Whether the scheduler of *crawler* is the suite's, or made of it."""
    scheduler = load_object(crawler.settings["SCHEDULER"])
    # Not issubclass(): to Scrapy's metaclass every scheduler is a subclass of any other.
    return any(f"{each.__module__}.{each.__qualname__}" == SCHEDULER for each in scheduler.__mro__)


def sinking_pipelines(crawler: Crawler) -> list[SinkPipeline]:
    """Those of *crawler*'s item pipelines, in the order in which they are to end."""
    engine = crawler.engine
    found = [] if engine is None else getattr(engine.scraper.itemproc, "middlewares", ())
    ours = (each for each in found if isinstance(each, SinkPipeline))
    return sorted(ours, key=attrgetter("last"))


class ItemPackPipeline(FolderPipeline):
    """Keeps items in SUITE_ITEMS_DIR, if there is one; that may change in a job.

    Wherever it stands among the pipelines, it takes an item when that has been through all of them.
    """

    last = True
    setting, what = "items_dir", "items"

    def make_sink(self, log: CommitLog) -> Sink:
        """See `SinkPipeline`."""
        packs = ItemPacks(log)
        log.crawler.signals.connect(packs.take, signals.item_scraped, weak=False)
        return packs

    def process_item(self, item: Any) -> Any:
        """Pass the item on."""
        return item


class LinkStatsPipeline(SinkPipeline):
    """Counts the links of pages, as SUITE_LINK_STATS says; that may change in a job.

    Pages come beside the items, or as items, as for `PagePackPipeline`.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._counting: LinkCounting | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build it for *crawler*. Raises `NotConfigured`: nothing is to be counted, or nowhere."""
        settings = suite_settings(crawler)
        if not settings.link_stats:
            if settings.project.jobdir is None:
                raise NotConfigured("SUITE_LINK_STATS is not set: nothing is to be counted")
            if not (has_frontier(crawler) and uses_job(crawler)):
                raise NotConfigured  # nobody is asked to count while it runs
        if not has_frontier(crawler) and not uses_job(crawler):
            raise NotConfigured("without the suite's scheduler, counts need a JOBDIR to be kept in")
        return cls(crawler)

    def make_sink(self, log: CommitLog) -> Sink:
        """See `SinkPipeline`."""
        self._counting = LinkCounting(log)
        return self._counting

    def process_item(self, item: Any) -> Any:
        """Have the page of a `PageItem` counted, and pass every item on."""
        if isinstance(item, PageItem) and self._counting is not None:
            self._counting.take(item)
        return item


class PagePackPipeline(FolderPipeline):
    """Packs the pages of a crawl in SUITE_PACKS_DIR, if there is one; that may change in a job.

    They come beside the items, or as items (`PageItem`): with SUITE_PAGE_ITEMS, and where the
    scheduler is not the suite's.
    """

    setting, what = "packs_dir", "pages"

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._packs: PagePacks | None = None

    def make_sink(self, log: CommitLog) -> Sink:
        """See `SinkPipeline`."""
        self._packs = PagePacks(log)
        return self._packs

    def process_item(self, item: Any) -> Any:
        """Have the page of a `PageItem` packed, and pass every item on."""
        if isinstance(item, PageItem) and self._packs is not None:
            self._packs.take(item)
        return item
