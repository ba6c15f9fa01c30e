"""Pages into packs, as a component of Scrapy's: see `crawl.packing` for what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.exceptions import NotConfigured

from scrapy_spider_suite.crawl.commitlog import CommitLog, Sink
from scrapy_spider_suite.crawl.packing import PagePacking
from scrapy_spider_suite.items import PageItem
from scrapy_spider_suite.pipelines.sinking import SinkingPipeline
from scrapy_spider_suite.settings.project import is_crawl
from scrapy_spider_suite.settings.suite import suite_settings

if TYPE_CHECKING:
    from typing import Self

    from scrapy.crawler import Crawler


class PagePackPipeline(SinkingPipeline):
    """Packs the pages of a crawl in SUITE_PACKS_DIR, which alone has the add-on switch it on.

    They come beside the items, or as items (`PageItem`): with SUITE_PAGE_ITEMS, and where the
    scheduler is not the suite's.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._packing: PagePacking | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build it for *crawler*. Raises `NotConfigured`: no folder for packs, or no crawl.

        What only looks at a page must not upload packs, and delete them, beside that.
        """
        if suite_settings(crawler).packs_dir is None:
            raise NotConfigured("SUITE_PACKS_DIR is not set: there is no folder for packs")
        if not is_crawl(crawler):
            raise NotConfigured("pages are packed of crawls only")
        return cls(crawler)

    def make_sink(self, log: CommitLog) -> Sink:
        """See `SinkingPipeline`."""
        folder = log.settings.packs_dir
        if folder is None:
            raise NotConfigured("SUITE_PACKS_DIR is not set")
        self._packing = PagePacking(log, folder)
        return self._packing

    def process_item(self, item: Any) -> Any:
        """Have the page of a `PageItem` packed, and pass every item on."""
        if isinstance(item, PageItem) and self._packing is not None:
            self._packing.take(item)
        return item
