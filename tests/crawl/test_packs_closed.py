"""What becomes of packs when they are closed: uploaded, deleted, merged indexes, over kills."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import pytest
from scrapy.crawler import Crawler
from support.crawls import crawl_over_kills, web_settings
from support.inprocess_crawls import Crawled, crawl_here
from support.packs import fetch, hand_in, plan
from support.webs import FakeWebProcess
from support.websites import Site, links, running

from scrapy_spider_suite.packs import PackWriter, open_packs, verify
from scrapy_spider_suite.packs.pack_file import is_pack, packs_to_upload
from scrapy_spider_suite.packs.writer import GroupWriter, WriteJob
from scrapy_spider_suite.signals import pack_closed
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.testing import FakeWebConfig


class Broad(BroadSpider):
    """Follows everything, and hears of the packs that are closed."""

    name = "broad"
    told: ClassVar[list[Path]] = []

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Broad:
        """Listen."""
        cls.told.clear()
        crawler.signals.connect(cls.hear, pack_closed)
        return super().from_crawler(crawler, *args, **kwargs)

    @classmethod
    def hear(cls, path: Path) -> None:
        """Note a pack."""
        cls.told.append(path)


@pytest.fixture
def site() -> Iterator[Site]:
    """A page that leads to another."""
    with running(Site({"/": links("/next"), "/next": links()})) as server:
        yield server


def fast(packs: Path, **more: Any) -> dict[str, Any]:
    """Settings for a crawl here that packs."""
    return {"SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0,
            "SUITE_PACKS_DIR": str(packs), "SUITE_AGENT_NAME": "a", **more}  # fmt: skip


def test_packs_are_uploaded(site: Site, run: Callable[[Any], Crawled], tmp_path: Path) -> None:
    """What an earlier crawl left, and the own ones; here are the indexes, there is everything."""
    packs, far = tmp_path / "packs", tmp_path / "far"
    earlier = PackWriter(plan(packs))
    hand_in(earlier, fetch(0))
    earlier.close()
    settings = fast(packs, SUITE_PACKS_UPLOAD=str(far), SUITE_PACKS_KEEP=False)
    done = run(crawl_here(Broad, arguments={"seeds": f"{site.url}/"}, **settings))
    assert done.reason == "finished"
    assert done.stat("suite/packs/uploaded") == 2
    assert done.stat("suite/packs/upload_waiting") == 0
    assert not list(filter(is_pack, packs.iterdir()))
    assert len(open_packs(packs).history(f"{site.url}/next")) == 1
    page = open_packs(far).get(f"{site.url}/next")
    assert page is not None
    assert done.stat("suite/packs/uploaded_bytes") == sum(
        path.stat().st_size for path in filter(is_pack, far.iterdir())
    )
    assert list(verify(far)) == []


def test_a_target_that_fails_holds_up_nothing(
    site: Site, run: Callable[[Any], Crawled], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The crawl ends as ever, the packs stay here, and the next crawl uploads them."""
    packs, far = tmp_path / "packs", tmp_path / "far"
    far.touch()
    settings = fast(packs, SUITE_PACKS_UPLOAD=str(far), SUITE_PACKS_KEEP=False)
    arguments = {"seeds": f"{site.url}/"}
    done = run(crawl_here(Broad, arguments=arguments, **settings))
    assert done.reason == "finished"
    assert done.stat("suite/packs/upload_failed") >= 1
    assert done.stat("suite/packs/upload_waiting") == 1
    assert "packs wait to be uploaded: 1, from" in caplog.text
    assert open_packs(packs).get(f"{site.url}/next") is not None
    far.unlink()
    again = run(crawl_here(Broad, arguments=arguments, **settings))
    assert again.stat("suite/packs/uploaded") == 2
    assert len(open_packs(far).history(f"{site.url}/next")) == 2


def test_packs_that_a_kill_left_are_closed_beside_the_crawl(
    site: Site, run: Callable[[Any], Crawled], tmp_path: Path
) -> None:
    """In the writer's thread, before anything else is written; the signal tells of them, too."""
    left = GroupWriter(plan(tmp_path), lambda path: None)
    for number in range(5):
        left.add_job(WriteJob([fetch(number)], Future()), 1e9)
    left.write(1e9)
    left.give_up(RuntimeError())
    done = run(crawl_here(Broad, arguments={"seeds": f"{site.url}/"}, **fast(tmp_path)))
    assert done.stat("suite/packs/recovered") == 1
    assert done.stat("suite/packs/closed") == 2
    assert set(Broad.told) == set(filter(is_pack, tmp_path.iterdir()))
    assert len(list(open_packs(tmp_path))) == 5 + done.stat("suite/packs/answers")
    assert list(verify(tmp_path)) == []


@pytest.mark.slow
def test_kills_lose_no_page_on_its_way(tmp_path: Path) -> None:
    """Killed while packs are closed, uploaded, deleted and merged: all pages are here or there."""
    config = FakeWebConfig(hosts=12, pages=10, degree=8, addresses=12, errors=0.0)
    job, packs, far = tmp_path / "job", tmp_path / "packs", tmp_path / "far"
    chance = random.Random(7)
    for _ in range(4):  # of another agent: not uploaded, but merged
        earlier = PackWriter(plan(packs))
        hand_in(earlier, fetch(0))
        earlier.close()
    with FakeWebProcess(config) as web:
        settings = web_settings(
            web.ready.dns_port, JOBDIR=str(job), SUITE_HOST_DELAY=0.02, SUITE_IP_DELAY=0.01,
            SUITE_PACKS_DIR=str(packs), SUITE_AGENT_NAME="here", SUITE_PACKS_AGE=0.2,
            SUITE_PACKS_UPLOAD=str(far), SUITE_PACKS_KEEP=False,
        )  # fmt: skip
        times = [chance.uniform(0.4, 1.6) for _ in range(2)]
        seed = web.ready.seeds[0]
        crawl_over_kills("support.spiders.Bulk", settings, tmp_path, times, seeds=seed)
        expected = {url for url in web.web.reachable() if web.web.status(url) == 200}
    assert packs_to_upload(packs, "here", keep=False) == []
    found = Counter(page.url for page in open_packs(far) if page.status == 200)
    assert set(found) >= expected
    assert list(verify(far)) == []
    assert not list(far.glob("*.part"))
    assert list(packs.glob("merged-*.cdxj"))
    index = open_packs(packs)
    assert all(index.history(url) for url in expected)
