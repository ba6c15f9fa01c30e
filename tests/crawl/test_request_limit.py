"""A crawl whose servers become slow has fewer requests under way, and says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.crawls import crawl, loopback_settings
from support.websites import Answer, Site, Visit, links, running

PAGES = 900
SLOW = range(400, 500)
MOST = 40


@pytest.mark.slow
@pytest.mark.parametrize("on", [True, False])
def test_it_has_fewer_requests_while_answers_are_slow(on: bool, tmp_path: Path) -> None:
    """With SUITE_ADJUST_REQUESTS, which is on by default."""
    site = Site()

    def page(visit: Visit) -> Answer:
        wait = 1.0 if len(site.visits) in SLOW else 0.02
        return Answer(f"<p>page {visit.path}</p>".encode(), wait=wait)

    paths = [f"/{n}" for n in range(PAGES)]
    site.pages |= {"/": links(*paths), **dict.fromkeys(paths, page)}
    more: dict[str, Any] = {} if on else {"SUITE_ADJUST_REQUESTS": False}
    settings = loopback_settings(
        SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0, SUITE_HOST_CONCURRENCY=MOST, SUITE_IP_CONCURRENCY=0,
        CONCURRENT_REQUESTS=MOST, SUITE_TRAPS="", LOG_LEVEL="INFO", JOBDIR=str(tmp_path / "job"),
        TEST_CONSTANTS={"scrapy_spider_suite.frontier.request_limit.WINDOW": 0.5}, **more,
    )  # fmt: skip
    with running(site):
        done = crawl("support.spiders.Bulk", settings, tmp_path, seeds=f"{site.url}/")
    assert len(site.visits) == PAGES + 1
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats["closed"] == "finished"
    assert ("Fewer requests at a time" in (tmp_path / "log").read_text()) is on
    assert ("suite/requests/limit" in stats) is on
    assert done
