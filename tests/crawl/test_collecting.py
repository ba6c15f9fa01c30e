"""The garbage collector, which all crawls of a process share."""

from __future__ import annotations

import gc

from scrapy_spider_suite.crawl.collecting import CalmCollector


def test_the_last_crawl_puts_back_what_was_there() -> None:
    """Crawls overlap in any order; a crawl that never started changes nothing."""
    before = gc.get_threshold()
    first, second = CalmCollector(), CalmCollector()
    second.stop()
    first.start()
    second.start()
    calm = gc.get_threshold()
    assert calm[0] > before[0]
    assert gc.get_freeze_count() > 0
    first.stop()
    first.stop()
    assert gc.get_threshold() == calm
    second.stop()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
