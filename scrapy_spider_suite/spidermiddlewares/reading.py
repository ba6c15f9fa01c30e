"""Reads pages for their links where nobody follows them in bulk: for link statistics."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from scrapy.exceptions import NotConfigured
from scrapy.http import Response

from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.links import LinkReader, has_links
from scrapy_spider_suite.settings.suite import suite_settings

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


class LinkReading:
    """Spider middleware closest to the spider, for SUITE_LINK_STATS in the spider profile.

    Packs have the links, too, as far as the spider gives no others (`PageItem`).
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._reader = LinkReader(partial(suite_settings, crawler))

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> LinkReading:
        """Build it for *crawler*. Raises `NotConfigured`: no links will be counted."""
        settings = suite_settings(crawler)
        if not settings.link_stats and settings.project.jobdir is None:
            raise NotConfigured
        return cls(crawler)

    def process_spider_input(self, response: Response) -> None:
        """Read *response*, then let its callback have it."""
        crawl, request = get_crawl(self._crawler), response.request
        if crawl.counting is None or crawl.settings.page_items:
            return  # no links are counted, or those of page items
        lease = None if request is None else crawl.leases.get(request)
        if lease is None or lease.facts is None or not has_links(response):
            return
        page, lease.outlinks = self._reader.links_of(response)
        crawl.counting.read(lease, response, page.links)
