"""Settings that change while a crawl runs: every one that a job does not fix, and two of Scrapy's.

Most are read anew each time they are needed. The others are given to the parts that keep them:
those that the crawl owns here, those of middlewares, extensions and handlers by the signal
`settings_changed`. Before that, who cannot go by it says so (`settings_changing`).

Private name touched: ``_timeout`` of Scrapy's DownloadTimeoutMiddleware.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from scrapy.downloadermiddlewares.downloadtimeout import DownloadTimeoutMiddleware
from scrapy.utils.log import get_scrapy_root_handler
from twisted.python.failure import Failure

from scrapy_spider_suite.crawl.crawl_policy import TWINS_TABLE as TWINS
from scrapy_spider_suite.crawl.crawl_policy import (
    make_order,
    make_twins,
    make_window,
    policy_fields,
    read_overrides,
)
from scrapy_spider_suite.crawl.filters import FILTER_SETTINGS as FILTERS
from scrapy_spider_suite.errors import JobError, SettingsError
from scrapy_spider_suite.settings.declarations import Kind
from scrapy_spider_suite.settings.project import LIVE, ProjectSettings
from scrapy_spider_suite.settings.suite import (
    DECLARATIONS,
    SuiteSettings,
    find_setting,
    replace_settings,
)
from scrapy_spider_suite.settings.table import AGENTS
from scrapy_spider_suite.signals import settings_changed, settings_changing
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.urls.url_lists import check_sources

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.context import Crawl

Step = Callable[[], None]

LONG = frozenset({"SUITE_COUNTRIES", "SUITE_OVERRIDES", "SUITE_SCORES"})
"""Those that name files which take seconds to read: they are to be prepared in a thread."""
_PLACE = frozenset({"ip_family", "allow_private_addresses", "dns_servers"})
"""Those by which a host may live elsewhere."""
_IDENTITY = frozenset({"crawl_name", "agent_name"})
"""Those by which the agents of a crawl know each other."""
_FILTERS = frozenset(FILTERS.values()) | {"countries"}
_BEST_FIRST, _BOTTOM_UP = frozenset({"score", "scores"}), frozenset({"window"})
_WINDOW = frozenset({"window", "window_size"})
"""Those by which filters, order and window are made anew."""


def change_setting(
    crawl: Crawl, name: str, raw: object, *, dry: bool = False
) -> tuple[object, object]:
    """Give the setting *name* (``SUITE_…`` or one of `LIVE`) the value *raw*; return the old and
    the new one.

    Raises `SettingsError` if that cannot be, and changes nothing then, nor if it is *dry*.
    """
    if name in LIVE:
        return _change_scrapys(crawl, name, raw, dry=dry)
    return prepare_change(crawl, name, raw).make(dry=dry)


class Change(NamedTuple):
    """Another value for a *field*, that can be; *steps* have the core go by it."""

    crawl: Crawl
    field: str
    old: SuiteSettings
    new: SuiteSettings
    steps: list[Step]

    def make(self, *, dry: bool = False) -> tuple[object, object]:
        """See `change_setting`."""
        if self.old != self.new:
            _ask(self.crawl, self.new)
            if not dry:
                for step in self.steps:
                    step()
                _adopt(self.crawl, self.new)
        return getattr(self.old, self.field), getattr(self.new, self.field)


def prepare_change(crawl: Crawl, name: str, raw: object) -> Change:
    """Read and check what the setting ``SUITE_…`` *name* is to be; in any thread.

    Raises `SettingsError`.
    """
    field = find_setting(name)
    if DECLARATIONS[field].kind is Kind.FIXED:
        raise SettingsError(f"{name} is fixed for the life of a job: begin another job with it")
    if DECLARATIONS[field].group is AGENTS and not DECLARATIONS[field].live:
        raise SettingsError(f"{name} holds from a start on: stop the crawl, and start it with it")
    old = crawl.settings
    if old.cluster and field in _IDENTITY:
        raise SettingsError(f"{name} is the identity of an agent: stop it, and start another one")
    new = old.changed(field, raw)
    changed = {each for each in DECLARATIONS if getattr(old, each) != getattr(new, each)}
    return Change(crawl, field, old, new, list(_prepare(crawl, new, changed)))


def _prepare(crawl: Crawl, new: SuiteSettings, changed: set[str]) -> Iterator[Step]:
    """What has the crawl go by *new*. Raises `SettingsError`, and changes nothing."""
    stats = crawl.crawler.stats
    if "seeds" in changed:
        check_sources(new.seeds)
    if changed & _FILTERS:
        filters = crawl.filters.prepare(new, anew="countries" in changed)
        yield partial(crawl.filters.adopt, filters)
    if "overrides" in changed:
        yield partial(crawl.policy_file.adopt, new.overrides, read_overrides(new.overrides))
    if "seen_store" in changed:
        yield partial(_keep_seen, crawl, new)
    if changed & (_BOTTOM_UP if new.order == "bottom-up" else _BEST_FIRST):
        yield partial(crawl.ordering.adopt, make_order(new, stats))
    if changed & _WINDOW:
        yield partial(crawl.frontier.rotation.slide, make_window(new, crawl.store))


def _keep_seen(crawl: Crawl, new: SuiteSettings) -> None:
    try:
        crawl.open_seen(new)
    except JobError as error:
        raise SettingsError(f"SUITE_SEEN_STORE = {new.seen_store!r}: {error}") from error
    crawl.frontier.use_sieve(active=new.seen_store == "sieve")


def _ask(crawl: Crawl, new: SuiteSettings) -> None:
    """Ask everybody whether they can go by *new*. Raises `SettingsError`."""
    answers = crawl.crawler.signals.send_catch_log(
        settings_changing, old=crawl.settings, new=new, spider=crawl.crawler.spider,
        dont_log=SettingsError,
    )  # fmt: skip
    for _, answer in answers:
        if isinstance(answer, Failure):
            if isinstance(answer.value, SettingsError):
                raise answer.value
            raise SettingsError(f"it failed: {answer.value!r}")


def _change_scrapys(
    crawl: Crawl, name: str, raw: object, *, dry: bool
) -> tuple[object, object]:
    """See `change_setting`; ``default`` is what the crawl began with."""
    old, crawler = crawl.settings, crawl.crawler
    if raw == "default":
        raw = getattr(ProjectSettings.from_settings(crawler.settings, crawler.spider), name.lower())
    project = old.project.changed(name, raw)
    if not dry:
        if crawler.engine is not None:
            crawler.engine.downloader.total_concurrency = project.concurrent_requests
        middleware = crawler.get_downloader_middleware(DownloadTimeoutMiddleware)
        if middleware is not None:
            middleware._timeout = project.download_timeout
        if name == "LOG_LEVEL" and (handler := get_scrapy_root_handler()) is not None:
            level = project.log_level
            handler.setLevel(int(level) if level.isdecimal() else level)
        _adopt(crawl, replace(old, project=project))
    return getattr(old.project, name.lower()), getattr(project, name.lower())


def _adopt(crawl: Crawl, new: SuiteSettings) -> None:
    """Let everybody go by *new*."""
    old, crawl.settings = crawl.settings, new
    replace_settings(crawl.crawler, new)
    _tell_crawl(crawl, old, new)
    crawl.crawler.signals.send_catch_log(
        settings_changed, old=old, new=new, spider=crawl.crawler.spider
    )
    crawl.wake()


def _tell_crawl(crawl: Crawl, old: SuiteSettings, new: SuiteSettings) -> None:
    crawl.frontier.policy.change(**policy_fields(new))
    changed = {name for name in DECLARATIONS if getattr(old, name) != getattr(new, name)}
    if changed & _PLACE:
        crawl.frontier.residents.look_up_again(crawl.now())
    if "prefer_https" in changed:
        crawl.normalizer.twins = make_twins(new, crawl.store.kv(TWINS))
    crawl.frontier.residents.capacity = crawl.capacity
    if crawl.store.durable:
        crawl.frontier.cache.resize(new.seen_cache)
    if isinstance(crawl.store, RocksStore):
        crawl.store.resize(new.memory)
        crawl.store.sync(power_safe=new.commit_survives == "power")
        if crawl.store.sieve is not None:
            crawl.store.sieve.sieve.capacity = new.sieve_waiting
    if "storable" in changed:
        crawl.renew_codec()
