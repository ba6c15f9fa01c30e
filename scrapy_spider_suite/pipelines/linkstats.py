"""Link statistics, as a component of Scrapy's: see `crawl.counting` for what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.exceptions import NotConfigured

from scrapy_spider_suite.crawl.sinks.commit_log import CommitLog, Sink
from scrapy_spider_suite.crawl.sinks.link_counts import LinkCounting
from scrapy_spider_suite.items import PageItem
from scrapy_spider_suite.pipelines.sinking import SinkingPipeline, has_frontier
from scrapy_spider_suite.settings.project import uses_job
from scrapy_spider_suite.settings.suite import suite_settings

if TYPE_CHECKING:
    from typing import Self

    from scrapy.crawler import Crawler


class LinkStatsPipeline(SinkingPipeline):
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
        """See `SinkingPipeline`."""
        self._counting = LinkCounting(log)
        return self._counting

    def process_item(self, item: Any) -> Any:
        """Have the page of a `PageItem` counted, and pass every item on."""
        if isinstance(item, PageItem) and self._counting is not None:
            self._counting.take(item)
        return item
