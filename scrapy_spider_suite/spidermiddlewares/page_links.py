"""Spider middlewares closest to the spider: links of a page are followed, counted or handed on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.http import HtmlResponse, Response

from scrapy_spider_suite.crawl.assembly import open_crawl
from scrapy_spider_suite.crawl.context import follows_links, get_crawl
from scrapy_spider_suite.crawl.links import LinkFollower, LinkReader, has_links
from scrapy_spider_suite.crawl.requests import SITEMAP
from scrapy_spider_suite.items import PageItem
from scrapy_spider_suite.packs import Link
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.spiders import BroadSpider

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


class FollowMiddleware:
    """Follows every link of every page in bulk: BroadSpider, and any spider with SUITE_FOLLOW.

    In the broad profile without either it follows the URLs of sitemaps alone.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._follower: LinkFollower | None = None
        self._follows = follows_links(crawler)
        crawler.signals.connect(self._opened, signals.spider_opened)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> FollowMiddleware:
        """Raises `NotConfigured` where links are never followed."""
        if not follows_links(crawler) and suite_settings(crawler).profile != "broad":
            raise NotConfigured("neither a BroadSpider nor SUITE_FOLLOW")
        return cls(crawler)

    def _opened(self) -> None:
        open_crawl(self._crawler).sitemaps.make_follower = self._get

    def process_spider_input(self, response: Response) -> None:
        """Follow the links of *response* before its callback gets it."""
        if self._follows:
            self._get().follow(response)

    def _get(self) -> LinkFollower:
        if self._follower is None:
            self._follower = self._make()
        return self._follower

    def _make(self) -> LinkFollower:
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
        return LinkFollower(get_crawl(self._crawler), spider, choose, rank)


class LinkCountMiddleware:
    """Reads the links of pages for SUITE_LINK_STATS in the spider profile.

    Packs get the links, too, unless the spider gives others (`PageItem`).
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._reader = LinkReader(partial(suite_settings, crawler))

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> LinkCountMiddleware:
        """Raises `NotConfigured`: no links are counted, or only those of page items."""
        settings = suite_settings(crawler)
        if not settings.link_stats or settings.page_items:
            raise NotConfigured
        return cls(crawler)

    def process_spider_input(self, response: Response) -> None:
        """Count the links of *response* before its callback gets it."""
        crawl, request = get_crawl(self._crawler), response.request
        if crawl.counter is None:
            return
        lease = None if request is None else crawl.leases.get(request)
        if lease is None or lease.facts is None or not has_links(response):
            return
        page, lease.outlinks = self._reader.links_of(response)
        crawl.counter.read(lease, response, page.links)


class PageItemMiddleware:
    """Yields every followed page as an item before the output of its callback: SUITE_PAGE_ITEMS."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> PageItemMiddleware:
        """Raises `NotConfigured` without SUITE_PAGE_ITEMS, or where links are not followed."""
        settings = suite_settings(crawler)
        wanted = settings.page_items and follows_links(crawler)
        if not wanted or settings.profile != "broad":
            raise NotConfigured  # the spider itself yields a PageItem where it wants one
        return cls(crawler)

    def process_spider_output(self, response: Response, result: Iterable[Any]) -> Iterable[Any]:
        """Yield the page, then the output of its callback."""
        yield from self._page(response)
        yield from result

    async def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Yield the page, then the output of its callback."""
        for item in self._page(response):
            yield item
        async for output in result:
            yield output

    def _page(self, response: Response) -> Iterator[PageItem]:
        request = response.request
        if request is None or SITEMAP in request.meta:
            return
        lease = get_crawl(self._crawler).leases.get(request)
        links = None
        if lease is not None and lease.unread is None and isinstance(response, HtmlResponse):
            links = [Link(*edge) for edge in lease.outlinks]
        yield PageItem.from_response(response, links)
