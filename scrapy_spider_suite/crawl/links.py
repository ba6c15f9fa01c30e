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
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from scrapy import Spider
from scrapy.http import Response

from scrapy_spider_suite.crawl.context import Crawl
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.crawl.requests import SITEMAP, redirect_target, sitemap_payload, voucher_of
from scrapy_spider_suite.crawl.revisits import Revisits
from scrapy_spider_suite.fetch.exchange import Exchange
from scrapy_spider_suite.frontier.entries import Entry, Flag, state_key
from scrapy_spider_suite.frontier.robots_rules import RobotsRules, RobotsVerdict
from scrapy_spider_suite.runtime.event_loop import iterate_in_thread
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.store import url_states
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.urls.extract import Edge, PageContext, PageLinks, extract, extract_edges
from scrapy_spider_suite.urls.filters import Stage
from scrapy_spider_suite.urls.hosts import OutOfScope, Scope, registered_domain
from scrapy_spider_suite.urls.normalize import host_of, normalize
from scrapy_spider_suite.urls.sitemaps import BadSitemap, SitemapEntry, read_sitemap
from scrapy_spider_suite.urls.twins import Twins

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.page_stages import PageStages

logger = logging.getLogger(__name__)

_PRODUCT = re.compile(r"(?:^|\bcompatible;\s*)(?!mozilla\b)([\w-]+)", re.I | re.A)


def read_links(page: Exchange, settings: SuiteSettings) -> tuple[PageLinks, Sequence[Edge]]:
    """The links of *page*, whatever their scope; with packs also their kinds."""
    fields, project = page.fields, settings.project
    types = fields.get(b"Content-Type")
    context = PageContext(
        page.url,
        types[-1] if types else None,
        x_robots_tag=[tag.decode("latin-1") for tag in fields.get(b"X-Robots-Tag", ())],
        robot=product_token(project.robotstxt_user_agent or project.user_agent),
        max_url_length=project.urllength_limit or 1 << 20,
    )
    if settings.packs_dir is not None or settings.page_items:
        return extract_edges(page.body, context)
    return extract(page.body, context), ()


def has_links(entry: Entry, page: Exchange) -> bool:
    """Whether *page*, the answer to *entry*, is read for links: HTML, 2xx, and no sitemap."""
    # A sitemap may be served as HTML, too: it is read by its callback.
    good = 200 <= page.status < 300 and page.is_html
    return good and (entry.payload is None or voucher_of(entry.payload) is None)


@cache  # of one crawl the same
def product_token(user_agent: str) -> str:
    """The product token of *user_agent* (RFC 9309 §2.2.1), by which pages address a robot.

    For ``Mozilla/5.0 (compatible; mybot/1.0)`` it is ``mybot``; "" if there is none.
    """
    found = _PRODUCT.search(user_agent)
    return found[1] if found else ""


MOST_GUESSES = 100
"""URLs that nobody linked to, of one host in the life of a job."""
_PERMANENT = frozenset({301, 308})


def note_redirect(twins: Twins, url: str, status: int, location: bytes | None) -> None:
    """Note the target of an answer to *url* in *twins*, if it is a redirect."""
    target, page = redirect_target(url, status, location), normalize(url)
    if target is not None and page is not None:
        twins.redirected(page, target, permanent=status in _PERMANENT)


_DAY = 86_400


@lru_cache(1)  # every page asks
def _year_of(day: int) -> int:
    return time.gmtime(day * _DAY).tm_year


ChooseLinks = Callable[[Response, list[str]], Iterable[str]]
LinkPriority = Callable[[Response, str], int]


