"""Makes the parts of a crawl in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_spider_suite.crawl.context import Crawl, get_crawl
from scrapy_spider_suite.crawl.gate import WireQueue
from scrapy_spider_suite.crawl.links import SitemapLinks
from scrapy_spider_suite.crawl.page_stages import PageStages
from scrapy_spider_suite.crawl.preparation import TrustedPrivateHosts
from scrapy_spider_suite.crawl.pulse import Pulses
from scrapy_spider_suite.crawl.requests import LinkRedirects
from scrapy_spider_suite.crawl.revisits import Revisits
from scrapy_spider_suite.crawl.sinks.duplicate_pages import DuplicatePages
from scrapy_spider_suite.crawl.visits import Visits

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_spider_suite.crawl.deferred_links import DeferredLinks
    from scrapy_spider_suite.crawl.fetch_loop import FetchLoop
    from scrapy_spider_suite.crawl.outside_fetches import OutsideFetches
    from scrapy_spider_suite.crawl.preparation import HostPreparation
    from scrapy_spider_suite.crawl.sinks.commit_log import Sink


class CrawlParts:
    """The parts of one crawl. The suite's scheduler makes preparation, deferred links, sinks."""

    preparation: HostPreparation
    deferred_links: DeferredLinks

    def __init__(self, crawl: Crawl) -> None:
        self.crawl = crawl
        self.trusted = TrustedPrivateHosts(crawl)
        self.visits = Visits(crawl, self.trusted)
        self.wire = WireQueue(crawl)
        self.revisits = Revisits(crawl)
        self.pages = PageStages(crawl)
        self.redirects = LinkRedirects(crawl)
        self.sitemaps = SitemapLinks(crawl, self.revisits, self.pages)
        self.duplicates = DuplicatePages(crawl)
        self.sinks: list[Sink] = []
        self.loop: FetchLoop | None = None
        self.outside: OutsideFetches | None = None  # where other programs fetch
        self.pulses = Pulses(self)
        self.status: dict[str, Any] = {}  # what the status file says of the crawl
        self.path = ""  # whether rows take the fetch loop, and if not, why


def open_crawl(crawler: Crawler) -> CrawlParts:
    """The parts, made by scheduler or gate, whichever calls first. Raises the `SuiteError`s."""
    crawl = get_crawl(crawler)
    if crawl.parts is None:
        crawl.parts = CrawlParts(crawl)
    return crawl.parts
