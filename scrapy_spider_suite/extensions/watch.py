"""Watches a running crawl from inside: logs its alerts, and writes its metrics to a file."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured

from scrapy_spider_suite.analysis.time_series import Array, Rows
from scrapy_spider_suite.crawl.assembly import open_crawl
from scrapy_spider_suite.crawl.pulse import COLUMNS
from scrapy_spider_suite.dashboard import metrics
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.operate.alerts import WINDOW, AlertLog
from scrapy_spider_suite.operate.crawl_view import Overview, add_alerts, make_overview
from scrapy_spider_suite.runtime.refusal import refuse_crawl
from scrapy_spider_suite.runtime.tasks import DaemonCalls, PeriodicTask
from scrapy_spider_suite.settings.project import is_crawl, uses_suite_scheduler
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.store.job_reader import CrawlState

logger = logging.getLogger(__name__)

PERIOD: Final = 15.0  # seconds between two looks
_LAST: Final = 2.0  # seconds that the end of a crawl waits for the last metrics and alerts


class AlertsAndMetrics:
    """Looks for alerts (`operate.alerts`), and writes SUITE_METRICS_FILE."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._pulses: deque[Array] = deque(maxlen=int(WINDOW))
        self._ticker = PeriodicTask(PERIOD, self._look)
        self._writes = DaemonCalls("metrics", 1)
        self._trouble = ""
        crawler.signals.connect(self._opened, signals.spider_opened)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Raises `NotConfigured`: no crawl, or one of another scheduler, which takes no pulses.

        Refuses SUITE_METRICS_FILE without its library.
        """
        if not is_crawl(crawler):
            raise NotConfigured  # without a message, which Scrapy would make a warning
        settings = suite_settings(crawler)
        if not uses_suite_scheduler(crawler):
            if settings.metrics_file is None and settings.alert_url is None:
                raise NotConfigured
            raise NotConfigured("SUITE_METRICS_FILE and SUITE_ALERT_URL need the suite's SCHEDULER")
        if settings.metrics_file is not None:
            try:
                metrics.require()
            except SettingsError as error:
                refuse_crawl(crawler, error)
        return cls(crawler)

    def _opened(self) -> None:
        self._parts = open_crawl(self._crawler)
        self._crawl = crawl = self._parts.crawl
        settings, spider = crawl.settings, self._crawler.spider
        self._facts = {
            "job": "" if crawl.job is None else str(crawl.job.path),
            "spider": "" if spider is None else spider.name, "crawl": settings.crawl_name,
        }  # fmt: skip
        agent = settings.agent_name or socket.gethostname() if settings.cluster else ""
        job = "" if crawl.job is None else str(crawl.job.path.resolve())
        self._labels = {name: label for name, label in (("jobdir", job), ("agent", agent)) if label}
        path = settings.metrics_file
        if path is not None and agent:  # `scrapy cluster up` gives all agents one setting
            path = path.with_name(f"{path.stem}.{agent}{path.suffix}")
        self._metrics_file = path
        webhook = "" if settings.alert_url is None else settings.alert_url.text
        self._alerts = AlertLog(webhook, agent=agent, **self._facts)
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
        engine = self._crawl.engine
        pauses = [] if engine is None else engine.pauses
        status = {**self._parts.status, "pauses": pauses}
        return make_overview(status, state, time.time()) | self._facts

    def _write(self, overview: Overview) -> None:
        path = self._metrics_file
        # In a thread: a disk may stand still, which the crawl need not.
        if path is not None:
            self._writes.add(lambda: self._write_file(path, overview))

    def _write_file(self, path: Path, overview: Overview) -> None:
        try:
            metrics.write_metrics(path, overview, self._labels)
        except OSError as error:
            if not self._trouble:
                logger.error("SUITE_METRICS_FILE = %r cannot be written: %s", str(path), error)
            self._trouble = str(error)
        else:
            self._trouble = ""

    def _closed(self) -> Coroutine[Any, Any, None]:
        self._ticker.stop()
        self._write(self._overview(CrawlState.ENDED))
        return _drain(self._writes, self._alerts.end())


async def _drain(*calls: DaemonCalls) -> None:
    await asyncio.gather(*(each.drain(_LAST) for each in calls))
