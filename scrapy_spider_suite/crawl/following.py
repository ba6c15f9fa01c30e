"""From a page's bytes to links in the frontier, without a ``Request`` per link (K15)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from scrapy.http import Response

from scrapy_spider_suite.crawl.core import CrawlCore
from scrapy_spider_suite.crawl.reading import LinkReader, has_links
from scrapy_spider_suite.crawl.spelling import Spelling
from scrapy_spider_suite.crawl.trapping import Trapping
from scrapy_spider_suite.frontier.entries import Entry, state_key
from scrapy_spider_suite.storage.leases import Lease
from scrapy_spider_suite.urls.normalize import host_of
from scrapy_spider_suite.urls.scope import Reason, Scope

if TYPE_CHECKING:
    from scrapy import Spider

logger = logging.getLogger(__name__)

Choose = Callable[[Response, list[str]], Iterable[str]]
Rank = Callable[[Response, str], int]

class Follower:
    """Extracts, scopes and hands over the links of pages, for one crawl.

    *choose* narrows the links of a page, *rank* gives each a priority; None, for either, is the
    fast way: every link in scope, with priority 0.

    Stats: ``suite/links/found``, ``suite/links/followed`` (before deduplication),
    ``suite/links/refused/REASON``, ``suite/links/nofollow_pages``, ``suite/sitemap/hook_errors``.
    """

    def __init__(
        self, core: CrawlCore, spider: Spider, choose: Choose | None, rank: Rank | None
    ) -> None:
        project = core.settings.project
        self._core = core
        self._stats = core.crawler.stats
        self._choose = choose
        self._failed = False
        self._rank = rank
        self._trapping = Trapping(core)
        self._spelling = Spelling(core.normalizer, core.crawler.stats)
        self.links_of = LinkReader(lambda: core.settings).links_of
        self._scope = Scope(
            getattr(spider, "allowed_domains", None) or None,
            project.depth_limit,
            project.urllength_limit,
        )

    def follow(self, response: Response) -> None:
        """Hand the links of *response* to the frontier, as part of its page's commit."""
        request = response.request
        lease = None if request is None else self._core.leases.get(request)
        if lease is None or not has_links(response):
            return
        later = self._core.settings.extract == "on-demand" and not lease.entry.volatile
        # What is known of a duplicate is known as it comes.
        if later and not (lease.likeness is not None and lease.likeness.repeats):
            lease.unread = response  # until it is settled, when it is known where it is packed
        else:
            self.read(lease, response)

    def read(self, lease: Lease, response: Response) -> None:
        """Hand the links of *response*, the page of *lease*, over with it."""
        page, lease.outlinks = self.links_of(response)
        if self._core.counting is not None:
            self._core.counting.read(lease, response, page.links)
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
        """Whether the page of *lease* is a duplicate, whose links nobody wants."""
        found = lease.likeness
        return found is not None and found.repeats and not self._core.settings.follow_duplicates

    def pass_on(self, lease: Lease, response: Response, links: list[str]) -> list[str]:
        """Hand those of *links*, of a sitemap, over that are wanted; return them.

        Hooks of the spider that fail, for a sitemap is no page, have no say in these links.
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
        """Those of *links* that scope, traps and the follow filter let in."""
        depth = lease.entry.depth + 1
        # Over-long links are out already: most crawls have nothing left to decide link by link.
        if not self._scope.everywhere(depth):
            links = [url for url in links if self.in_scope(url, depth)]
        if self._is_deepest(lease.entry):
            found, host = len(links), lease.entry.host
            links = [url for url in links if host_of(url) != host]
            refused = f"suite/links/refused/{Reason.TOO_DEEP_ON_HOST.value}"
            self._stats.inc_value(refused, found - len(links))
        return self._core.filtering.followed(self._trapping.passed(links), lease, response)

    def _is_deepest(self, page: Entry) -> bool:
        """Whether links of *page* to its own host are too far from where the host was entered."""
        frontier = self._core.frontier
        limit = frontier.policy.host_max_depth
        if not limit:
            return False
        entered = frontier.residents.records.of(page.host).entered or 0
        return page.depth - entered >= limit

    def in_scope(self, url: str, depth: int) -> bool:
        """Whether *url* may be followed at *depth*; counts it if it may not."""
        reason = self._scope.refuses(url, host_of(url), depth)
        if reason is None or (reason is Reason.OFF_SITE and self._core.filtering.opens_scope):
            return True
        self._stats.inc_value(f"suite/links/refused/{reason.value}")
        return False

    def _mine(self, lease: Lease, response: Response) -> None:
        """Let the page of *lease* bring what nobody linked to, as far as links of it might lead."""
        if self._is_deepest(lease.entry):
            return
        filtering, before = self._core.filtering, len(lease.children)

        def may_enter(url: str, depth: int) -> bool:
            wanted = self.in_scope(url, depth) and filtering.followed([url], lease, response)
            return bool(wanted and filtering.scheduled(wanted, lease))

        self._trapping.mine(lease, may_enter)
        out = filtering.out(lease.entry)
        for entry in lease.children[before:]:
            entry.beyond = filtering.beyond(entry.url, out)

    def _hand_over(
        self, lease: Lease, response: Response, links: list[str], choose: Choose | None,
        rank: Rank | None,
    ) -> list[str]:  # fmt: skip
        """Hand those of *links* over that *choose* and the schedule filter want; return them."""
        filtering, page = self._core.filtering, lease.entry
        if choose is not None:
            links = self._spelling.chosen(links, choose(response, links))
        links = filtering.scheduled(links, lease)
        policy = self._core.translator.referers.policy(response)
        if rank is None and not filtering.opens_scope:
            lease.links.extend(links)
            lease.referrer_policy = policy
            return links
        made, out = [], filtering.out(page)
        for url in links:
            host = host_of(url)
            made.append(
                Entry(
                    host, url, state_key(host, url), depth=page.depth + 1, referrer=page.url,
                    priority=0 if rank is None else rank(response, url),
                    beyond=filtering.beyond(url, out), referrer_policy=policy,
                )
            )  # fmt: skip
        lease.children.extend(made)
        return links
