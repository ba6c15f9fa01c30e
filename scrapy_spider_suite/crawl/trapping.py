"""Traps and mining in the bulk path: which links are refused, what a page teaches, what is tried.

Only links that are followed in bulk are judged: whoever names a seed or yields a request means it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from scrapy.http import Response

from scrapy_spider_suite.storage.leases import Lease
from scrapy_spider_suite.urls.normalize import host_of

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.core import CrawlCore


class Trapping:
    """One per crawl. Stats: ``suite/trap/NAME`` and ``suite/mined/…``, set by the keeper."""

    def __init__(self, core: CrawlCore) -> None:
        self._core = core
        self._traps = core.frontier.traps

    def learn(self, lease: Lease, response: Response, links: list[str]) -> None:
        """Take in what the page of *lease* says, and which *links* of it are followed."""
        frontier, entry = self._core.frontier, lease.entry
        if frontier.policy.traps.any:
            first = not frontier.residents.touch(entry.host).done
            self._traps.saw(entry.url, entry.host, response.body, links, first=first)

    def passed(self, links: list[str]) -> list[str]:
        """Those of *links* that lead into no trap."""
        if not self._core.frontier.policy.traps.any:
            return links
        kept, host, origin = [], "", " "
        refuses, met, year = self._traps.refuses, self._traps.met, time.gmtime().tm_year
        for url in links:
            if not url.startswith(origin):  # most links of a page lead to its own host
                host, origin = host_of(url), url[: url.index("/", 8) + 1]
            refusal = refuses(url, host, year)
            if refusal is None:
                kept.append(url)
            else:
                met[refusal.trap] += 1
        return kept

    def mine(self, lease: Lease, in_scope: Callable[[str, int], bool]) -> None:
        """Let the page of *lease* bring what nobody linked to, if SUITE_MINE says so."""
        settings = self._core.settings
        if settings.mine == "none":
            return
        depth = lease.entry.depth + 1

        def wanted(url: str) -> bool:
            return in_scope(url, depth) and bool(self.passed([url]))

        miner = self._core.frontier.miner
        lease.children.extend(miner.mine(lease.entry, settings.mine, settings.mine_max, wanted))
