"""What a refused crawl says of itself; from outside it is tested in ``outside/test_refusals.py``.
"""

from __future__ import annotations

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.runtime.refusal import RefusedCrawl


def test_a_refused_crawl_has_no_scheduler() -> None:
    """Making it says why."""
    refused = RefusedCrawl.because(SettingsError("no good"))
    with pytest.raises(SettingsError, match="no good"):
        refused.from_crawler(Crawler(Spider))
