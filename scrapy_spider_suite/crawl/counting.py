"""Link statistics of a crawl: every page is counted in the batch that says that it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scrapy.http import Response

from scrapy_spider_suite.crawl.witness import Fetched, call_witness
from scrapy_spider_suite.frontier.entries import Flag
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.headers import header, media_type
from scrapy_spider_suite.monitor.linkstats import ROWS, LinkStats, PageFacts
from scrapy_spider_suite.urls.edges import link_texts
from scrapy_spider_suite.urls.filters.subject import Page
from scrapy_spider_suite.urls.normalize import normalize

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.core import CrawlCore
    from scrapy_spider_suite.storage.leases import Lease

# Plain integers: operators of flags are Python code.
_USER, _DONT_FILTER = int(Flag.USER), int(Flag.DONT_FILTER)


class LinkCounting:
    """One per crawl with SUITE_LINK_STATS, of which *tables* is the value."""

    def __init__(self, core: CrawlCore, tables: Sequence[str]) -> None:
        self._stats = LinkStats(core.store.kv(ROWS), tables)
        self._words = "anchors" in tables
        core.frontier.counting = self
        call_witness(core.crawler, self._fetched)

    def _fetched(self, fetched: Fetched) -> None:
        lease, response = fetched.lease, fetched.response
        if lease is None or response is None:
            return
        entry, content_type = lease.entry, header(response.headers, "Content-Type")
        lease.facts = PageFacts(
            normalize(fetched.request.url) or fetched.request.url,
            response.status,
            media_type(content_type),
            len(response.body),
            # What is fetched again was counted: spiders' own requests say nothing.
            again=lease.plan is not None
            or (entry.flags & _DONT_FILTER != 0 and not entry.flags & _USER),
        )

    def recall(self, lease: Lease, response: Response, size: int, *, again: bool) -> None:
        """*response*, of *size* bytes on the wire, was stored, and is read for *lease* now."""
        url, content_type = response.url, header(response.headers, "Content-Type")
        lease.facts = PageFacts(
            normalize(url) or url, response.status,
            media_type(content_type), size, again=again,
        )  # fmt: skip

    def read(self, lease: Lease, response: Response, links: Sequence[str]) -> None:
        """The page of *lease* was read: *links* are those that it has, each once."""
        if lease.facts is None:  # it came from a cache
            return
        content_type = header(response.headers, "Content-Type")
        page = Page(
            response.status, response.body, content_type,
            header(response.headers, "Content-Language"),
        )  # fmt: skip
        words = link_texts(response.body, content_type=content_type) if self._words else ()
        languages = page.languages
        lease.facts = replace(
            lease.facts, links=links, anchors=words, language=languages[0] if languages else ""
        )

    def concluded(self, lease: Lease, event: Event) -> None:
        """The URL of *lease* is done, or has failed: that goes into the store's next batch."""
        if lease.facts is not None and event is not Event.INTERRUPTED:
            self._stats.page(lease.facts)

    def save(self) -> None:
        """Have all that was counted in the store's next batch."""
        self._stats.save()
