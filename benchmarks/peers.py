"""Crawls for the benchmarks: plain Scrapy and the suite on the same in-vitro web.

Run as a script it is one crawl in a process of its own: ``peers.py JSON``; it prints one line of
JSON with what it did. The benchmarks start it through `measure`.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BROAD_SCRAPY: dict[str, Any] = {
    # What Scrapy's documentation advises for broad crawls.
    "CONCURRENT_REQUESTS": 100,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
    "COOKIES_ENABLED": False,
    "RETRY_ENABLED": False,
    "AJAXCRAWL_ENABLED": False,
    "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
    "DNS_RESOLVER": "peers.TableResolver",
}
COMMON: dict[str, Any] = {
    "LOG_LEVEL": "WARNING",
    "TELNETCONSOLE_ENABLED": False,
    "USER_AGENT": "suite-benchmarks/1.0 (+https://benchmarks.example/)",
}
SUITE: dict[str, Any] = {"ADDONS": {"scrapy_spider_suite.Addon": 500}}


def measure(crawl: dict[str, Any], timeout: float = 600.0) -> dict[str, Any]:
    """Run *crawl* (spider, settings, arguments) in a process of its own and return its report."""
    here = Path(__file__).resolve().parent
    path = [str(here), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, str(here / "peers.py"), json.dumps(crawl)],
        capture_output=True, text=True, timeout=timeout, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def spiders_of(job: dict[str, Any]) -> dict[str, Any]:
    """The spiders that *job* may name; the suite's only where it names that."""
    import scrapy
    from scrapy.linkextractors import LinkExtractor

    class Plain(scrapy.Spider):
        """Follows every link as Scrapy's documentation shows it."""

        name = "plain"
        start_urls = job["seeds"]

        def parse(self, response: Any) -> Iterator[Any]:
            """A request for each link."""
            if not hasattr(self, "links"):
                self.links = LinkExtractor()
            for link in self.links.extract_links(response):
                yield scrapy.Request(link.url)

    class Items(scrapy.Spider):
        """An ordinary spider with selectors and items."""

        name = "items"
        start_urls = job["seeds"]

        def parse(self, response: Any) -> Iterator[Any]:
            """An item, and a request for each link."""
            yield {"url": response.url, "title": response.css("title::text").get()}
            yield from response.follow_all(response.css("a"))

    spiders: dict[str, Any] = {"plain": Plain, "items": Items}
    if job["spider"] == "bulk":
        from scrapy_spider_suite.spiders import BroadSpider

        class Bulk(BroadSpider):
            """The suite's way."""

            name = "bulk"
            start_urls = job["seeds"]

        spiders["bulk"] = Bulk
    return spiders


def main() -> None:
    """Crawl as the JSON on the command line says."""
    from scrapy.crawler import AsyncCrawlerProcess

    job = json.loads(sys.argv[1])
    if job.get("dns"):
        TABLE.update(json.loads(Path(job["dns"]).read_text()))
    process = AsyncCrawlerProcess({**COMMON, **job["settings"]})
    crawler = process.create_crawler(spiders_of(job)[job["spider"]])
    process.crawl(crawler)
    began, cpu = time.monotonic(), time.process_time()
    process.start()
    stats = crawler.stats.get_stats()
    pages = stats.get("response_received_count", 0)
    seconds = stats.get("elapsed_time_seconds") or time.monotonic() - began
    report = {
        "pages": pages,
        "seconds": seconds,
        "cpu": time.process_time() - cpu,
        "cpu_of_children": sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]),
        "rate": pages / seconds,
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "items": stats.get("item_scraped_count", 0),
        "reason": stats.get("finish_reason"),
        "stats": {k: v for k, v in stats.items() if k.startswith("suite/")},
    }
    print(json.dumps(report))


TABLE: dict[str, str] = {}


def __getattr__(name: str) -> Any:
    # Only the crawl's process needs Twisted, and only plain Scrapy the resolver.
    if name != "TableResolver":
        raise AttributeError(name)
    from scrapy.resolver import CachingThreadedResolver
    from twisted.internet.defer import succeed

    class TableResolver(CachingThreadedResolver):
        """Looks names up in a table at no cost, which favours plain Scrapy."""

        def getHostByName(self, name: str, timeout: Any = ()) -> Any:
            """The address of *name*."""
            return succeed(sys.modules["__main__"].TABLE.get(name, name))

    return TableResolver


if __name__ == "__main__":
    main()
