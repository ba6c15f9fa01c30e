"""Crawls of one site with many different settings, in one process that runs them side by side."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrapy import Request, Spider, signals
from scrapy.crawler import AsyncCrawlerRunner, Crawler
from scrapy.http import Response, TextResponse
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.log import configure_logging

from support import forks
from support.projects import environment

_AT_ONCE = 12
_ORDER = "crawls.json"
_SCRIPT = "from support.settings_crawls import main; main()"


@dataclass(frozen=True)
class SettingsCrawl:
    """The URLs that the spider's callback got, and the finish reason or the error of the crawl."""

    pages: list[str]
    reason: str


class Follower(Spider):
    """Follows every link of the site."""

    name = "follower"
    seed = ""

    def __init__(self, seed: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed = seed
        self.pages: list[str] = []

    async def start(self) -> AsyncIterator[Any]:
        """Yield the seed."""
        yield Request(self.seed)

    def parse(self, response: Response) -> Iterator[Any]:
        """Note the page, and yield an item and a request for each link."""
        self.pages.append(response.url)
        yield {"url": response.url}
        if isinstance(response, TextResponse):
            yield from response.follow_all(css="a")


def crawl_with_each(
    settings: Mapping[str, Mapping[str, Any]], seed: str, folder: Path, timeout: float = 120.0
) -> dict[str, SettingsCrawl]:
    """Crawl from *seed* on once with each of *settings*; the crawls by the names of these.

    A crawl that has not ended *timeout* seconds after its start has no finish reason. The log of
    all crawls goes to ``log`` in *folder*.
    """
    (folder / _ORDER).write_text(json.dumps([settings, seed, timeout]))
    done = forks.run(
        _SCRIPT, folder=folder, environment=environment(), timeout=len(settings) * timeout
    )
    (folder / "log").write_text(done.stderr)
    assert not done.returncode, done.stderr[-3000:]
    return {name: SettingsCrawl(*found) for name, found in json.loads(done.stdout).items()}


def main() -> None:
    """What the process runs."""
    from scrapy.utils.reactor import install_reactor

    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
    from twisted.internet import reactor

    configure_logging({"LOG_LEVEL": "INFO"})

    async def crawl() -> None:
        found = await _crawl_all(*json.loads(Path(_ORDER).read_text()))
        print(json.dumps(found), flush=True)
        os._exit(0)  # whatever a crawl that has not ended left running

    reactor.callWhenRunning(lambda: deferred_from_coro(crawl()))
    reactor.run(installSignalHandlers=False)


async def _crawl_all(
    settings: Mapping[str, Mapping[str, Any]], seed: str, timeout: float
) -> dict[str, Any]:
    places = asyncio.Semaphore(_AT_ONCE)

    async def crawl(given: Mapping[str, Any]) -> Any:
        async with places:
            return await _crawl(given, seed, timeout)

    found = await asyncio.gather(*map(crawl, settings.values()))
    return dict(zip(settings, found, strict=True))


async def _crawl(given: Mapping[str, Any], seed: str, timeout: float) -> Any:
    runner = AsyncCrawlerRunner({"EXTENSIONS_BASE": forks.LEAN, **given})
    crawler: Crawler = runner.create_crawler(Follower)
    reasons: list[str] = []

    def closed(reason: str) -> None:
        reasons.append(reason)

    crawler.signals.connect(closed, signals.spider_closed)
    crawling = asyncio.ensure_future(runner.crawl(crawler, seed=seed))
    await asyncio.wait([crawling], timeout=timeout)
    if crawling.done() and (error := crawling.exception()) is not None:
        return [[], repr(error)]
    assert isinstance(crawler.spider, Follower)
    return [sorted(crawler.spider.pages), "".join(reasons)]
