"""Spiders as projects have them that use scrapy-redis, with its own classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from scrapy import Spider
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import Rule
from scrapy_redis.spiders import RedisCrawlSpider, RedisSpider

from scrapy_spider_suite.spiders import BroadSpider

EXAMPLE: dict[str, Any] = {
    "DOWNLOAD_DELAY": 1,
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    "ITEM_PIPELINES": {
        "support.pushed_spiders.StampPipeline": 300, "scrapy_redis.pipelines.RedisPipeline": 400,
    },
    "LOG_LEVEL": "DEBUG",
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "SCHEDULER_PERSIST": True,
    "USER_AGENT": "example (+https://tests.example/)",
}  # fmt: skip
"""As in scrapy-redis's example project, but for the name of its pipeline."""
PROJECT = EXAMPLE | {
    "MAX_IDLE_TIME_BEFORE_CLOSE": 1,
    "SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.SpiderQueue",
    "STATS_CLASS": "scrapy_redis.stats.RedisStatsCollector",
    "SUITE_ALLOW_PRIVATE_ADDRESSES": True,
    "SUITE_HOST_DELAY": 0,
}
"""And as in its documentation. The last two are the tests' own: their sites are here, and wait for
nobody."""


class StampPipeline:
    """Says which spider an item came from, and takes that spider as pipelines once did."""

    def process_item(self, item: dict[str, Any], spider: Spider) -> dict[str, Any]:
        """Say it."""
        return item | {"spider": spider.name}


class Pages(RedisSpider):  # type: ignore[misc]
    """Says of each page what it was asked for with."""

    name = "pages"

    def parse(self, response: Response) -> Iterator[dict[str, Any]]:
        """Say it."""
        request = response.request
        yield {
            "url": response.url, "job": response.meta.get("job"), "method": request.method,
            "body": request.body.decode(),
        }  # fmt: skip


class Following(RedisCrawlSpider):  # type: ignore[misc]
    """Follows links, and reads its seeds from a key that it names itself."""

    name = "following"
    redis_key = "%(name)s:here"
    rules: ClassVar[Any] = (Rule(LinkExtractor(), callback="parse_page", follow=True),)

    def __init__(self, domain: str = "", **kwargs: Any) -> None:
        self.allowed_domains = filter(None, domain.split(","))
        super().__init__(**kwargs)

    def parse_page(self, response: Response) -> dict[str, Any]:
        """Say where it is."""
        return {"url": response.url}


class Broad(BroadSpider):
    """A broad spider with such a key."""

    name = "broad"
    redis_key = "broad:start_urls"

    def parse_page(self, response: Response) -> Iterator[dict[str, Any]]:
        """Say where it is."""
        yield self.fetch_data(response)

    def fetch_data(self, response: Response) -> dict[str, Any]:
        """Nothing of scrapy-redis's, whatever its name."""
        return {"url": response.url}


def told(spider: Spider, response: Response) -> dict[str, Any]:
    """Which page it is, and which agent has it."""
    return {"url": response.url, "agent": spider.settings["SUITE_AGENT_NAME"]}


class Shared(RedisSpider):  # type: ignore[misc]
    """Says of each page which agent has it."""

    name = "shared"

    def parse(self, response: Response) -> Iterator[dict[str, Any]]:
        """Say it."""
        yield told(self, response)


class SharedKey(Spider):
    """Likewise, with nothing of scrapy-redis but the key."""

    name = "sharedkey"
    redis_key = None

    def parse(self, response: Response) -> Iterator[dict[str, Any]]:
        """Say it."""
        yield told(self, response)


class SharedBroad(BroadSpider):
    """Likewise, a broad one."""

    name = "sharedbroad"
    redis_key = None

    def parse_page(self, response: Response) -> Iterator[dict[str, Any]]:
        """Say it."""
        yield told(self, response)
