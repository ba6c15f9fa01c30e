"""Watches a running crawl from inside: logs its alerts, and writes its metrics to a file."""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured

from scrapy_spider_suite.analysis.time_series import Array, Rows
from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.pulse import COLUMNS, PULSE
from scrapy_spider_suite.dashboard import metrics
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.operate.alerts import WINDOW, AlertLog
from scrapy_spider_suite.operate.crawl_view import Overview, add_alerts, make_overview
from scrapy_spider_suite.runtime.refusal import refuse_crawl
from scrapy_spider_suite.runtime.tasks import PeriodicTask
from scrapy_spider_suite.settings.project import is_crawl
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.store.job_reader import CrawlState

logger = logging.getLogger(__name__)

PERIOD: Final = 15.0  # seconds between two looks
_LAST_WRITE: Final = 2.0  # seconds that the end of a crawl waits for the last metrics


class CrawlWatch:
    """Looks for alerts (`operate.alerts`), and writes SUITE_METRICS_FILE."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._pulses: deque[Array] = deque(maxlen=int(WINDOW))
        self._ticker = PeriodicTask(PERIOD, self._look)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._writing: Future[None] | None = None
        self._trouble = ""
        crawler.signals.connect(self._opened, signals.spider_opened)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Raises `NotConfigured`: no crawl. Refuses SUITE_METRICS_FILE without its library."""
        if not is_crawl(crawler):
            raise NotConfigured  # without a message, which Scrapy would make a warning
        if suite_settings(crawler).metrics_file is not None:
            try:
                metrics.require()
            except SettingsError as error:
                refuse_crawl(crawler, error)
        return cls(crawler)

    def _opened(self) -> None:
        crawl = get_crawl(self._crawler)
        assert crawl.parts is not None
        self._crawl, self._parts, settings = crawl, crawl.parts, crawl.settings
        spider = self._crawler.spider
        self._facts = {
            "job": "" if crawl.job is None else str(crawl.job.path),
            "spider": "" if spider is None else spider.name, "crawl": settings.crawl_name,
        }  # fmt: skip
        self._agent = settings.agent_name or socket.gethostname() if settings.cluster else ""
        webhook = "" if settings.alert_url is None else settings.alert_url.text
        self._alerts = AlertLog(webhook, agent=self._agent, **self._facts)
        self._parts.pulses.listeners.append(self._note_pulse)
        # A refused crawl is closed too, but was never opened.
        self._crawler.signals.connect(self._closed, signals.spider_closed)
        self._ticker.start()

    def _note_pulse(self, when: float, seconds: float, increase: Array, gauges: Array) -> None:
        self._pulses.append(COLUMNS.pulse_row(float(int(when)), seconds, increase, gauges))

    def _look(self) -> None:
        overview = self._overview(CrawlState.RUNNING)
        if self._pulses:
            values = np.array(self._pulses)
            add_alerts(overview, Rows(values[:, 0], 1.0, COLUMNS, values))
        self._alerts.update(overview["alerts"], time.monotonic())
        self._write(overview)

    def _overview(self, state: CrawlState) -> Overview:
        crawl, engine, now = self._crawl, self._crawl.engine, time.time()
        status: dict[str, Any] = {
            "when": now, PULSE: self._parts.pulses.facts(),
            "waits": [asdict(count) for count in crawl.frontier.waits.counts],
            "pauses": [] if engine is None else engine.pauses,
            "silent_name_servers": self._parts.trusted.resolver.silent_servers,
            "closing": engine is not None and engine.closing,
        }  # fmt: skip
        return make_overview(status, state, now) | self._facts

    def _write(self, overview: Overview) -> None:
        path = self._crawl.settings.metrics_file
        # In a thread: a disk may stand still, which the crawl need not.
        if path is not None and (self._writing is None or self._writing.done()):
            self._writing = self._worker.submit(self._write_file, path, overview)

    def _write_file(self, path: Path, overview: Overview) -> None:
        try:
            metrics.write_metrics(path, overview, self._agent)
        except OSError as error:
            if not self._trouble:
                logger.error("SUITE_METRICS_FILE = %r cannot be written: %s", str(path), error)
            self._trouble = str(error)
        else:
            self._trouble = ""

    def _closed(self) -> None:
        self._ticker.stop()
        wait([] if self._writing is None else [self._writing], _LAST_WRITE)
        self._write(self._overview(CrawlState.ENDED))
        wait([] if self._writing is None else [self._writing], _LAST_WRITE)
        self._worker.shutdown(wait=False, cancel_futures=True)
