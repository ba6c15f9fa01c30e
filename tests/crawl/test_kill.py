"""kill -9 at random instants, and on again: nothing lost, nothing impolite (promises 1, 2)."""

from __future__ import annotations

import json
import random
import time
from bisect import bisect
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from support.crawls import crawl_over_kills, web_settings
from support.webs import FakeWebProcess

from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.testing import FakeWebConfig
from scrapy_spider_suite.testing.arrivals import Arrival, gaps

HOST_DELAY = 0.1
IP_DELAY = 0.02
AT_ONCE = 16
KILLS = 4
IN_FLIGHT = 2 * AT_ONCE
"""Most requests in flight: on the wire, and as many responses in the queue of the callbacks, whose
SCRAPER_SLOT_MAX_ACTIVE_SIZE counts bytes, and at least 1,024 for each of them."""
JITTER = 0.002
"""Seconds that the server's clock readings may be off: it logs an end after it has sent it."""


def _check(job: Path) -> list[str]:
    with StoreReader(job / FOLDER) as reader:
        return list(reader.check())


def _urls(web: FakeWebProcess) -> tuple[Counter[str], list[Arrival]]:
    arrivals = web.arrivals()
    port = web.ready.http_port
    pages = [a for a in arrivals if a.path != "/robots.txt"]
    return Counter(f"http://{a.host}:{port}{a.path}" for a in pages), arrivals


def _repeats(arrivals: list[Arrival], kills: list[float]) -> list[int]:
    """How many pages were fetched before each of *kills* (wall clock), and again later.

    The last number is that of pages that were fetched twice without a kill in between.
    """
    counts = [0] * (len(kills) + 1)
    runs: dict[tuple[str, str], list[int]] = {}
    for arrival in sorted(arrivals):
        if arrival.path != "/robots.txt":
            page = runs.setdefault((arrival.host, arrival.path), [])
            page.append(bisect(kills, arrival.start))
    for page in runs.values():
        for run, after in pairwise(page):
            counts[run if run < after else -1] += 1
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spider", "seen"),
    [
        ("support.spiders.Bulk", "trie"), ("support.spiders.Ordinary", "trie"),
        ("support.spiders.Bulk", "sieve"),
    ],
)  # fmt: skip
def test_k22_nothing_is_lost_over_kills(spider: str, seen: str, tmp_path: Path) -> None:
    """Every reachable page is fetched, repeats are bounded by what was in flight at the kills."""
    config = FakeWebConfig(
        hosts=30, pages=12, degree=8, addresses=9, redirects=0.02, errors=0.0,
        log=tmp_path / "arrivals",
    )  # fmt: skip
    job, items, chance = tmp_path / "job", tmp_path / "items", random.Random(spider + seen)
    with FakeWebProcess(config) as web:
        settings = web_settings(
            web.ready.dns_port, JOBDIR=str(job), SUITE_HOST_DELAY=HOST_DELAY,
            SUITE_IP_DELAY=IP_DELAY, CONCURRENT_REQUESTS=AT_ONCE,
            SCRAPER_SLOT_MAX_ACTIVE_SIZE=AT_ONCE * 1024, TEST_ITEMS=str(items),
            SUITE_SEEN_STORE=seen, SUITE_MEMORY="1M",
            ITEM_PIPELINES={"support.spiders.FilePipeline": 1},
        )  # fmt: skip
        arguments = {"seeds" if spider.endswith("Bulk") else "start": web.ready.seeds[0]}
        kills: list[float] = []

        def killed() -> None:
            kills.append(time.time())
            if (job / FOLDER / "job.json").exists():
                assert _check(job) == []

        last = crawl_over_kills(
            spider, settings, tmp_path, [chance.uniform(0.0, 0.8) for _ in range(KILLS)], killed,
            **arguments,
        )  # fmt: skip
        assert (last.stats.get("suite/seen/flushes", 0) > 0) is (seen == "sieve")
        assert _check(job) == []
        web.stop()
        fetched, arrivals = _urls(web)
    reachable = set(web.web.reachable())
    assert set(fetched) >= reachable
    assert len(kills) >= KILLS // 2
    *repeats, without_a_kill = _repeats(arrivals, kills)
    assert without_a_kill == 0
    assert max(repeats) <= IN_FLIGHT
    for by, delay in (("host", HOST_DELAY), ("address", IP_DELAY)):
        assert min(each.smallest for each in gaps(arrivals, by).values()) >= delay - JITTER
    if spider.endswith("Ordinary"):
        kept = {json.loads(line)["url"] for line in items.read_text().splitlines()}
        assert kept >= {url for url in reachable if web.web.status(url) == 200}
