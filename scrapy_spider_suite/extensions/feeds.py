"""Feeds that lose nothing to a kill.

Scrapy's feed export writes to a file that Python buffers, 8 KiB of it: after a ``kill -9`` the last
items of pages that are done would be missing, and no later run would fetch these pages again. With
a job this extension hands each item to the system before its page is done. That is what a job's own
commits do (``SUITE_SYNC = "process"``).

Feeds that are no local files, and those with post-processing (compression), are stored by Scrapy
when the spider closes or a batch is full: of these a kill takes what was not stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.extensions.feedexport import FeedExporter

from scrapy_spider_suite.settings.project import uses_job

if TYPE_CHECKING:
    from typing import Self

    from scrapy.crawler import Crawler


class FeedFlush:
    """Flushes the feeds of *crawler* after each item."""

    def __init__(self, crawler: Crawler) -> None:
        """Connect after Scrapy's FeedExporter, which is made first: it is called first, too."""
        self._crawler = crawler
        crawler.signals.connect(self.item_scraped, signals.item_scraped)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build it for *crawler*. Raises `NotConfigured` without a job."""
        if not uses_job(crawler):
            raise NotConfigured
        return cls(crawler)

    def item_scraped(self) -> None:
        """Hand what was written to the system."""
        exporter = self._crawler.get_extension(FeedExporter)
        for slot in () if exporter is None else exporter.slots:
            if slot.file is not None:
                slot.file.flush()
