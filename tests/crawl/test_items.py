"""SUITE_ITEMS_DIR and kills: each item of a page that is done stands exactly once in the files."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from support.crawls import crawl, crawl_over_kills, web_settings
from support.webs import FakeWebProcess

from scrapy_spider_suite.packs import open_items, open_packs, verify
from scrapy_spider_suite.testing import FakeWebConfig


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spider", "kills"), [("BulkItems", (0.8,)), ("Ordinary", (0.5,))]
)
def test_kills_lose_and_double_no_item(
    spider: str, kills: tuple[float, ...], tmp_path: Path
) -> None:
    """Killed at random: what is done has its items once, what is not has none.

    The broad crawl packs its pages, too: their items wait for that.
    """
    config = FakeWebConfig(hosts=8, pages=16, degree=8, addresses=8, errors=0.0)
    job, packs, items = (tmp_path / name for name in ("job", "packs", "items"))
    chance, each = random.Random(spider), 2 if spider == "BulkItems" else 1
    with FakeWebProcess(config) as web:
        settings = web_settings(
            web.ready.dns_port, JOBDIR=str(job), SUITE_HOST_DELAY=0.1, SUITE_IP_DELAY=0.01,
            SUITE_ITEMS_DIR=str(items), SUITE_AGENT_NAME="here",
            SUITE_PACKS_DIR=str(packs) if spider == "BulkItems" else None,
        )  # fmt: skip
        seed = web.ready.seeds[0]
        given = {"seeds": seed} if spider == "BulkItems" else {"start": seed}
        times = [kill + chance.random() / 2 for kill in kills]
        crawl_over_kills(f"support.spiders.{spider}", settings, tmp_path, times, **given)
        wanted = {url for url in web.web.reachable() if web.web.status(url) == 200}
    assert not list(items.glob("*.open"))
    found = Counter((item["url"], item.get("number", 1)) for item in open_items(items))
    assert set(found.values()) == {1}
    assert {url for url, _ in found} >= wanted
    assert len(found) == each * len({url for url, _ in found})
    if spider == "BulkItems":
        assert list(verify(packs)) == []
        assert {page.url for page in open_packs(packs)} >= wanted


@pytest.mark.slow
@pytest.mark.parametrize(("instant", "is_cut"), [("after commit", True), ("closed", False)])
def test_a_kill_at_the_worst_instants(instant: str, is_cut: bool, tmp_path: Path) -> None:
    """A block is written, and its commit is in memory only; a file has just got its name."""
    config, items = FakeWebConfig(hosts=6, pages=6, degree=5, errors=0.0), tmp_path / "items"
    with FakeWebProcess(config) as web:
        settings = web_settings(
            web.ready.dns_port, JOBDIR=str(tmp_path / "job"), SUITE_HOST_DELAY=0.3,
            SUITE_IP_DELAY=0, SUITE_ITEMS_DIR=str(items),
        )  # fmt: skip
        spider, seed = "support.spiders.BulkItems", web.ready.seeds[0]
        killed = crawl(spider, settings | {"TEST_KILL_AT": instant}, tmp_path, seeds=seed)
        assert killed.code == -signal.SIGKILL, killed.log[-3000:]
        before = Counter(item["url"] for item in open_items(items))
        last = crawl(spider, settings, tmp_path, seeds=seed)
        assert last.reason == "finished", last.log[-3000:]
        wanted = {url for url in web.web.reachable() if web.web.status(url) == 200}
    assert before
    assert (last.stats.get("suite/items/cut_bytes", 0) > 0) is is_cut
    assert Counter(item["url"] for item in open_items(items)) == Counter(dict.fromkeys(wanted, 2))
    assert not list(items.glob("*.open"))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Stops the start, with a line that says why."""
    (tmp_path / "file").write_bytes(b"")
    settings = web_settings(53, SUITE_ITEMS_DIR=str(tmp_path / "file" / "items"))
    ended = crawl("support.spiders.BulkItems", settings, tmp_path, seeds="http://a.test/")
    assert ended.code == 2
    assert "SUITE_ITEMS_DIR = " in ended.log.splitlines()[-1]
