"""Crawls inside the test's own process: quick, and everything about them can be looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from scrapy import Request, Spider, signals
from scrapy.crawler import AsyncCrawlerRunner, Crawler
from scrapy.http import Response

from support.crawls import ADDON
from support.forks import LEAN

QUIET = {
    "EXTENSIONS_BASE": LEAN,
    "LOGSTATS_INTERVAL": 0,
    "MEMUSAGE_ENABLED": False,
    "SUITE_MEMORY": "16M",
    "SUITE_STOP_TIMEOUT": 2,
    "TELNETCONSOLE_ENABLED": False,
}
"""What no test needs unless it is about that; ``SUITE_`` names mean nothing without the suite."""


@dataclass
class Crawled:
    """What became of a crawl."""

    crawler: Crawler
    items: list[Any] = field(default_factory=list)
    dropped: list[Any] = field(default_factory=list)
    responses: list[Response] = field(default_factory=list)
    requests: dict[str, list[Request]] = field(default_factory=dict)
    reason: str = ""

    @property
    def spider(self) -> Any:
        """The spider."""
        return self.crawler.spider

    def stat(self, name: str) -> Any:
        """The value of a stat, 0 without one."""
        return self.crawler.stats.get_value(name, 0)

    def item_set(self) -> set[str]:
        """The items, comparable."""
        return {repr(sorted(dict(item).items())) for item in self.items}

    def urls(self, signal: str) -> list[str]:
        """The URLs for which *signal* (``request_scheduled``, …) was sent."""
        return [request.url for request in self.requests.get(signal, [])]


class Crawling(Protocol):
    """Runs a spider class to its end, with the add-on or without."""

    def __call__(
        self,
        spidercls: type[Spider],
        *,
        addon: bool = True,
        watch: Callable[[Crawler], None] | None = None,
        within: float = 60.0,
        arguments: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Crawled: ...


async def crawl_here(
    spidercls: type[Spider],
    *,
    addon: bool = True,
    watch: Callable[[Crawler], None] | None = None,
    within: float = 60.0,
    arguments: dict[str, Any] | None = None,
    **settings: Any,
) -> Crawled:
    """Crawl on the running loop; *watch* is given the crawler before it starts.

    Raises `TimeoutError` if it is not over *within* so many seconds.
    """
    runner = AsyncCrawlerRunner({"ADDONS": ADDON if addon else {}, **QUIET, **settings})
    crawler = runner.create_crawler(spidercls)
    result = Crawled(crawler)
    _listen(crawler, result)
    if watch is not None:
        watch(crawler)
    await asyncio.wait_for(runner.crawl(crawler, **(arguments or {})), within)
    return result


def _listen(crawler: Crawler, result: Crawled) -> None:
    connect = crawler.signals.connect

    def scraped(item: Any) -> None:
        result.items.append(item)

    def dropped(item: Any) -> None:
        result.dropped.append(item)

    def received(response: Response) -> None:
        result.responses.append(response)

    def closed(reason: str) -> None:
        result.reason = reason

    handlers: list[Any] = [scraped, dropped, received, closed]
    names = ("item_scraped", "item_dropped", "response_received", "spider_closed")
    for name, handler in zip(names, handlers, strict=True):
        connect(handler, getattr(signals, name), weak=False)
    for name in (
        "request_scheduled", "request_dropped", "request_reached_downloader",
        "request_left_downloader",
    ):  # fmt: skip
        seen = result.requests.setdefault(name, [])

        def noted(request: Request, _seen: list[Request] = seen) -> None:
            _seen.append(request)

        connect(noted, getattr(signals, name), weak=False)
