"""A client: one handler with its crawler on its loop, so that one test can run on several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.utils.test import get_crawler

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Client:
    """Fetches with one handler.

    Attributes:
        kind: the handler's class.
        settings: of the crawler; to be changed before the first fetch.
    """

    def __init__(self, kind: type[Any], run: Run) -> None:
        self.kind = kind
        self.settings: dict[str, Any] = {"SUITE_ALLOW_PRIVATE_ADDRESSES": True}
        self._run = run
        self._crawler: Crawler | None = None
        self._handler: Any = None

    @property
    def crawler(self) -> Crawler:
        """The crawler, which is made of the settings when it is first asked for."""
        if self._crawler is None:
            self._crawler = get_crawler(Spider, self.settings)
            self._crawler.spider = Spider("test")
        return self._crawler

    @property
    def handler(self) -> Any:
        """The handler, made when it is first asked for."""
        if self._handler is None:
            self._handler = self.kind.from_crawler(self.crawler)
        return self._handler

    async def fetch(
        self, url: str, address: str | None = "127.0.0.1", meta: Any = None, **arguments: Any
    ) -> Response:
        """Fetch *url* from *address*, which stands in for the gate's booking."""
        return await self.send(self.request(url, address, meta, **arguments))

    def request(
        self, url: str, address: str | None = "127.0.0.1", meta: Any = None, **arguments: Any
    ) -> Request:
        """Build what `fetch` sends."""
        booked = {"suite_address": address} if address else {}
        meta = {"download_timeout": 5.0, **booked, **(meta or {})}
        return Request(url, meta=meta, **arguments)

    async def send(self, request: Request) -> Response:
        """Send *request* as the engine does, in a task of its own."""
        response: Response = await asyncio.ensure_future(self.handler.download_request(request))
        return response

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run a test's coroutine, then close the handler."""

        async def closing() -> None:
            try:
                await main
            finally:
                if self._handler is not None:
                    await self._handler.close()
                    await asyncio.sleep(0.01)

        self._run(closing())


def run_with(factory: Callable[[], asyncio.AbstractEventLoop]) -> Run:
    def run(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main)

    return run
