"""The progress line: on the terminal every second, in the log every LOGSTATS_INTERVAL."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, TextIO

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.extensions.logstats import LogStats

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.frontier.workbench import WaitReason
from scrapy_spider_suite.operate.job_target import pause_reasons
from scrapy_spider_suite.operate.judge import display_duration, wait_summary
from scrapy_spider_suite.runtime.tasks import PeriodicTask
from scrapy_spider_suite.runtime.text import counted, printable
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.urls.traps import format_counts

logger = logging.getLogger(__name__)

_CLEAR = "\r\x1b[K"
_EOL = "\n"
_COLUMNS = 80
_MINUTE = 60.0
_SAMPLING = 1.0  # seconds between two samples of the queue
_LOGSTATS = "scrapy.extensions.logstats"


class _StatusLine:
    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._line = ""
        self._handlers: list[logging.StreamHandler[Any]] = []

    def start(self) -> None:
        self._handlers = [
            each for each in logging.getLogger().handlers
            if isinstance(each, logging.StreamHandler) and each.stream is self._terminal
        ]  # fmt: skip
        for handler in self._handlers:
            handler.setStream(self)

    def stop(self) -> None:
        self.show([])
        for handler in self._handlers:
            handler.setStream(self._terminal)

    def show(self, parts: list[str], ways: Sequence[str] = ()) -> None:
        try:
            width = os.get_terminal_size(self._terminal.fileno()).columns
        except OSError:
            width = _COLUMNS
        line = next((each for each in ways if len(each) < width), "")
        for part in parts:
            longer = f"{line}, {part}" if line else part
            if len(longer) >= width:
                break
            line = longer
        self._line = line
        self._terminal.write(_CLEAR + line)
        self._terminal.flush()

    def write(self, text: str) -> int:
        return self._terminal.write(f"{_CLEAR}{text}{self._line if text.endswith(_EOL) else ''}")

    def flush(self) -> None:
        self._terminal.flush()


class _Pace:
    """Rates of the last minute, and the end expected from them; *began*: monotonic start."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._samples: deque[tuple[float, int, int, int]] = deque()

    def note(self, now: float, pages: int, received: int, pending: int) -> None:
        self._samples.append((now, pages, received, pending))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _MINUTE:
            self._samples.popleft()

    def rates(self) -> tuple[float, float]:
        (then, pages, received, _), (now, more, still_more, _) = self._samples[0], self._samples[-1]
        seconds = max(1e-9, now - then)
        return (more - pages) / seconds, (still_more - received) / seconds

    def time_left(self) -> str:
        now, _, _, pending = self._samples[-1]
        middle = (self._began + now) / 2
        first = max((each for each in self._samples if each[0] <= middle), default=self._samples[0])
        then, _, _, before = first
        if pending > before:
            return "the queue grows"
        if pending == 0:
            return "the queue is empty"
        if pending == before:
            return "no end in sight"
        return f"about {display_duration(pending * (now - then) / max(1, before - pending))}"


