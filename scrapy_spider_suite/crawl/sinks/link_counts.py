"""Link statistics: every page is counted in the batch of the store that makes it done.

Without the suite's scheduler page items are counted as they come.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scrapy_spider_suite.analysis.link_stats import ROWS, LinkStats, PageFacts
from scrapy_spider_suite.crawl.context import has_crawl
from scrapy_spider_suite.crawl.gate import add_fetch_observer
from scrapy_spider_suite.errors import SettingsError, StoreWriteError
from scrapy_spider_suite.frontier.entries import Flag
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.runtime.text import media_type
from scrapy_spider_suite.store.job_directory import close_job, job_of
from scrapy_spider_suite.urls.extract import link_texts
from scrapy_spider_suite.urls.filters import FilterPage
from scrapy_spider_suite.urls.normalize import normalize

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.queue.leases import Fetch
    from scrapy_spider_suite.crawl.sinks.commit_log import CommitLog
    from scrapy_spider_suite.fetch.exchange import Exchange
    from scrapy_spider_suite.items import PageItem
    from scrapy_spider_suite.store.rocks_store import Store

logger = logging.getLogger(__name__)



class LinkCountSink:
    """Counts pages and links by SUITE_LINK_STATS. Raises `SettingsError` without a store."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._store = _store(log)
        self._counts = LinkStats(self._store.kv(ROWS), log.settings.link_stats)
        if (crawl := log.crawl) is not None:
            crawl.counter = crawl.frontier.stored_links.counting = self
            add_fetch_observer(crawl.crawler, self._fetched)
            if crawl.job is None:
                logger.warning(
                    "SUITE_LINK_STATS: without a JOBDIR nothing is kept but totals, in the stats"
                )

    def _fetched(self, fetch: Fetch) -> None:
        exchange = fetch.exchange
        if fetch.aside or exchange is None or exchange.error is not None or exchange.unwanted:
            return
        fetch.wanted = fetch.wanted or not self._log.settings.page_items
        entry, url = fetch.entry, exchange.url
        fetch.facts = PageFacts(
            normalize(url) or url,
            exchange.status,
            media_type(exchange.field(b"Content-Type")),
            len(exchange.body),
            # What is fetched again was counted: spiders' own requests say nothing.
            again=fetch.plan is not None
            or (entry.flags & Flag.DONT_FILTER != 0 and not entry.flags & Flag.USER),
        )

    def recall(self, fetch: Fetch, page: Exchange, size: int, *, again: bool) -> None:
        """Count *page*, of *size* bytes on the wire, which was stored and is read now."""
        fetch.wanted = True
        fetch.facts = PageFacts(
            normalize(page.url) or page.url, page.status,
            media_type(page.field(b"Content-Type")), size, again=again,
        )  # fmt: skip

    def read(self, fetch: Fetch, page: Exchange, links: Sequence[str]) -> None:
        if fetch.facts is None:  # it came from a cache
            return
        content_type = page.field(b"Content-Type")
        seen = FilterPage(page.status, page.body, content_type, page.field(b"Content-Language"))
        anchors = "anchors" in self._counts.tables
        words = link_texts(page.body, content_type=content_type) if anchors else ()
        languages = seen.languages
        fetch.facts = replace(
            fetch.facts, links=links, anchors=words, language=languages[0] if languages else ""
        )

    def add_page(self, item: PageItem) -> None:
        fetch = self._log.lease_of(None if item.source is None else item.source.request)
        if fetch is None:
            self._counts.page(_facts(item))
            return
        fetch.wanted = True
        fetch.facts = fetch.facts or _facts(item)
        if fetch.facts.links is None:
            fetch.facts = replace(fetch.facts, links=_links(item))

    def concluded(self, fetch: Fetch, event: Event) -> None:
        if fetch.facts is None or event is Event.INTERRUPTED:
            return
        if self._log.settings.page_items and not fetch.wanted:
            return
        self._counts.page(fetch.facts)

    def save(self) -> None:
        self._counts.save()

    # A sink: the frontier saves and flushes by itself, nobody else does

    def settled(self, fetch: Fetch) -> None: ...
    def pulse(self) -> None:
        if self._log.crawl is None:
            self.save()
            try:
                self._store.flush()
            except StoreWriteError as error:
                self._log.pause_until_writable(str(error))

    async def finish(self) -> None:
        self.pulse()
        self.save()
        totals = self._counts.totals()
        for name in ("pages", "links", "internal", "external"):
            self._log.crawler.stats.set_value(f"suite/link_stats/{name}", getattr(totals, name))

    async def close(self) -> None:
        if self._log.crawl is None and not has_crawl(self._log.crawler):
            close_job(self._log.crawler)


def _store(log: CommitLog) -> Store:
    if log.crawl is not None:
        return log.crawl.store
    job = job_of(log.crawler)
    if job is None:
        raise SettingsError("SUITE_LINK_STATS needs a JOBDIR without the suite's scheduler")
    return job.store


def _facts(item: PageItem) -> PageFacts:
    content_type = next(iter(item.headers.get("Content-Type", ())), "")
    return PageFacts(
        normalize(item.url) or item.url, item.status, media_type(content_type), len(item.body),
        links=_links(item),
    )  # fmt: skip


def _links(item: PageItem) -> list[str] | None:
    if item.links is None:
        return None
    followed = (each for each in item.links if not each.nofollow and each.kind != "canonical")
    return list(dict.fromkeys(filter(None, (normalize(each.url) for each in followed))))
