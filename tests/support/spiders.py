"""Spiders that the tests crawl with, in processes of their own."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import scrapy
from scrapy.http import Response, TextResponse

from scrapy_spider_suite.crawl.sinks.item_packs import ItemFiles
from scrapy_spider_suite.signals import item_pack_closed
from scrapy_spider_suite.spiders import BroadSpider


class Bulk(BroadSpider):
    """Follows everything."""

    name = "bulk"


class BulkItems(BroadSpider):
    """Follows everything, with two items for each page.

    TEST_KILL_AT: what ends the process: `closed`, a file of items that got its name, or a method of
    `ItemFiles` (`commit`: the second call), or after that.
    """

    name = "bulkitems"

    @classmethod
    def from_crawler(cls, crawler: scrapy.crawler.Crawler, *args: Any, **kwargs: Any) -> Any:
        """Lay the trap."""
        after, _, method = crawler.settings.get("TEST_KILL_AT", "").rpartition(" ")
        calls: list[None] = []

        def kill(*arguments: Any, **_: Any) -> None:
            calls.append(None)
            ends = len(calls) > 1 or method != "commit"
            if not ends or after:
                original(*arguments)
            if ends:
                os.kill(os.getpid(), signal.SIGKILL)

        if method == "closed":
            crawler.signals.connect(kill, item_pack_closed)
        elif method:
            original = getattr(ItemFiles, method)
            setattr(ItemFiles, method, kill)
        cls.trap = staticmethod(kill)  # signals hold their receivers weakly
        return super().from_crawler(crawler, *args, **kwargs)

    def parse_page(self, response: Response) -> Iterator[Any]:
        """Yield the URL, twice."""
        yield {"url": response.url, "number": 1}
        yield {"url": response.url, "number": 2}


class Noting(BroadSpider):
    """Follows everything, with an item for each page that says which agent has it."""

    name = "noting"

    @classmethod
    def from_crawler(cls, crawler: scrapy.crawler.Crawler, *args: Any, **kwargs: Any) -> Any:
        """Make the folder that tests spoil known."""
        if str(crawler.settings["SUITE_RUNS_DIR"]).startswith("flaky"):
            import_module("support.flaky_folders")
        return super().from_crawler(crawler, *args, **kwargs)

    def parse_page(self, response: Response) -> Iterator[Any]:
        """Yield URL and agent."""
        yield {"url": response.url, "agent": self.settings["SUITE_AGENT_NAME"]}


class Ordinary(scrapy.Spider):
    """An ordinary spider: callbacks, meta, keyword arguments and items; no bulk."""

    name = "ordinary"

    def __init__(self, start: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start_urls = [start]

    def parse(self, response: Response, trail: int = 0) -> Iterator[Any]:
        """Yield an item for the page and a request for each of its links."""
        yield {"url": response.url, "trail": trail, "via": response.meta.get("via")}
        for link in response.css("a::attr(href)").getall():
            url = response.urljoin(link)
            if url.startswith("http"):
                yield scrapy.Request(
                    url, cb_kwargs={"trail": trail + 1}, meta={"via": {"url": response.url}}
                )


class FilePipeline:
    """Writes each item to a file at once, as a database would."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def from_crawler(cls, crawler: scrapy.crawler.Crawler) -> FilePipeline:
        """Read TEST_ITEMS, the file to write."""
        return cls(crawler.settings["TEST_ITEMS"])

    def process_item(self, item: Any) -> Any:
        """Append the item."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(item) + "\n")
        return item


class Careless(scrapy.Spider):
    """An ordinary spider that follows what it finds, and notes how each of its seeds ended."""

    name = "careless"

    def __init__(self, seeds: str = "", links: str = "20", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seeds = seeds
        self.links = int(links)

    async def start(self) -> AsyncIterator[Any]:
        """Yield a request for each line of the file of seeds."""
        for url in Path(self.seeds).read_text().splitlines():
            yield self._request(url, seed=url)

    def _request(self, url: str, **notes: Any) -> scrapy.Request:
        return scrapy.Request(
            url, callback=self.parse, errback=self.failed, cb_kwargs=notes, dont_filter=bool(notes)
        )

    def parse(self, response: Response, seed: str = "") -> Iterator[Any]:
        """Follow some of the links."""
        self._note(seed, "callback")
        links = response.css("a::attr(href)").getall() if isinstance(response, TextResponse) else []
        for link in links[: self.links]:
            # What is no URL is the spider's own business.
            with suppress(ValueError):
                yield self._request(response.urljoin(link))

    def failed(self, failure: Any) -> None:
        """Note the error."""
        self._note(failure.request.cb_kwargs.get("seed", ""), failure.type.__name__)

    def _note(self, seed: str, how: str) -> None:
        self.crawler.stats.inc_value(f"seen/{seed}" if seed else "seen")
        if seed:
            self.crawler.stats.set_value(f"how/{seed}", how)


class Tempted(scrapy.Spider):
    """An ordinary spider that follows each link, and downloads each as a file too."""

    name = "tempted"

    def __init__(self, start: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start_urls = [start]

    def parse(self, response: Response) -> Iterator[Any]:
        """Yield a request for each link, and an item with all of them as files."""
        urls = [response.urljoin(link) for link in response.css("a::attr(href)").getall()]
        yield {"file_urls": urls}
        for url in urls:
            yield scrapy.Request(url, errback=self.failed)

    def failed(self, failure: Any) -> None:
        """Count the error."""
        self.crawler.stats.inc_value(f"failed/{failure.type.__name__}")


class FullDiskPipeline:
    """A sink on a full disk: raises ENOSPC while the file TEST_FULL exists, else appends."""

    def __init__(self, crawler: scrapy.crawler.Crawler) -> None:
        self._full = Path(crawler.settings["TEST_FULL"])
        self._items = FilePipeline.from_crawler(crawler)

    @classmethod
    def from_crawler(cls, crawler: scrapy.crawler.Crawler) -> FullDiskPipeline:
        """Read TEST_FULL and TEST_ITEMS."""
        return cls(crawler)

    def process_item(self, item: Any) -> Any:
        """Store the item, or fail as a full disk does."""
        if self._full.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._items.process_item(item)
