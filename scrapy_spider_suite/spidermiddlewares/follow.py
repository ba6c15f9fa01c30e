"""Follows every link of every page in bulk: BroadSpider, and any spider with SUITE_FOLLOW."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.http import Response

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.links import Follower
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.spiders import BroadSpider

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


class FollowMiddleware:
    """Spider middleware closest to the spider: what the others let through is followed."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._follower: Follower | None = None
        self._always = issubclass(crawler.spidercls, BroadSpider)
        crawler.signals.connect(self._opened, signals.spider_opened)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> FollowMiddleware:
        """Build it for *crawler*. Raises `NotConfigured` where links are never followed."""
        settings = suite_settings(crawler)
        follows = settings.follow or issubclass(crawler.spidercls, BroadSpider)
        # In the broad profile SUITE_FOLLOW may be set while the crawl runs.
        if not follows and settings.profile != "broad":
            raise NotConfigured("neither a BroadSpider nor SUITE_FOLLOW")
        return cls(crawler)

    def _opened(self) -> None:
        get_crawl(self._crawler).sitemaps.make_follower = self._get

    def process_spider_input(self, response: Response) -> None:
        """Follow the links of *response*, then let its callback have it."""
        if self._always or suite_settings(self._crawler).follow:
            self._get().follow(response)

    def _get(self) -> Follower:
        if self._follower is None:
            self._follower = self._make()
        return self._follower

    def _make(self) -> Follower:
        spider = self._crawler.spider
        if spider is None:
            raise RuntimeError("the crawl has no spider yet")
        choose = rank = None
        if isinstance(spider, BroadSpider):
            # A hook that no subclass overrides is not called at all.
            if type(spider).choose_links is not BroadSpider.choose_links:
                choose = spider.choose_links
            if type(spider).link_priority is not BroadSpider.link_priority:
                rank = spider.link_priority
        return Follower(get_crawl(self._crawler), spider, choose, rank)
