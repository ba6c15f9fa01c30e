"""The job of a running crawl: actions change the parts in memory, too."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.downloadermiddlewares.downloadtimeout import DownloadTimeoutMiddleware
from scrapy.utils.log import get_scrapy_root_handler
from twisted.python.failure import Failure

from scrapy_spider_suite.crawl.context import Crawl, Engine, follows_links
from scrapy_spider_suite.crawl.crawl_policy import FILTER_SETTINGS, policy_fields
from scrapy_spider_suite.errors import ActionError, SettingsError
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.operate import job_target
from scrapy_spider_suite.operate.actions import Action, ActionFolder, new_id, whoami
from scrapy_spider_suite.operate.executors.one_job import ActionRunner
from scrapy_spider_suite.operate.terms import CrawlTerms, save_terms
from scrapy_spider_suite.operate.verbs import actions
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings import suite
from scrapy_spider_suite.settings.declarations import SettingKind, plain_value, shown_value
from scrapy_spider_suite.settings.project import LIVE_SCRAPY_SETTINGS, ProjectSettings
from scrapy_spider_suite.signals import settings_changed, settings_changing
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.urls.normalize import host_of
from scrapy_spider_suite.urls.normalizer import Normal
from scrapy_spider_suite.urls.twins import site_of

logger = logging.getLogger(__name__)

_PRIVATE: Final = "SUITE_ALLOW_PRIVATE_ADDRESSES"
_FILTERS: Final = frozenset(FILTER_SETTINGS.values())  # settings by which the filters are made anew


def _store_terms(crawl: Crawl) -> None:
    """Retry private addresses that other terms refused (twice after a kill); store the terms."""
    job, kept = crawl.job, CrawlTerms.load(crawl.store.kv("terms"))
    refused = crawl.frontier.counters.events.get(Event.PRIVATE_ADDRESS, 0)
    old, new = kept and kept.values.get(_PRIVATE), crawl.settings.allow_private_addresses
    changed = kept is not None and new and old != plain_value(new)
    if job is not None and refused and changed and follows_links(crawl.crawler):
        why, reason = f"{_PRIVATE} was {shown_value(old)}", Event.PRIVATE_ADDRESS.value
        asked = Action(
            new_id(), "retry", {"reason": reason}, job.file.id, whoami(), time.time(), why
        )
        urls = counted(refused, "URL that it refused is", "URLs that it refused are")
        try:
            ActionFolder(job.folder).submit(asked)
            logger.info("%s: %s tried again", why, urls)
        except OSError as error:
            logger.error("%s: %s not tried again: %s", why, urls, error)
    save_terms(crawl)


def change_setting(crawl: Crawl, name: str, raw: object) -> tuple[object, object]:
    """Change the setting *name*; return its old and new value.

    Raises `SettingsError`: the value is wrong, or the setting holds from the start of a crawl.
    """
    if name in LIVE_SCRAPY_SETTINGS:
        return _change_scrapys(crawl, name, raw)
    field = suite.find_setting(name)
    if suite.DECLARATIONS[field].kind is SettingKind.FIXED:
        raise SettingsError(f"{name} is fixed for the life of a job")
    if not suite.DECLARATIONS[field].live:
        raise SettingsError(
            f"{name} holds from a start: stop the crawl and start it again with the setting"
        )
    old = crawl.settings
    new = old.with_value(field, raw)
    if old != new:
        changed = any(getattr(old, each) != getattr(new, each) for each in _FILTERS)
        filters = crawl.filters.prepare(new) if changed else None
        _check_receivers(crawl, new)
        if filters is not None:
            crawl.filters.adopt(filters)
        _adopt(crawl, new)
    return getattr(old, field), getattr(new, field)


def _check_receivers(crawl: Crawl, new: suite.SuiteSettings) -> None:
    """Raises `SettingsError`: a receiver of `settings_changing` refuses *new*."""
    answers = crawl.crawler.signals.send_catch_log(
        settings_changing, old=crawl.settings, new=new, spider=crawl.crawler.spider,
        dont_log=SettingsError,
    )  # fmt: skip
    for _, answer in answers:
        if isinstance(answer, Failure):
            if isinstance(answer.value, SettingsError):
                raise answer.value
            raise SettingsError(f"it failed: {answer.value!r}")


def _change_scrapys(crawl: Crawl, name: str, raw: object) -> tuple[object, object]:
    """See `change_setting`; ``default`` restores the value of the start."""
    old, crawler = crawl.settings, crawl.crawler
    if raw == "default":
        raw = getattr(ProjectSettings.from_settings(crawler.settings, crawler.spider), name.lower())
    project = old.project.with_value(name, raw)
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


def _adopt(crawl: Crawl, new: suite.SuiteSettings) -> None:
    old, crawl.settings = crawl.settings, new
    suite.replace_settings(crawl.crawler, new)
    crawl.frontier.policy.update(**policy_fields(new))
    crawl.crawler.signals.send_catch_log(
        settings_changed, old=old, new=new, spider=crawl.crawler.spider
    )
    crawl.wake()


class RunningJob(job_target.JobTarget):
    """The job of a running crawl. *flush* makes everything durable, or schedules a retry."""

    running = True

    def __init__(self, crawl: Crawl, scheduler: Engine, flush: Callable[[], None]) -> None:
        if crawl.job is None or not isinstance(crawl.store, RocksStore):
            raise TypeError("without a job nothing is asked of it")
        super().__init__(crawl.job.folder, crawl.store, crawl.frontier)
        self._crawl = crawl
        self._scheduler = scheduler
        self._flush = flush
        self._expiry = 0.0  # when the next block is over (wall)
        self._blocks_changed = False

    @property
    def normal(self) -> Normal:
        return self._crawl.normalizer

    def blocks_changed(self) -> None:
        self._blocks_changed = True

    def apply_changes(self) -> None:
        """Put blocks in force, also for requests at the gate; remove ended blocks."""
        if not self._blocks_changed and self.wall() < self._expiry:
            return
        kv = self.store.kv(job_target.BLOCKS)
        self._expiry = job_target.apply_blocks(kv, self.frontier.policy, self.wall())
        self._blocks_changed = False
        if self._scheduler.gate is not None:
            self._scheduler.gate.wake()
        self._scheduler.wake()

    def commit(self) -> bool:
        self._flush()
        return not self.store.backlog

    def forget_robots(self, origin: str) -> bool:
        robots = self._crawl.robots
        return robots.store.forget(origin) if robots else super().forget_robots(origin)

    def forget_cookies(self, host: str) -> int:
        middleware = self._crawl.crawler.get_downloader_middleware(CookiesMiddleware)
        kept = super().forget_cookies(host)
        forget: Callable[[str], int] | None = getattr(middleware, "forget", None)
        if forget is not None:  # the suite's, which keeps jars by host
            return max(kept, forget(host))
        for jar in middleware.jars.values() if middleware else ():
            for domain in {host, f".{host}"} & {cookie.domain for cookie in jar}:
                jar.jar.clear(domain)
        return kept

    def forget_twins(self, host: str) -> None:
        super().forget_twins(host)
        if self._crawl.normalizer.twins is not None:
            self._crawl.normalizer.twins.forget(site_of(host))

    def set(self, name: str, value: str) -> tuple[str, str]:
        try:
            old, new = change_setting(self._crawl, name, value)
        except SettingsError as error:
            raise ActionError(str(error)) from None
        _store_terms(self._crawl)
        return shown_value(old), shown_value(new)

    def is_foreign(self, url: str) -> bool:
        router = self._crawl.frontier.admission.router
        return router is not None and not router.owns(Entry(host_of(url), url))

    def drain(self) -> None:
        if self._crawl.agent is None or self._crawl.settings.cluster == "lan":
            raise ActionError(
                "nobody can take what is here: this needs SUITE_CLUSTER = 'peers' or 'shared-queue'"
            )
        self._crawl.agent.drain()

    def pause(self, action: Action) -> None:
        super().pause(action)
        self._scheduler.pause(job_target.OPERATOR)

    def resume(self) -> None:
        super().resume()
        self._scheduler.unpause(job_target.OPERATOR)


def make_action_runner(
    crawl: Crawl, scheduler: Engine, flush: Callable[[], None]
) -> ActionRunner | None:
    """The runner of a crawl with a job; applies the blocks and the pause of earlier runs."""
    if crawl.job is None:
        return None
    target = RunningJob(crawl, scheduler, flush)
    _store_terms(crawl)
    blocks = target.store.kv(job_target.BLOCKS)
    job_target.apply_blocks(blocks, crawl.frontier.policy, target.wall())
    if who := job_target.paused_by(target.kv):
        logger.warning("the job was paused by %s: nothing is sent until it is resumed", who)
        scheduler.pause(job_target.OPERATOR)
    return ActionRunner(target, crawl.job.file.id, actions())
