"""The add-on: one line in ``ADDONS`` makes every spider polite, crash-safe and memory-bounded.

When it cannot put the suite's components into Scrapy's settings, it refuses the crawl, which would
be impolite (`runtime.refusal`). scrapy-redis's scheduler, dupefilter and stats are replaced, since
they would block the event loop. Classes of the project's own stay, subclasses too.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.misc import load_object
from scrapy.utils.reactor import is_asyncio_reactor_installed, is_reactor_installed

from scrapy_spider_suite import profiles
from scrapy_spider_suite.analysis import search
from scrapy_spider_suite.errors import SearchError, SettingsError
from scrapy_spider_suite.profiles import CLASSES, canonical, has_own_class
from scrapy_spider_suite.runtime import refusal
from scrapy_spider_suite.settings.scrapy_redis import PushedSeedsKey, redis_server
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_enabled

logger = logging.getLogger(__name__)

REPLACED_CLASSES = {
    "SCHEDULER": (
        "scrapy_redis.scheduler.Scheduler",
        CLASSES["SCHEDULER"],
        "what waits, and what was seen, is in JOBDIR",
    ),
    "DUPEFILTER_CLASS": (
        "scrapy_redis.dupefilter.RFPDupeFilter",
        "scrapy.dupefilters.RFPDupeFilter",
        "the job knows what was seen",
    ),
    "STATS_CLASS": (
        "scrapy_redis.stats.RedisStatsCollector",
        "scrapy.statscollectors.MemoryStatsCollector",
        "it would ask Redis at each count, and knows integers alone",
    ),
}
"""Settings that name a class of scrapy-redis, its replacement, and the reason."""

UNUSED_SETTINGS = (
    "SCHEDULER_QUEUE_CLASS", "SCHEDULER_QUEUE_KEY", "SCHEDULER_DUPEFILTER_CLASS",
    "SCHEDULER_DUPEFILTER_KEY", "SCHEDULER_SERIALIZER", "SCHEDULER_IDLE_BEFORE_CLOSE",
)  # fmt: skip
"""Settings of scrapy-redis's scheduler that have no effect; docs/scrapy-redis.md has others."""


def replace_scrapy_redis(settings: BaseSettings) -> None:
    """Replace scrapy-redis's classes in *settings*, with a warning for each.

    Raises `SettingsError` for a setting whose opposite the suite would do.
    """
    moved = canonical(settings["SCHEDULER"]) == REPLACED_CLASSES["SCHEDULER"][0]
    # A scheduler of the project's own may be made of scrapy-redis's, which needs its dupefilter.
    kept = () if moved or not has_own_class(settings, "SCHEDULER") else ("DUPEFILTER_CLASS",)
    for name, (theirs, instead, why) in REPLACED_CLASSES.items():
        if canonical(settings[name]) == theirs and name not in kept:
            settings.set(name, instead, priority=settings.getpriority(name) or 0)
            logger.warning("%s = %r makes way for %s: %s", name, theirs, instead, why)
    if not moved:
        return
    if settings["JOBDIR"] and settings.getbool("SCHEDULER_FLUSH_ON_START"):
        raise SettingsError(
            "SCHEDULER_FLUSH_ON_START = True: a job goes on where it was; leave that out, and "
            "begin anew with another JOBDIR"
        )
    if not settings["JOBDIR"] and settings.getbool("SCHEDULER_PERSIST"):
        logger.warning("SCHEDULER_PERSIST = True keeps nothing by itself: set a JOBDIR")
    for name in filter(settings.get, UNUSED_SETTINGS):
        logger.warning("%s = %r is not used: see docs/scrapy-redis.md", name, settings[name])


def check_pushed_seeds(
    settings: BaseSettings, suite: SuiteSettings, spider: Spider | type[Spider]
) -> None:
    """Raise `SettingsError` if seeds of *spider* that are pushed to Redis cannot be read."""
    if PushedSeedsKey.for_spider(settings, spider) is None:
        return
    if find_spec("redis") is None:
        raise SettingsError(
            "seeds in Redis need a client: pip install 'scrapy-spider-suite[redis]'"
        )
    url = suite.redis_url or redis_server(settings)
    # Needs redis, which is an extra.
    from scrapy_spider_suite.cluster.redis_server import require_client

    require_client(url.url, url)


LOOP = "ASYNCIO_EVENT_LOOP"
PREFERRED_LOOP = "scrapy_spider_suite.runtime.event_loop.PreferredLoop"


