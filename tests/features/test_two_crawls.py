"""Two crawls in one process, of which one cannot begin."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from scrapy.crawler import AsyncCrawlerRunner
from support.crawls import ADDON
from support.inprocess_crawls import QUIET
from support.visiting_spider import visitor
from support.websites import Answer, Site, links

from scrapy_spider_suite.errors import JobInUseError


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
