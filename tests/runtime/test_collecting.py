"""The garbage collector, which all crawls of a process share."""

from __future__ import annotations

import asyncio
import gc
import weakref

from scrapy_spider_suite.runtime.event_loop import GcTuning


class Itself:
    """Goes with a collection only."""

    def __init__(self) -> None:
        self.own = self


def test_everything_is_collected_now_and_then() -> None:
    """Python would not, any more; what refers to itself must go all the same."""
    collector = GcTuning()
    assert not collector.due(0.0)  # it has not begun: nobody's business
    collector.start()
    try:
        assert collector.due(1_000.0)
        left = weakref.ref(Itself())
        gc.collect(1)
        old = Itself()
        gc.collect(1)
        gc.collect(1)
        gone = weakref.ref(old)
        del old
        gc.collect(1)
        assert left() is None
        assert not collector.due(1_019.0)
        assert gone() is not None
        assert collector.due(1_020.0)
        asyncio.run(collector.collect())
        assert gone() is None
    finally:
        collector.stop()


def test_what_is_young_is_collected_before_it_is_much() -> None:
    """Python would wait until there is ten times as much."""
    collector = GcTuning()
    collector.start()
    try:
        young = Itself()
        gone = weakref.ref(young)
        gc.collect(0)
        del young
        gc.collect(0)
        collector.tidy()
        assert gone() is not None
        gc.collect(0)
        collector.tidy()
        assert gone() is None
    finally:
        collector.stop()


def test_the_last_crawl_puts_back_what_was_there() -> None:
    """Crawls overlap in any order; a crawl that never started changes nothing."""
    before = gc.get_threshold()
    first, second = GcTuning(), GcTuning()
    second.stop()
    first.start()
    second.start()
    calm = gc.get_threshold()
    assert calm != before
    assert gc.get_freeze_count() > 0
    first.stop()
    first.stop()
    assert gc.get_threshold() == calm
    second.stop()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
