"""Lets every page that links are followed from be an item, too: SUITE_PAGE_ITEMS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import NotConfigured
from scrapy.http import HtmlResponse, Response

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.requests import SITEMAP
from scrapy_spider_suite.items import PageItem
from scrapy_spider_suite.packs import Link
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.spiders import BroadSpider

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


class PageItems:
    """Spider middleware closest to the spider: a page comes before what its callback yields.

    While SUITE_PAGE_ITEMS says so, which may change.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._always = issubclass(crawler.spidercls, BroadSpider)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> PageItems:
        """Build it for *crawler*. Raises `NotConfigured` where links are not followed in bulk."""
        if suite_settings(crawler).profile != "broad":
            raise NotConfigured  # the spider itself yields a PageItem where it wants one
        return cls(crawler)

    def process_spider_output(self, response: Response, result: Iterable[Any]) -> Iterable[Any]:
        """Yield the page, and what its callback yields."""
        yield from self._page(response)
        yield from result

    async def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Yield the page, and what its callback yields."""
        for item in self._page(response):
            yield item
        async for output in result:
            yield output

    def _page(self, response: Response) -> Iterator[PageItem]:
        request = response.request
        if request is None or SITEMAP in request.meta:
            return
        settings = suite_settings(self._crawler)
        if not settings.page_items or not (self._always or settings.follow):
            return
        lease = get_crawl(self._crawler).leases.get(request)
        links = None
        if lease is not None and lease.unread is None and isinstance(response, HtmlResponse):
            links = [Link(*edge) for edge in lease.outlinks]
        yield PageItem.from_response(response, links)
