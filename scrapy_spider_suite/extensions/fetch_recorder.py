"""Evidence of what a crawl did: the fetch log, and the tallies of the job.

Every fetch makes a line of the fetch log (see `monitor.fetchline` for its fields) and is counted.
Both are written once a second, so an end without warning loses what the last second or two told.
"""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.utils.httpobj import urlparse_cached

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.gate import Fetched, call_witness
from scrapy_spider_suite.crawl.requests import VIA, event_of_error
from scrapy_spider_suite.downloader import ADDRESS
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.exceptions import UnwantedMediaType
from scrapy_spider_suite.fetch.fetch_log import FOLDER, Fetch, FetchLog, write
from scrapy_spider_suite.frontier.outcomes import Event, event_of_status
from scrapy_spider_suite.runtime.http_fields import field_text, media_type
from scrapy_spider_suite.runtime.refusal import refuse_crawl
from scrapy_spider_suite.runtime.tasks import PeriodicTask
from scrapy_spider_suite.settings.project import is_crawl, uses_job
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.signals import settings_changed
from scrapy_spider_suite.store.counters import OTHER, FetchTotals
from scrapy_spider_suite.urls.page_digests import sha1_of, warc_digest

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_spider_suite.store.interface import Store

logger = logging.getLogger(__name__)

PERIOD = 1.0
"""Seconds between two writes."""

PAGE, ROBOTS, ASIDE = "page", "robots", "aside"

