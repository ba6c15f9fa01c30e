"""Item pipelines of the suite."""

from __future__ import annotations

from scrapy_spider_suite.pipelines.sinks import (
    ItemPackPipeline,
    LinkStatsPipeline,
    PagePackPipeline,
)
from scrapy_spider_suite.pipelines.text_index import IndexPipeline

__all__ = ["IndexPipeline", "ItemPackPipeline", "LinkStatsPipeline", "PagePackPipeline"]
