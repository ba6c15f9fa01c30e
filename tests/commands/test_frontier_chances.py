"""SUITE_RETRY_FAILED_AFTER in real crawls, and what ``why`` says of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scrapy import Request, Spider
from scrapy.http import Response
from support.frontier_command import Frontier
from support.inprocess_crawls import crawl_here
from support.websites import Answer, Site, links, running

from scrapy_spider_suite.spiders import BroadSpider

AT_ONCE = {"SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0}


class Linked(BroadSpider):
    """Follows links."""

    name = "linked"


class Insisting(Spider):
    """Asks for a page again that failed."""

    name = "insisting"
    custom_settings = {"RETRY_ENABLED": False}  # noqa: RUF012 - as Scrapy has it

    async def start(self) -> Any:
        """See the class."""
        yield Request(f"{self.url}/bad", errback=self.failed)

    def failed(self, failure: Any) -> Any:
        """See the class."""
        yield Request(f"{self.url}/", self.parse)

    def parse(self, response: Response) -> Any:
        """See the class."""
        yield Request(f"{self.url}/bad", self.parse_bad)

    def parse_bad(self, response: Response) -> Any:
        """See the class."""
        yield {"url": response.url}


def once_bad(site: Site) -> None:
    """Let /bad fail at first."""
    site.pages["/bad"] = lambda visit: Answer(status=200 if "/bad" in site.paths() else 500)


def test_why_says_from_when_on(
    run: Callable[[Any], Any], frontier: Frontier, tmp_path: Path
) -> None:
    """With the setting behind it; of another reason, what it said before."""
    with running(Site({"/": links("/bad", "/gone"), "/bad": Answer(status=500)})) as site:
        settings = {"SUITE_RETRY_FAILED_AFTER": "1h", "SUITE_RETRY_TIMES": 0}
        arguments = {"seeds": f"{site.url}/"}
        run(crawl_here(Linked, arguments=arguments, JOBDIR=str(tmp_path), **AT_ONCE, **settings))
        job = ("-j", str(tmp_path), "--json")
        bad = frontier("why", f"{site.url}/bad", *job).rows[0]
        gone = frontier("why", f"{site.url}/gone", *job).rows[0]
    assert bad["next_try"].startswith("when a link leads there, from 20")
    assert bad["why_then"].startswith("SUITE_RETRY_FAILED_AFTER = 3600")
    assert gone["next_try"] == "never"


def test_a_spider_may_ask_again_for_what_failed(run: Callable[[Any], Any]) -> None:
    """Its requests are judged like links."""
    for after, visits in ((0, 1), (0.001, 2)):
        with running(Site({"/": links()})) as site:
            once_bad(site)
            arguments, settings = {"url": site.url}, {"SUITE_RETRY_FAILED_AFTER": after}
            done = run(crawl_here(Insisting, arguments=arguments, **AT_ONCE, **settings))
            assert site.paths().count("/bad") == visits
            assert len(done.items) == visits - 1
            assert done.stat("suite/retry/found_again") == visits - 1
            assert done.stat("dupefilter/filtered") == 2 - visits
