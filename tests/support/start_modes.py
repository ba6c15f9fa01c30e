"""The ways in which a crawl is started, each as a process of its own; run by test_addon.py.

Usage: ``python tests/support/start_modes.py WAY [PROJECT SETTINGS] [SPIDER SETTINGS] ...``, each as
JSON, with one spider for each JSON of spider settings. Prints the loop that each spider ran on.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import scrapy.crawler

ASYNCIO_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"
PROJECT: dict[str, Any] = json.loads(sys.argv[2])
OWN: list[dict[str, Any]] = [json.loads(text) for text in sys.argv[3:]] or [{}]


def make_spider(number: int, own: dict[str, Any]) -> type[scrapy.Spider]:
    """Build a spider that fetches one page without a network and prints its loop."""

    class LoopSpider(scrapy.Spider):
        name = f"loop{number}"
        custom_settings = own
        start_urls = ["data:,page"]  # noqa: RUF012

        def parse(self, response: scrapy.http.Response) -> None:
            loop = type(asyncio.get_running_loop())
            print(f"{self.name} ran on {loop.__module__}.{loop.__name__}", flush=True)

    return LoopSpider


SPIDERS = [make_spider(number, own) for number, own in enumerate(OWN)]


def async_process() -> None:
    """Start all spiders as ``scrapy crawl`` does."""
    process = scrapy.crawler.AsyncCrawlerProcess(PROJECT)
    for spider in SPIDERS:
        process.crawl(spider)
    process.start()


def process() -> None:
    """Start all spiders through the older process class, whose API is Deferreds."""
    process = scrapy.crawler.CrawlerProcess(PROJECT)
    for spider in SPIDERS:
        process.crawl(spider)
    process.start()


def runner_before() -> None:
    """Make the runner first and install the reactor afterwards."""
    runner = scrapy.crawler.CrawlerRunner(PROJECT)
    from scrapy.utils.reactor import install_reactor

    install_reactor(ASYNCIO_REACTOR)
    _react(runner)


def runner_after() -> None:
    """Install the reactor first, as Scrapy's documentation shows it."""
    from scrapy.utils.reactor import install_reactor

    install_reactor(ASYNCIO_REACTOR)
    _react(scrapy.crawler.CrawlerRunner(PROJECT))


def other_reactor() -> None:
    """Install a reactor that has no asyncio loop."""
    from twisted.internet import selectreactor

    selectreactor.install()  # type: ignore[no-untyped-call]
    _react(scrapy.crawler.CrawlerRunner(PROJECT))


def async_runner() -> None:
    """Run the asynchronous runner on an installed reactor."""
    from scrapy.utils.defer import deferred_f_from_coro_f
    from scrapy.utils.reactor import install_reactor
    from twisted.internet.task import react

    install_reactor(ASYNCIO_REACTOR)

    async def main(_: object) -> None:
        runner = scrapy.crawler.AsyncCrawlerRunner(PROJECT)
        for spider in SPIDERS:
            await runner.crawl(spider)

    react(deferred_f_from_coro_f(main))


def _react(runner: scrapy.crawler.CrawlerRunner) -> None:
    from twisted.internet import defer, reactor

    def crawl() -> None:
        crawls = [runner.crawl(spider) for spider in SPIDERS]
        both = defer.DeferredList(crawls, consumeErrors=True)
        both.addBoth(lambda _: reactor.stop())

    reactor.callWhenRunning(crawl)
    reactor.run()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("the script goes on", flush=True)
