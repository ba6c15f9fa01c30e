"""Filters: which links, requests and answers a crawl wants, in a small boolean language.

::

    HostEndsWithOneOf(.de, .at) and not (PathEndsWithOneOf(.pdf, .zip) or not DepthLessThan(8))

`Filter` reads an expression for one of five stages; it is asked about a normal URL and `LinkFacts`.
The language and most atoms are BUbiNG's (Boldi, Marino, Santini and Vigna, *BUbiNG: Massive
crawling for the masses*, §4).
"""

from __future__ import annotations

from scrapy_spider_suite.urls.filters.atom_registry import (
    ATOMS,
    KNOWN,
    AtomKind,
    Fact,
    FilterInputs,
    FilterPage,
    LinkFacts,
    Stage,
    Test,
    register,
)
from scrapy_spider_suite.urls.filters.countries import Countries
from scrapy_spider_suite.urls.filters.language import Filter

__all__ = [
    "ATOMS", "KNOWN", "AtomKind", "Countries", "Fact", "Filter", "FilterInputs", "FilterPage",
    "LinkFacts", "Stage", "Test", "register",
]  # fmt: skip
