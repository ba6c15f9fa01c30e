"""Spiders as projects have them that use scrapy-redis, with its own classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import Rule
from scrapy_redis.spiders import RedisCrawlSpider, RedisSpider

from scrapy_spider_suite.spiders import BroadSpider


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
