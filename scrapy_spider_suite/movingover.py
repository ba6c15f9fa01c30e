"""What becomes of a scrapy-redis project's settings when the add-on is switched on.

Seeds and the connection are read (:mod:`scrapy_spider_suite.settings.scrapy_redis`), pipelines stay
as they are. scrapy-redis's scheduler, duplicate filter and stats would do the suite's work in other
ways, and ask Redis in blocking calls on the event loop: they make way, by name. Subclasses of the
project's own stay, as all that is its own; beside a scheduler that stays, so does the filter.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.profiles import CLASSES, canonical, keeps
from scrapy_spider_suite.settings.scrapy_redis import SeedKey, server_of

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings

    from scrapy_spider_suite.settings.suite import SuiteSettings

logger = logging.getLogger(__name__)

REPLACED = {
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
"""Settings that name a class of scrapy-redis, what stands there instead, and why."""

UNUSED = {
    "SCHEDULER_QUEUE_CLASS": "each host has its queue, by priority and SUITE_ORDER",
    "SCHEDULER_QUEUE_KEY": "what waits is in JOBDIR",
    "SCHEDULER_DUPEFILTER_CLASS": "the job knows what was seen",
    "SCHEDULER_DUPEFILTER_KEY": "the job knows what was seen",
    "SCHEDULER_SERIALIZER": "requests are stored without pickle; SUITE_STORABLE names classes",
    "SCHEDULER_IDLE_BEFORE_CLOSE": "MAX_IDLE_TIME_BEFORE_CLOSE, or SUITE_IDLE = 'wait', keeps a "
    "crawl open",
}
"""Settings of scrapy-redis's scheduler that mean nothing to the suite's, and what there is."""


def move_over(settings: BaseSettings) -> None:
    """Let what is scrapy-redis's make way in *settings*, and say so.

    Raises `SettingsError` for what the suite would do the opposite of.
    """
    moved = canonical(settings["SCHEDULER"]) == REPLACED["SCHEDULER"][0]
    # A scheduler of the project's own may be made of scrapy-redis's, which needs its dupefilter.
    kept = () if moved or not keeps(settings, "SCHEDULER") else ("DUPEFILTER_CLASS",)
    for name, (theirs, instead, why) in REPLACED.items():
        if canonical(settings[name]) == theirs and name not in kept:
            settings.set(name, instead, priority=settings.getpriority(name) or 0)
            logger.warning("%s = %r makes way for %s: %s", name, theirs, instead, why)
    if moved:
        _say_what_is_unused(settings)


def check(settings: BaseSettings, suite: SuiteSettings, spider: Spider | type[Spider]) -> None:
    """Raise `SettingsError` if the seeds of *spider* that are pushed to Redis cannot be had."""
    if SeedKey.of(settings, spider) is None:
        return
    if find_spec("redis") is None:
        raise SettingsError(
            "seeds in Redis need a client: pip install 'scrapy-spider-suite[redis]'"
        )
    url = suite.redis_url or server_of(settings)
    from scrapy_spider_suite.cluster.redis_server import (
        require_client,  # needs redis, which is an extra
    )

    require_client(url.url, url)


def _say_what_is_unused(settings: BaseSettings) -> None:
    if settings["JOBDIR"] and settings.getbool("SCHEDULER_FLUSH_ON_START"):
        raise SettingsError(
            "SCHEDULER_FLUSH_ON_START = True: a job goes on where it was; leave that out, and "
            "begin anew with another JOBDIR"
        )
    if not settings["JOBDIR"] and settings.getbool("SCHEDULER_PERSIST"):
        logger.warning("SCHEDULER_PERSIST = True keeps nothing by itself: set a JOBDIR")
    for name, instead in UNUSED.items():
        if settings[name]:
            logger.warning("%s = %r is not used: %s", name, settings[name], instead)
