"""Sitemaps as a source of links: found when a host's robots.txt is read, fetched like its pages.

What a sitemap names goes the way of the links of a page (scope, filters, traps, `choose_links`,
`link_priority`, deduplication), with the sitemap as the page that led there. A sitemap may name
URLs of the registered domain that it lies in, and of that of the host whose robots.txt named it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from scrapy.http import Response

from scrapy_spider_suite.crawl.requests import SITEMAP, sitemap_payload
from scrapy_spider_suite.frontier.entries import Entry, state_key
from scrapy_spider_suite.frontier.robots_rules import RobotsRules, Verdict
from scrapy_spider_suite.runtime.event_loop import in_thread
from scrapy_spider_suite.storage.leases import Lease
from scrapy_spider_suite.store import url_states
from scrapy_spider_suite.urls.hosts import registered_domain
from scrapy_spider_suite.urls.normalize import host_of
from scrapy_spider_suite.urls.sitemaps import BadSitemap, Location, read

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.core import CrawlCore
    from scrapy_spider_suite.crawl.following import Follower
    from scrapy_spider_suite.store.rows import HostRecord

logger = logging.getLogger(__name__)

NAMES = ("/sitemap.xml", "/sitemap_index.xml", "/sitemap.txt")
"""Where a sitemap is looked for if robots.txt names none, with ``SUITE_SITEMAPS = all``."""
NAMED_MAX = 100
"""Sitemaps of one robots.txt."""
OF_HOST_MAX = 1_000
"""Sitemaps that one host's robots.txt vouches for, those that their indexes name included."""
NESTED_MAX = 2
"""Indexes above a sitemap. The protocol allows one."""
_AT_ONCE = 2
"""Sitemaps that are read at the same time, each with some 150 MB at worst."""
_PORTION = 200
"""Entries that are taken in one turn of the loop: some 10 ms."""


