"""One crawl by Scrapy, with or without the suite, as JSON on the command line says.

Its keys: ``spider``, ``settings``, ``seeds``, ``domains`` (empty: any), and ``names``, the file of
a table of addresses.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COMMON: dict[str, Any] = {
    "LOG_LEVEL": "WARNING",
    "TELNETCONSOLE_ENABLED": False,
    "USER_AGENT": "suite-benchmarks/1.0 (+https://benchmarks.example/)",
}
BROAD_SCRAPY: dict[str, Any] = {
    # What Scrapy's documentation advises for broad crawls.
    "COOKIES_ENABLED": False,
    "DOWNLOAD_TIMEOUT": 15,
    "REACTOR_THREADPOOL_MAXSIZE": 20,
    "RETRY_ENABLED": False,
    "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
}
SUITE: dict[str, Any] = {"ADDONS": {"scrapy_spider_suite.Addon": 500}}
RESOLVER = {"DNS_RESOLVER": "__main__.TableResolver"}
TABLE: dict[str, str] = {}
BEAT = 0.005
_READING = "the list is read"


class Passing:
    """A downloader middleware of a project: rows take Scrapy's engine for its sake."""

    def process_request(self, request: Any) -> None:
        """Let it pass."""


def spiders_of(seeds: list[str]) -> dict[str, Any]:
    """The spiders that do without the suite."""
    import scrapy
    from scrapy.linkextractors import LinkExtractor

    class Plain(scrapy.Spider):
        """Follows every link as Scrapy's documentation shows it."""

        name = "plain"
        start_urls = seeds
        links = LinkExtractor()

        def parse(self, response: Any) -> Iterator[Any]:
            """A request for each link."""
            for link in self.links.extract_links(response):
                yield scrapy.Request(link.url)

    class Items(scrapy.Spider):
        """An ordinary spider with selectors and items."""

        name = "items"
        start_urls = seeds

        def parse(self, response: Any) -> Iterator[Any]:
            """An item, and a request for each link."""
            yield {"url": response.url, "title": response.css("title::text").get()}
            yield from response.follow_all(response.css("a"))

    return {"plain": Plain, "items": Items}


def suite_spiders(seeds: list[str]) -> dict[str, Any]:
    """Those of the suite."""
    from scrapy_spider_suite.spiders import BroadSpider

    class Bulk(BroadSpider):
        """Follows everything."""

        name = "bulk"
        start_urls = seeds

    class Parsing(Bulk):
        """Has an item of each page, too."""

        name = "parsing"

        def parse_page(self, response: Any) -> Iterator[Any]:
            """An item."""
            yield {"url": response.url, "title": response.css("title::text").get()}

    class Counted(Bulk):
        """Says ten times a second how many URLs are known, and how late its loop was."""

        name = "counted"

        async def start(self) -> Any:
            """As a bulk spider starts; begin to count, and fetch when BENCH_KNOWN are known."""
            self.wanted = self.settings.getint("BENCH_KNOWN")
            self.counting = asyncio.ensure_future(self.count())
            async for each in super().start():
                yield each

        async def count(self) -> None:
            """Print lines: time, URLs, and by how many ms the loop came back late, each 5 ms.

            Not counted is the time for which its thread waited for a processor.
            """
            from scrapy_spider_suite.crawl.context import get_crawl

            crawl, late = get_crawl(self.crawler), list[str]()
            engine = crawl.engine if self.wanted else None  # to be paused meanwhile
            if engine is not None:
                engine.pause(_READING)
            schedule = Path("/proc/thread-self/schedstat")
            while True:
                began, waited = time.perf_counter(), int(schedule.read_text().split()[1])
                await asyncio.sleep(BEAT)
                stall = time.perf_counter() - began - BEAT
                stall -= (int(schedule.read_text().split()[1]) - waited) / 1e9
                late.append(f"{max(0.0, stall) * 1e3:.1f}")
                if len(late) == 20:
                    counters = crawl.frontier.counters
                    urls = counters.pending + counters.done + counters.failed
                    print("known", time.time(), urls, ",".join(late), flush=True)
                    late.clear()
                    if engine is not None and urls >= self.wanted:
                        engine.unpause(_READING)
                        engine = None

    class Timed(Bulk):
        """Says what each pulse costs: seconds of CPU, and those of the crawl since the last one."""

        name = "timed"

        async def start(self) -> Any:
            """As a bulk spider starts, with a clock around each pulse."""
            pulses = pulses_of(self.crawler)
            take, before = pulses.take, time.process_time()

            def timed() -> None:
                nonlocal before
                began = time.thread_time()
                take()
                spent, now = time.thread_time() - began, time.process_time()
                print(f"pulse {spent:.6f} of {now - before:.6f} s", flush=True)
                before = now

            pulses.take = timed
            async for each in super().start():
                yield each

    class Unwatched(Bulk):
        """Takes no pulses."""

        name = "unwatched"

        async def start(self) -> Any:
            """As a bulk spider starts."""
            pulses_of(self.crawler).take = lambda: None
            async for each in super().start():
                yield each

    spiders = (Bulk, Parsing, Counted, Timed, Unwatched)
    return {spider.name: spider for spider in spiders}


def pulses_of(crawler: Any) -> Any:
    """What takes the pulses of a crawl."""
    from scrapy_spider_suite.crawl.context import get_crawl

    parts: Any = get_crawl(crawler).parts
    return parts.pulses


def main() -> None:
    """Crawl until somebody ends it."""
    from scrapy.crawler import AsyncCrawlerProcess

    job = json.loads(sys.argv[1])
    spiders = spiders_of(job["seeds"])
    if job["spider"] not in spiders:
        spiders = suite_spiders(job["seeds"])
    process = AsyncCrawlerProcess({**COMMON, **job["settings"]})
    process.crawl(spiders[job["spider"]], allowed_domains=job["domains"])
    process.start()


def __getattr__(name: str) -> Any:
    # Only plain Scrapy needs the resolver, and Twisted with it.
    if name != "TableResolver":
        raise AttributeError(name)
    from scrapy.resolver import CachingThreadedResolver
    from twisted.internet.defer import succeed

    if not TABLE:
        TABLE.update(json.loads(Path(json.loads(sys.argv[1])["names"]).read_text()))

    class TableResolver(CachingThreadedResolver):
        """Looks names up in a table at no cost, which favours plain Scrapy."""

        def getHostByName(self, name: str, timeout: Any = ()) -> Any:
            """The address of *name*."""
            return succeed(TABLE.get(name, name))

    return TableResolver


if __name__ == "__main__":
    main()
