"""What a crawl leaves behind in its process: none of the requests that it never sent."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from typing import Any
from weakref import WeakSet

from inprocess import Crawling
from scrapy import Request, Spider
from scrapy.http import Response


def test_requests_that_were_never_sent_go(crawl: Crawling) -> None:
    """They lead to the spider and to all that it knows; nothing but the frontier holds them."""
    waiting: WeakSet[Request] = WeakSet()

    class Many(Spider):
        name = "many"

        async def start(self) -> AsyncIterator[Any]:
            for number in range(200):
                request = Request(f"data:,{number}", self.parse)
                waiting.add(request)
                yield request

        def parse(self, response: Response) -> Any:
            """Nothing."""

    ended = crawl(Many, CLOSESPIDER_PAGECOUNT=5, CONCURRENT_REQUESTS=2)
    assert ended.reason == "closespider_pagecount"
    sent = {response.request for response in ended.responses}
    for seen in ended.requests.values():
        seen.clear()
    gc.collect()
    assert set(waiting) == sent
