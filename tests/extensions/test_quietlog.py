"""Logs of crawls that fail a lot: short in the broad profile, Scrapy's own in the other."""

from __future__ import annotations

import io
import logging
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.utils.test import get_crawler
from support.inprocess_crawls import Crawled, crawl_here
from support.websites import Answer, Site, running

from scrapy_spider_suite.extensions.quietlog import (
    FIRST,
    LineFolding,
    QuietLog,
    kind_of,
    shorten,
)
from scrapy_spider_suite.settings.suite import suite_settings
from scrapy_spider_suite.signals import settings_changed

COUNT = 40
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Failing(Spider):
    """Gets errors of each kind, and makes some."""

    name = "failing"
    site = ""
    refused = ""

    async def start(self) -> Any:
        """Pages whose callbacks fail, errors of the server, and a host that refuses."""
        for number in range(COUNT):
            yield Request(f"{self.site}/{number}", self.parse)
            yield Request(f"{self.site}/missing/{number}", self.parse)
            yield Request(f"{self.refused}/{number}", self.parse)

    def parse(self, response: Response) -> Any:
        """Fail, in one of two places."""
        self.logger.info("the spider's own line on %s", response.url)
        if response.url.endswith("7"):
            raise KeyError(response.url)
        raise ValueError(response.url)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What a handler of the log writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
    handler.setLevel(logging.INFO)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(before)
    assert handler.filters == []


@pytest.fixture
def failing(run: Callable[..., Any], log: io.StringIO) -> Iterator[Callable[..., Crawled]]:
    """Run the crawl."""
    with running(Site({f"/{n}": Answer(b"page") for n in range(COUNT)})) as site:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            refused = f"http://localhost:{free.getsockname()[1]}"

        def crawl_it(**settings: Any) -> Crawled:
            given = {
                "SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0,
                "SUITE_HOST_CONCURRENCY": 8, "SUITE_IP_CONCURRENCY": 8, "RETRY_ENABLED": False,
                "SUITE_BACKOFF_BASE": 0, "SUITE_BACKOFF_MAX": 0, "SUITE_DEAD_HOST_FAILURES": 1_000,
                **settings,
            }  # fmt: skip
            crawled: Crawled = run(crawl_here(
                Failing, arguments={"site": site.url, "refused": refused}, **given
            ))  # fmt: skip
            assert crawled.reason == "finished"
            return crawled

        yield crawl_it


def count(log: io.StringIO, text: str) -> int:
    """How many lines hold *text*."""
    return sum(text in line for line in log.getvalue().splitlines())


def test_the_broad_profile_is_quiet(failing: Callable[..., Crawled], log: io.StringIO) -> None:
    """The first lines of a kind, then a count; network errors in a line; other faults whole."""
    crawled = failing(SUITE_PROFILE="broad")
    text = log.getvalue()
    assert count(log, "INFO: Ignoring response <404") == FIRST
    assert count(log, "ERROR: Error downloading <GET http://localhost") == FIRST
    assert count(log, ">: DownloadConnectionRefusedError: ") == FIRST + 1
    # Both faults of the callback: its tracebacks are whole, and none hides the other.
    assert text.count("\nValueError: http://127.0.0.1") == FIRST
    assert text.count("KeyError: 'http://127.0.0.1") == COUNT // 10
    assert text.count("Traceback (most recent call last)") == FIRST + COUNT // 10
    assert count(log, "failing INFO: the spider's own line on") == COUNT
    more = [line for line in text.splitlines() if "more like this: " in line]
    assert len(more) == 3
    assert any(
        f"ERROR: {COUNT - FIRST} more like this: [scrapy.core.scraper] Error downloading "
        "<GET http://localhost" in line for line in more
    )
    assert any(f"INFO: {COUNT - FIRST} more like this: [scrapy.spidermiddlewares.httperror]" in line
               for line in more)  # fmt: skip
    faults = COUNT - COUNT // 10
    assert any(
        f"ERROR: {faults - FIRST} more like this: [scrapy.core.scraper] Spider error " in line
        and ": ValueError: http" in line and "test_quietlog.py:" in line
        for line in more
    )
    # The stats count every line that would have been.
    assert crawled.stat("log_count/ERROR") == 2 * COUNT


@pytest.mark.parametrize("settings", [
    {"SUITE_PROFILE": "spider"}, {"SUITE_PROFILE": "broad", "SUITE_QUIET_LOG": False},
])  # fmt: skip
def test_scrapys_lines(
    settings: dict[str, Any], failing: Callable[..., Crawled], log: io.StringIO
) -> None:
    """As ever, in the spider profile and where it is switched off."""
    failing(**settings)
    text = log.getvalue()
    assert count(log, "INFO: Ignoring response <404") == COUNT
    assert count(log, "ERROR: Error downloading <GET http://localhost") == COUNT
    assert text.count("ValueError: http://127.0.0.1") == COUNT - COUNT // 10
    assert "more like this" not in text
    assert text.count("Traceback (most recent call last)") >= 2 * COUNT


def test_the_spider_profile_can_be_quiet(
    failing: Callable[..., Crawled], log: io.StringIO
) -> None:
    """If it is asked to."""
    failing(SUITE_PROFILE="spider", SUITE_QUIET_LOG=True)
    assert log.getvalue().count("Traceback (most recent call last)") == FIRST + COUNT // 10
    assert count(log, "more like this") == 3


