"""Scrapy's own settings that the suite uses, typed; whether a crawler crawls, or may use a job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.misc import load_object

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.settings import values as v

_COUNT = v.integer(0)
_SECONDS = v.duration()
_LONGEST_FETCH = 180.0  # seconds of a fetch where DOWNLOAD_TIMEOUT is 0 and sets no bound
# Scrapy's deprecated spider attributes and the settings they stand for.
_ATTRIBUTES = {
    "DOWNLOAD_DELAY": "download_delay",
    "CONCURRENT_REQUESTS_PER_DOMAIN": "max_concurrent_requests",
    "DOWNLOAD_TIMEOUT": "download_timeout",
    "USER_AGENT": "user_agent",
}
LIVE_SCRAPY_SETTINGS: Mapping[str, v.ValueType] = {
    "CONCURRENT_REQUESTS": _COUNT, "DOWNLOAD_TIMEOUT": v.duration(1.0), "LOG_LEVEL": v.log_level,
}  # fmt: skip
"""Scrapy's settings that ``scrapy frontier set`` changes in a running crawl."""
SUITE_EQUIVALENTS: Mapping[str, str] = {
    "CLOSESPIDER_PAGECOUNT": "SUITE_MAX_PAGES",
    "CLOSESPIDER_TIMEOUT": "SUITE_MAX_TIME",
    "CONCURRENT_REQUESTS_PER_DOMAIN": "SUITE_HOST_CONCURRENCY",
    "CONCURRENT_REQUESTS_PER_IP": "SUITE_IP_CONCURRENCY",
    "DOWNLOAD_DELAY": "SUITE_HOST_DELAY",
    "DOWNLOAD_SLOTS": "SUITE_OVERRIDES",
    "RETRY_TIMES": "SUITE_RETRY_TIMES",
}
"""For settings of Scrapy that cannot change in a running crawl: the suite's that can."""


@dataclass(frozen=True, kw_only=True)
class ProjectSettings:
    """Settings by Scrapy's names, in seconds and bytes; 0 is no limit where Scrapy says so."""

    autothrottle_enabled: bool
    autothrottle_start_delay: float
    concurrency_was_set: bool  # the project or the spider chose CONCURRENT_REQUESTS_PER_DOMAIN
    concurrent_requests: int
    concurrent_requests_per_domain: int
    concurrent_requests_per_ip: int
    depth_limit: int
    dns_timeout: float
    download_delay: float
    download_maxsize: int
    download_slots: Mapping[str, Mapping[str, Any]]  # ``delay`` and ``concurrency``, by name
    download_timeout: float
    jobdir: str | None
    log_level: str  # a name such as INFO, or a number as text
    retry_times: int  # 0 if RetryMiddleware is off
    robotstxt_user_agent: str | None  # None: the request's own
    urllength_limit: int
    user_agent: str

    @property
    def most_requests(self) -> float:
        """CONCURRENT_REQUESTS, where 0 is no limit."""
        return self.concurrent_requests or math.inf

    @property
    def longest_fetch(self) -> float:
        """Seconds after which a fetch is cut off; others may fetch from the host then."""
        return self.download_timeout or _LONGEST_FETCH

    @classmethod
    def from_settings(
        cls, settings: BaseSettings, spidercls: type[Spider] | Spider | None = None
    ) -> ProjectSettings:
        """Read them for a crawl of *spidercls*, a spider class or spider.

        Raises `SettingsError` for a value that Scrapy could not use either.
        """

        def read(name: str, type_: v.ValueType) -> Any:
            raw = _raw(settings, spidercls, name)
            return None if raw is None else parse_value(name, type_, raw)

        per_domain = "CONCURRENT_REQUESTS_PER_DOMAIN"
        by_spider = getattr(spidercls, _ATTRIBUTES[per_domain], None) is not None
        by_setting = (settings.getpriority(per_domain) or 0) > SETTINGS_PRIORITIES["addon"]
        return cls(
            autothrottle_enabled=read("AUTOTHROTTLE_ENABLED", v.boolean),
            autothrottle_start_delay=read("AUTOTHROTTLE_START_DELAY", _SECONDS),
            concurrency_was_set=by_spider or by_setting,
            concurrent_requests=read("CONCURRENT_REQUESTS", _COUNT),
            concurrent_requests_per_domain=read(per_domain, v.integer(1)),
            concurrent_requests_per_ip=read("CONCURRENT_REQUESTS_PER_IP", _COUNT) or 0,
            depth_limit=read("DEPTH_LIMIT", _COUNT),
            dns_timeout=read("DNS_TIMEOUT", _SECONDS) or 0.0,
            download_delay=read("DOWNLOAD_DELAY", _SECONDS),
            download_maxsize=read("DOWNLOAD_MAXSIZE", _COUNT),
            download_slots=_slots(settings),
            download_timeout=read("DOWNLOAD_TIMEOUT", _SECONDS) or 0.0,
            jobdir=settings["JOBDIR"] or None,
            log_level=read("LOG_LEVEL", v.log_level),
            retry_times=read("RETRY_TIMES", _COUNT) if read("RETRY_ENABLED", v.boolean) else 0,
            robotstxt_user_agent=settings["ROBOTSTXT_USER_AGENT"] or None,
            urllength_limit=read("URLLENGTH_LIMIT", _COUNT),
            user_agent=str(_raw(settings, spidercls, "USER_AGENT") or ""),
        )

    def with_value(self, name: str, raw: object) -> ProjectSettings:
        """Return these with another value for a live setting. Raises `SettingsError`."""
        return replace(self, **{name.lower(): parse_value(name, LIVE_SCRAPY_SETTINGS[name], raw)})


