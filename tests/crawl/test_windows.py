"""Windows and orders in real crawls: robots.txt, names and errors on the way, and nobody waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.crawls import web_settings
from support.inprocess_crawls import Crawled, crawl_here
from support.webs import FakeWebProcess

from scrapy_spider_suite.frontier.entries import PATH_MAX
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.testing import FakeWebConfig, gaps

CONFIG = FakeWebConfig(
    hosts=12, pages=8, degree=6, addresses=12, robots_missing=0.3, redirects=0.1, latency=0.01,
    jitter=0.01,
)  # fmt: skip
DELAY = 0.05


class Walking(BroadSpider):
    """Follows links."""

    name = "walking"


@pytest.mark.parametrize(
    ("window", "order"),
    [(("top", 3), "best-first"), (("leaf", 2), "bottom-up")],
)
def test_every_page_is_fetched_politely(
    run: Callable[[Any], Crawled], tmp_path: Path, window: tuple[str, int], order: str
) -> None:
    """And the crawl ends by itself, without waiting for the clock that looks after everything."""
    options = {
        "JOBDIR": str(tmp_path / "job"), "SUITE_HOST_DELAY": DELAY, "SUITE_IP_DELAY": 0,
        "SUITE_WINDOW": window[0], "SUITE_WINDOW_SIZE": window[1], "SUITE_ORDER": order,
        "SUITE_SITEMAPS": "robots", "SUITE_SCORE": "",
    }  # fmt: skip
    if order == "best-first":
        options["SUITE_SCORE"] = f"{__name__}.deep_first"
    with FakeWebProcess(replace(CONFIG, log=tmp_path / "log")) as web:
        settings = web_settings(web.ready.dns_port, **options)
        del settings["ADDONS"]
        arguments = {"seeds": web.ready.seeds[0]}
        done = run(crawl_here(Walking, arguments=arguments, **settings))
        expected = set(web.web.reachable(obey_robots=True))
    arrivals = list(web.arrivals())
    port = web.ready.http_port
    pages = [f"http://{each.host}:{port}{each.path}" for each in arrivals]
    assert done.reason == "finished"
    assert expected <= set(pages)
    assert len(pages) == len(set(pages))
    assert all(each.smallest >= DELAY - 0.002 for each in gaps(arrivals, "host").values())


def deep_first(url: str, depth: int, referrer: str) -> float:
    """A score."""
    return min(len(url), PATH_MAX)
