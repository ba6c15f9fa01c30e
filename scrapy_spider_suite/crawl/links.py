"""From the bytes of a page or a sitemap to links in the frontier.

A sitemap may name URLs of its own registered domain, and of the domain of the host whose robots.txt
named it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from scrapy.http import HtmlResponse, Response

from scrapy_spider_suite.crawl.queue.leases import Lease
from scrapy_spider_suite.crawl.requests import SITEMAP, redirect_target, sitemap_payload
from scrapy_spider_suite.frontier.entries import Entry, state_key
from scrapy_spider_suite.frontier.robots_rules import RobotsRules, RobotsVerdict
from scrapy_spider_suite.runtime.event_loop import iterate_in_thread
from scrapy_spider_suite.store import url_states
from scrapy_spider_suite.urls.extract import Edge, PageContext, PageLinks, extract, extract_edges
from scrapy_spider_suite.urls.hosts import registered_domain
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.normalizer import Normalizer
from scrapy_spider_suite.urls.scope import OutOfScope, Scope
from scrapy_spider_suite.urls.sitemaps import BadSitemap, SitemapEntry, read_sitemap
from scrapy_spider_suite.urls.twins import Twins

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.statscollectors import StatsCollector

    from scrapy_spider_suite.crawl.context import Crawl
    from scrapy_spider_suite.crawl.revisits import Revisits
    from scrapy_spider_suite.settings.suite import SuiteSettings
    from scrapy_spider_suite.store.rows import HostRecord

logger = logging.getLogger(__name__)

_PRODUCT = re.compile(r"(?:^|\bcompatible;\s*)(?!mozilla\b)([\w-]+)", re.I | re.A)


class LinkReader:
    """Reads the links of pages; *settings* returns the current settings."""

    def __init__(self, settings: Callable[[], SuiteSettings]) -> None:
        project = settings().project
        self._longest = project.urllength_limit or 1 << 20
        self._robot = product_token(project.robotstxt_user_agent or project.user_agent)
        self._settings = settings

    def links_of(self, response: Response) -> tuple[PageLinks, Sequence[Edge]]:
        """The links of *response*, whatever their scope; with packs also their kinds."""
        headers = response.headers
        page = PageContext(
            response.url,
            headers.get("Content-Type"),
            x_robots_tag=[tag.decode("latin-1") for tag in headers.getlist("X-Robots-Tag")],
            robot=self._robot,
            max_url_length=self._longest,
        )
        settings = self._settings()
        if settings.packs_dir is not None or settings.page_items:
            return extract_edges(response.body, page)
        return extract(response.body, page), ()


def has_links(response: Response) -> bool:
    """Whether *response* is read for links: HTML, 2xx, and no sitemap."""
    if not isinstance(response, HtmlResponse) or not 200 <= response.status < 300:
        return False
    # A sitemap may be served as HTML, too: it is read by its callback.
    return response.request is not None and SITEMAP not in response.request.meta


def product_token(user_agent: str) -> str:
    """The product token of *user_agent* (RFC 9309 §2.2.1), by which pages address a robot.

    For ``Mozilla/5.0 (compatible; mybot/1.0)`` it is ``mybot``; "" if there is none.
    """
    found = _PRODUCT.search(user_agent)
    return found[1] if found else ""


MOST_GUESSES = 100
"""URLs that nobody linked to, of one host in the life of a job."""
_PERMANENT = frozenset({301, 308})


def note_redirect(twins: Twins, response: Response) -> None:
    """Note in *twins* the target of *response*, if it is a redirect."""
    target, page = redirect_target(response.url, response), normalize(response.url)
    if target is not None and page is not None:
        twins.redirected(page, target, permanent=response.status in _PERMANENT)


class LinkNormalizer:
    """Stats: ``suite/links/respelled``, ``suite/twins/forms``."""

    def __init__(self, normalizer: Normalizer, stats: StatsCollector) -> None:
        self._normal = normalizer
        self._stats = stats
        self._forms = 0

    def links(self, response: Response, links: list[str]) -> list[str]:
        """The normal forms of *links*, in plain normal form, of *response* (2xx)."""
        normal = self._normal
        if normal.twins is not None:
            normal.twins.answered(response.url, response.body)
            self._count_forms(len(normal.twins))
        if normal.is_plain:
            return links
        before = normal.changed
        found = normal.links(links)
        if normal.changed != before:
            self._stats.inc_value("suite/links/respelled", normal.changed - before)
        return found

    def chosen(self, links: list[str], chosen: Iterable[str]) -> list[str]:
        """A spider's choice of *links*; new URLs in it are normalised."""
        kept = list(chosen)
        own = {*kept}.difference(links)
        if not own:
            return kept
        spelled = (self._normal(url) if url in own else url for url in kept)
        return list(dict.fromkeys(filter(None, spelled)))

    def _count_forms(self, number: int) -> None:
        if number != self._forms:
            self._forms = number
            self._stats.set_value("suite/twins/forms", number)