def is_crawl(crawler: Crawler) -> bool:
    """Return whether *crawler* crawls, and does not only look at a page."""
    # ``scrapy shell`` builds an engine that never crawls; ``fetch``, ``view``, ``parse``, ``check``
    # and ``bench`` replace the spider's ``start()``.
    start = getattr(crawler.spidercls, "start", None)
    by_command = str(getattr(start, "__module__", "")).startswith("scrapy.commands.")
    return crawler.crawling and not by_command


def uses_job(crawler: Crawler) -> bool:
    """Return whether *crawler* may open the job directory and take its lock: only a crawl may."""
    return bool(crawler.settings["JOBDIR"]) and is_crawl(crawler)


def uses_suite_scheduler(crawler: Crawler) -> bool:
    """Return whether the scheduler of *crawler* is the suite's, or a subclass of it."""
    scheduler = load_object(crawler.settings["SCHEDULER"])
    # Not issubclass(): to Scrapy's metaclass every scheduler is a subclass of any other.
    return bool(getattr(scheduler, "is_suite_scheduler", False))


def _raw(settings: BaseSettings, spidercls: type[Spider] | Spider | None, name: str) -> Any:
    # The spider's deprecated attribute wins over a setting of lower priority.
    attribute = getattr(spidercls, _ATTRIBUTES.get(name, ""), None)
    if attribute is None or (settings.getpriority(name) or 0) >= SETTINGS_PRIORITIES["spider"]:
        return settings[name]
    return attribute


def _slots(settings: BaseSettings) -> dict[str, dict[str, Any]]:
    kinds = {"delay": _SECONDS, "concurrency": v.integer(1)}
    given = settings.getdict("DOWNLOAD_SLOTS")
    try:
        return {
            str(name): {key: kinds[key].parse(slot[key]) for key in kinds if key in slot}
            for name, slot in given.items()
        }
    except (ValueError, TypeError):
        allowed = "slots by name, such as {'example.org': {'delay': 2, 'concurrency': 1}}"
        raise SettingsError.of("DOWNLOAD_SLOTS", given, allowed) from None


def parse_value(name: str, type_: v.ValueType, raw: object) -> Any:
    """Parse the value of a setting of Scrapy's. Raises `SettingsError`."""
    try:
        # Scrapy turns '1', 1.0 and True into numbers by int() and float(); so does the text form.
        return type_.parse(int(raw) if isinstance(raw, bool) else raw)
    except (ValueError, TypeError, OverflowError):
        raise SettingsError.of(name, raw, type_.allowed) from None
