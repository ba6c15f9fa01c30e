"""Item pipelines of the suite."""

from __future__ import annotations

from scrapy_spider_suite.pipelines.index import IndexPipeline
from scrapy_spider_suite.pipelines.itempacks import ItemPackPipeline
from scrapy_spider_suite.pipelines.linkstats import LinkStatsPipeline
from scrapy_spider_suite.pipelines.pagepacks import PagePackPipeline

__all__ = ["IndexPipeline", "ItemPackPipeline", "LinkStatsPipeline", "PagePackPipeline"]
