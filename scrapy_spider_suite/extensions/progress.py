"""One line that says how the crawl goes: on the terminal every second, in the log every minute."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import TYPE_CHECKING, TextIO

from scrapy import signals
from scrapy.exceptions import NotConfigured

from scrapy_spider_suite.crawl.core import core_of
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.urls.traps import counts_of
from scrapy_spider_suite.wording import counted

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

_CLEAR = "\r\x1b[K"


class _Clearer(logging.Handler):
    """Wipes the progress line before each line of the log that goes to the same terminal."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__()
        self._terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        """Wipe the line; the next handler writes."""
        self._terminal.write(_CLEAR)


class Progress:
    """Shows pages, rate, hosts and errors of a crawl in the broad profile.

    LOGSTATS_INTERVAL is the interval of the line in the log, where there is no terminal.
    """

    def __init__(self, crawler: Crawler, terminal: TextIO | None) -> None:
        self._crawler = crawler
        self._terminal = terminal
        self._interval = 1.0 if terminal else crawler.settings.getfloat("LOGSTATS_INTERVAL")
        self._timer: asyncio.TimerHandle | None = None
        self._clearer = None if terminal is None else _Clearer(terminal)
        self._before = (0.0, 0)
        crawler.signals.connect(self._opened, signals.spider_opened)
        crawler.signals.connect(self._closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Progress:
        """Build it for *crawler*. Raises `NotConfigured` where nothing is to be shown."""
        settings = crawler.settings
        if suite_settings(crawler).profile != "broad":
            raise NotConfigured("only the broad profile shows its progress")
        if not settings.getfloat("LOGSTATS_INTERVAL"):
            raise NotConfigured("LOGSTATS_INTERVAL is 0")
        on_terminal = sys.stderr.isatty() and not settings["LOG_FILE"]
        return cls(crawler, sys.stderr if on_terminal else None)

    def _opened(self) -> None:
        # Kept, since the crawl's core is closed before the spider is.
        self._core = core_of(self._crawler)
        self._before = (time.monotonic(), 0)
        if self._clearer is not None:
            logging.getLogger().handlers.insert(0, self._clearer)
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._show)

    def _show(self) -> None:
        line = self.line(time.monotonic())
        if self._terminal is None:
            logger.info(line)
        else:
            self._terminal.write(_CLEAR + line[:119])
            self._terminal.flush()
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._show)

    def line(self, now: float) -> str:
        """The line, with the rate since it was last asked for. *now* is monotonic."""
        frontier = self._core.frontier
        counters, statistics = frontier.counters, frontier.statistics()
        then, before = self._before
        pages = counters.done + counters.failed
        self._before = (now, pages)
        rate = (pages - before) / max(1e-9, now - then)
        ready = frontier.ready_hosts(now)
        return (
            f"{counters.done:,} pages ({rate:,.0f}/s), {statistics.pending:,} URLs to go, "
            f"{statistics.leased} under way; hosts: {ready:,} ready, "
            f"{statistics.hosts - ready:,} waiting; {counters.failed:,} failed"
        )

    def _closed(self, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._clearer is not None and self._terminal is not None:
            logging.getLogger().removeHandler(self._clearer)
            self._terminal.write(_CLEAR)
        frontier = self._core.frontier
        counters = frontier.counters
        outcomes = ", ".join(
            f"{count:,} {event.value.replace('_', ' ')}"
            for event, count in sorted(counters.events.items(), key=lambda item: -item[1])
        )
        traps = counts_of(frontier.traps.met)
        logger.info(
            "The crawl ended (%s) after %.0f s in all: %s done, %s failed, %s left (%s)%s",
            reason, counters.seconds, counted(counters.done, "page"),
            counted(counters.failed, "URL"), f"{frontier.pending:,}", outcomes,
            f"; URLs in traps: {traps}" if traps else "",
        )  # fmt: skip
