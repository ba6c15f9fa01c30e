"""Traps and mining in the bulk path: which links are refused, what a page teaches, what is tried.

Only links that are followed in bulk are judged: whoever names a seed or yields a request means it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from scrapy.http import Response

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.storage.leases import Lease
from scrapy_spider_suite.urls.normalize import host_of, normalize

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.core import CrawlCore


class Trapping:
    """One per crawl. Stats: ``suite/trap/NAME`` and ``suite/mined/…``, set by the keeper."""

    def __init__(self, core: CrawlCore) -> None:
        self._core = core
        self._traps = core.frontier.traps

    def learn(self, lease: Lease, response: Response, links: list[str]) -> None:
        """Take in what the page of *lease* says, and which *links* it has, in scope or not."""
        frontier, late = self._core.frontier, lease.stored
        visited = lease.plan is not None if late is None else late.visited
        # A page that is visited again is no evidence that others say the same.
        if not frontier.policy.traps.any or visited:
            return
        url = normalize(lease.entry.url)  # a spider's own request may be spelt otherwise
        if url is not None:
            pages = frontier.residents.records.of(lease.entry.host).done
            if late is not None:  # it is one of them
                pages = 0 if late.first else max(1, pages - 1)
            repeats = lease.likeness is not None and lease.likeness.of_host
            self._traps.saw(
                url, host_of(url), response.body, links, pages=pages, repeats=repeats
            )

    def passed(self, links: list[str]) -> list[str]:
        """Those of *links* that lead into no trap."""
        return self._traps.passed(links, time.gmtime().tm_year)

    def mine(self, lease: Lease, in_scope: Callable[[str, int], bool]) -> None:
        """Let the page of *lease* bring what nobody linked to, if SUITE_MINE says so."""
        settings, page = self._core.settings, lease.entry
        url = None if settings.mine == "none" else normalize(page.url)
        if url is None:
            return
        if url != page.url:
            page = Entry(host_of(url), url, depth=page.depth)
        depth, normal = page.depth + 1, self._core.normalizer

        def wanted(url: str) -> bool:
            # Another spelling of what it should be is no URL that nobody linked to.
            own = normal.idle or normal.respell(url) == url
            return own and in_scope(url, depth) and bool(self.passed([url]))

        miner = self._core.frontier.miner
        lease.children.extend(miner.mine(page, settings.mine, settings.mine_max, wanted))
