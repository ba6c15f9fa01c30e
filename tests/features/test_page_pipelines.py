"""Which crawlers have the pipelines of packs: those that crawl."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured

from scrapy_spider_suite.pipelines import IndexPipeline, ItemPackPipeline, PagePackPipeline


def crawler_of(start_module: str, folder: Path, *, crawling: bool) -> Crawler:
    """Return a crawler with all their settings, whose ``start()`` is one of *start_module*."""

    async def start(self: Spider) -> AsyncIterator[Any]:
        yield None

    named = FunctionType(start.__code__, {"__name__": start_module})
    crawler = Crawler(
        type("Own", (Spider,), {"name": "own", "start": named}),
        {"SUITE_PACKS_DIR": str(folder), "SUITE_ITEMS_DIR": str(folder), "SUITE_INDEX": True},
    )
    crawler.crawling = crawling
    return crawler


@pytest.mark.parametrize("pipeline", [PagePackPipeline, IndexPipeline, ItemPackPipeline])
def test_of_crawls_only(
    pipeline: type[PagePackPipeline | IndexPipeline | ItemPackPipeline], tmp_path: Path
) -> None:
    """A shell does not crawl, and ``fetch`` and others give the spider a start of their own."""
    assert pipeline.from_crawler(crawler_of("project.spiders", tmp_path, crawling=True))
    for module, crawling in (("project.spiders", False), ("scrapy.commands.fetch", True)):
        with pytest.raises(NotConfigured, match="crawls only"):
            pipeline.from_crawler(crawler_of(module, tmp_path, crawling=crawling))
