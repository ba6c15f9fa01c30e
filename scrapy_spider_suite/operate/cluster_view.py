"""What page, terminal, metrics and report show of a crawl of several agents."""

from __future__ import annotations

from typing import Any

from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.operate.crawl_view import CrawlView


class ClusterView(CrawlView):
    """A view of the crawl at a Redis URL."""

    def __init__(self, url: str, settings: Any) -> None:
        raise JobError(f"{url}: not yet")
