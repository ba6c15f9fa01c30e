"""SUITE_ITEMS_DIR and kills: each item of a page that is done stands exactly once in the files."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from crawls import crawl, web_settings

from scrapy_spider_suite.packs import open_items, open_packs, verify
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spider", "kills"), [("BulkItems", (2.5, 4.0)), ("Ordinary", (0.8, 2.0))]
)
def test_kills_lose_and_double_no_item(
    spider: str, kills: tuple[float, ...], tmp_path: Path
) -> None:
    """Killed again and again: what is done has its items once, what is not has none.

    The broad crawl packs its pages, too: their items wait for that.
    """
    config = FakeWebConfig(hosts=40, pages=12, degree=8, addresses=20, errors=0.0)
    job, packs, items = (tmp_path / name for name in ("job", "packs", "items"))
    chance, each = random.Random(spider), 2 if spider == "BulkItems" else 1
    with FakeWebProcess(config) as web:
        settings = web_settings(
            web.ready.dns_port, JOBDIR=str(job), SUITE_HOST_DELAY=0.02, SUITE_IP_DELAY=0.01,
            SUITE_ITEMS_DIR=str(items), SUITE_AGENT_NAME="here",
            SUITE_PACKS_DIR=str(packs) if spider == "BulkItems" else None,
        )  # fmt: skip
        seed = web.ready.seeds[0]
        given = {"seeds": seed} if spider == "BulkItems" else {"start": seed}
        cut = 0
        for kill in kills:
            ended = crawl(
                f"crawl_spiders.{spider}", settings, tmp_path,
                kill_after=kill + chance.random(), **given,
            )  # fmt: skip
            if ended.code == 0:  # a fast machine
                break
            assert ended.code == -signal.SIGKILL, ended.log[-3000:]
            cut += len(list(items.glob("*.open")))
        last = crawl(f"crawl_spiders.{spider}", settings, tmp_path, **given)
        assert last.reason == "finished", last.log[-3000:]
        wanted = {url for url in web.web.reachable() if web.web.status(url) == 200}
    assert cut
    assert not list(items.glob("*.open"))
    found = Counter((item["url"], item.get("number", 1)) for item in open_items(items))
    assert set(found.values()) == {1}
    assert {url for url, _ in found} >= wanted
    assert len(found) == each * len({url for url, _ in found})
    if spider == "BulkItems":
        assert list(verify(packs)) == []
        assert {page.url for page in open_packs(packs)} >= wanted


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Stops the start, with a line that says why."""
    (tmp_path / "file").write_bytes(b"")
    settings = web_settings(53, SUITE_ITEMS_DIR=str(tmp_path / "file" / "items"))
    ended = crawl("crawl_spiders.BulkItems", settings, tmp_path, seeds="http://a.test/")
    assert ended.code == 2
    assert "SUITE_ITEMS_DIR = " in ended.log
    assert "Traceback" not in ended.log
