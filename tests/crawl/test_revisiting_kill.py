"""Revisits over sudden ends."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from support.crawls import crawl_over_kills, web_settings
from support.webs import FakeWebProcess

from scrapy_spider_suite.frontier.revisit_rules import RevisitPolicy
from scrapy_spider_suite.packs import open_packs, verify
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.revisit_plans import ROWS, RevisitPlans
from scrapy_spider_suite.testing import FakeWebConfig

EVERY = 1.0


@pytest.mark.slow
def test_kills_lose_no_plan(tmp_path: Path) -> None:
    """Killed twice: every page is planned or pending once, every record leads to its body."""
    config = FakeWebConfig(
        hosts=10, pages=10, degree=8, addresses=10, changes=2.0, changes_sigma=1.0,
        conditional=0.5, log=tmp_path / "arrivals",
    )  # fmt: skip
    job, packs, chance = tmp_path / "job", tmp_path / "packs", random.Random(7)
    with FakeWebProcess(config) as web:
        settings = web_settings(
            web.ready.dns_port, JOBDIR=str(job), SUITE_HOST_DELAY=0.01, SUITE_IP_DELAY=0,
            SUITE_PACKS_DIR=str(packs), SUITE_REVISIT="fixed", SUITE_REVISIT_INTERVAL=EVERY,
            SUITE_SEEN_STORE="sieve", CLOSESPIDER_TIMEOUT=4,
        )  # fmt: skip
        times = [chance.uniform(1, 3) for _ in range(2)]
        last = crawl_over_kills(
            "support.spiders.Bulk", settings, tmp_path, times, reason="closespider_timeout",
            seeds=web.ready.seeds[0],
        )  # fmt: skip
        reachable = set(web.web.reachable())
        web.stop()
        arrivals = [each for each in web.arrivals() if each.path != "/robots.txt"]
        fetched = {f"http://{a.host}:{web.ready.http_port}{a.path}" for a in arrivals}
    assert last.stats["suite/revisit/unchanged"] > 0
    with StoreReader(job / FOLDER) as reader:
        assert list(reader.check()) == []
        revisits = RevisitPlans(reader.store.kv(ROWS), RevisitPolicy())
        kept = {plan.entry().url for _, plan in revisits.planned()}
        kept |= {entry.url for entry in reader.store.all_rows()}
    assert fetched <= kept <= reachable
    assert list(verify(packs)) == []
    kinds = Counter(page.is_revisit for page in open_packs(packs) if page.body)
    assert kinds[False] >= len(fetched) > 50
    assert kinds[True] > 0
    by_page: dict[tuple[str, str], list[float]] = {}
    for each in arrivals:
        by_page.setdefault((each.host, each.path), []).append(each.start)
    short = sum(b - a < EVERY - 0.1 for times in by_page.values() for a, b in pairwise(times))
    assert short <= 2 * 32, "only what was in flight at a kill is fetched before it is due"
