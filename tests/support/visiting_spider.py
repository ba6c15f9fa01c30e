"""A spider that asks for a few URLs and keeps what came, for tests of real crawls."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

from scrapy import Request, Spider
from scrapy.http import Response

from support.websites import Site


class Visitor(Spider):
    """Asks for the paths that a subclass names, and keeps what came."""

    name = "visitor"
    site = ""
    paths: tuple[str, ...] = ("/",)
    options: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.came: list[Response] = []
        self.failed: list[Any] = []

    async def start(self) -> AsyncIterator[Any]:
        """Yield a request for each path."""
        for path in self.paths:
            url = path if ":" in path else self.site + path
            yield Request(url, self.keep, errback=self.fail, **self.options)

    def keep(self, response: Response) -> Any:
        """Keep a response."""
        self.came.append(response)

    def fail(self, failure: Any) -> Any:
        """Keep a failure."""
        self.failed.append(failure)


class Walker(Visitor):
    """Follows every link, with an item for each page."""

    name = "walker"

    def keep(self, response: Response) -> Any:
        """Yield the page and its links."""
        super().keep(response)
        yield {"url": response.url}
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link, self.keep, errback=self.fail)


class Persistent(Walker):
    """Begins with the first page of ``site`` in every run, seen or not."""

    options = {"dont_filter": True}  # noqa: RUF012

    def __init__(self, site: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.site = site


def visitor(site: Site, *paths: str, **options: Any) -> type[Visitor]:
    """A `Visitor` of *paths*, whose requests have *options*."""
    attributes = {"site": site.url, "paths": paths, "options": options}
    return type("TheVisitor", (Visitor,), attributes)


def walker(site: Site, **attributes: Any) -> type[Walker]:
    """A `Walker` from the site's first page on."""
    return type("TheWalker", (Walker,), {"site": site.url, **attributes})


def closed_port() -> int:
    """A port of loopback that nobody listens to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
