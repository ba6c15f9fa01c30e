"""Filters: which links, requests and answers a crawl wants, in BUbiNG's boolean language (§4)."""

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
