"""Traps and mining in real crawls; the benchmark `traps` is the large one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.crawls import crawl, web_settings
from support.inprocess_crawls import crawl_here
from support.webs import FakeWebProcess
from support.websites import Page, Site, links, moved, running

from benchmarks import traps as benchmark
from benchmarks.report import Report
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.testing import FakeWebConfig
from scrapy_spider_suite.testing.fake_web import FakeWeb
from scrapy_spider_suite.urls.traps import DETECTORS, Trap

MOST_IN_TRAPS = 0.13
"""The share of all pages fetched, of which there are 2,600."""


@pytest.mark.slow
@pytest.mark.long
def test_a_web_with_six_traps_and_three_ordinary_sites(tmp_path: Path) -> None:
    """By the defaults it ends, with every real page; of the traps hardly anything is fetched."""
    config = FakeWebConfig(
        hosts=10, pages=10, addresses=10, degree=20, traps=True, log=tmp_path / "arrivals"
    )
    with FakeWebProcess(config) as web:
        settings = web_settings(
            web.ready.dns_port, ROBOTSTXT_OBEY=False, SUITE_TRAPS=DETECTORS, **benchmark.QUICK
        )
        seeds = ",".join(web.ready.seeds)
        ended = crawl("benchmarks.traps.Wide", settings, tmp_path, seeds=seeds, timeout=600)
        web.stop()
        report = Report("traps", "")
        benchmark.judge(report, web, MOST_IN_TRAPS)
        of_shop = {each.path for each in web.arrivals() if each.host == "shop-site.test"}
    assert ended.reason == "finished", ended.log[-3000:]
    assert report.wrong == [], report.text
    assert ended.stats["suite/trap/query"] > 0
    assert len(of_shop) < 1_000, "there are 24,000 combinations"


class Wide(BroadSpider):
    """Follows whatever there is."""

    name = "wide"


def test_mining_in_a_crawl(tmp_path: Path) -> None:
    """Pages that nobody links to are found, by ancestors and by siblings; nothing is retried."""
    site = tmp_path / "site"
    (site / "pics1").mkdir(parents=True)
    for number in range(1, 6):
        page = f"<p>A picture of the number {'i' * number}, as large as life, or larger than that."
        (site / "pics1" / f"Page{number}.html").write_text(page)
    (site / "index.html").write_text("<p>The front page, which nobody links to either, says this.")

    async def crawl() -> Any:
        config = FakeWebConfig(hosts=0, sites={"docs.test": str(site)}, addresses=1)
        async with FakeWeb(config) as web:
            crawled = await crawl_here(
                Wide, arguments={"seeds": web.url("docs.test", "/pics1/Page3.html")},
                SUITE_GUESS_URLS="both", SUITE_HOST_DELAY=0, SUITE_IP_DELAY=0.001,
                ROBOTSTXT_OBEY=False, **web.ready.settings,
            )  # fmt: skip
            return crawled, [(each.path, each.status) for each in web.arrivals]

    crawled, arrivals = asyncio.run(crawl())
    answered = [path for path, status in arrivals if status == 200]
    pages = {f"/pics1/Page{number}.html" for number in range(1, 6)}
    assert pages | {"/"} <= set(answered)
    assert len(arrivals) == len({path for path, _ in arrivals}), "something was asked for twice"
    missed = crawled.stat("suite/outcome/not_there")
    assert missed == sum(1 for _, status in arrivals if status == 404) > 0
    assert crawled.stat("suite/outcome/client_error") == 0
    assert crawled.stat("suite/guessed/hits") >= 5
    assert crawled.stat("suite/guessed/misses") == missed
    assert crawled.stat("suite/guessed/tried") == len(arrivals) - 1


def test_redirects_to_one_page_from_ever_new_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    """They end as a trap, those that waited already too; every page that is one is fetched."""
    monkeypatch.setattr(Trap.SAME, "threshold", 6)
    pages = [f"/page/{letter}" for letter in "abcdefghij"]
    outs = [f"/out?to={number}" for number in range(80)]
    table: dict[str, Page] = {page: f"<p>{page} has {page[-1] * 40} to say.</p>" for page in pages}
    table |= {out: moved("/login") for out in outs}
    table |= {"/": links(*outs, *pages), "/login": "<p>Who are you? Tell us your name.</p>"}
    with running(Site(table)) as site:
        crawled = asyncio.run(
            crawl_here(
                Wide, arguments={"seeds": site.url}, SUITE_HOST_DELAY=0,
                SUITE_IP_DELAY=0, ROBOTSTXT_OBEY=False, SUITE_ALLOW_PRIVATE_ADDRESSES=True,
            )
        )  # fmt: skip
        asked = site.paths()
    assert {*pages, "/login"} <= set(asked)
    assert 6 <= sum(path.startswith("/out?") for path in asked) <= 10
    assert crawled.stat("suite/outcome/trap") >= 70
    assert crawled.stat("suite/trap/same") >= 70
