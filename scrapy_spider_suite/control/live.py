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

    from scrapy_spider_suite.crawl.context import Crawl
    from scrapy_spider_suite.scheduler import FrontierScheduler

logger = logging.getLogger(__name__)


class LiveSite(Site):
    """See the module. *flush* makes everything durable, or sees to it that it is tried again."""

    running = True

    def __init__(
        self, crawl: Crawl, scheduler: FrontierScheduler, flush: Callable[[], None]
    ) -> None:
        if crawl.job is None or not isinstance(crawl.store, RocksStore):
            raise TypeError("without a job nothing is asked of it")
        super().__init__(crawl.job.folder, crawl.store, crawl.frontier)
        self._crawl = crawl
        self._scheduler = scheduler
        self._flush = flush
        self._expiry = 0.0  # when the next block is over (wall)
        self._blocks_changed = False
        self._read: tuple[str, str, Change] | None = None  # what is to be set next

    @property
    def normal(self) -> Normal:
        """See `Site`."""
        return self._crawl.normalizer

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
        robots = self._crawl.crawler.get_downloader_middleware(RobotsMiddleware)
        return robots.store.forget(origin) if robots else super().forget_robots(origin)

    def forget_cookies(self, host: str) -> int:
        """See `Site`: in memory too."""
        middleware = self._crawl.crawler.get_downloader_middleware(CookiesMiddleware)
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
        if self._crawl.normalizer.twins is not None:
            self._crawl.normalizer.twins.forget(site_of(host))

    def reads_long(self, name: str) -> bool:
        """See `Site`."""
        return name in LONG

    def read_setting(self, name: str, value: str) -> None:
        """See `Site`."""
        with suppress(SettingsError):  # it is raised when it is set
            self._read = name, value, prepare_change(self._crawl, name, value)

    def set(self, name: str, value: str, *, dry: bool = False) -> tuple[str, str]:
        """See `Site`."""
        try:
            old, new = self._change(name, value, dry=dry)
        except SettingsError as error:
            raise ActionError(str(error)) from None
        keep_terms(self._crawl)
        return words(old), words(new)

    def is_others(self, url: str) -> bool:
        """See `Site`."""
        agency = self._crawl.agency
        return agency is not None and agency.shares.owner(host_of(url), url) != agency.name

    def drain(self) -> None:
        """See `Site`."""
        if self._crawl.agency is None or self._crawl.settings.cluster != "peers":
            raise ActionError("nobody can take what is here: this needs SUITE_CLUSTER = 'peers'")
        self._crawl.agency.drain()

    def _change(self, name: str, value: str, *, dry: bool) -> tuple[object, object]:
        read, self._read = self._read, None
        if read is not None and read[:2] == (name, value) and read[2].old is self._crawl.settings:
            return read[2].make(dry=dry)
        return change_setting(self._crawl, name, value, dry=dry)

    def pause(self, *, paused: bool) -> None:
        """See `Site`."""
        if paused:
            self._scheduler.pause(pausing.OPERATOR)
        else:
            self._scheduler.unpause(pausing.OPERATOR)


def operator_of(
    crawl: Crawl, scheduler: FrontierScheduler, flush: Callable[[], None]
) -> Operator | None:
    """The operator of a crawl with a job; what earlier actions left holds from the start."""
    if crawl.job is None:
        return None
    site = LiveSite(crawl, scheduler, flush)
    keep_terms(crawl)
    blocks.load(site.store.kv(blocks.STORE), crawl.frontier.policy, site.wall())
    if who := pausing.paused_by(site.kv):
        logger.warning("the job was paused by %s: nothing is sent until it is resumed", who)
        site.pause(paused=True)
    return Operator(site, crawl.job.file.id, VERBS)


def keep_terms(crawl: Crawl) -> None:
    """Keep the terms of the crawl in its job; what they allow from now on is tried again."""
    retry_refused(crawl)
    terms.keep(crawl)
