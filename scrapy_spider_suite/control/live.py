"""A job that a crawl is using: what actions change is told to the parts that hold it in memory."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from scrapy.downloadermiddlewares.cookies import CookiesMiddleware

from scrapy_spider_suite.control import blocks, pausing
from scrapy_spider_suite.control.allowing import retry_refused
from scrapy_spider_suite.control.operator import Operator
from scrapy_spider_suite.control.site import Site
from scrapy_spider_suite.control.verbs import VERBS
from scrapy_spider_suite.downloadermiddlewares.cookies import HostCookiesMiddleware
from scrapy_spider_suite.downloadermiddlewares.robots import RobotsMiddleware
from scrapy_spider_suite.errors import ActionError, SettingsError
from scrapy_spider_suite.explaining import terms
from scrapy_spider_suite.settings.changing import LONG, Change, change_setting, prepare_change
from scrapy_spider_suite.settings.declarations import words
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.urls.normalize import host_of
from scrapy_spider_suite.urls.normalizer import Normal
from scrapy_spider_suite.urls.twins import site_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_spider_suite.crawl.context import CrawlCore
    from scrapy_spider_suite.scheduler import FrontierScheduler

logger = logging.getLogger(__name__)


class LiveSite(Site):
    """See the module. *flush* makes everything durable, or sees to it that it is tried again."""

    running = True

    def __init__(
        self, core: CrawlCore, scheduler: FrontierScheduler, flush: Callable[[], None]
    ) -> None:
        if core.job is None or not isinstance(core.store, RocksStore):
            raise TypeError("without a job nothing is asked of it")
        super().__init__(core.job.folder, core.store, core.frontier)
        self._core = core
        self._scheduler = scheduler
        self._flush = flush
        self._expiry = 0.0  # when the next block is over (wall)
        self._blocks_changed = False
        self._read: tuple[str, str, Change] | None = None  # what is to be set next

    @property
    def normal(self) -> Normal:
        """See `Site`."""
        return self._core.normalizer

    def look(self) -> None:
        """Take out blocks that are over; at the first look, take over those of earlier runs."""
        if self.wall() >= self._expiry:
            self.blocks_changed()

    def blocks_changed(self) -> None:
        """See `Site`."""
        self._blocks_changed = True

    def settle(self) -> None:
        """See `Site`: in force at once, for what waits at the gate too."""
        if not self._blocks_changed:
            return
        kv = self.store.kv(blocks.STORE)
        self._expiry = blocks.load(kv, self.frontier.policy, self.wall())
        self._blocks_changed = False
        if self._scheduler.gate is not None:
            self._scheduler.gate.wake()
        self._scheduler.wake()

    def commit(self) -> bool:
        """See `Site`."""
        self._flush()
        return not self.store.dirty

    def forget_robots(self, origin: str) -> bool:
        """See `Site`: in memory too."""
        robots = self._core.crawler.get_downloader_middleware(RobotsMiddleware)
        return robots.store.forget(origin) if robots else super().forget_robots(origin)

    def forget_cookies(self, host: str) -> int:
        """See `Site`: in memory too."""
        middleware = self._core.crawler.get_downloader_middleware(CookiesMiddleware)
        kept = super().forget_cookies(host)
        if isinstance(middleware, HostCookiesMiddleware):
            return max(kept, middleware.forget(host))
        for jar in middleware.jars.values() if middleware else ():
            for domain in {host, f".{host}"} & {cookie.domain for cookie in jar}:
                jar.jar.clear(domain)
        return kept

    def forget_twins(self, host: str) -> None:
        """See `Site`: in memory too."""
        super().forget_twins(host)
        if self._core.normalizer.twins is not None:
            self._core.normalizer.twins.forget(site_of(host))

    def reads_long(self, name: str) -> bool:
        """See `Site`."""
        return name in LONG

    def read_setting(self, name: str, value: str) -> None:
        """See `Site`."""
        with suppress(SettingsError):  # it is raised when it is set
            self._read = name, value, prepare_change(self._core, name, value)

    def set(self, name: str, value: str, *, dry: bool = False) -> tuple[str, str]:
        """See `Site`."""
        try:
            old, new = self._change(name, value, dry=dry)
        except SettingsError as error:
            raise ActionError(str(error)) from None
        keep_terms(self._core)
        return words(old), words(new)

    def is_others(self, url: str) -> bool:
        """See `Site`."""
        agency = self._core.agency
        return agency is not None and agency.shares.owner(host_of(url), url) != agency.name

    def drain(self) -> None:
        """See `Site`."""
        if self._core.agency is None or self._core.settings.cluster != "peers":
            raise ActionError("nobody can take what is here: this needs SUITE_CLUSTER = 'peers'")
        self._core.agency.drain()

    def _change(self, name: str, value: str, *, dry: bool) -> tuple[object, object]:
        read, self._read = self._read, None
        if read is not None and read[:2] == (name, value) and read[2].old is self._core.settings:
            return read[2].make(dry=dry)
        return change_setting(self._core, name, value, dry=dry)

    def pause(self, *, paused: bool) -> None:
        """See `Site`."""
        if paused:
            self._scheduler.pause(pausing.OPERATOR)
        else:
            self._scheduler.unpause(pausing.OPERATOR)


def operator_of(
    core: CrawlCore, scheduler: FrontierScheduler, flush: Callable[[], None]
) -> Operator | None:
    """The operator of a crawl with a job; what earlier actions left holds from the start."""
    if core.job is None:
        return None
    site = LiveSite(core, scheduler, flush)
    keep_terms(core)
    blocks.load(site.store.kv(blocks.STORE), core.frontier.policy, site.wall())
    if who := pausing.paused_by(site.kv):
        logger.warning("the job was paused by %s: nothing is sent until it is resumed", who)
        site.pause(paused=True)
    return Operator(site, core.job.file.id, VERBS)


def keep_terms(core: CrawlCore) -> None:
    """Keep the terms of the crawl in its job; what they allow from now on is tried again."""
    retry_refused(core)
    terms.keep(core)