class TrapFilter:
    """Keeps links out of traps. Stats: ``suite/trap/NAME``, ``suite/mined/…``."""

    def __init__(self, crawl: Crawl) -> None:
        self._crawl = crawl
        self._traps = crawl.frontier.traps

    def learn(self, lease: Lease, response: Response, links: list[str]) -> None:
        frontier, late = self._crawl.frontier, lease.stored
        visited = lease.plan is not None if late is None else late.visited
        # A page that is visited again is no evidence that others say the same.
        if not frontier.policy.traps.any or visited:
            return
        url = normalize(lease.entry.url)  # a spider's own request may be spelt otherwise
        if url is not None:
            pages = frontier.residents.records.get(lease.entry.host).done
            if late is not None:  # it is one of them
                pages = 0 if late.first else max(1, pages - 1)
            repeats = lease.likeness is not None and lease.likeness.of_host
            self._traps.learn_page(
                url, host_of(url), response.body, links, pages=pages, repeats=repeats
            )

    def passed(self, links: list[str]) -> list[str]:
        return self._traps.passed(links, time.gmtime().tm_year)

    def mine(self, lease: Lease, in_scope: Callable[[str, int], bool]) -> None:
        """Add URLs that nobody linked to, if SUITE_GUESS_URLS says so."""
        settings, page = self._crawl.settings, lease.entry
        url = None if settings.guess_urls == "none" else normalize(page.url)
        if url is None:
            return
        if url != page.url:
            page = Entry(host_of(url), url, depth=page.depth)
        depth, normal = page.depth + 1, self._crawl.normalizer

        def wanted(url: str) -> bool:
            # Another spelling of what it should be is no URL that nobody linked to.
            own = normal.is_plain or normal.respell(url) == url
            return own and in_scope(url, depth) and bool(self.passed([url]))

        miner = self._crawl.frontier.miner
        lease.children.extend(miner.mine(page, settings.guess_urls, MOST_GUESSES, wanted))


ChooseLinks = Callable[[Response, list[str]], Iterable[str]]
LinkPriority = Callable[[Response, str], int]

