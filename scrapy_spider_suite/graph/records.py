"""What a graph is made of: pages and their links, as the records of packs tell them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scrapy_spider_suite.packs.warc import Link

__all__ = ["KINDS", "KIND_OF", "Link", "PageRecord"]

KINDS = ("a", "frame", "redirect", "canonical")
"""How a page leads to another. What other elements show (images) is no edge."""

KIND_OF = {"area": "a", "refresh": "redirect"} | {kind: kind for kind in KINDS}
"""The kind of edge that a link in a pack is. What is not here (a sitemap's) is none."""


@dataclass(frozen=True, slots=True)
class PageRecord:
    """A page that was fetched: its normal *url*, its *links* (`Link` or the like), and *when*
    (seconds, wall).

    Of several records of one page, from refetches, kills or several agents, the newest counts.
    """

    url: str
    links: Sequence[tuple[str, str, bool]]
    when: float = 0.0
