"""Several crawls in one process."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from scrapy.crawler import AsyncCrawlerRunner, Crawler
from support.crawls import ADDON
from support.inprocess_crawls import QUIET
from support.visiting_spider import visitor
from support.websites import Answer, Site, links

from scrapy_spider_suite.errors import JobInUseError
from scrapy_spider_suite.runtime import event_loop


def test_a_refused_crawl_spares_the_one_that_runs(site: Site, run: Any, tmp_path: Path) -> None:
    """The second may not use the first one's job directory; the first ends as ever."""
    site.pages |= {"/": Answer(b"late", wait=0.3), "/next": links()}
    ended: dict[str, Any] = {}

    async def both() -> None:
        runner = AsyncCrawlerRunner({"ADDONS": ADDON, **QUIET, "JOBDIR": str(tmp_path / "job")})
        first, second = (runner.create_crawler(visitor(site, "/", "/next")) for _ in range(2))
        one = asyncio.ensure_future(runner.crawl(first))
        while not site.visits:
            await asyncio.sleep(0.005)
        with pytest.raises(JobInUseError, match=r"is in use by process .*another JOBDIR"):
            await runner.crawl(second)
        assert not one.done()
        await one
        ended["spider"] = first.spider
        ended["reason"] = first.stats.get_value("finish_reason")
        # The directory is free again.
        await runner.crawl(runner.create_crawler(visitor(site, "/")))

    run(both())
    assert ended["reason"] == "finished"
    assert len(ended["spider"].came) == 2


@pytest.mark.parametrize("profile", ["spider", "broad"])
def test_an_ended_crawl_is_freed(
    site: Site, run: Any, tmp_path: Path, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in the process leads to its crawler any more, with or without a job directory."""
    monkeypatch.setattr(event_loop, "_ENDED_MOST", 4)  # tests collect more rarely
    site.pages |= {"/": links("/next"), "/next": links()}
    ended: list[weakref.ref[Crawler]] = []

    async def crawl(**settings: Any) -> None:
        quick = {"SUITE_HOST_DELAY": 0, "SUITE_ALLOW_PRIVATE_ADDRESSES": True,
                 "LOGSTATS_INTERVAL": 60}  # the record of a warning would have the crawler
        runner = AsyncCrawlerRunner({"ADDONS": ADDON, **QUIET, **quick, **settings})
        spider = visitor(site, "/", "/next")
        spider.suite_profile = profile  # type: ignore[attr-defined]
        crawler = runner.create_crawler(spider)
        ended.append(weakref.ref(crawler))
        await runner.crawl(crawler)
        assert crawler.stats.get_value("finish_reason") == "finished"

    for number in range(2):
        sinks = {"SUITE_PACKS_DIR": str(tmp_path / "packs"), "SUITE_LINK_STATS": ["hosts"],
                 "SUITE_ITEMS_DIR": str(tmp_path / "items")}  # fmt: skip
        run(crawl(JOBDIR=str(tmp_path / f"job{number}"), **sinks))
        run(crawl())
    if profile == "broad":  # it has its own collections: each few crawls free those before
        for _ in range(4):
            run(crawl())
        assert sum(crawler() is not None for crawler in ended) <= 5
    gc.collect()
    assert not [crawler for crawler in ended if crawler() is not None]
