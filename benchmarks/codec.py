"""How long a request takes to bytes and back, and how many bytes it is.

Run: ``python benchmarks/codec.py``. Prints microseconds, the best of seven runs.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

from scrapy import Request, Spider

from scrapy_spider_suite.store.request_codec import RequestCodec

URL = "https://www.example.com/catalogue/category/books/travel_2/index.html?p"
REPEATS = 20_000


class BenchmarkSpider(Spider):
    """A spider with one callback."""

    name = "benchmark"

    def parse_page(self, response: Any) -> None:
        """Never called."""


def microseconds(function: Callable[[], object]) -> float:
    """Return how long one call of *function* takes at best."""
    return min(timeit.repeat(function, number=REPEATS, repeat=7)) / REPEATS * 1e6


def main() -> None:
    """Print a line for each kind of request."""
    spider = BenchmarkSpider()
    codec = RequestCodec(spider)
    meta = {"depth": 3, "category": "Travel", "page": 2}
    headers = {"Referer": "https://www.example.com/", "Accept-Language": "en"}
    item = {"item": {"title": "x", "price": 1.5}, "seen": ("a", "b")}
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "3 meta keys": {"meta": meta},
        "headers, cb_kwargs": {"meta": meta, "headers": headers, "cb_kwargs": item, "priority": 5},
    }
    print(f"{'':20} bytes  encode  decode  Request() alone")
    for name, kwargs in kinds.items():
        request = Request(URL, callback=spider.parse_page, **kwargs)
        data = codec.encode(request)
        times = (
            microseconds(partial(codec.encode, request)),
            microseconds(partial(codec.decode, data)),
            microseconds(partial(Request, URL, callback=spider.parse_page, **kwargs)),
        )
        print(f"{name:20} {len(data):5}  {times[0]:6.2f}  {times[1]:6.2f}  {times[2]:6.2f}")


if __name__ == "__main__":
    main()