class Sitemaps:
    """Schedules the sitemaps of one crawl, and takes what they name.

    Stats: ``suite/sitemap/named`` and ``guessed`` (sitemaps scheduled, from robots.txt or by name),
    ``nested`` (from indexes), ``read``, ``unreadable`` (some of them in part), ``urls`` (pages that
    they named), ``followed`` (those that scope and filters let in, before deduplication),
    ``foreign`` (URLs they may not speak for), ``invalid``, ``too_many`` (sitemaps).
    """

    def __init__(self, core: CrawlCore) -> None:
        self._core = core
        self._stats = core.crawler.stats
        self.make_follower: Callable[[], Follower] | None = None
        """Makes what passes links on; None without the spider middleware that follows them."""
        self._reading = asyncio.Semaphore(_AT_ONCE)

    # Found

    def heard(self, rules: RobotsRules, record: HostRecord) -> None:
        """The robots.txt of a host with *record* was read: it may name sitemaps."""
        mode = self._core.settings.sitemaps
        if mode == "off" or not self._core.broad or self.make_follower is None:
            return
        # Of a host that nothing but an image is fetched from, nothing more is wanted.
        if rules.verdict is Verdict.DISALLOW_FOR_NOW or not record.counted:
            return
        follower = self.make_follower()
        named = rules.sitemaps if rules.verdict is Verdict.RULES else ()
        if len(named) > NAMED_MAX:
            self._stats.inc_value("suite/sitemap/too_many", len(named) - NAMED_MAX)
        robots = f"{rules.origin}/robots.txt"
        urls = self._usable(named[:NAMED_MAX], robots, follower)
        if urls:
            self._schedule("named", urls, host_of(rules.origin), robots)
        elif mode == "all":
            guesses = self._usable([rules.origin + name for name in NAMES], robots, follower)
            self._schedule("guessed", guesses, host_of(rules.origin), "")

    def _usable(self, urls: Iterable[str], base: str, follower: Follower) -> list[str]:
        """Those of *urls* that are in scope, in normal form."""
        normal = [self._core.normalizer(url, base) for url in urls]
        return [url for url in dict.fromkeys(normal) if url and follower.in_scope(url, 0)]

    def _schedule(self, how: str, urls: list[str], voucher: str, via: str) -> None:
        entries = self._entries(urls, voucher, via, 0)
        frontier = self._core.frontier
        new = frontier.schedule(entries, self._core.now())
        if new:
            self._stats.inc_value(f"suite/sitemap/{how}", new)

    def _entries(self, urls: list[str], voucher: str, via: str, depth: int) -> list[Entry]:
        """Entries of sitemaps that are new, as many as *voucher* may have."""
        made: list[Entry] = []
        store = self._core.store
        before = url_states.vouched(store, voucher)
        for url in urls:
            host = host_of(url)
            identity = state_key(host, url)
            if self._core.frontier.known(identity):
                continue
            if before + len(made) >= OF_HOST_MAX:
                self._stats.inc_value("suite/sitemap/too_many")
                continue
            payload = sitemap_payload(voucher)
            made.append(Entry(host, url, identity, depth=depth, referrer=via, payload=payload))
            url_states.note_sitemap(store, identity, voucher)
        if made:
            url_states.count_vouched(store, voucher, before + len(made))
        return made

    def redirected(self, identity: bytes, voucher: str) -> None:
        """A sitemap that *voucher* vouches for has moved to the URL with this state key."""
        if not self._core.frontier.known(identity):  # else it stays the page that it is
            url_states.note_sitemap(self._core.store, identity, voucher)

    # Read

    async def read(self, response: Response) -> None:
        """The callback of sitemaps: take what *response* names, beside the crawl."""
        request = response.request
        lease = None if request is None else self._core.leases.get(request)
        if request is None or lease is None or self.make_follower is None:
            return
        if not 200 <= response.status < 300:
            return
        voucher, follower = str(request.meta.get(SITEMAP, "")), self.make_follower()
        self._stats.inc_value("suite/sitemap/read")
        body = response.body
        try:
            async with self._reading, aclosing(in_thread(lambda: _portions(body))) as portions:
                async for portion in portions:
                    self._take(lease, response, voucher, portion, follower)
        except BadSitemap as error:
            self._stats.inc_value("suite/sitemap/unreadable")
            logger.debug("Sitemap %s: %s", response.url, error)

    def _take(
        self, lease: Lease, response: Response, voucher: str, portion: list[Location],
        follower: Follower,
    ) -> None:  # fmt: skip
        own = {registered_domain(voucher), registered_domain(host_of(lease.entry.url))}
        pages: dict[str, int | None] = {}
        nested: list[str] = []
        for location in portion:
            url = self._core.normalizer(location.url)
            if url is None:
                self._stats.inc_value("suite/sitemap/invalid")
            elif registered_domain(host_of(url)) not in own:
                self._stats.inc_value("suite/sitemap/foreign")
            elif location.sitemap:
                nested.append(url)
                self._claim(url, location.lastmod)
            else:
                pages[url] = location.lastmod
        self._take_pages(lease, response, pages, follower)
        self._take_nested(lease, voucher, nested, follower)
        self._core.frontier.adopt(lease, [], self._core.now())

    def _take_pages(
        self, lease: Lease, response: Response, pages: dict[str, int | None], follower: Follower
    ) -> None:
        if not pages:
            return
        kept = follower.pass_on(lease, response, list(pages))
        self._stats.inc_value("suite/sitemap/urls", len(pages))
        self._stats.inc_value("suite/sitemap/followed", len(kept))
        for url in kept:
            when = pages.get(url)
            if when is not None:
                url_states.note_lastmod(self._core.store, state_key(host_of(url), url), when)
                self._claim(url, when)

    def _claim(self, url: str, lastmod: int | None) -> None:
        """A page, or another sitemap, is said to have changed: perhaps it is due for that."""
        if lastmod is not None:
            self._core.revisiting.claimed(state_key(host_of(url), url), lastmod)

    def _take_nested(
        self, lease: Lease, voucher: str, urls: list[str], follower: Follower
    ) -> None:
        if not urls:
            return
        page = lease.entry
        if page.depth >= NESTED_MAX:
            self._stats.inc_value("suite/sitemap/too_many", len(urls))
            return
        urls = [url for url in urls if follower.in_scope(url, page.depth + 1)]
        made = self._entries(urls, voucher, page.url, page.depth + 1)
        lease.children.extend(made)
        self._stats.inc_value("suite/sitemap/nested", len(made))


def _portions(body: bytes) -> Iterator[list[Location]]:
    """The entries of a sitemap by the portion. Raises `BadSitemap` behind the last of them."""
    portion: list[Location] = []
    try:
        for entry in read(body):
            portion.append(entry)
            if len(portion) == _PORTION:
                yield portion
                portion = []
    except BadSitemap:
        yield portion
        raise
    yield portion