class ProgressLine:
    """Shows pages, rates, queue and hosts of a broad crawl, in place of Scrapy's LogStats."""

    def __init__(self, crawler: Crawler, terminal: TextIO | None) -> None:
        self._crawler = crawler
        self._status = None if terminal is None else _StatusLine(terminal)
        self._interval = 1.0 if terminal else crawler.settings.getfloat("LOGSTATS_INTERVAL")
        self._tasks: list[PeriodicTask] = []
        crawler.signals.connect(self._opened, signals.spider_opened)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> ProgressLine:
        settings = crawler.settings
        if suite_settings(crawler).profile != "broad":
            raise NotConfigured("only the broad profile shows its progress")
        if not settings.getfloat("LOGSTATS_INTERVAL"):
            raise NotConfigured("LOGSTATS_INTERVAL is 0")
        on_terminal = sys.stderr.isatty() and not settings["LOG_FILE"]
        return cls(crawler, sys.stderr if on_terminal else None)

    def _opened(self) -> None:
        # The crawl is closed before the spider.
        self._crawl = get_crawl(self._crawler)
        # Connected here: a refused crawl is closed, too.
        self._crawler.signals.connect(self._closed, signals.spider_closed)
        frontier = self._crawl.frontier
        logger.info(
            "The crawl is open: %s done, %s to go",
            counted(frontier.counters.done, "page"), counted(frontier.pending, "URL"),
        )  # fmt: skip
        self._pace = _Pace(time.monotonic())
        self._sample()
        self._tasks = [
            PeriodicTask(_SAMPLING, self._sample), PeriodicTask(self._interval, self._show)
        ]  # fmt: skip
        for task in self._tasks:
            task.start()
        logging.getLogger(_LOGSTATS).addFilter(self._is_wanted)
        if self._status is not None:
            self._status.start()

    def _is_wanted(self, record: logging.LogRecord) -> bool:
        if getattr(record, "spider", None) is not self._crawler.spider:
            return True
        return type(self._crawler.get_extension(LogStats)) is not LogStats

    def _sample(self) -> None:
        counters, now = self._crawl.frontier.counters, time.monotonic()
        self._pace.note(now, counters.done, counters.bytes, self._crawl.frontier.pending)

    def _show(self) -> None:
        self._sample()
        if self._status is None:
            logger.info(self.line(time.monotonic()))
        else:
            self._status.show(self.parts(), self._pauses())

    def _pauses(self) -> list[str]:
        # Texts for a paused crawl, the longest first.
        engine = self._crawl.engine
        if engine is None or not engine.paused or engine.closing:
            return []
        known = engine.pauses
        kv = self._crawl.store.kv("control")
        named = [", ".join(pause_reasons(kv, known, comment=each)) for each in (True, False)]
        return [*(f"paused by {printable(each)}" for each in named if each), "paused"]

    def parts(self) -> list[str]:
        """The parts on a terminal, the most important first."""
        frontier, (pages, received) = self._crawl.frontier, self._pace.rates()
        counts = sorted(frontier.waits.counts, key=lambda each: each.reason is not WaitReason.READY)
        return [
            f"{counted(frontier.counters.done, 'page')} ({pages:,.1f}/s, {_size(received)}/s)",
            f"{frontier.pending:,} to go ({self._pace.time_left()})",
            *(f"{each.hosts:,} {each.reason}" for each in counts),
            f"{frontier.counters.failed:,} failed",
        ]

    def line(self, now: float) -> str:
        """The line in the log. *now* is monotonic."""
        frontier, (pages, received) = self._crawl.frontier, self._pace.rates()
        counters = frontier.counters
        paused = "".join(f"{each}; " for each in self._pauses()[:1])
        return (
            f"{paused}{counted(counters.done, 'page')} ({pages:,.1f}/s, {_size(received)}/s), "
            f"{counted(frontier.pending, 'URL')} to go ({self._pace.time_left()}), "
            f"{frontier.statistics().leased} under way; "
            f"{wait_summary(frontier.waits.counts, now + frontier.wall_offset)}; "
            f"{counters.failed:,} failed"
        )

    def _closed(self, reason: str) -> None:
        for task in self._tasks:
            task.stop()
        if self._status is not None:
            self._status.stop()
        logging.getLogger(_LOGSTATS).removeFilter(self._is_wanted)
        frontier = self._crawl.frontier
        counters = frontier.counters
        outcomes = ", ".join(
            f"{count:,} {event.value.replace('_', ' ')}"
            for event, count in sorted(counters.events.items(), key=lambda item: -item[1])
        )
        traps = format_counts(frontier.traps.met)
        logger.info(
            "The crawl ended (%s) after %.0f s in all: %s done, %s failed, %s left%s%s",
            reason, counters.seconds, counted(counters.done, "page"),
            counted(counters.failed, "URL"), f"{frontier.pending:,}",
            f" ({outcomes})" if outcomes else "",
            f"; URLs in traps: {traps}" if traps else "",
        )  # fmt: skip


def _size(number: float) -> str:
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= length:
            return f"{number / length:.1f} {unit}"
    return f"{number:.0f} B"
