"""From a page's bytes to links in the frontier, without a ``Request`` per link (K15)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from scrapy.http import HtmlResponse, Response

from scrapy_spider_suite.crawl.core import CrawlCore
from scrapy_spider_suite.crawl.spelling import Spelling
from scrapy_spider_suite.crawl.trapping import Trapping
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.storage.leases import Lease
from scrapy_spider_suite.storage.records import state_key
from scrapy_spider_suite.urls.extract import PageLinks, extract
from scrapy_spider_suite.urls.filters import Stage, Subject
from scrapy_spider_suite.urls.normalize import host_of
from scrapy_spider_suite.urls.scope import Reason, Scope

if TYPE_CHECKING:
    from scrapy import Spider

Choose = Callable[[Response, list[str]], Iterable[str]]
Rank = Callable[[Response, str], int]

_PRODUCT = re.compile(r"(?:^|\bcompatible;\s*)(?!mozilla\b)([\w-]+)", re.I | re.A)


class Follower:
    """Extracts, scopes and hands over the links of pages, for one crawl.

    *choose* narrows the links of a page, *rank* gives each a priority; None, for either, is the
    fast way: every link in scope, with priority 0.

    Stats: ``suite/links/found``, ``suite/links/followed`` (before deduplication),
    ``suite/links/refused/REASON``, ``suite/links/nofollow_pages``.
    """

    def __init__(
        self, core: CrawlCore, spider: Spider, choose: Choose | None, rank: Rank | None
    ) -> None:
        project = core.settings.project
        self._core = core
        self._stats = core.crawler.stats
        self._choose = choose
        self._rank = rank
        self._trapping = Trapping(core)
        self._spelling = Spelling(core.normalizer, core.crawler.stats)
        self._longest = project.urllength_limit or 1 << 20
        self._robot = product_of(project.robotstxt_user_agent or project.user_agent)
        self._scope = Scope(
            getattr(spider, "allowed_domains", None) or None,
            project.depth_limit,
            project.urllength_limit,
        )

    def follow(self, response: Response) -> None:
        """Hand the links of *response* to the frontier, as part of its page's commit."""
        request = response.request
        lease = None if request is None else self._core.leases.get(request)
        if lease is None or not isinstance(response, HtmlResponse):
            return
        if not 200 <= response.status < 300:
            return
        page = self.links_of(response)
        links = page.links
        if page.nofollow:
            self._stats.inc_value("suite/links/nofollow_pages")
            links = []
        if page.canonical is not None and page.canonical != response.url:
            links = [page.canonical, *links]
        links = self._spelling.links(response, links)
        self._stats.inc_value("suite/links/found", len(page.links))
        kept = self.pass_on(lease, response, links)
        self._stats.inc_value("suite/links/followed", len(kept))
        if not page.nofollow:
            self._trapping.mine(lease, self._may_enter)

    def pass_on(self, lease: Lease, response: Response, links: list[str]) -> list[str]:
        """Hand those of *links*, of a page or a sitemap, over that are wanted; return them."""
        depth = lease.entry.depth + 1
        # Over-long links are out already: most crawls have nothing left to decide link by link.
        if not self._scope.everywhere(depth):
            links = [url for url in links if self.in_scope(url, depth)]
        links = self._core.filtering.followed(self._trapping.passed(links), lease, response)
        if isinstance(response, HtmlResponse):
            self._trapping.learn(lease, response, links)
        kept = links
        if self._choose is not None:
            kept = self._spelling.chosen(links, self._choose(response, kept))
        kept = self._core.filtering.scheduled(kept, lease)
        self._hand_over(lease, response, kept)
        return kept

    def links_of(self, response: Response) -> PageLinks:
        """The links of *response*, whatever their scope."""
        headers = response.headers
        return extract(
            response.body,
            url=response.url,
            content_type=headers.get("Content-Type"),
            x_robots_tag=[tag.decode("latin-1") for tag in headers.getlist("X-Robots-Tag")],
            robot=self._robot,
            max_url_length=self._longest,
        )

    def in_scope(self, url: str, depth: int) -> bool:
        """Whether *url* may be followed at *depth*; counts it if it may not."""
        reason = self._scope.refuses(url, host_of(url), depth)
        if reason is None or (reason is Reason.OFF_SITE and self._core.filtering.opens_scope):
            return True
        self._stats.inc_value(f"suite/links/refused/{reason.value}")
        return False

    def _may_enter(self, url: str, depth: int) -> bool:
        """Whether *url*, which no page led to, may be tried at *depth*."""
        return self.in_scope(url, depth) and self._core.filtering.wants(
            Stage.SCHEDULE, url, Subject(depth=depth)
        )

    def _hand_over(self, lease: Lease, response: Response, links: list[str]) -> None:
        rank, filtering, page = self._rank, self._core.filtering, lease.entry
        if rank is None and not filtering.opens_scope:
            lease.links.extend(links)
            return
        for url in links:
            host = host_of(url)
            lease.children.append(
                Entry(
                    host, url, state_key(host, url), depth=page.depth + 1, referrer=page.url,
                    priority=0 if rank is None else rank(response, url),
                    beyond=filtering.beyond(url, page.beyond),
                )
            )  # fmt: skip


def product_of(user_agent: str) -> str:
    """The product token of *user_agent* (RFC 9309 §2.2.1), by which pages address a robot.

    Of ``Mozilla/5.0 (compatible; mybot/1.0)`` that is ``mybot``; "" where it names no robot.
    """
    found = _PRODUCT.search(user_agent)
    return found[1] if found else ""
