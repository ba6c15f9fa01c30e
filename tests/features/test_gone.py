"""What a crawl leaves behind in its process: none of the requests that it never sent."""

from __future__ import annotations

import gc
from weakref import WeakSet

from scrapy import Request, Spider
from scrapy.http import Response
from support.inprocess_crawls import Crawling


def test_requests_that_were_never_sent_go(crawl: Crawling) -> None:
    """They lead to the spider and to all that it knows; nothing but the frontier holds them."""
    waiting: WeakSet[Request] = WeakSet()

    class Many(Spider):
        name = "many"
        start_urls = ("data:,first",)

        def parse(self, response: Response) -> list[Request]:
            if response.text != "first":
                return []
            found = [Request(f"data:,{number}", self.parse) for number in range(200)]
            waiting.update(found)
            return found

    ended = crawl(Many, CLOSESPIDER_PAGECOUNT=5, CONCURRENT_REQUESTS=2)
    assert ended.reason == "closespider_pagecount"
    sent = {response.request for response in ended.responses}
    for seen in ended.requests.values():
        seen.clear()
    gc.collect()
    assert set(waiting) < sent