class LinkFollower:
    """Extracts, scopes and hands over the links of pages, for one crawl.

    *choose* narrows the links of a page, *rank* gives each a priority; None, for either, is the
    fast way: every link in scope, with priority 0.

    Stats: ``suite/links/found``, ``suite/links/followed`` (before deduplication),
    ``suite/links/refused/REASON``, ``suite/links/nofollow_pages``, ``suite/sitemap/hook_errors``.
    """

    def __init__(
        self, crawl: Crawl, spider: Spider, choose: ChooseLinks | None, rank: LinkPriority | None
    ) -> None:
        project = crawl.settings.project
        self._crawl = crawl
        self._stats = crawl.crawler.stats
        self._choose = choose
        self._failed = False
        self._rank = rank
        self._trapping = TrapFilter(crawl)
        self._spelling = LinkNormalizer(crawl.normalizer, crawl.crawler.stats)
        self.links_of = LinkReader(lambda: crawl.settings).links_of
        self._scope = Scope(
            getattr(spider, "allowed_domains", None) or None,
            project.depth_limit,
            project.urllength_limit,
        )

    def follow(self, response: Response) -> None:
        request = response.request
        lease = None if request is None else self._crawl.leases.get(request)
        if lease is None or not has_links(response):
            return
        later = self._crawl.settings.read_links == "on-demand" and not lease.entry.volatile
        # What is known of a duplicate is known as it comes.
        if later and not (lease.likeness is not None and lease.likeness.repeats):
            lease.unread = response  # until it is settled, when it is known where it is packed
        else:
            self.read(lease, response)

    def read(self, lease: Lease, response: Response) -> None:
        """Give the links of *response*, the page of *lease*, to the lease."""
        page, lease.outlinks = self.links_of(response)
        if self._crawl.counter is not None:
            self._crawl.counter.read(lease, response, page.links)
        links = page.links
        if page.nofollow:
            self._stats.inc_value("suite/links/nofollow_pages")
            links = []
        elif self._repeats(lease):
            self._stats.inc_value("suite/duplicates/not_followed")
            links = []
        if page.canonical is not None and page.canonical != response.url:
            links = [page.canonical, *links]
        spelt = self._spelling.links(response, links)
        self._stats.inc_value("suite/links/found", len(page.links))
        links = self._wanted(lease, response, spelt)
        self._trapping.learn(lease, response, spelt)
        kept = self._hand_over(lease, response, links, self._choose, self._rank)
        self._stats.inc_value("suite/links/followed", len(kept))
        if not page.nofollow:
            self._mine(lease, response)

    def _repeats(self, lease: Lease) -> bool:
        found = lease.likeness
        return found is not None and found.repeats and not self._crawl.settings.follow_duplicates

    def give_sitemap_links(self, lease: Lease, response: Response, links: list[str]) -> list[str]:
        """Give the wanted *links* of a sitemap to the lease; return them.

        Hooks of the spider that fail are left out, for a sitemap is no page.
        """
        links = self._wanted(lease, response, links)
        try:
            return self._hand_over(lease, response, links, self._choose, self._rank)
        except Exception:  # the project's own code
            self._stats.inc_value("suite/sitemap/hook_errors")
            if not self._failed:
                self._failed = True
                logger.exception(
                    "choose_links or link_priority failed with the sitemap %s, whose links are "
                    "taken without (further ones are only counted: suite/sitemap/hook_errors)",
                    response.url,
                )  # fmt: skip
            return self._hand_over(lease, response, links, None, None)

    def _wanted(self, lease: Lease, response: Response, links: list[str]) -> list[str]:
        depth = lease.entry.depth + 1
        # Over-long links are out already: most crawls have nothing left to decide link by link.
        if not self._scope.everywhere(depth):
            links = [url for url in links if self.in_scope(url, depth)]
        if self._is_deepest(lease.entry):
            found, host = len(links), lease.entry.host
            links = [url for url in links if host_of(url) != host]
            refused = f"suite/links/refused/{OutOfScope.TOO_DEEP_ON_HOST.value}"
            self._stats.inc_value(refused, found - len(links))
        return self._crawl.filters.followed(self._trapping.passed(links), lease, response)

    def _is_deepest(self, page: Entry) -> bool:
        frontier = self._crawl.frontier
        limit = frontier.policy.host_max_depth
        if not limit:
            return False
        entered = frontier.residents.records.get(page.host).entered or 0
        return page.depth - entered >= limit

    def in_scope(self, url: str, depth: int) -> bool:
        """Whether *url* may be followed at *depth*; counts it if it may not."""
        reason = self._scope.refuses(url, host_of(url), depth)
        if reason is None or (reason is OutOfScope.OFF_SITE and self._crawl.filters.opens_scope):
            return True
        self._stats.inc_value(f"suite/links/refused/{reason.value}")
        return False

    def _mine(self, lease: Lease, response: Response) -> None:
        if self._is_deepest(lease.entry):
            return
        filters, before = self._crawl.filters, len(lease.children)

        def may_enter(url: str, depth: int) -> bool:
            wanted = self.in_scope(url, depth) and filters.followed([url], lease, response)
            return bool(wanted and filters.scheduled(wanted, lease))

        self._trapping.mine(lease, may_enter)
        out = filters.out(lease.entry)
        for entry in lease.children[before:]:
            entry.hops_outside = filters.beyond(entry.url, out)

    def _hand_over(
        self, lease: Lease, response: Response, links: list[str], choose: ChooseLinks | None,
        rank: LinkPriority | None,
    ) -> list[str]:  # fmt: skip
        filters, page = self._crawl.filters, lease.entry
        if choose is not None:
            links = self._spelling.chosen(links, choose(response, links))
        links = filters.scheduled(links, lease)
        policy = self._crawl.translator.referers.policy(response)
        if rank is None and not filters.opens_scope:
            lease.links.extend(links)
            lease.referrer_policy = policy
            return links
        made, out = [], filters.out(page)
        for url in links:
            host = host_of(url)
            made.append(
                Entry(
                    host, url, state_key(host, url), depth=page.depth + 1, referrer=page.url,
                    priority=0 if rank is None else rank(response, url),
                    hops_outside=filters.beyond(url, out), referrer_policy=policy,
                )
            )  # fmt: skip
        lease.children.extend(made)
        return links


