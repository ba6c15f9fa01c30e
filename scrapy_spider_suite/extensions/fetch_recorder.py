"""The fetch log, and the tallies of the job; a kill loses the last second or two."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection
from pathlib import Path

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.utils.httpobj import urlparse_cached

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.gate import FinishedFetch, add_fetch_observer
from scrapy_spider_suite.crawl.requests import VIA, event_of_error
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.exceptions import UnwantedMediaType
from scrapy_spider_suite.fetch.fetch_log import LOG_FOLDER, FetchLine, FetchLog, format_line
from scrapy_spider_suite.fetch.http_messages import ADDRESS
from scrapy_spider_suite.frontier.outcomes import Event, event_of_status
from scrapy_spider_suite.runtime.refusal import refuse_crawl
from scrapy_spider_suite.runtime.tasks import PeriodicTask
from scrapy_spider_suite.runtime.text import field_text, media_type
from scrapy_spider_suite.settings.project import is_crawl, uses_job
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.signals import settings_changed
from scrapy_spider_suite.store.counters import OTHER, FetchTotals
from scrapy_spider_suite.store.interface import Store
from scrapy_spider_suite.urls.page_digests import sha1_of, warc_digest

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
        in_job = suite_settings(crawler).fetch_log is True and uses_job(crawler)
        self._wanted = log is not None or in_job
        self._early: list[tuple[bytes, float]] = []
        self._tallies = FetchTotals()
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
        """Open the log of the job, and load its tallies."""
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

    def fetched(self, fetched: FinishedFetch) -> None:
        kind = PAGE
        if fetched.lease is None:
            kind = ROBOTS if urlparse_cached(fetched.request).path == "/robots.txt" else ASIDE
        fetch = _fetch(fetched, kind, with_digest=self._wanted)
        type_ = fetch.type or "-"
        if fetch.type and not _TYPE.fullmatch(fetch.type):
            type_ = OTHER
        self._tallies.count(str(fetch.status or fetch.reason), type_, kind, fetch.bytes, fetch.ms)
        if not self._wanted:
            return
        line = format_line(fetch)
        if self._log is None:
            self._early.append((line, fetch.time))
        else:
            self._log.add(line, fetch.time)


def _fetch(fetched: FinishedFetch, kind: str, *, with_digest: bool) -> FetchLine:
    # Nothing here depends on what a project puts into its meta.
    request, lease, response = fetched.request, fetched.lease, fetched.response
    if isinstance(fetched.error, UnwantedMediaType):
        response = fetched.error.response  # its head tells more than nothing
    if isinstance(fetched.error, asyncio.CancelledError):
        reason = Event.INTERRUPTED
    elif fetched.error is not None:
        reason = event_of_error(fetched.error)
    else:
        reason = event_of_status(0 if response is None else response.status)
    flags: Collection[str] = ()
    status, body, type_, digest = None, b"", "", ""
    address = request.meta.get(ADDRESS) or ""
    if response is not None:
        flags, status, body = response.flags, response.status, response.body
        type_ = media_type(field_text(response.headers, "Content-Type"))
        if with_digest and body:  # as in a WARC-Payload-Digest: SHA-1 in base 32
            digest = warc_digest(sha1_of(body)).removeprefix("sha1:")
        address = response.ip_address or address
    depth = request.meta.get("depth") if lease is None else lease.entry.depth
    via = request.meta.get(VIA) or field_text(request.headers, "Referer")
    return FetchLine(
        time=fetched.ended,
        status=status,
        bytes=len(body),
        ms=round(fetched.seconds * 1_000),
        url=request.url,
        via=str(via),
        depth=depth if isinstance(depth, int) else None,
        type=type_,
        digest=digest,
        address=str(address),
        reason=reason,
        remarks=(
            *(() if kind == PAGE else (kind,)),
            *(() if request.method == "GET" else (request.method,)),
            *(flag for flag in _REMARKED_FLAGS if flag in flags),
        ),
    )
