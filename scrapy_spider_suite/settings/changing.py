"""Settings that change while a crawl runs: every one that a job does not fix, and two of Scrapy's.

Most are read anew each time they are needed. The others are given to the parts that keep them:
those that the core owns here, those of middlewares, extensions and handlers by the signal
`settings_changed`.

Private name touched: ``_timeout`` of Scrapy's DownloadTimeoutMiddleware.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from scrapy.downloadermiddlewares.downloadtimeout import DownloadTimeoutMiddleware

from scrapy_spider_suite.crawl.filtering import SETTINGS as FILTERS
from scrapy_spider_suite.crawl.normalizing import STORE as TWINS
from scrapy_spider_suite.crawl.normalizing import twins_of
from scrapy_spider_suite.crawl.overriding import policy_fields, read_overrides
from scrapy_spider_suite.crawl.resolving import reconfigure
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.seeds.lines import check_sources
from scrapy_spider_suite.settings.declarations import Kind
from scrapy_spider_suite.settings.project import LIVE, ProjectSettings
from scrapy_spider_suite.settings.suite import DECLARATIONS, SuiteSettings, replace_settings
from scrapy_spider_suite.signals import settings_changed
from scrapy_spider_suite.storage.rocks import RocksStore

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.core import CrawlCore

_PACKS = "the writer of packs has it from the start: stop the crawl, and start it again with it"
AT_START = {
    "enabled": "it is read before there is a crawl: pause the crawl, or stop it",
    "seen": "its files are opened at the start",
    "seen_cache": "the memory is taken at the start",
    "sieve_waiting": "the memory is taken at the start",
    "countries": "it may be large, and is read once: stop the crawl, and start it again with it",
    "score": "what waits has its scores: stop the crawl, and start it again with it",
    "scores": "what waits has its scores: stop the crawl, and start it again with it",
    "window": "memory holds what it chose: stop the crawl, and start it again with it",
    "window_size": "memory holds what it chose: stop the crawl, and start it again with it",
    "packs_dir": _PACKS,
    "packs_format": _PACKS,
    "items_dir": _PACKS,
    "items_format": _PACKS,
    "page_items": _PACKS,
    "crawl_name": _PACKS,
    "packs_upload": _PACKS,
    "packs_keep": _PACKS,
    "agent_name": _PACKS,
    "operator": _PACKS,
    "index": "its process is started with the crawl: stop the crawl, or call `scrapy packs index`",
    "duplicates": "its tables are opened at the start: stop the crawl, and start it again with it",
    "near_memory": "the memory is taken at the start",
    "redis_url": "the connection is made at the start: stop the crawl, and start it again with it",
    "link_stats": "pages are read for them from the start: stop the crawl, and start it again",
}
"""Settings that no job fixes, but that hold from the start of a crawl on; and why."""

_PLACE = frozenset({"ipv6_prefix", "ip_family", "allow_private_addresses", "dns_servers"})
"""Those by which a host may live elsewhere."""
_NAMES = frozenset(name for name in DECLARATIONS if name.startswith("dns_")) | _PLACE
"""Those that the resolver goes by."""


def change_setting(core: CrawlCore, name: str, raw: object) -> tuple[object, object]:
    """Give the setting *name* (``SUITE_…`` or one of `LIVE`) the value *raw*; return the old and
    the new one.

    Raises `SettingsError` if that cannot be, and changes nothing then.
    """
    if name in LIVE:
        return _change_scrapys(core, name, raw)
    old = core.settings
    new, field = old.changed(name, raw)
    kind = DECLARATIONS[field].kind
    if kind is Kind.FIXED:
        raise SettingsError(f"{name} is fixed for the life of a job: begin another job with it")
    if field in AT_START:
        raise SettingsError(f"{name} cannot be changed in a running crawl: {AT_START[field]}")
    # First what can fail.
    check_sources(new.seeds)
    filters = core.filtering.prepare(new) if field in FILTERS.values() else None
    if new.overrides != old.overrides:
        core.frontier.policy.change(overrides=read_overrides(new.overrides))
        core.overriding.path = new.overrides
    if filters is not None:
        core.filtering.adopt(filters)
    _adopt(core, new)
    return getattr(old, field), getattr(new, field)


def _change_scrapys(core: CrawlCore, name: str, raw: object) -> tuple[object, object]:
    """See `change_setting`; ``default`` is what the crawl began with."""
    old, crawler = core.settings, core.crawler
    if raw == "default":
        raw = getattr(ProjectSettings.from_settings(crawler.settings, crawler.spider), name.lower())
    project = old.project.changed(name, raw)
    if crawler.engine is not None:
        crawler.engine.downloader.total_concurrency = project.concurrent_requests
    middleware = crawler.get_downloader_middleware(DownloadTimeoutMiddleware)
    if middleware is not None:
        middleware._timeout = project.download_timeout
    _adopt(core, replace(old, project=project))
    return getattr(old.project, name.lower()), getattr(project, name.lower())


def _adopt(core: CrawlCore, new: SuiteSettings) -> None:
    """Let everybody go by *new*."""
    old, core.settings = core.settings, new
    replace_settings(core.crawler, new)
    _tell_core(core, old, new)
    core.crawler.signals.send_catch_log(
        settings_changed, old=old, new=new, spider=core.crawler.spider
    )
    core.wake()


def _tell_core(core: CrawlCore, old: SuiteSettings, new: SuiteSettings) -> None:
    core.frontier.policy.change(**policy_fields(new))
    changed = {name for name in DECLARATIONS if getattr(old, name) != getattr(new, name)}
    if changed & _NAMES:
        reconfigure(core.resolver, new)
    if changed & _PLACE:
        core.frontier.residents.look_up_again(core.now())
    if "prefer_https" in changed:
        core.normalizer.twins = twins_of(new, core.store.kv(TWINS))
    core.frontier.residents.capacity = core.capacity
    if isinstance(core.store, RocksStore):
        core.store.resize(new.workbench_memory)
        core.store.sync(power_safe=new.sync == "power")
    if "storable" in changed:
        core.renew_codec()
