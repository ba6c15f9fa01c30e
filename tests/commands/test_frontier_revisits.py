"""A job with plans of revisits, seen and asked from outside."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.frontier_command import HOST, Frontier, small_crawl
from support.inprocess_crawls import Crawled, crawl_here
from support.webs import FakeWebProcess
from support.websites import Site, links, running

from scrapy_spider_suite.frontier.revisit_rules import RevisitPolicy
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.revisit_plans import ROWS, RevisitPlans


class Broad(BroadSpider):
    """Follows everything."""

    name = "broad"


@pytest.fixture(scope="module", params=["trie", pytest.param("sieve", marks=pytest.mark.slow)])
def planned(
    request: pytest.FixtureRequest, web: FakeWebProcess, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The job of a crawl that waited for the next page to be due."""
    folder = tmp_path_factory.mktemp("planned")
    crawl = small_crawl(
        web, folder, SUITE_SEEN_STORE=request.param, SUITE_REVISIT="adaptive",
        CLOSESPIDER_TIMEOUT=4, SUITE_REVISIT_INTERVAL=3600, SUITE_BACKOFF_BASE=0.1,
        SUITE_BACKOFF_MAX=0.1,
    )  # fmt: skip
    assert crawl.reason == "closespider_timeout", crawl.log[-2000:]
    return folder / "job"


@pytest.fixture
def job(planned: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(planned, tmp_path / "job")


def plans(job: Path) -> set[str]:
    """The URLs that have one."""
    with StoreReader(job / FOLDER) as reader:
        assert list(reader.check()) == []
        revisits = RevisitPlans(reader.store.kv(ROWS), RevisitPolicy())
        return {plan.entry().url for _, plan in revisits.planned()}


def pages(web: FakeWebProcess) -> set[str]:
    """What is to be visited again."""
    return {url for url in web.web.reachable() if web.web.status(url) == 200}


def test_what_is_told_of_them(web: FakeWebProcess, planned: Path, frontier: Frontier) -> None:
    """status: how many, and when the first is due; why: when this one is, and why then."""
    on = ("-j", str(planned))
    assert plans(planned) == pages(web)
    [row] = frontier("status", "--json", *on).rows
    assert row["to_revisit"] == len(pages(web))
    assert row["next_due"] == pytest.approx(time.time() + 3600, abs=60)
    assert "next due" in frontier("status", *on).out
    url = min(pages(web))
    [why] = frontier("why", url, "--json", *on).rows
    assert why["state"] == "done"
    assert why["next_try"].startswith(("in 59 min: ", "in 60 min: "))
    assert why["why_then"].startswith("it changes about every 30 d, as is assumed")
    gone = next(url for url in web.web.reachable() if web.web.status(url) == 404)
    [why] = frontier("why", gone, "--json", *on).rows
    assert why["next_try"] == "never"


def test_dropped_with_their_host(web: FakeWebProcess, job: Path, frontier: Frontier) -> None:
    """Or with what lies below a URL."""
    url = min(url for url in pages(web) if urlsplit(url).hostname != HOST and url[-1] != "/")
    below = {each for each in pages(web) if each.startswith(url)}
    assert frontier("drop", url, "-j", str(job), "--yes").code == 0
    assert plans(job) == pages(web) - below
    assert frontier("drop", HOST, "-j", str(job), "--yes").code == 0
    assert plans(job) == {each for each in pages(web) - below if urlsplit(each).hostname != HOST}


def test_fetched_again_by_an_operator(web: FakeWebProcess, job: Path, frontier: Frontier) -> None:
    """It waits in its queue, and no longer to be due."""
    url = min(pages(web))
    file = job / "urls"
    file.write_text(f"{url}\n")
    assert frontier("refetch", str(file), "-j", str(job)).code == 0
    assert plans(job) == pages(web)
    with StoreReader(job / FOLDER) as reader:
        revisits = RevisitPlans(reader.store.kv(ROWS), RevisitPolicy())
        waiting = {key for _, key in revisits.indexed()}
        [out] = [plan.entry().url for key, plan in revisits.planned() if key not in waiting]
    assert out == url


def test_pages_of_before_plans_were_made(
    run: Callable[[Any], Crawled], tmp_path: Path, frontier: Frontier
) -> None:
    """They have one once an operator has had them fetched again."""
    job, urls = tmp_path / "job", tmp_path / "urls"
    options: dict[str, Any] = {
        "SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0,
        "JOBDIR": str(job), "ROBOTSTXT_OBEY": False,
    }  # fmt: skip
    with running(Site({"/": links("/next"), "/next": links()})) as site:
        seeds = {"seeds": f"{site.url}/"}
        run(crawl_here(Broad, arguments=seeds, **options))
        urls.write_text(f"{site.url}/next\n")
        assert frontier("refetch", str(urls), "-j", str(job)).code == 0
        assert plans(job) == set()
        options |= {"SUITE_REVISIT": "fixed", "CLOSESPIDER_TIMEOUT": 1}
        run(crawl_here(Broad, arguments=seeds, **options))
        assert plans(job) == {f"{site.url}/next"}


def test_a_snapshot_has_them(
    web: FakeWebProcess, planned: Path, tmp_path: Path, frontier: Frontier
) -> None:
    """All of them."""
    copy = tmp_path / "copy"
    assert frontier("snapshot", str(copy), "-j", str(planned)).code == 0
    assert plans(copy) == pages(web)


def test_what_does_not_agree_is_told(job: Path, frontier: Frontier) -> None:
    """A page that waits for nothing, one without a plan, and a wrong count."""
    from scrapy_spider_suite.store.rocks_store import RocksStore

    store = RocksStore(job / FOLDER / "store")
    rows = store.kv(ROWS)
    (first, _), (second, _) = list(rows.items(b"p"))[:2]
    index = {key[9:]: key for key, _ in rows.items(b"d")}
    rows.delete(index[first[1:]])
    rows.delete(second)
    store.close()
    said = frontier("check", "-j", str(job)).out
    assert "is to be visited again, but waits for nothing" in said
    assert "waits for another visit, but has no plan for that" in said
    assert "to be visited again, but the job counts" in said
