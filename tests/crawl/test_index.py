"""SUITE_INDEX: what is packed is found, while the crawl runs, and at the end.

That it is after kills, too, `test_counting` shows.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.exceptions import NotConfigured
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler
from support.crawls import ADDON
from support.inprocess_crawls import Crawled, crawl_here
from support.text_index import contents, expected
from support.websites import Site, links, running

from scrapy_spider_suite.analysis.search.index_process import IndexProcess
from scrapy_spider_suite.analysis.search.text_index import TextIndex
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.pipelines import IndexPipeline
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.spiders import BroadSpider


class Broad(BroadSpider):
    """Follows everything."""

    name = "broad"


@pytest.fixture
def site() -> Iterator[Site]:
    """A running site."""
    pages = {"/": links("/apple", "/birch"), "/apple": "<p>apple</p>", "/birch": "<p>birch</p>"}
    with running(Site(pages)) as server:
        yield server


def settings(packs: Path) -> dict[str, Any]:
    """Those of a crawl of one site."""
    return {"SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0,
            "SUITE_PACKS_DIR": str(packs), "SUITE_INDEX": True}  # fmt: skip


def test_it_is_there_at_the_end(
    site: Site, run: Callable[[Any], Crawled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the last page, too; a process that ends is started again."""
    started: list[IndexProcess] = []
    honest = IndexProcess.__init__

    def start(self: IndexProcess, *arguments: Any) -> None:
        honest(self, *arguments)
        started.append(self)
        if len(started) == 1:
            os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(IndexProcess, "__init__", start)
    monkeypatch.setattr(BroadSpider, "start", _slowly(BroadSpider.start))
    done = run(crawl_here(Broad, arguments={"seeds": f"{site.url}/"}, **settings(tmp_path)))
    assert done.reason == "finished"
    assert done.stat("suite/index/restarts") == 1
    assert len(started) == 2
    assert contents(tmp_path) == expected(tmp_path)
    assert len(contents(tmp_path)) == 3
    assert {hit.url for hit in TextIndex([tmp_path]).search("apple")} == {
        f"{site.url}/", f"{site.url}/apple"
    }  # fmt: skip


def _slowly(honest: Any) -> Any:
    async def start(self: Any) -> Any:
        await asyncio.sleep(1.5)  # a process that ended is started again after a second
        async for each in honest(self):
            yield each

    return start


@pytest.mark.parametrize(
    ("wrong", "why"),
    [({"SUITE_PACKS_DIR": ""}, "SUITE_PACKS_DIR"),
     ({"SUITE_PACKS_UPLOAD": "memory://x", "SUITE_PACKS_KEEP": False}, "SUITE_PACKS_KEEP")],
)  # fmt: skip
def test_what_does_not_fit(wrong: dict[str, Any], why: str, tmp_path: Path) -> None:
    """Is said at the start."""
    with pytest.raises(SettingsError, match=f"SUITE_INDEX = True.*{why}"):
        SuiteSettings.from_settings(Settings({**settings(tmp_path), **wrong}), Spider)


def test_what_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The crawl is refused; the pipeline alone is not configured."""
    monkeypatch.setitem(sys.modules, "tantivy", None)
    crawler = get_crawler(Broad, {**settings(tmp_path), "ADDONS": {}})
    with pytest.raises(NotConfigured, match=r"scrapy-spider-suite\[index\]"):
        IndexPipeline.from_crawler(crawler)
    with pytest.raises(SettingsError):
        get_crawler(Broad, {**settings(tmp_path), "ADDONS": ADDON})._apply_settings()
