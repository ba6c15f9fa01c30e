"""The line that says how a crawl goes, on a terminal and in the log, and the summary at the end."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from scrapy import Spider
from scrapy.exceptions import NotConfigured
from scrapy.utils.test import get_crawler

from scrapy_spider_suite.crawl.assembly import open_crawl
from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.crawl.requests import seed_entry
from scrapy_spider_suite.extensions import progress
from scrapy_spider_suite.extensions.progress import ProgressLine
from scrapy_spider_suite.frontier.outcomes import Event

BROAD = {"SUITE_PROFILE": "broad"}


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def crawler_of(**settings: Any) -> Any:
    """A crawler in the broad profile."""
    return get_crawler(Spider, {**BROAD, **settings})


@pytest.fixture
def crawler() -> Iterator[Any]:
    """A crawler whose frontier knows three URLs, one of which is done."""
    crawler = crawler_of()
    crawl = get_crawl(crawler)
    entries = [seed_entry(f"http://h{n}.test/") for n in range(3)]
    crawl.frontier.admission.schedule([each for each in entries if each is not None], crawl.now())
    counters = crawl.frontier.counters
    counters.events = {Event.CLIENT_ERROR: 5, Event.SUCCESS: 1_234}
    counters.endings.update(counters.events)
    counters.failures = 5
    yield crawler
    crawl.close_job()


def opened(
    crawler: Any, terminal: io.StringIO | None, run: Any, seconds: float = 0.0
) -> ProgressLine:
    """A progress line for *crawler*, after its spider has been open for some *seconds*."""
    shown = ProgressLine(crawler, terminal)
    shown._interval = 0.01 if seconds else 60.0

    async def wait() -> None:
        shown._opened()
        await asyncio.sleep(seconds)

    run(wait())
    return shown


@pytest.mark.parametrize("settings", [{"SUITE_PROFILE": "spider"}, {"LOGSTATS_INTERVAL": 0}])
def test_nothing_is_shown(settings: dict[str, Any]) -> None:
    """In the spider profile, whose log stays as it was, and where no statistics are wanted."""
    with pytest.raises(NotConfigured):
        ProgressLine.from_crawler(crawler_of(**settings))


def test_a_terminal_is_used_if_the_log_goes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for a log in a file, or standard error that is none."""
    assert ProgressLine.from_crawler(crawler_of())._status is None
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert ProgressLine.from_crawler(crawler_of())._status is not None
    assert ProgressLine.from_crawler(crawler_of(LOG_FILE="x.log"))._status is None


def test_the_line(crawler: Any, run: Any) -> None:
    """Pages, rates of the last minute, what is left and for how long, hosts, failures."""
    shown = opened(crawler, None, run)
    counters, frontier = get_crawl(crawler).frontier.counters, get_crawl(crawler).frontier
    now = time.monotonic() + 2.0
    counters.endings[Event.SUCCESS] += 200
    counters.bytes += 3_000_000
    frontier.waits.count(now, now + frontier.wall_offset)
    time.sleep(0.1)
    open_crawl(crawler).pulses.take()
    assert re.fullmatch(
        r"1,434 pages \([\d.,]+/s, \d+\.\d MB/s\), 3 URLs to go \(no end in sight\), 0 under way; "
        r"3 hosts wait: 3 name look-up; 5 failed",
        shown.line(now),
    )
    shown._closed("finished")


def test_elsewhere_it_is_logged(crawler: Any, run: Any, caplog: pytest.LogCaptureFixture) -> None:
    """As the spider opens, and at LOGSTATS_INTERVAL."""
    with caplog.at_level(logging.INFO, progress.__name__):
        shown = opened(crawler, None, run, seconds=0.03)
        shown._closed("finished")
    assert caplog.messages[0] == "The crawl is open: 1,234 pages done, 3 URLs to go"
    assert re.match(r"1,234 pages \(0\.0/s, 0 B/s\), 3 URLs to go", caplog.messages[1])
    assert crawler_of(LOGSTATS_INTERVAL=7).settings.getfloat("LOGSTATS_INTERVAL") == 7
    assert ProgressLine(crawler_of(LOGSTATS_INTERVAL=7), None)._interval == 7


def test_the_summary(crawler: Any, run: Any, caplog: pytest.LogCaptureFixture) -> None:
    """How it ended, what was done, what is left, and every outcome, the most frequent first."""
    with caplog.at_level(logging.INFO, progress.__name__):
        opened(crawler, None, run)._closed("waiting")
    assert caplog.messages[-1] == (
        "The crawl ended (waiting) after 0 s in all: 1,234 pages done, 5 URLs failed, 3 left "
        "(1,234 success, 5 client error)"
    )
