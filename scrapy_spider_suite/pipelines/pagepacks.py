"""Pages into packs, as a component of Scrapy's: see `crawl.packing` for what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_spider_suite.crawl.sinks.commit_log import CommitLog, Sink
from scrapy_spider_suite.crawl.sinks.page_packs import PagePacks
from scrapy_spider_suite.items import PageItem
from scrapy_spider_suite.pipelines.sinking import FolderPipeline

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


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
        """See `SinkingPipeline`."""
        self._packs = PagePacks(log)
        return self._packs

    def process_item(self, item: Any) -> Any:
        """Have the page of a `PageItem` packed, and pass every item on."""
        if isinstance(item, PageItem) and self._packs is not None:
            self._packs.take(item)
        return item