def test_a_count_each_interval(run: Callable[..., Any], log: io.StringIO) -> None:
    """While the crawl runs, not only at its end; two handlers write the same lines."""
    quiet = QuietLog(get_crawler(Spider), interval=60.0)
    other = logging.StreamHandler(second := io.StringIO())
    logging.getLogger().addHandler(other)
    lines = logging.getLogger("scrapy.core.engine")

    async def crawl() -> None:
        quiet.start()
        for _ in range(2):
            for number in range(100):
                lines.warning("Trouble with %s", number)
            quiet.log_counts()
        quiet.stop()

    run(crawl())
    logging.getLogger().removeHandler(other)
    assert count(log, "Trouble with") == FIRST + 1 + 2
    assert f"{100 - FIRST} more like this: [scrapy.core.engine] Trouble with 99" in log.getvalue()
    assert "99 more like this" in log.getvalue()
    assert second.getvalue().count("Trouble with") == FIRST + 1 + 2
    lines.warning("Trouble with %s", "nobody")
    assert "nobody" in log.getvalue()


def test_switched_while_the_crawl_runs(run: Callable[..., Any], log: io.StringIO) -> None:
    """``scrapy frontier set SUITE_QUIET_LOG`` takes effect at once."""
    crawler = get_crawler(Spider, {"SUITE_PROFILE": "spider"})
    quiet = QuietLog.from_crawler(crawler)
    lines = logging.getLogger("scrapy.core.engine")
    loud = suite_settings(crawler)
    soft = loud.with_value("quiet_log", "True")

    def hundred() -> int:
        before = count(log, "Trouble")
        for number in range(100):
            lines.warning("Trouble with %s", number)
        return count(log, "Trouble") - before

    async def crawl() -> list[int]:
        quiet.opened()
        counts = [hundred()]
        for old, new in ((loud, soft), (soft, soft), (soft, loud)):
            crawler.signals.send_catch_log(settings_changed, old=old, new=new)
            counts.append(hundred())
        return counts

    assert run(crawl()) == [100, FIRST, 0, 100]


def record_of(name: str, level: str, message: str, *args: Any, error: Any = None) -> Any:
    """A record as a logger makes it."""
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    number = logging.getLevelNamesMapping()[level]
    return logging.LogRecord(name, number, "", 1, message, args, exc_info)


@pytest.mark.parametrize("level", ["DEBUG", "CRITICAL"])
def test_what_is_never_folded(level: str) -> None:
    """What was asked for line by line, and what ends a crawl."""
    assert kind_of(record_of("scrapy.core.engine", level, "x")) is None


@pytest.mark.parametrize("name", [
    "scrapy.extensions.logstats", "scrapy_spider_suite.extensions.progress", "news", "scrapyer",
])  # fmt: skip
def test_whose_lines_are_not_folded(name: str) -> None:
    """Those of parts that speak at intervals, and of the project; but tracebacks are."""
    assert kind_of(record_of(name, "INFO", "x %s", 1)) is None
    kind = kind_of(record_of(name, "ERROR", "x", error=ValueError("y")))
    assert kind == f"[{name}] ValueError"


def test_messages_that_were_put_together_before() -> None:
    """Are alike if they differ in names and numbers only."""
    kinds = {
        kind_of(record_of("scrapy.x", "INFO", f"<GET http://a/{n}> took {n} s for 'x{n}' {n}"))
        for n in range(20)
    }
    assert kinds == {"[scrapy.x] … took … s for … …"}
    assert kind_of(record_of("scrapy.x", "INFO", "another")) not in kinds


def test_a_network_error_of_the_callback_keeps_its_traceback() -> None:
    """Only those that Scrapy logs for a download are of the network."""
    for message in ("Spider error processing %s", "Error processing %s"):
        record = record_of("scrapy.core.scraper", "ERROR", message, 1, error=TimeoutError("db"))
        shorten(record)
        assert record.exc_info is not None
    record = record_of(
        "scrapy.core.scraper", "ERROR", "Error downloading %(request)s", {"request": "<GET x>"},
        error=TimeoutError("a\nb"),
    )  # fmt: skip
    shorten(record)
    assert record.getMessage() == "Error downloading <GET x>: TimeoutError: a b"
    assert record.exc_info is None


def test_a_fault_of_a_middleware_keeps_its_traceback() -> None:
    """It is logged as a failed download, and is none."""
    record = record_of(
        "scrapy.core.scraper", "ERROR", "Error downloading %(request)s", {"request": "<GET x>"},
        error=AttributeError("'NoneType' object has no attribute 'x'"),
    )  # fmt: skip
    shorten(record)
    assert record.exc_info is not None


def test_threads_take_turns() -> None:
    """Whoever logs, and whoever counts: two at once would count wrongly."""
    inside: list[int] = []

    def text() -> str:
        inside.append(1)
        time.sleep(0.001)
        assert len(inside) == 1
        inside.pop()
        return "here"

    folded = LineFolding()
    with ThreadPoolExecutor(4) as pool:
        passed = list(pool.map(lambda _: folded.passes("one kind", logging.INFO, text), range(40)))
    assert passed.count(True) == FIRST
    assert [kind.held for kind in folded.end_interval()] == [40 - FIRST]
