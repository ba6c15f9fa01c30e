"""robots.txt that is elsewhere: many hosts redirect theirs to one, as parked domains do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from support.inprocess_crawls import Crawled, crawl_here
from support.websites import Site, links, moved, running

from scrapy_spider_suite.spiders import BroadSpider

HOSTS = 8


def test_those_that_wait_there_keep_no_other_host_waiting(run: Callable[[Any], Crawled]) -> None:
    """The one host is asked in its own time; the others are crawled meanwhile."""
    with ExitStack() as stack:

        def serve(number: int, pages: dict[str, Any]) -> Site:
            return stack.enter_context(running(Site(pages, host=f"127.0.0.{number}")))

        parking = serve(10, {"/robots": ""})
        there = moved(f"{parking.url}/robots")
        parked = [serve(20 + n, {"/robots.txt": there, "/": links()}) for n in range(HOSTS)]
        others = [serve(40 + n, {"/robots.txt": "", "/": links()}) for n in range(HOSTS)]
        seeds = ",".join(f"{site.url}/" for site in (*parked, *others))
        run(
            crawl_here(
                BroadSpider, arguments={"name": "broad", "seeds": seeds}, CONCURRENT_REQUESTS=2,
                ROBOTSTXT_OBEY=True, SUITE_ALLOW_PRIVATE_ADDRESSES=True, SUITE_HOST_DELAY=0.4,
                SUITE_IP_DELAY=0,
            )
        )  # fmt: skip
        assert len(parking.visits) == HOSTS
        last = max(site.visits[-1].began for site in others)
        assert last < parking.visits[-2].began
