"""The progress line: on the terminal every second, in the log every LOGSTATS_INTERVAL."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.extensions.logstats import LogStats

from scrapy_spider_suite.crawl.assembly import open_crawl
from scrapy_spider_suite.crawl.pulse import COLUMNS
from scrapy_spider_suite.frontier.workbench import WaitReason
from scrapy_spider_suite.operate.job_target import pause_reasons
from scrapy_spider_suite.operate.judge import end_in_words, wait_summary
from scrapy_spider_suite.runtime.tasks import PeriodicTask
from scrapy_spider_suite.runtime.text import counted, printable
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.urls.traps import format_counts

logger = logging.getLogger(__name__)

_CLEAR = "\r\x1b[K"
_EOL = "\n"
_COLUMNS = 80
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


class ProgressLine:
    """Shows pages, rates, queue and hosts of a broad crawl, in place of Scrapy's LogStats."""

    def __init__(self, crawler: Crawler, terminal: TextIO | None) -> None:
        self._crawler = crawler
        self._status = None if terminal is None else _StatusLine(terminal)
        self._interval = 1.0 if terminal else crawler.settings.getfloat("LOGSTATS_INTERVAL")
        self._task: PeriodicTask | None = None
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
        parts = open_crawl(self._crawler)
        self._crawl, self._pulses = parts.crawl, parts.pulses
        # Connected here: a refused crawl is closed, too.
        self._crawler.signals.connect(self._closed, signals.spider_closed)
        logger.info(
            "The crawl is open: %s done, %s to go",
            counted(self._total("pages"), "page"), counted(self._crawl.pending, "URL"),
        )  # fmt: skip
        self._task = PeriodicTask(self._interval, self._show)
        self._task.start()
        logging.getLogger(_LOGSTATS).addFilter(self._is_wanted)
        if self._status is not None:
            self._status.start()

    def _is_wanted(self, record: logging.LogRecord) -> bool:
        if getattr(record, "spider", None) is not self._crawler.spider:
            return True
        return type(self._crawler.get_extension(LogStats)) is not LogStats

    def _show(self) -> None:
        self._pulses.poll()  # where no scheduler of the suite does
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
        rates = self._pulses.pace.rates()
        counts = sorted(self._crawl.frontier.waits.counts,
                        key=lambda each: each.reason is not WaitReason.READY)  # fmt: skip
        return [
            f"{counted(self._total('pages'), 'page')} ({_rates_in_words(rates)})",
            f"{self._gauge('pending'):,} to go ({self._time_left()})",
            *(f"{each.hosts:,} {each.reason}" for each in counts),
            f"{self._total('failed'):,} failed",
        ]

    def _total(self, counter: str) -> int:
        return int(self._pulses.totals[COLUMNS.counters.index(counter)])

    def _gauge(self, name: str) -> int:
        return int(self._pulses.gauges[COLUMNS.gauges.index(name)])

    def line(self, now: float) -> str:
        """The line in the log. *now* is monotonic."""
        frontier, rates = self._crawl.frontier, self._pulses.pace.rates()
        paused = "".join(f"{each}; " for each in self._pauses()[:1])
        return (
            f"{paused}{counted(self._total('pages'), 'page')} ({_rates_in_words(rates)}), "
            f"{counted(self._gauge('pending'), 'URL')} to go ({self._time_left()}), "
            f"{self._gauge('under_way')} under way; "
            f"{wait_summary(frontier.waits.counts, now + frontier.wall_offset)}; "
            f"{self._total('failed'):,} failed"
        )

    def _time_left(self) -> str:
        return end_in_words(*self._pulses.time_left())

    def _closed(self, reason: str) -> None:
        if self._task is not None:
            self._task.stop()
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
            reason, counters.seconds, counted(self._total("pages"), "page"),
            counted(self._total("failed"), "URL"), f"{frontier.pending:,}",
            f" ({outcomes})" if outcomes else "",
            f"; URLs in traps: {traps}" if traps else "",
        )  # fmt: skip


def _rates_in_words(rates: Mapping[str, float]) -> str:
    return f"{rates['pages']:,.1f}/s, {_size(rates['bytes'])}/s"


def _size(number: float) -> str:
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= length:
            return f"{number / length:.1f} {unit}"
    return f"{number:.0f} B"
