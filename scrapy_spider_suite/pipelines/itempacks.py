"""Items into packs, as a component of Scrapy's: see `crawl.itempacks` for what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.exceptions import NotConfigured

from scrapy_spider_suite.crawl.commitlog import CommitLog, Sink
from scrapy_spider_suite.crawl.itempacks import ItemPacking
from scrapy_spider_suite.pipelines.sinking import SinkingPipeline
from scrapy_spider_suite.settings.project import is_crawl
from scrapy_spider_suite.settings.suite import suite_settings

if TYPE_CHECKING:
    from typing import Self

    from scrapy.crawler import Crawler


class ItemPackPipeline(SinkingPipeline):
    """Keeps items in SUITE_ITEMS_DIR, which alone has the add-on switch it on.

    Wherever it stands among the pipelines, it takes an item when that has been through all of them.
    """

    last = True

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build it for *crawler*. Raises `NotConfigured` without a folder for items."""
        if suite_settings(crawler).items_dir is None:
            raise NotConfigured("SUITE_ITEMS_DIR is not set: there is no folder for items")
        if not is_crawl(crawler):
            raise NotConfigured("items are kept of crawls only")
        return cls(crawler)

    def make_sink(self, log: CommitLog) -> Sink:
        """See `SinkingPipeline`."""
        folder = log.settings.items_dir
        if folder is None:
            raise NotConfigured("SUITE_ITEMS_DIR is not set")
        packing = ItemPacking(log, folder)
        log.crawler.signals.connect(packing.take, signals.item_scraped, weak=False)
        return packing

    def process_item(self, item: Any) -> Any:
        """Pass the item on."""
        return item
