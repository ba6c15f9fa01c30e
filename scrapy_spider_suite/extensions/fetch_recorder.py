"""The fetch log, and the tallies of the job; a kill loses the last second or two."""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.gate import add_fetch_observer
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.crawl.requests import event_of_exchange
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.fetch.exchange import Exchange
from scrapy_spider_suite.fetch.fetch_log import LOG_FOLDER, FetchLog, format_line
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.runtime.refusal import refuse_crawl
from scrapy_spider_suite.runtime.tasks import PeriodicTask
from scrapy_spider_suite.runtime.text import media_type
from scrapy_spider_suite.settings.project import is_crawl, uses_job
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.signals import settings_changed
from scrapy_spider_suite.store.counters import OTHER, FetchTotals
from scrapy_spider_suite.store.rocks_store import Store
from scrapy_spider_suite.urls.page_digests import warc_digest

logger = logging.getLogger(__name__)

PERIOD = 1.0  # seconds between two writes

PAGE, ROBOTS, ASIDE = "page", "robots", "aside"

_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,31}/[a-z0-9!#$&^_.+-]{1,32}")
_REMARKED_FLAGS = ("dataloss", "truncated")  # flags of a response that become remarks


class FetchRecorder:
    """Writes the fetch log of *crawler* and keeps its tallies; *log*: of a set folder."""

    def __init__(self, crawler: Crawler, log: FetchLog | None = None) -> None:
        self._crawler = crawler
        self._log = log
        self._tallies = FetchTotals()
        in_job = suite_settings(crawler).fetch_log is True and uses_job(crawler)
        self._wanted = log is not None or in_job
        self._early: list[tuple[bytes, float]] = []
        self._store: Store | None = None
        self._warned = False
        self._ticker = PeriodicTask(PERIOD, self.flush)
        add_fetch_observer(crawler, self.fetched)
        crawler.signals.connect(self.opened, signals.spider_opened)
        crawler.signals.connect(self.closed, signals.spider_closed)
        crawler.signals.connect(self.changed, settings_changed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> FetchRecorder:
        """Raises `NotConfigured`: no crawl. Refuses an unusable SUITE_FETCH_LOG."""
        if not is_crawl(crawler):
            raise NotConfigured  # without a message, which Scrapy would make a warning
        folder, log = suite_settings(crawler).fetch_log, None
        if isinstance(folder, Path):
            try:
                log = FetchLog(folder, most=suite_settings(crawler).fetch_log_max)
            except SettingsError as error:
                refuse_crawl(crawler, error)
        return cls(crawler, log)

    def opened(self) -> None:
        crawl = get_crawl(self._crawler)
        self._store = crawl.store
        before, self._tallies = self._tallies, FetchTotals.load(crawl.store)
        self._tallies.add(before)
        if self._log is None and crawl.settings.fetch_log is True and crawl.job is not None:
            try:
                folder = crawl.job.folder / LOG_FOLDER
                self._log = FetchLog(folder, most=crawl.settings.fetch_log_max)
            except SettingsError as error:
                logger.error("%s; the crawl goes on without it", error)
        self._wanted = self._log is not None
        if self._log is not None:
            for line, when in self._early:
                self._log.add(line, when)
        self._early.clear()
        self._ticker.start()

    def changed(self, new: SuiteSettings) -> None:
        if self._log is not None:
            self._log.most = new.fetch_log_max
            self._log.tidy()

    def closed(self) -> None:
        self._ticker.stop()
        self.flush()
        if self._log is not None:
            self._log.close()
            self._publish(self._log)

    def flush(self) -> None:
        """Write the lines; tallies go with the store's next batch."""
        if self._store is not None and self._tallies.changed:
            self._tallies.save(self._store)
        if self._log is not None:
            self._log.flush()
            self._publish(self._log)

    def _publish(self, log: FetchLog) -> None:
        stats = self._crawler.stats
        stats.set_value("suite/fetch_log/lines", log.lines)
        stats.set_value("suite/fetch_log/bytes", log.written)
        stats.set_value("suite/fetch_log/lost", log.lost)
        if log.error is not None and not self._warned:
            logger.error("the fetch log in %s cannot be written: %s", log.folder, log.error)
        self._warned = log.error is not None

    def fetched(self, fetch: Fetch) -> None:
        exchange, kind = fetch.exchange, PAGE
        if exchange is None:
            return
        if fetch.aside:
            kind = ROBOTS if urlsplit(exchange.url).path == "/robots.txt" else ASIDE
        reason = event_of_exchange(exchange)
        type_, named = _types_of(exchange.field(b"Content-Type")[:200])
        size, ms = len(exchange.body), round(exchange.seconds * 1_000)
        self._tallies.count(str(exchange.status or reason), named, kind, size, ms)
        if self._wanted:
            self._write_line(fetch, exchange, kind, reason, type_, ms)

    def _write_line(
        self, fetch: Fetch, exchange: Exchange, kind: str, reason: Event, type_: str, ms: int
    ) -> None:
        entry, digest = fetch.entry, ""
        if exchange.body:  # as in a WARC-Payload-Digest: SHA-1 in base 32
            digest = warc_digest(exchange.digest).removeprefix("sha1:")
        flags = exchange.flags
        remarks = (
            *(() if kind == PAGE else (kind,)),
            *(() if exchange.method == "GET" else (exchange.method,)),
            *((flag for flag in _REMARKED_FLAGS if flag in flags) if flags else ()),
        )
        ended = exchange.began + exchange.seconds
        line = format_line(
            ended, exchange.status or None, len(exchange.body), ms, exchange.url, entry.referrer,
            entry.depth if entry.depth >= 0 else None, type_, digest, exchange.address, reason,
            remarks,
        )  # fmt: skip
        if self._log is None:
            self._early.append((line, ended))
        else:
            self._log.add(line, ended)


@lru_cache(256)
def _types_of(content_type: str) -> tuple[str, str]:
    """The media type of a header, and its row of the tallies."""
    found = media_type(content_type)
    return found, (found if _TYPE.fullmatch(found) else OTHER) if found else "-"
