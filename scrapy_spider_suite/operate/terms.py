"""Terms of a crawl: its settings, rules and filters, kept in its job for `why` and `test`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
from scrapy import Spider
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings, Settings
from scrapy.spiderloader import get_spider_loader
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from scrapy_spider_suite.crawl import crawl_policy
from scrapy_spider_suite.crawl.context import Crawl
from scrapy_spider_suite.crawl.crawl_policy import FILTER_SETTINGS as FILTERS
from scrapy_spider_suite.crawl.crawl_policy import FilterSet, read_filter_context
from scrapy_spider_suite.errors import JobError, SettingsError
from scrapy_spider_suite.frontier.policy import Overrides
from scrapy_spider_suite.settings.declarations import plain_value, setting_name, shown_value
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.store.interface import KV
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.urls.normalizer import Normalizer

_SCRAPY = (
    "DEPTH_LIMIT", "DOWNLOAD_DELAY", "ROBOTSTXT_OBEY", "ROBOTSTXT_USER_AGENT", "URLLENGTH_LIMIT",
    "USER_AGENT",
)  # fmt: skip
_SUITE = (
    "profile", "host_delay", "ip_delay", "host_concurrency", "ip_concurrency", "requests_per_visit",
    "backoff_base", "backoff_max", "dead_host_failures", "retry_times", "retry_failed_after",
    "retry_failed", "host_max_pages",
    "domain_max_pages", "domain_max_hosts", "max_pages", "allow_private_addresses", "overrides",
    "fetch_log", "revisit", "revisit_interval",
    "traps", "guess_urls",
    *FILTERS.values(), "countries",
    "normal_form", "drop_parameters", "url_rules", "normalizer", "prefer_https",
)  # fmt: skip
_KEY = b"terms"
_APART = {"SUITE_OVERRIDES", "SUITE_COUNTRIES", *map(setting_name, FILTERS.values())}
"""Settings that need files, which may be gone."""
_GIVERS = {number: name for name, number in SETTINGS_PRIORITIES.items()}


@dataclass(frozen=True)
class CrawlTerms:
    """Settings by their names as plain *values*, their *givers*, and the spider's domains."""

    values: Mapping[str, Any]
    givers: Mapping[str, str]
    spider: str = ""
    domains: tuple[str, ...] = ()

    @classmethod
    def from_settings(
        cls, settings: BaseSettings, spider: Spider | type[Spider] | None,
        suite: SuiteSettings | None = None,
    ) -> CrawlTerms:  # fmt: skip
        """The terms of a crawl with *settings*; *suite* has the current values of the suite's own.

        Raises `SettingsError`.
        """
        suite = suite or SuiteSettings.from_settings(settings, spider)
        values = {name: plain_value(settings[name]) for name in _SCRAPY}
        values["DOWNLOAD_SLOTS"] = json.dumps(settings.getdict("DOWNLOAD_SLOTS"), default=str)
        values["ROBOTSTXT_PARSER"] = global_object_name(load_object(settings["ROBOTSTXT_PARSER"]))
        values |= {setting_name(name): plain_value(getattr(suite, name)) for name in _SUITE}
        givers = {name: _GIVERS.get(settings.getpriority(name) or 0, "") for name in values}
        cls_of = spider if isinstance(spider, type) else type(spider)
        name = "" if spider is None else global_object_name(cls_of)
        domains = tuple(map(str, getattr(spider, "allowed_domains", None) or ()))
        return cls(values, givers, name, domains)

    @classmethod
    def load(cls, kv: KV) -> CrawlTerms | None:
        """The terms that the last crawl of a job stored in *kv*, if any."""
        row = kv.get(_KEY)
        if row is None:
            return None
        values, givers, spider, domains = msgpack.unpackb(row)
        return cls(values, givers, spider, tuple(domains))

    def save(self, kv: KV) -> None:
        kv.put(_KEY, msgpack.packb([self.values, self.givers, self.spider, self.domains]))

    @cached_property
    def settings(self) -> SuiteSettings:
        """The suite's settings, without overrides and filters."""
        values = {name: value for name, value in self.values.items() if name not in _APART}
        return SuiteSettings.from_settings(Settings(values))

    def overrides(self) -> Overrides:
        """Raises `SettingsError`."""
        path = self.values.get("SUITE_OVERRIDES")
        return crawl_policy.read_overrides(None if path is None else Path(path))

    def filters(self) -> FilterSet:
        """Raises `SettingsError`."""
        countries = self.values.get("SUITE_COUNTRIES")
        given = read_filter_context(None if countries is None else Path(countries))
        texts = {
            stage: self.values.get(setting_name(name)) or "" for stage, name in FILTERS.items()
        }
        return FilterSet.read(texts, given)

    def where(self, name: str, part: str = "") -> str:
        """The setting *name*, its value and giver; of a list the item that begins with *part*."""
        giver, value = self.givers.get(name) or "default", self.values.get(name)
        if part and isinstance(value, list):
            part = next((each for each in value if each.startswith(part)), part)
            return f"{name}: {part} ({giver})"
        return f"{name} = {shown_value(value)} ({giver})"


def save_terms(crawl: Crawl) -> None:
    crawler = crawl.crawler
    began = CrawlTerms.from_settings(crawler.settings, crawler.spider)
    terms = CrawlTerms.from_settings(crawler.settings, crawler.spider, crawl.settings)
    changed = {name for name, value in terms.values.items() if value != began.values[name]}
    givers = {**terms.givers, **dict.fromkeys(changed, "scrapy frontier set")}
    replace(terms, givers=givers).save(crawl.store.kv("terms"))


def normalizer_for_reading(terms: CrawlTerms, store: RocksStore | None) -> Normalizer:
    """The normaliser of a crawl by *terms*, without that of a project that is not here."""
    kv = None if store is None else store.kv(crawl_policy.TWINS_TABLE)

    def make(settings: SuiteSettings) -> Normalizer:
        return crawl_policy.make_normalizer(settings, kv, terms.domains)

    try:
        return make(terms.settings)
    except SettingsError as error:
        print(f"scrapy frontier: {error}: judged without it", file=sys.stderr)
        return make(replace(terms.settings, normalizer=""))


def terms_of_job(project: BaseSettings, reader: StoreReader) -> CrawlTerms:
    """The terms of the last crawl of a job; if it ended before it stored them, of *project*."""
    kept = CrawlTerms.load(reader.store.kv("terms"))
    return kept or CrawlTerms.from_settings(project.copy(), None)


def terms_of_spider(project: BaseSettings, name: str | None) -> CrawlTerms:
    """The terms of a crawl of the spider *name* that would begin now; None: without a spider.

    Raises `JobError`: the project has no such spider.
    """
    settings, spider = project.copy(), None
    if name is not None:
        try:
            spider = get_spider_loader(settings).load(name)
        except KeyError as error:
            raise JobError(f"there is no spider {name!r} here") from error
        spider.update_settings(settings)
    return CrawlTerms.from_settings(settings, spider)
