"""kill -9 at random instants, and on again: nothing lost, nothing impolite (promises 1, 2)."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from crawls import crawl, web_settings

from scrapy_spider_suite.job import FOLDER
from scrapy_spider_suite.storage.reader import StoreReader
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess
from scrapy_spider_suite.testing.arrivals import gaps

KILLS = 20
HOST_DELAY = 0.1
IP_DELAY = 0.02
AT_ONCE = 16
JITTER = 0.002
"""Seconds that the server's clock readings may be off: it logs an end after it has sent it."""


def _check(job: Path) -> list[str]:
    with StoreReader(job / FOLDER) as reader:
        return list(reader.check())


def _urls(web: FakeWebProcess) -> tuple[Counter[str], list[Any]]:
    arrivals = web.arrivals()
    port = web.ready.http_port
    pages = [a for a in arrivals if a.path != "/robots.txt"]
    return Counter(f"http://{a.host}:{port}{a.path}" for a in pages), arrivals


@pytest.mark.slow
@pytest.mark.parametrize("spider", ["crawl_spiders.Bulk", "crawl_spiders.Ordinary"])
def test_k22_nothing_is_lost_over_twenty_kills(spider: str, tmp_path: Path) -> None:
    """Every reachable page is fetched, repeats are bounded by what was in flight at the kills."""
    config = FakeWebConfig(
        hosts=100, pages=50, degree=8, addresses=30, redirects=0.02, errors=0.0,
        log=tmp_path / "arrivals",
    )  # fmt: skip
    job, items = tmp_path / "job", tmp_path / "items"
    chance = random.Random(spider)
    with FakeWebProcess(config) as web:
        settings = web_settings(
            web.ready.dns_port, JOBDIR=str(job), SUITE_HOST_DELAY=HOST_DELAY,
            SUITE_IP_DELAY=IP_DELAY, CONCURRENT_REQUESTS=AT_ONCE, TEST_ITEMS=str(items),
            ITEM_PIPELINES={"crawl_spiders.FilePipeline": 1},
        )  # fmt: skip
        seed = web.ready.seeds[0]
        arguments = {"seeds": seed} if spider.endswith("Bulk") else {"start": seed}
        for _ in range(KILLS):
            end = crawl(
                spider, settings, tmp_path, kill_after=chance.uniform(0.6, 2.0), **arguments
            )
            if end.code == 0:
                break
            if (job / FOLDER / "job.json").exists():
                assert _check(job) == []
        last = crawl(spider, settings, tmp_path, **arguments)
        assert last.reason == "finished", last.log[-3000:]
        assert _check(job) == []
        web.stop()
        fetched, arrivals = _urls(web)
    reachable = set(web.web.reachable())
    assert set(fetched) >= reachable
    repeats = sum(fetched.values()) - len(fetched)
    assert repeats <= KILLS * AT_ONCE
    for by, delay in (("host", HOST_DELAY), ("address", IP_DELAY)):
        assert min(each.smallest for each in gaps(arrivals, by).values()) >= delay - JITTER
    if spider.endswith("Ordinary"):
        kept = {json.loads(line)["url"] for line in items.read_text().splitlines()}
        assert kept >= {url for url in reachable if web.web.status(url) == 200}
