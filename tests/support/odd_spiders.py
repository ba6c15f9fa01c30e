"""Spiders that fetch beside the frontier: images, their own downloads, odd middlewares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import scrapy
from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse, Response

from scrapy_spider_suite.spiders import BroadSpider


class Pictures(BroadSpider):
    """Follows everything and has the images of each page fetched."""

    name = "pictures"

    def parse_page(self, response: Response) -> Iterator[Any]:
        """An item with the page's images, if it shows any."""
        images = response.css("img::attr(src)").getall()
        if images:
            yield {"url": response.url, "image_urls": [response.urljoin(each) for each in images]}


class Seeded(scrapy.Spider):
    """An ordinary spider that starts at every host and follows every link."""

    name = "seeded"

    def __init__(self, seeds: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start_urls = Path(seeds).read_text().split()

    def parse(self, response: Response) -> Iterable[Any]:
        """An item for the page and a request for each of its links."""
        yield {"url": response.url}
        yield from response.follow_all(response.css("a"))


class Downloads(scrapy.Spider):
    """Fetches by itself: from ``start()`` and from callbacks, beside what it yields."""

    name = "downloads"

    def __init__(self, seeds: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seeds = Path(seeds).read_text().split()

    async def _fetch(self, url: str) -> Response:
        engine = self.crawler.engine
        if engine is None:
            raise RuntimeError("no engine")
        return await engine.download_async(scrapy.Request(url))

    async def start(self) -> AsyncIterator[Any]:
        """Fetch the first seed, then begin at all of them."""
        first = await self._fetch(self.seeds[0])
        yield {"start": first.url}
        for seed in self.seeds:
            yield scrapy.Request(seed)

    async def parse(self, response: Response) -> AsyncIterator[Any]:
        """Fetch two more pages, one of them of the next host, while the visit is over."""
        own = await self._fetch(response.urljoin("/0.html"))
        follower = self.seeds[(self.seeds.index(response.url) + 1) % len(self.seeds)]
        other = await self._fetch(follower)
        yield {"page": response.url, "own": own.status, "other": other.status}


class Fetcher:
    """An extension that downloads something when the spider is opened."""

    def __init__(self, crawler: scrapy.crawler.Crawler) -> None:
        self.crawler = crawler
        crawler.signals.connect(self.opened, scrapy.signals.spider_opened)

    from_crawler = classmethod(lambda cls, crawler: cls(crawler))

    async def opened(self, spider: Downloads) -> None:
        """Fetch the last seed."""
        response = await self.crawler.engine.download_async(scrapy.Request(spider.seeds[-1]))
        self.crawler.stats.inc_value(f"test/extension/{response.status}")


class Odd(Seeded):
    """For `OddMiddleware`: from each host, one request for each of the odd ends."""

    name = "odd"
    ends = ("ignore", "instant", "elsewhere", "raise", "drop", "offsite", "0.html", "1.html")

    def parse(self, response: Response) -> Iterable[Any]:
        """Ask for the odd ends of the host."""
        for end in self.ends:
            yield response.follow(f"/{end}", callback=self.finished, errback=self.failed)

    def finished(self, response: Response) -> Iterable[Any]:
        """An item for what came."""
        yield {"url": response.url, "status": response.status}

    def failed(self, failure: Any) -> Iterable[Any]:
        """An item for what did not."""
        yield {"url": failure.request.url, "failure": type(failure.value).__name__}


class OddMiddleware:
    """Ends requests in every way that a middleware can."""

    def process_request(self, request: scrapy.Request) -> Any:
        """Refuse, answer or replace *request* by its path."""
        if request.url.endswith("/ignore"):
            raise IgnoreRequest("not wanted")
        if request.url.endswith("/raise"):
            raise ValueError("a bug")
        if request.url.endswith("/instant"):
            return HtmlResponse(request.url, body=b"<p>at once</p>", request=request)
        if request.url.endswith("/elsewhere"):
            host = "h000001" if "h000000" in request.url else "h000000"
            where = request.url.replace(request.url[7:14], host)
            return request.replace(url=where.replace("/elsewhere", "/0/0.html"))
        return None

    def process_response(self, request: scrapy.Request, response: Response) -> Any:
        """Refuse the answer, or send it off-site."""
        if request.url.endswith("/drop"):
            raise IgnoreRequest("not that either")
        if request.url.endswith("/offsite"):
            return request.replace(url="http://other.invalid/")
        return response


class Slots(Seeded):
    """Chooses the download slot of every request: the hosts go by two clocks."""

    name = "slots"

    async def start(self) -> AsyncIterator[Any]:
        """A request for each seed."""
        for number, url in enumerate(self.start_urls):
            yield scrapy.Request(url, meta={"download_slot": f"slot{number % 2}"})

    def parse(self, response: Response) -> Iterable[Any]:
        """No links."""
        yield {"url": response.url}


class Pauser:
    """An extension that pauses the engine after a few pages, and goes on 1.5 seconds later."""

    def __init__(self, crawler: scrapy.crawler.Crawler) -> None:
        self.crawler = crawler
        self.pages = 0
        crawler.signals.connect(self.received, scrapy.signals.response_received)

    from_crawler = classmethod(lambda cls, crawler: cls(crawler))

    def received(self) -> None:
        """Count, and pause at the tenth."""
        self.pages += 1
        if self.pages == 10:
            self.crawler.engine.pause()
            asyncio.get_running_loop().call_later(1.5, self.crawler.engine.unpause)


class Mixed(Seeded):
    """Begins at every seed at once, follows every link and has every image fetched."""

    name = "mixed"

    def parse(self, response: Response) -> Iterable[Any]:
        """A request for each link, and an item with the images."""
        yield from response.follow_all(response.css("a"))
        images = response.css("img::attr(src)").getall()
        if images:
            yield {"image_urls": [response.urljoin(each) for each in images]}
