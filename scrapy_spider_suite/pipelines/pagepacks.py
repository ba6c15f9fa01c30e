"""Pages into packs, as a component of Scrapy's: see `crawl.packing` for what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.exceptions import NotConfigured

from scrapy_spider_suite.crawl.commitlog import CommitLog, Sink
from scrapy_spider_suite.crawl.packing import PagePacking
from scrapy_spider_suite.pipelines.sinking import SinkingPipeline
from scrapy_spider_suite.settings.suite import suite_settings

if TYPE_CHECKING:
    from typing import Self

    from scrapy.crawler import Crawler


class PagePackPipeline(SinkingPipeline):
    """Packs the pages of a crawl in SUITE_PACKS_DIR, which alone has the add-on switch it on."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build it for *crawler*. Raises `NotConfigured` without a folder for packs."""
        if suite_settings(crawler).packs_dir is None:
            raise NotConfigured("SUITE_PACKS_DIR is not set: there is no folder for packs")
        return cls(crawler)

    def make_sink(self, log: CommitLog) -> Sink:
        """See `SinkingPipeline`."""
        folder = log.settings.packs_dir
        if folder is None:
            raise NotConfigured("SUITE_PACKS_DIR is not set")
        return PagePacking(log, folder)

    def process_item(self, item: Any) -> Any:
        """Pass the item on."""
        return item