class LinkFollower:
    """Extracts, scopes and hands over the links of pages, for one crawl.

    *choose* narrows the links of a page, *rank* gives each a priority; None, for either, is the
    fast way: every link in scope, with priority 0.

    Stats: ``suite/links/found``, ``suite/links/followed`` (before deduplication),
    ``suite/links/refused/REASON``, ``suite/links/nofollow_pages``, ``suite/links/respelled``,
    ``suite/twins/forms``, ``suite/trap/NAME``, ``suite/guessed/…``, ``suite/sitemap/hook_errors``.
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
        self._normal = crawl.normalizer
        self._forms = 0
        self._scope = Scope(
            getattr(spider, "allowed_domains", None) or None,
            project.depth_limit,
            project.urllength_limit,
        )

    def follow(self, fetch: Fetch, page: Exchange) -> None:
        """Read the links of *page*, the page of *fetch*, now or, on demand, later."""
        if not has_links(fetch.entry, page):
            return
        later = self._crawl.settings.read_links == "on-demand" and not fetch.entry.volatile
        # What is known of a duplicate is known as it comes.
        if later and not (fetch.likeness is not None and fetch.likeness.repeats):
            fetch.unread = page  # until it is settled, when it is known where it is packed
        else:
            self.read(fetch, page)

    def read(self, fetch: Fetch, page: Exchange) -> None:
        """Give the links of *page*, the page of *fetch*, to the fetch."""
        crawl = self._crawl
        found, fetch.outlinks = read_links(page, crawl.settings)
        if crawl.counter is not None:
            crawl.counter.read(fetch, page, found.links)
        links = found.links
        if found.nofollow:
            crawl.counts["suite/links/nofollow_pages"] += 1
            links = []
        elif (
            fetch.likeness is not None and fetch.likeness.repeats
            and not crawl.settings.follow_duplicates
        ):  # fmt: skip
            crawl.counts["suite/duplicates/not_followed"] += 1
            links = []
        if found.canonical is not None and found.canonical != page.url:
            links = [found.canonical, *links]
        spelt = self._respelled(page, links)
        crawl.counts["suite/links/found"] += len(found.links)
        links = self._wanted(fetch, page, spelt)
        self.learn_traps(fetch, page, spelt)
        kept = self._hand_over(fetch, page, links, self._choose, self._rank)
        crawl.counts["suite/links/followed"] += len(kept)
        if not found.nofollow:
            self.guess_urls(fetch, page)

    def _respelled(self, page: Exchange, links: list[str]) -> list[str]:
        normal = self._normal
        if normal.twins is not None:
            normal.twins.answered(page.url, page.body)
            if self._forms != len(normal.twins):
                self._forms = len(normal.twins)
                self._stats.set_value("suite/twins/forms", self._forms)
        elif not normal.has_rules:
            return links
        before = normal.changed
        found = normal.links(links)
        if normal.changed != before:
            self._crawl.counts["suite/links/respelled"] += normal.changed - before
        return found

    def learn_traps(self, fetch: Fetch, page: Exchange, links: list[str]) -> None:
        """Let the traps of the job learn from *page*, with all its *links*."""
        frontier, late = self._crawl.frontier, fetch.stored
        visited = fetch.plan is not None if late is None else late.visited
        # A page that is visited again is no evidence that others say the same.
        if not frontier.policy.traps.any or visited:
            return
        url: str | None = fetch.entry.url
        if fetch.entry.flags & Flag.USER:
            url = normalize(fetch.entry.url)  # a spider's own request may be spelt otherwise
        if url is not None:
            pages = frontier.residents.records.get(fetch.entry.host).done
            if late is not None:  # it is one of them
                pages = 0 if late.first else max(1, pages - 1)
            repeats = fetch.likeness is not None and fetch.likeness.of_host
            frontier.traps.learn_page(
                url, host_of(url), page.body, links, pages=pages, repeats=repeats
            )

    def _outside_traps(self, links: list[str]) -> list[str]:
        return self._crawl.frontier.traps.passed(links, _year_of(int(time.time()) // _DAY))

    def give_links(
        self, fetch: Fetch, page: Exchange, links: list[str],
        stat: str = "suite/extract/hook_errors",
    ) -> list[str]:  # fmt: skip
        """Give the wanted *links* of a page that others have read to the fetch; return them.

        Hooks of the spider that fail are left out, and counted in *stat*.
        """
        links = self._wanted(fetch, page, links)
        try:
            return self._hand_over(fetch, page, links, self._choose, self._rank)
        except Exception:  # the project's own code
            self._stats.inc_value(stat)
            if not self._failed:
                self._failed = True
                logger.exception(
                    "choose_links or link_priority failed with %s, whose links are taken without "
                    "(further ones are only counted: %s)", page.url, stat,
                )  # fmt: skip
            return self._hand_over(fetch, page, links, None, None)

    def _wanted(self, fetch: Fetch, page: Exchange, links: list[str]) -> list[str]:
        depth = fetch.entry.depth + 1
        # Over-long links are out already: most crawls have nothing left to decide link by link.
        if depth > self._scope.anywhere_to:
            links = [url for url in links if self.in_scope(url, depth)]
        if self._is_deepest(fetch.entry):
            found, host = len(links), fetch.entry.host
            links = [url for url in links if host_of(url) != host]
            refused = f"suite/links/refused/{OutOfScope.TOO_DEEP_ON_HOST.value}"
            self._crawl.counts[refused] += found - len(links)
        links = self._outside_traps(links)
        return self._crawl.filters.links_wanted(Stage.FOLLOW, links, fetch, page)

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
        self._crawl.counts[f"suite/links/refused/{reason.value}"] += 1
        return False

    def _response(self, fetch: Fetch, page: Exchange) -> Response:
        # For hooks of the spider.
        response = page.response
        if response.request is None:
            response.request = self._crawl.request_of(fetch)
        return response

    def guess_urls(self, fetch: Fetch, page: Exchange) -> None:
        """Add URLs that nobody linked to, if SUITE_GUESS_URLS says so."""
        crawl, entry, kind = self._crawl, fetch.entry, self._crawl.settings.guess_urls
        if kind == "none" or self._is_deepest(entry):
            return
        url = normalize(entry.url)
        if url is None:
            return
        if url != entry.url:
            entry = Entry(host_of(url), url, depth=entry.depth)
        depth, normal, filters = entry.depth + 1, self._normal, crawl.filters

        def wanted(url: str) -> bool:
            # Another spelling of what it should be is no URL that nobody linked to.
            own = normal.is_plain or normal.respell(url) == url
            links = [url] if own and self.in_scope(url, depth) else []
            links = filters.links_wanted(Stage.FOLLOW, links, fetch, page)
            links = filters.links_wanted(Stage.SCHEDULE, links, fetch)
            return bool(links and self._outside_traps(links))

        out = filters.out(fetch.entry)
        for guess in crawl.frontier.traps.miner.mine(entry, kind, MOST_GUESSES, wanted):
            guess.hops_outside = filters.beyond(guess.url, out)
            fetch.children.append(guess)

    def _hand_over(
        self, fetch: Fetch, page: Exchange, links: list[str], choose: ChooseLinks | None,
        rank: LinkPriority | None,
    ) -> list[str]:  # fmt: skip
        filters, entry = self._crawl.filters, fetch.entry
        if choose is not None:
            chosen = list(choose(self._response(fetch, page), links))
            if own := {*chosen}.difference(links):  # new URLs are normalised
                spelled = (self._normal(url) if url in own else url for url in chosen)
                chosen = list(dict.fromkeys(filter(None, spelled)))
            links = chosen
        links = filters.links_wanted(Stage.SCHEDULE, links, fetch)
        policy = self._crawl.translator.referers.policy(page)
        if rank is None and not filters.opens_scope:
            fetch.links.extend(links)
            fetch.referrer_policy = policy
            return links
        out = filters.out(entry)
        made = [
            Entry(
                host_of(url), url, depth=entry.depth + 1, referrer=entry.url,
                priority=0 if rank is None else int(rank(self._response(fetch, page), url)),
                hops_outside=filters.beyond(url, out), referrer_policy=policy,
            )
            for url in links
        ]  # fmt: skip
        fetch.children.extend(made)
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
    """Schedules the sitemaps of one crawl, and takes what they name."""

    def __init__(self, crawl: Crawl, revisits: Revisits, pages: PageStages) -> None:
        self._crawl = crawl
        self._revisits = revisits
        self._pages = pages
        self._stats = crawl.crawler.stats
        crawl.translator.read_sitemap = self.read
        crawl.translator.note_sitemap = self.note_redirect
        self._reading = asyncio.Semaphore(_AT_ONCE)

    def schedule_named(self, rules: RobotsRules, record: HostRecord) -> None:
        """Schedule the sitemaps that the robots.txt of a host with *record* names."""
        mode = self._crawl.settings.sitemaps
        if mode == "off" or not self._crawl.settings.broad:
            return
        # Of a host that nothing but an image is fetched from, nothing more is wanted.
        if rules.verdict is RobotsVerdict.DISALLOW_FOR_NOW or not record.counted:
            return
        follower = self._pages.follower
        named = rules.sitemaps if rules.verdict is RobotsVerdict.RULES else ()
        if len(named) > SITEMAPS_NAMED_MAX:
            self._stats.inc_value("suite/sitemap/too_many", len(named) - SITEMAPS_NAMED_MAX)
        robots = f"{rules.origin}/robots.txt"

        def usable(urls: Iterable[str]) -> list[str]:
            normal = dict.fromkeys(self._crawl.normalizer(url, robots) for url in urls)
            return [url for url in normal if url and follower.in_scope(url, 0)]

        if urls := usable(named[:SITEMAPS_NAMED_MAX]):
            self._schedule("named", urls, host_of(rules.origin), robots)
        elif mode == "all":
            guesses = usable(rules.origin + path for path in SITEMAP_PATHS)
            self._schedule("guessed", guesses, host_of(rules.origin), "")

    def _schedule(self, how: str, urls: list[str], voucher: str, via: str) -> None:
        entries = self._entries(urls, voucher, via, 0)
        new = self._crawl.frontier.admission.schedule(entries, self._crawl.now())
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

    async def read(self, response: Response) -> None:
        """The callback of sitemaps: read *response* beside the crawl."""
        request = response.request
        fetch = None if request is None else self._crawl.fetches.get(request)
        if request is None or fetch is None or not self._pages.passes_links:
            return
        if not 200 <= response.status < 300:
            return
        voucher, follower = str(request.meta.get(SITEMAP, "")), self._pages.follower
        self._stats.inc_value("suite/sitemap/read")
        page, body = Exchange.of_handler(response.url, "GET", response), response.body
        try:
            found = iterate_in_thread(lambda: _portions(body))
            async with self._reading, aclosing(found) as portions:
                async for portion in portions:
                    self._admit(fetch, page, voucher, portion, follower)
        except BadSitemap as error:
            self._stats.inc_value("suite/sitemap/unreadable")
            logger.debug("Sitemap %s: %s", response.url, error)

    def _admit(
        self, fetch: Fetch, sitemap: Exchange, voucher: str, portion: list[SitemapEntry],
        follower: LinkFollower,
    ) -> None:  # fmt: skip
        page, stats = fetch.entry, self._stats
        own = {registered_domain(voucher), registered_domain(host_of(page.url))}
        pages: dict[str, int | None] = {}
        nested: list[str] = []
        for location in portion:
            url = self._crawl.normalizer(location.url)
            if url is None:
                stats.inc_value("suite/sitemap/invalid")
            elif registered_domain(host_of(url)) not in own:
                stats.inc_value("suite/sitemap/foreign")
            elif location.sitemap:
                nested.append(url)
                self._claim(url, location.lastmod)
            else:
                pages[url] = location.lastmod
        if pages:
            kept = follower.give_links(fetch, sitemap, list(pages), "suite/sitemap/hook_errors")
            stats.inc_value("suite/sitemap/urls", len(pages))
            stats.inc_value("suite/sitemap/followed", len(kept))
            for url in kept:
                when = pages.get(url)
                if when is not None:
                    url_states.note_lastmod(self._crawl.store, state_key(host_of(url), url), when)
                    self._claim(url, when)
        if nested and page.depth >= SITEMAPS_NESTED_MAX:
            stats.inc_value("suite/sitemap/too_many", len(nested))
        elif nested:
            wanted = [url for url in nested if follower.in_scope(url, page.depth + 1)]
            made = self._entries(wanted, voucher, page.url, page.depth + 1)
            fetch.children.extend(made)
            stats.inc_value("suite/sitemap/nested", len(made))
        self._crawl.frontier.admission.adopt(fetch, [], self._crawl.now())

    def _claim(self, url: str, lastmod: int | None) -> None:
        if lastmod is not None:
            self._revisits.claimed(state_key(host_of(url), url), lastmod)


def _portions(body: bytes) -> Iterator[list[SitemapEntry]]:
    # Raises BadSitemap after the last portion.
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