SITEMAP_PATHS = ("/sitemap.xml", "/sitemap_index.xml", "/sitemap.txt")
"""Where a sitemap is looked for if robots.txt names none, with ``SUITE_SITEMAPS = all``."""
SITEMAPS_NAMED_MAX = 100
"""Sitemaps of one robots.txt."""
SITEMAPS_OF_HOST_MAX = 1_000
"""Sitemaps that one host's robots.txt vouches for, those that their indexes name included."""
SITEMAPS_NESTED_MAX = 2
"""Indexes above a sitemap. The protocol allows one."""
_AT_ONCE = 2
"""Sitemaps that are read at the same time, each with some 150 MB at worst."""
_PORTION = 200
"""Entries that are taken in one turn of the loop: some 10 ms."""


class SitemapLinks:
    """Schedules the sitemaps of one crawl, and takes what they name.

    Stats: ``suite/sitemap/named`` and ``guessed`` (sitemaps scheduled, from robots.txt or by name),
    ``nested`` (from indexes), ``read``, ``unreadable`` (some of them in part), ``urls`` (pages that
    they named), ``followed`` (those that scope and filters let in, before deduplication),
    ``foreign`` (URLs they may not speak for), ``invalid``, ``too_many`` (sitemaps).
    """

    def __init__(self, crawl: Crawl, revisits: Revisits) -> None:
        self._crawl = crawl
        self._revisits = revisits
        self._stats = crawl.crawler.stats
        crawl.translator.read_sitemap = self.read
        crawl.translator.note_sitemap = self.note_redirect
        self.make_follower: Callable[[], LinkFollower] | None = None
        """Makes what passes links on; None without the spider middleware that follows them."""
        self._reading = asyncio.Semaphore(_AT_ONCE)

    # Found

    def schedule_named(self, rules: RobotsRules, record: HostRecord) -> None:
        """Schedule the sitemaps that the robots.txt of a host with *record* names."""
        mode = self._crawl.settings.sitemaps
        if mode == "off" or not self._crawl.settings.broad or self.make_follower is None:
            return
        # Of a host that nothing but an image is fetched from, nothing more is wanted.
        if rules.verdict is RobotsVerdict.DISALLOW_FOR_NOW or not record.counted:
            return
        follower = self.make_follower()
        named = rules.sitemaps if rules.verdict is RobotsVerdict.RULES else ()
        if len(named) > SITEMAPS_NAMED_MAX:
            self._stats.inc_value("suite/sitemap/too_many", len(named) - SITEMAPS_NAMED_MAX)
        robots = f"{rules.origin}/robots.txt"
        urls = self._usable(named[:SITEMAPS_NAMED_MAX], robots, follower)
        if urls:
            self._schedule("named", urls, host_of(rules.origin), robots)
        elif mode == "all":
            paths = [rules.origin + path for path in SITEMAP_PATHS]
            guesses = self._usable(paths, robots, follower)
            self._schedule("guessed", guesses, host_of(rules.origin), "")

    def _usable(self, urls: Iterable[str], base: str, follower: LinkFollower) -> list[str]:
        normal = [self._crawl.normalizer(url, base) for url in urls]
        return [url for url in dict.fromkeys(normal) if url and follower.in_scope(url, 0)]

    def _schedule(self, how: str, urls: list[str], voucher: str, via: str) -> None:
        entries = self._entries(urls, voucher, via, 0)
        frontier = self._crawl.frontier
        new = frontier.admission.schedule(entries, self._crawl.now())
        if new:
            self._stats.inc_value(f"suite/sitemap/{how}", new)

    def _entries(self, urls: list[str], voucher: str, via: str, depth: int) -> list[Entry]:
        made: list[Entry] = []
        store = self._crawl.store
        before = url_states.voucher_count(store, voucher)
        for url in urls:
            host = host_of(url)
            identity = state_key(host, url)
            if self._crawl.frontier.states.known(identity):
                continue
            if before + len(made) >= SITEMAPS_OF_HOST_MAX:
                self._stats.inc_value("suite/sitemap/too_many")
                continue
            payload = sitemap_payload(voucher)
            made.append(Entry(host, url, identity, depth=depth, referrer=via, payload=payload))
            url_states.note_sitemap(store, identity, voucher)
        if made:
            url_states.write_voucher_count(store, voucher, before + len(made))
        return made

    def note_redirect(self, identity: bytes, voucher: str) -> None:
        if not self._crawl.frontier.states.known(identity):  # else it stays the page that it is
            url_states.note_sitemap(self._crawl.store, identity, voucher)

    # Read

    async def read(self, response: Response) -> None:
        """The callback of sitemaps: read *response* beside the crawl."""
        request = response.request
        lease = None if request is None else self._crawl.leases.get(request)
        if request is None or lease is None or self.make_follower is None:
            return
        if not 200 <= response.status < 300:
            return
        voucher, follower = str(request.meta.get(SITEMAP, "")), self.make_follower()
        self._stats.inc_value("suite/sitemap/read")
        body = response.body
        try:
            found = iterate_in_thread(lambda: _portions(body))
            async with self._reading, aclosing(found) as portions:
                async for portion in portions:
                    self._take(lease, response, voucher, portion, follower)
        except BadSitemap as error:
            self._stats.inc_value("suite/sitemap/unreadable")
            logger.debug("Sitemap %s: %s", response.url, error)

    def _take(
        self, lease: Lease, response: Response, voucher: str, portion: list[SitemapEntry],
        follower: LinkFollower,
    ) -> None:  # fmt: skip
        own = {registered_domain(voucher), registered_domain(host_of(lease.entry.url))}
        pages: dict[str, int | None] = {}
        nested: list[str] = []
        for location in portion:
            url = self._crawl.normalizer(location.url)
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
        self._crawl.frontier.admission.adopt(lease, [], self._crawl.now())

    def _take_pages(
        self, lease: Lease, response: Response, pages: dict[str, int | None], follower: LinkFollower
    ) -> None:
        if not pages:
            return
        kept = follower.give_sitemap_links(lease, response, list(pages))
        self._stats.inc_value("suite/sitemap/urls", len(pages))
        self._stats.inc_value("suite/sitemap/followed", len(kept))
        for url in kept:
            when = pages.get(url)
            if when is not None:
                url_states.note_lastmod(self._crawl.store, state_key(host_of(url), url), when)
                self._claim(url, when)

    def _claim(self, url: str, lastmod: int | None) -> None:
        if lastmod is not None:
            self._revisits.claimed(state_key(host_of(url), url), lastmod)

    def _take_nested(
        self, lease: Lease, voucher: str, urls: list[str], follower: LinkFollower
    ) -> None:
        if not urls:
            return
        page = lease.entry
        if page.depth >= SITEMAPS_NESTED_MAX:
            self._stats.inc_value("suite/sitemap/too_many", len(urls))
            return
        urls = [url for url in urls if follower.in_scope(url, page.depth + 1)]
        made = self._entries(urls, voucher, page.url, page.depth + 1)
        lease.children.extend(made)
        self._stats.inc_value("suite/sitemap/nested", len(made))


def _portions(body: bytes) -> Iterator[list[SitemapEntry]]:
    """The entries of a sitemap by the portion. Raises `BadSitemap` after the last one."""
    portion: list[SitemapEntry] = []
    try:
        for entry in read_sitemap(body):
            portion.append(entry)
            if len(portion) == _PORTION:
                yield portion
                portion = []
    except BadSitemap:
        yield portion
        raise
    yield portion
