"""When sinks cannot keep up, or cannot write: the crawl pauses, and its loop goes on turning."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.crawl.sinks import page_packs
from scrapy_spider_suite.crawl.sinks.commit_log import PlainLog
from scrapy_spider_suite.crawl.sinks.page_packs import PagePacks
from scrapy_spider_suite.items import PageItem
from scrapy_spider_suite.packs import open_packs


class Engine:
    """What of an engine a log asks for."""

    def __init__(self) -> None:
        self.paused = False

    def pause(self) -> None:
        """Send nothing more."""
        self.paused = True

    def unpause(self) -> None:
        """Go on."""
        self.paused = False


def crawler_with_engine() -> tuple[Crawler, Engine]:
    """A crawler and its engine."""
    crawler, engine = get_crawler(), Engine()
    crawler.engine = engine  # type: ignore[assignment]
    return crawler, engine


def test_a_writer_that_is_behind_does_not_stop_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writing: threading.Event
) -> None:
    """The crawl pauses with the page that is too much, not with the next look; none is lost."""
    monkeypatch.setattr(page_packs, "BACKLOG_MAX", 100_000)
    crawler, engine = crawler_with_engine()

    async def crawl() -> None:
        packs = PagePacks(PlainLog(crawler), tmp_path)
        rescue = threading.Timer(5, writing.set)
        rescue.start()
        seen = []
        for number in range(5):
            response = Response(f"http://a.test/{number}", body=bytes(60_000))
            packs.add_page(PageItem.from_response(response))
            seen.append(engine.paused)
        assert not writing.is_set()
        assert seen == [False, True, True, True, True]
        rescue.cancel()
        writing.set()
        await packs.finish()
        packs.pulse()
        assert not engine.paused
        await packs.close()

    asyncio.run(crawl())
    assert len(list(open_packs(tmp_path))) == 5


def test_one_sink_does_not_let_go_on_what_another_holds() -> None:
    """Each pipeline has a log of its own; the engine is that of all."""
    crawler, engine = crawler_with_engine()
    one, other = PlainLog(crawler), PlainLog(crawler)
    one.pause("the disk")
    other.pause("the disk")
    other.pause("items")
    one.unpause("the disk")
    assert engine.paused
    other.unpause("the disk")
    assert engine.paused
    PlainLog(crawler_with_engine()[0]).unpause("items")
    other.unpause("items")
    assert not engine.paused