class Addon:
    """Switches the suite on for one crawler."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Addon:
        return cls(crawler)

    @classmethod
    def update_pre_crawler_settings(cls, settings: BaseSettings) -> None:
        """Check the project's settings and choose uvloop, before the reactor is installed.

        Scrapy calls this for ``ADDONS`` of a project only, not of a spider. A command ends here if
        a setting is wrong, with one line and code 2; a script gets the exception from ``crawl()``.
        """
        try:
            if not suite_enabled(settings):
                return
            SuiteSettings.from_settings(settings)
            _require_reactor(settings)
        except SettingsError as error:
            if refusal.running_command() is not None:
                refusal.refuse(error)
            return
        if settings[LOOP] is not None or is_reactor_installed() or _is_for_a_shell(settings):
            return
        if find_spec("uvloop"):
            settings.set(LOOP, PREFERRED_LOOP, priority="addon")

    def update_settings(self, settings: BaseSettings) -> None:
        """Put the suite's components and, in the broad profile, its lean settings in place.

        Raises `SettingsError` in a script; a command ends with one line and code 2.
        """
        if refusal.is_refused(settings):  # by its spider
            return
        spider = self.crawler.spider or self.crawler.spidercls
        try:
            if not suite_enabled(settings):
                return
            suite = SuiteSettings.from_settings(settings, spider)
            _require_asyncio(settings)
            if suite.index:
                search.require()
            check_pushed_seeds(settings, suite, spider)
            replace_scrapy_redis(settings)
        except SearchError as error:
            self._refuse(SettingsError(f"SUITE_INDEX = True: {error}"), settings)
            return
        except SettingsError as error:
            self._refuse(error, settings)
            return
        _keep_the_loop(settings)
        switched_on = [name for name in profiles.BY_SETTING if getattr(suite, name)]
        kept = list(profiles.apply(settings, suite.profile, switched_on))
        if kept:
            what = "; ".join(f"{name}, so not {path}" for name, path in kept)
            other = profiles.handler_warning(settings)
            logger.warning("The project's own components are kept: %s%s", what, other)
        own = [name for name, _ in kept if name in ("SCHEDULER", "DOWNLOADER")]
        if own and suite.packs_dir is not None:
            logger.warning(
                "SUITE_PACKS_DIR = %r: only page items are packed with a %s of the project's own",
                str(suite.packs_dir), " and a ".join(own),
            )  # fmt: skip

    def _refuse(self, error: SettingsError, settings: BaseSettings) -> None:
        # Where the process cannot end at once, it ends when the crawl makes its scheduler.
        other_reactor = is_reactor_installed() and not is_asyncio_reactor_installed()
        no_reactor = not settings.getbool("TWISTED_REACTOR_ENABLED", True)
        if other_reactor or no_reactor or not self.crawler.crawling:
            refusal.refuse(error)
        refusal.refuse_crawl(self.crawler, error)


def _require_reactor(settings: BaseSettings) -> None:
    # The gate's Deferreds need Twisted.
    if not settings.getbool("TWISTED_REACTOR_ENABLED", True):
        raise SettingsError.of("TWISTED_REACTOR_ENABLED", False, "True")


def _require_asyncio(settings: BaseSettings) -> None:
    # The gate, the resolver and the commits run as tasks of asyncio.
    _require_reactor(settings)
    wanted = refusal.ASYNCIO_REACTOR
    if is_reactor_installed():
        if not is_asyncio_reactor_installed():
            raise SettingsError(f"another reactor is installed: the suite needs {wanted}")
    elif settings["TWISTED_REACTOR"] != wanted:
        raise SettingsError.of("TWISTED_REACTOR", settings["TWISTED_REACTOR"], wanted)


def _keep_the_loop(settings: BaseSettings) -> None:
    """Drop a spider's own ``ASYNCIO_EVENT_LOOP`` if uvloop was chosen for the process before.

    Scrapy would stop the crawl for the mismatch.
    """
    asked = settings[LOOP]
    if not asked or not is_reactor_installed():
        return
    from twisted.internet import reactor

    loop = getattr(reactor, "_asyncioEventloop", None)
    ours = type(loop).__module__ + "." + type(loop).__qualname__ == PREFERRED_LOOP
    if ours and not isinstance(loop, load_object(asked)):
        settings.set(LOOP, None, priority=settings.getpriority(LOOP) or 0)
        logger.warning(
            "%s = %r came after uvloop was chosen for the process and is not used; set it in the "
            "project's settings instead",
            LOOP,
            asked,
        )


def _is_for_a_shell(settings: BaseSettings) -> bool:
    # Only ``scrapy shell`` brings a dupefilter of its own. It leaves its loop running in a thread
    # when Python ends, which a loop in C may not survive.
    return settings.getpriority("DUPEFILTER_CLASS") == SETTINGS_PRIORITIES["command"]
