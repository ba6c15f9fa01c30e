"""Texts of pages into an index, as a component of Scrapy's: see `search` for what it does."""

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
from scrapy_spider_suite.analysis.search.index_process import FollowProcess
from scrapy_spider_suite.errors import SearchError, SettingsError
from scrapy_spider_suite.settings.project import is_crawl
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.signals import settings_changed, settings_changing

if TYPE_CHECKING:
    from typing import Self

    from scrapy.crawler import Crawler

    from scrapy_spider_suite.settings.suite import SuiteSettings

logger = logging.getLogger(__name__)

_LONGEST: Final = 300.0
"""Seconds between two starts of a process that ends again and again."""
_AT_HAND: Final = 5.0
"""Seconds that it has to write what it has read when the time for it is over."""


class IndexPipeline:
    """Has the packs of SUITE_PACKS_DIR indexed beside the crawl, while SUITE_INDEX says so.

    Either may change. Stats: those of `IndexSupervisor`.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._indexing: IndexSupervisor | None = None
        self._changing: asyncio.Task[None] | None = None
        crawler.signals.connect(self._check, settings_changing)
        crawler.signals.connect(self._change, settings_changed)
        # Packs are closed by then.
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build it for *crawler*.

        Raises `NotConfigured`: no packs are to be indexed, nor is there a job whose operator may
        want it; no crawl, or what it needs is not here.
        """
        settings = suite_settings(crawler)
        if not settings.index and settings.project.jobdir is None:
            raise NotConfigured("SUITE_INDEX is not set: no packs are to be indexed")
        if settings.index:
            try:
                require()
            except SearchError as error:
                raise NotConfigured(str(error)) from error
        if not is_crawl(crawler):
            why = "packs are indexed beside crawls only"
            raise NotConfigured(*([why] if settings.index else []))
        return cls(crawler)

    def open_spider(self) -> None:
        """Start the process, if there is to be one."""
        self._indexing = self._make(suite_settings(self._crawler))
        if self._indexing is not None:
            self._indexing.start()

    def process_item(self, item: Any) -> Any:
        """Pass every item on: pages come out of the packs."""
        return item

    def _make(self, settings: SuiteSettings) -> IndexSupervisor | None:
        folder = settings.packs_dir if settings.index else None
        return None if folder is None else IndexSupervisor(self._crawler, folder)

    def _check(self, new: SuiteSettings) -> None:
        if new.index:
            try:
                require()
            except SearchError as error:
                raise SettingsError(f"SUITE_INDEX = True: {error}") from error

    def _change(self, old: SuiteSettings, new: SuiteSettings) -> None:
        if (old.index, old.packs_dir) != (new.index, new.packs_dir):
            former, self._indexing = self._indexing, self._make(new)
            self._changing = asyncio.create_task(
                self._follow(self._changing, former, self._indexing)
            )

    @staticmethod
    async def _follow(
        before: asyncio.Task[None] | None,
        former: IndexSupervisor | None,
        indexing: IndexSupervisor | None,
    ) -> None:
        """Have *indexing* begin when *former*, and the change *before* this one, are over."""
        if before is not None:
            await before
        if former is not None:
            await former.end()
        if indexing is not None:
            indexing.start()

    async def spider_closed(self) -> None:
        """Have the rest read, as far as there is time."""
        if self._changing is not None:
            await self._changing
        if self._indexing is not None:
            await self._indexing.end()


class IndexSupervisor:
    """Has a process follow the packs in *folder* and index them.

    It reads what is on disk, so no page waits for it, and nothing is lost with it: it goes on where
    it was. It is started again when it ends, and has SUITE_STOP_TIMEOUT at its own end.

    Stats: ``suite/index/pages``, ``suite/index/gone``, ``suite/index/skipped``,
    ``suite/index/damaged``, ``suite/index/rebuilt``, ``suite/index/behind`` (bytes),
    ``suite/index/restarts``.
    """

    def __init__(self, crawler: Crawler, folder: Path) -> None:
        self._crawler = crawler
        self._folder = folder
        self._process: FollowProcess | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._ending = False

    def start(self) -> None:
        """Start the process."""
        self._loop = asyncio.get_running_loop()
        self._start()

    async def end(self) -> None:
        """Have the rest read, as far as there is time; the next crawl goes on from there."""
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
            if not await asyncio.to_thread(process.wait, _AT_HAND):
                process.kill()
                await asyncio.to_thread(process.wait)

    def _start(self) -> None:
        self._timer = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._process = FollowProcess(
                self._folder,
                partial(self._in_the_loop, self._told), partial(self._in_the_loop, self._ended),
            )  # fmt: skip
        except OSError as error:
            self._ended(-1, str(error))

    def _in_the_loop(self, tell: Callable[..., object], *what: Any) -> None:
        """In a thread of the process, which may outlive the crawl."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(tell, *what)

    def _told(self, row: dict[str, Any]) -> None:
        """What a batch came to."""
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

    def _ended(self, code: int, words: str) -> None:
        """The process has ended: start another one in a while."""
        if self._ending:
            if code:
                logger.error("The index of texts is behind: %s", words or f"exit code {code}")
            return
        self._process = None
        wait = min(_LONGEST, 2.0 ** min(9, self._failures))
        self._failures += 1
        self._crawler.stats.inc_value("suite/index/restarts")
        logger.error("What indexes texts has ended (%s): again in %d s",
                     words or f"exit code {code}", wait)  # fmt: skip
        self._timer = self._loop.call_later(wait, self._start)