_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,31}/[a-z0-9!#$&^_.+-]{1,32}")
_TOLD_FLAGS = ("dataloss", "truncated")
"""Flags of a response that say something of the fetch."""


class FetchRecorder:
    """Writes the fetch log of *crawler* and keeps its tallies; *log* None: there is none yet."""

    def __init__(self, crawler: Crawler, log: FetchLog | None = None) -> None:
        self._crawler = crawler
        self._log = log
        in_job = suite_settings(crawler).fetch_log is True and uses_job(crawler)
        self._wanted = log is not None or in_job
        self._early: list[tuple[bytes, float]] = []
        self._tallies = FetchTotals()
        self._store: Store | None = None
        self._said = False
        self._ticker = PeriodicTask(PERIOD, self.flush)
        call_witness(crawler, self.fetched)
        crawler.signals.connect(self.opened, signals.spider_opened)
        crawler.signals.connect(self.closed, signals.spider_closed)
        crawler.signals.connect(self.changed, settings_changed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> FetchRecorder:
        """Build it for *crawler*; ends the crawl if the folder of SUITE_FETCH_LOG is no use.

        Raises `NotConfigured` where nothing is crawled, as in ``scrapy shell``.
        """
        if not is_crawl(crawler):
            raise NotConfigured  # without a word: Scrapy would make it a warning
        settings = suite_settings(crawler)
        folder, log = settings.fetch_log, None
        if isinstance(folder, Path):
            try:
                log = FetchLog(folder, settings.fetch_log_size, settings.fetch_log_max)
            except SettingsError as error:
                refuse_crawl(crawler, error)
        return cls(crawler, log)

    def opened(self) -> None:
        """Open the log of the job, which is this process's by now, and take its tallies."""
        crawl = get_crawl(self._crawler)
        self._store = crawl.store
        before, self._tallies = self._tallies, FetchTotals.load(crawl.store)
        self._tallies.add(before)
        if self._log is None:
            self._open(crawl.settings)
        self._wanted = self._log is not None
        if self._log is not None:
            for line, when in self._early:
                self._log.add(line, when)
        self._early.clear()
        self._ticker.start()

    def changed(self, old: SuiteSettings, new: SuiteSettings) -> None:
        """Go on as the settings say by now."""
        if self._log is not None:
            self._log.size, self._log.most = new.fetch_log_size, new.fetch_log_max
            self._log.tidy()
        if new.fetch_log != old.fetch_log:
            self._open(new)
            self._wanted = self._log is not None

    def _open(self, settings: SuiteSettings) -> None:
        """Open the log that *settings* name in the place of the one there is."""
        folder, job = settings.fetch_log, get_crawl(self._crawler).job
        if folder is True:
            folder = False if job is None else job.folder / FOLDER
        if self._log is not None and self._log.folder == folder:
            return
        new = None
        try:
            if isinstance(folder, Path):
                new = FetchLog(folder, settings.fetch_log_size, settings.fetch_log_max)
        except SettingsError as error:
            logger.error("%s; the crawl goes on as it was", error)
            return
        if self._log is not None:
            self._log.close()
        self._log = new

    def closed(self) -> None:
        """Write for the last time."""
        self._ticker.stop()
        self.flush()
        if self._log is not None:
            self._log.close()
            self._publish(self._log)

    def flush(self) -> None:
        """Write what there is; the tallies go with the store's next batch."""
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
        if log.error is not None and not self._said:
            logger.error("the fetch log in %s cannot be written: %s", log.folder, log.error)
        self._said = log.error is not None

    def fetched(self, fetched: Fetched) -> None:
        """Count one fetch and make its line."""
        kind = _kind(fetched)
        fetch = _fetch(fetched, kind, with_digest=self._wanted)
        media_type = fetch.type or "-"
        if not _TYPE.fullmatch(media_type):
            media_type = OTHER if fetch.type else media_type
        self._tallies.count(
            str(fetch.status or fetch.reason), media_type, kind, fetch.bytes, fetch.ms
        )
        if not self._wanted:
            return
        line = write(fetch)
        if self._log is None:
            self._early.append((line, fetch.time))
        else:
            self._log.add(line, fetch.time)


def _kind(fetched: Fetched) -> str:
    if fetched.lease is not None:
        return PAGE
    return ROBOTS if urlparse_cached(fetched.request).path == "/robots.txt" else ASIDE


def _fetch(fetched: Fetched, kind: str, *, with_digest: bool) -> Fetch:
    """What the line says. Nothing in it depends on what a project puts into its meta."""
    request, lease, response = fetched.request, fetched.lease, fetched.response
    if isinstance(fetched.error, UnwantedMediaType):
        response = fetched.error.response  # its head tells more than nothing
    flags = () if response is None else response.flags
    depth = request.meta.get("depth") if lease is None else lease.entry.depth
    via = request.meta.get(VIA) or field_text(request.headers, "Referer")
    return Fetch(
        time=fetched.ended,
        status=None if response is None else response.status,
        bytes=0 if response is None else len(response.body),
        ms=round(fetched.seconds * 1_000),
        url=request.url,
        via=str(via),
        depth=depth if isinstance(depth, int) else None,
        type=_media_type(response),
        digest=_digest(response) if with_digest else "",
        address=_address(request.meta.get(ADDRESS), response),
        reason=_reason(fetched.response, fetched.error),
        remarks=(
            *(() if kind == PAGE else (kind,)),
            *(() if request.method == "GET" else (request.method,)),
            *(flag for flag in _TOLD_FLAGS if flag in flags),
        ),
    )


def _reason(response: Response | None, error: BaseException | None) -> str:
    if isinstance(error, asyncio.CancelledError):
        return Event.INTERRUPTED
    if error is not None:
        return event_of_error(error)
    return event_of_status(0 if response is None else response.status)


def _media_type(response: Response | None) -> str:
    return "" if response is None else media_type(field_text(response.headers, "Content-Type"))


def _digest(response: Response | None) -> str:
    """SHA-1 in base 32, as WARC files have it; none for an empty body."""
    if response is None or not response.body:
        return ""
    return warc_digest(sha1_of(response.body)).removeprefix("sha1:")


def _address(booked: str | None, response: Response | None) -> str:
    """Where the answer came from; without one, where the request was sent."""
    actual = None if response is None else response.ip_address
    return str(actual or booked or "")
