"""The pipeline that has a process index the texts of packs while a crawl writes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy import signals
from scrapy.exceptions import NotConfigured

from scrapy_spider_suite.analysis.search import require
from scrapy_spider_suite.analysis.search.index_process import IndexProcess
from scrapy_spider_suite.errors import SearchError
from scrapy_spider_suite.settings.project import is_crawl
from scrapy_spider_suite.settings.suite import suite_settings

if TYPE_CHECKING:
    from typing import Self

    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

_RESTART_MAX: Final = 300.0
"""Most seconds between two starts of a process that ends again and again."""
_STOP_TIME: Final = 5.0
"""Seconds that the process has to write its last batch once it is told to stop."""


class IndexPipeline:
    """Has the packs of SUITE_PACKS_DIR indexed beside the crawl (SUITE_INDEX).

    Stats: those of `IndexSupervisor`.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._supervisor: IndexSupervisor | None = None
        # Packs are closed by then.
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Raises `NotConfigured`: SUITE_INDEX is off, its libraries are missing, or no crawl."""
        if not suite_settings(crawler).index:
            raise NotConfigured("SUITE_INDEX is not set: no packs are to be indexed")
        try:
            require()
        except SearchError as error:
            raise NotConfigured(str(error)) from error
        if not is_crawl(crawler):
            raise NotConfigured("packs are indexed beside crawls only")
        return cls(crawler)

    def open_spider(self) -> None:
        folder = suite_settings(self._crawler).packs_dir
        if folder is not None:
            self._supervisor = IndexSupervisor(self._crawler, folder)
            self._supervisor.start()

    def process_item(self, item: Any) -> Any:
        """Return *item*: pages come out of the packs."""
        return item

    async def spider_closed(self) -> None:
        """Have the rest read within SUITE_STOP_TIMEOUT."""
        if self._supervisor is not None:
            await self._supervisor.end()


class IndexSupervisor:
    """Runs the process that indexes the packs in *folder*, and restarts it when it ends.

    The process reads packs on disk: no page waits for it, and a restart loses nothing.

    Stats: ``suite/index/pages``, ``suite/index/gone``, ``suite/index/skipped``,
    ``suite/index/damaged``, ``suite/index/rebuilt``, ``suite/index/behind`` (bytes),
    ``suite/index/restarts``.
    """

    def __init__(self, crawler: Crawler, folder: Path) -> None:
        self._crawler = crawler
        self._folder = folder
        self._process: IndexProcess | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._ending = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._start()

    async def end(self) -> None:
        """Have the rest read within SUITE_STOP_TIMEOUT; the next crawl goes on from there."""
        self._ending = True
        if self._timer is not None:
            self._timer.cancel()
        process, self._process = self._process, None
        if process is None:
            return
        process.finish()
        if not await asyncio.to_thread(process.wait, suite_settings(self._crawler).stop_timeout):
            logger.info("The index of texts is behind: the next crawl, or `scrapy packs index`, "
                        "goes on with it")  # fmt: skip
            process.stop()
            if not await asyncio.to_thread(process.wait, _STOP_TIME):
                process.kill()
                await asyncio.to_thread(process.wait)

    def _start(self) -> None:
        self._timer = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._process = IndexProcess(
                self._folder,
                partial(self._call_in_loop, self._add_stats),
                partial(self._call_in_loop, self._restart_later),
            )  # fmt: skip
        except OSError as error:
            self._restart_later(-1, str(error))

    def _call_in_loop(self, callback: Callable[..., object], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _add_stats(self, row: dict[str, Any]) -> None:
        self._failures = 0
        stats = self._crawler.stats
        for name in ("pages", "gone", "skipped"):
            stats.inc_value(f"suite/index/{name}", row[name])
        stats.set_value("suite/index/behind", row["behind"])
        for pack, (offset, length, why, _) in row["damaged"]:
            stats.inc_value("suite/index/damaged")
            logger.warning("%s, %d bytes at %d are not indexed: %s", pack, length, offset, why)
        if row["rebuilt"]:
            stats.inc_value("suite/index/rebuilt")
            logger.error("%s: the index is made anew of the packs that are here", row["rebuilt"])

    def _restart_later(self, code: int, words: str) -> None:
        if self._ending:
            if code:
                logger.error("The index of texts is behind: %s", words or f"exit code {code}")
            return
        self._process = None
        wait = min(_RESTART_MAX, 2.0 ** min(9, self._failures))
        self._failures += 1
        self._crawler.stats.inc_value("suite/index/restarts")
        logger.error("What indexes texts has ended (%s): again in %d s",
                     words or f"exit code {code}", wait)  # fmt: skip
        self._timer = self._loop.call_later(wait, self._start)
