"""Items into packs, as a component of Scrapy's: see `crawl.itempacks` for what it does."""

from __future__ import annotations

from typing import Any

from scrapy import signals

from scrapy_spider_suite.crawl.sinks.commit_log import CommitLog, Sink
from scrapy_spider_suite.crawl.sinks.item_packs import ItemPacks
from scrapy_spider_suite.pipelines.sinking import FolderPipeline


class ItemPackPipeline(FolderPipeline):
    """Keeps items in SUITE_ITEMS_DIR, if there is one; that may change in a job.

    Wherever it stands among the pipelines, it takes an item when that has been through all of them.
    """

    last = True
    setting, what = "items_dir", "items"

    def make_sink(self, log: CommitLog) -> Sink:
        """See `SinkingPipeline`."""
        packs = ItemPacks(log)
        log.crawler.signals.connect(packs.take, signals.item_scraped, weak=False)
        return packs

    def process_item(self, item: Any) -> Any:
        """Pass the item on."""
        return item
