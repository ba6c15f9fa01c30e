"""What is done with a page once it has come, before a callback gets it: filters, links, counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from scrapy_spider_suite.crawl.context import follows_links
from scrapy_spider_suite.crawl.links import LinkFollower, has_links, read_links
from scrapy_spider_suite.crawl.requests import voucher_of
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.urls.filters import Stage

if TYPE_CHECKING:
    from scrapy import Spider

    from scrapy_spider_suite.crawl.context import Crawl
    from scrapy_spider_suite.crawl.queue.leases import Fetch
    from scrapy_spider_suite.fetch.exchange import Exchange


class PageStages:
    """Follows links in bulk for BroadSpider and SUITE_FOLLOW; else counts them where asked to.

    *passes_links*: whether links are passed on, be it of sitemaps alone.
    """

    def __init__(self, crawl: Crawl) -> None:
        settings = crawl.settings
        self._crawl = crawl
        self._follows = follows_links(crawl.crawler)
        self._counts = (
            settings.profile == "spider" and bool(settings.link_stats) and not settings.page_items
        )
        self._follower: LinkFollower | None = None
        self.passes_links = self._follows or settings.broad

    def run(self, fetch: Fetch, page: Exchange) -> bool:
        """Do all that is to be done with *page*, the page of *fetch*; whether it may be parsed."""
        crawl, entry, filters = self._crawl, fetch.entry, self._crawl.filters
        if entry.payload is not None and voucher_of(entry.payload) is not None:
            return True  # a sitemap is no page
        if filters.in_force and not filters.wants_page(Stage.STORE, page, entry):
            fetch.faults.add(Event.NOT_STORED)
            fetch.items_refused = True
        if filters.in_force and not filters.wants_page(Stage.PARSE, page, entry):
            fetch.faults.add(Event.NOT_PARSED)
            return False
        if self._follows:
            self.follower.follow(fetch, page)
        elif self._counts and fetch.facts is not None and has_links(entry, page):
            # Packs get the links, too, unless the spider gives others (`PageItem`).
            found, fetch.outlinks = read_links(page, crawl.settings)
            if crawl.counter is not None:
                crawl.counter.read(fetch, page, found.links)
        return True

    @property
    def follower(self) -> LinkFollower:
        """What passes links on, made at the first use."""
        if self._follower is not None:
            return self._follower
        spider = self._crawl.crawler.spider
        if spider is None:
            raise RuntimeError("the crawl has no spider yet")
        # A hook that no subclass overrides is not called at all.
        choose = rank = None
        if getattr(spider, "suite_follow", False):  # a BroadSpider
            choose, rank = own_hook(spider, "choose_links"), own_hook(spider, "link_priority")
        self._follower = LinkFollower(self._crawl, spider, choose, rank)
        return self._follower


T = TypeVar("T", bound=Callable[..., Any])


def default_hook(hook: T) -> T:
    """Mark the *hook* of a spider's base class: unless it is overridden, it is not called."""
    hook.is_default = True  # type: ignore[attr-defined]
    return hook


def own_hook(spider: Spider | None, name: str) -> Any:
    """The hook *name* of *spider*; None without one of its own."""
    hook = getattr(spider, name, None)
    return None if getattr(hook, "is_default", False) else hook
