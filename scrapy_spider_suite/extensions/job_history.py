"""Writes the history of a job as its crawl begins, changes and ends (`store.job_directory`)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import platform
import socket
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.runtime.tasks import PeriodicTask
from scrapy_spider_suite.settings.declarations import setting_name
from scrapy_spider_suite.settings.project import LIVE_SCRAPY_SETTINGS, uses_job
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.signals import settings_changed
from scrapy_spider_suite.store.job_directory import JobHistory, digest_of
from scrapy_spider_suite.urls.filters import Stage
from scrapy_spider_suite.urls.url_lists import Source

logger = logging.getLogger(__name__)

_FILTER_PERIOD: Final = 5.0  # seconds between two checks of the filters, whose files may change
_PACKAGES: Final = (
    "scrapy-spider-suite", "Scrapy", "Twisted", "ada-url", "lxml", "protego", "tldextract",
    "rocksdict", "lzallright", "python-lzo", "rensa", "resiliparse", "tantivy",
)  # fmt: skip
"""Packages that decide which pages are fetched, and how they are kept."""
_COUNTS: Final = ("done", "failed", "filtered", "bytes")
_DIGEST_TIME: Final = 5.0  # most seconds that the end of a crawl waits for the digests of its seeds
_NAMED_MAX: Final = 5  # most seeds, and domains, that are named


class JobHistoryWriter:
    """Writes a row for each beginning, change and end of a crawl with a job."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._run = uuid.uuid4().hex[:12]
        self._filters: dict[str, str] = {}
        self._history: JobHistory | None = None
        self._hashing: asyncio.Task[None] | None = None
        self._failed = False
        self._ticker = PeriodicTask(_FILTER_PERIOD, self._write_filters)
        crawler.signals.connect(self.opened, signals.spider_opened)
        crawler.signals.connect(self.closed, signals.spider_closed)
        crawler.signals.connect(self.changed, settings_changed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        if not uses_job(crawler):
            raise NotConfigured  # without a message, which Scrapy would make a warning
        return cls(crawler)

    def opened(self) -> None:
        crawl = get_crawl(self._crawler)
        if crawl.job is None:
            return
        self._history = JobHistory(crawl.job.folder)
        last, self._filters = self._history.last()
        suite, scrapy = crawl.settings.as_stored(), self._scrapy(crawl.settings)
        spider, digest = self._crawler.spider, digest_of(suite)
        rows = [self._row(
            "begun", agent=crawl.settings.agent_name or socket.gethostname(),
            crawl=crawl.settings.crawl_name or ("" if spider is None else spider.name),
            machine=platform.platform(), python=platform.python_version(),
            versions={name: found for name in _PACKAGES if (found := _version(name))},
            settings=digest,
        )]  # fmt: skip
        if (last.get("suite"), last.get("scrapy")) != (suite, scrapy):
            rows.append(self._row("settings", digest=digest, suite=suite, scrapy=scrapy))
        self._write(*rows, *self._changed_filters())
        self._hashing = asyncio.ensure_future(self._write_seeds(crawl.settings))
        self._ticker.start()

    def changed(self, old: SuiteSettings, new: SuiteSettings) -> None:
        before, after = _by_name(old), _by_name(new)
        self._write(*(
            self._row("changed", name=name, old=before[name], new=value)
            for name, value in after.items() if value != before[name]
        ), *self._changed_filters())  # fmt: skip

    async def closed(self, reason: str) -> None:
        self._ticker.stop()
        if self._history is not None:
            counters = get_crawl(self._crawler).frontier.counters
            counts = {name: getattr(counters, name) for name in _COUNTS}
            self._write(*self._changed_filters(), self._row("ended", reason=reason, counts=counts))
        if self._hashing is not None:  # a short crawl ends before them
            await asyncio.wait([self._hashing], timeout=_DIGEST_TIME)
            self._hashing.cancel()

    def _write_filters(self) -> None:
        self._write(*self._changed_filters())

    def _changed_filters(self) -> list[dict[str, Any]]:
        filters = get_crawl(self._crawler).filters
        texts = {stage.value: "" if (found := filters.for_stage(stage)) is None else found.text
                 for stage in Stage}  # fmt: skip
        others = [stage for stage, text in texts.items() if text != self._filters.get(stage, "")]
        self._filters = texts
        return [self._row("filter", stage=stage, text=texts[stage]) for stage in others]

    def _scrapy(self, settings: SuiteSettings) -> dict[str, Any]:
        given = self._crawler.settings
        found = asdict(settings.project)
        del found["jobdir"]
        domains = getattr(self._crawler.spider, "allowed_domains", None) or ()
        return found | {
            "robotstxt_obey": given.getbool("ROBOTSTXT_OBEY"),
            "cookies_enabled": given.getbool("COOKIES_ENABLED"),
            "redirect_enabled": given.getbool("REDIRECT_ENABLED"),
            "allowed_domains": _digest_of_names(sorted(
                [domains] if isinstance(domains, str) else map(str, domains)
            )),
        }

    async def _write_seeds(self, settings: SuiteSettings) -> None:
        # In a thread: a file may have gigabytes.
        spider = self._crawler.spider
        sources = [*settings.seeds, *getattr(spider, "start_urls", ()),
                   *filter(None, str(getattr(spider, "seeds", "") or "").split(","))]  # fmt: skip
        found = await asyncio.to_thread(_digests, sources)
        self._write(*(self._row("seeds", **each) for each in found))

    def _row(self, event: str, **facts: Any) -> dict[str, Any]:
        return {"when": round(time.time(), 3), "run": self._run, "event": event, **facts}

    def _write(self, *rows: dict[str, Any]) -> None:
        if self._history is None or not rows:
            return
        try:
            self._history.append(*rows)
        except OSError as error:
            if not self._failed:
                logger.error("the chronicle of the job cannot be written: %s", error)
            self._failed = True


def _by_name(settings: SuiteSettings) -> dict[str, Any]:
    own = {setting_name(name): value for name, value in settings.as_stored().items()}
    return own | {name: getattr(settings.project, name.lower()) for name in LIVE_SCRAPY_SETTINGS}


def _version(name: str) -> str:
    try:
        return version(name)
    except ImportError:  # it is not installed
        return ""


def _digests(texts: Iterable[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    single = []
    for text in texts:
        try:
            source = Source.parse(text)
        except SettingsError:  # it was there when the job was begun
            found.append({"source": text, "missing": True})
            continue
        if source.kind == "seed":
            single.append(source.name)
        else:
            found.append({"source": source.name, **_contents(Path(source.name), source.kind)})
    return [*found, _digest_of_names(single)] if single else found


def _digest_of_names(texts: list[str]) -> dict[str, Any]:
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    return {"named": len(texts), "first": texts[:_NAMED_MAX], "sha256": digest}


def _contents(path: Path, kind: str) -> dict[str, Any]:
    if kind != "file" or not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": path.stat().st_size, "sha256": digest}
    except OSError as error:
        return {"error": str(error)}
