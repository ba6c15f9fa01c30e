"""Feeds that lose nothing to a kill.

Scrapy's feed export writes to a file that Python buffers, 8 KiB of it: after a ``kill -9`` the last
items of pages that are done would be missing, and no later run would fetch these pages again. With
a job this extension hands each item to the system before its page is done. That is what a job's own
commits do (``SUITE_SYNC = "process"``). What a feed cannot take is a fault of its page, as if a
pipeline had failed: with a full disk the page stays pending, and the crawl pauses.

A run of a job that makes no item leaves feeds of earlier runs as they are: Scrapy would replace
them by empty ones, or append the frame of an empty one.

Feeds that are no local files, and those with post-processing (compression), are stored by Scrapy
when the spider closes or a batch is full: of these a kill takes what was not stored.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.extensions.feedexport import (
    FeedExporter,
    FeedSlot,
    FileFeedStorage,
    StdoutFeedStorage,
)
from twisted.python.failure import Failure

from scrapy_spider_suite.settings.project import uses_job
from scrapy_spider_suite.signals import item_not_exported
from scrapy_spider_suite.store.job_directory import job_of

if TYPE_CHECKING:
    from typing import Self

    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)


class FeedFlush:
    """Flushes the feeds of *crawler* after each item."""

    def __init__(self, crawler: Crawler) -> None:
        """Connect after Scrapy's FeedExporter, which is made first: it is called first, too."""
        self._crawler = crawler
        self._exporter: FeedExporter | None = None
        self._exports = False
        self._kept: list[FeedSlot] = []
        crawler.signals.connect(self.spider_opened, signals.spider_opened)
        crawler.signals.connect(self.item_scraped, signals.item_scraped)
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build it for *crawler*. Raises `NotConfigured` without a job."""
        if not uses_job(crawler):
            raise NotConfigured
        return cls(crawler)

    def spider_opened(self) -> None:
        """Take the items in the exporter's place: what it raises in a handler only gets logged."""
        exporter = self._exporter = self._crawler.get_extension(FeedExporter)
        if exporter is not None:
            # One of the project's own may not be connected: then it is called by somebody else.
            with suppress(KeyError):
                self._crawler.signals.disconnect(exporter.item_scraped, signals.item_scraped)
                self._exports = True
            job = job_of(self._crawler)
            if job is not None and job.resumed:
                self._kept = [slot for slot in exporter.slots if _may_hold_items(slot)]
                for slot in self._kept:
                    slot.store_empty = False

    def spider_closed(self) -> None:
        """Say which feeds were left alone."""
        for slot in self._kept:
            if not slot.itemcount:
                logger.warning(
                    "the feed %s is kept as earlier runs of the job left it: this run has no item "
                    "for it", slot.uri,
                )  # fmt: skip

    def item_scraped(self, item: Any, response: Any, spider: Any) -> Any:
        """Export *item*, and hand what was written to the system."""
        exporter, given = self._exporter, {"item": item, "response": response, "spider": spider}
        if exporter is None:
            return None
        result = None
        try:
            if self._exports:
                export: Callable[..., Any] = exporter.item_scraped
                result = export(**_expected(export, given))
            for slot in exporter.slots:
                if slot.file is not None:
                    slot.file.flush()
        except Exception:  # whatever an exporter fails with, the item is not in the feed
            failure = Failure()  # type: ignore[no-untyped-call]
            self._crawler.signals.send_catch_log(item_not_exported, failure=failure, **given)
            raise
        return result


def _may_hold_items(slot: FeedSlot) -> bool:
    storage = slot.storage
    if isinstance(storage, FileFeedStorage):
        path = Path(storage.path)
        return path.is_file() and path.stat().st_size > 0
    return not isinstance(storage, StdoutFeedStorage)


def _expected(receiver: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Those of *given* that *receiver* has arguments for, as of any signal."""
    arguments = inspect.signature(receiver).parameters
    if any(each.kind is each.VAR_KEYWORD for each in arguments.values()):
        return given
    return {name: value for name, value in given.items() if name in arguments}
