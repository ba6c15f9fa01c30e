"""A job as page, terminal and metrics see it: running, ended, foreign, torn, half deleted."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scrapy.settings import Settings
from support.frontier_command import HOST, small_crawl
from support.webs import FakeWebProcess

from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.fetch import fetch_log
from scrapy_spider_suite.operate.crawl_view import CrawlView, make_overview, open_view
from scrapy_spider_suite.store.job_reader import STATUS_FILE, CrawlState
from scrapy_spider_suite.testing import FakeWebConfig

HOSTS, PAGES = 4, 6


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job of a small crawl, with packs and link statistics."""
    folder = tmp_path_factory.mktemp("crawled")
    with FakeWebProcess(FakeWebConfig(hosts=HOSTS, pages=PAGES, degree=4)) as web:
        small_crawl(
            web, folder, SUITE_PACKS_DIR=str(folder / "packs"), SUITE_LINK_STATS=["links", "out"],
        )  # fmt: skip
    return folder / "job"


@pytest.fixture
def job(crawled: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may spoil."""
    shutil.copytree(crawled, tmp_path / "job")
    return tmp_path / "job"


def test_a_crawl_that_has_ended(crawled: Path) -> None:
    """Everything that a page shows is there, as JSON, and quickly."""
    view = open_view(str(crawled), Settings())
    found = view.overview()
    json.dumps(found, allow_nan=False)
    assert (found["state"], found["healthy"], found["agents"]) == ("ended", True, [])
    assert found["words"].startswith("The crawl ended ")
    assert found["counters"]["pages"] == HOSTS * PAGES
    assert found["gauges"]["pending"] == 0
    now = time.time()
    assert np.nansum(view.series(now - 3_600, now, 60).total("pages")) == HOSTS * PAGES
    assert {row["host"] for row in view.hosts("slowest", 10)} >= {HOST}
    [host] = [row for row in view.why(HOST) if row["host"] == HOST]
    assert host["done"] == PAGES
    pages = view.pages(5)
    assert len(pages) == 5
    assert all(page["status"] == 200 and page["pack"]["file"] for page in pages)
    assert view.why(pages[0]["url"])[0]["state"] == "done"
    links = view.links()
    assert links["pages"] == HOSTS * PAGES
    assert sum(count for _, count in links["degrees"]["out"]) == HOSTS * PAGES
    with pytest.raises(JobError, match="index"):
        view.search("words")
    spent = []
    for _ in range(5):
        began = time.thread_time()
        view.overview()
        spent.append(time.thread_time() - began)
    assert min(spent) < 0.02


def test_no_job(tmp_path: Path, job: Path) -> None:
    """A folder that is missing or foreign is refused; one that goes later says so."""
    for folder in (tmp_path / "nothing", tmp_path):
        with pytest.raises(JobError, match="holds no job"):
            open_view(str(folder), Settings())
    view = open_view(str(job), Settings())
    view.overview()
    shutil.rmtree(job)
    with pytest.raises(JobError, match="is gone"):
        view.overview()
    for question in (lambda: view.hosts("pending", 5), lambda: view.why(HOST), view.links):
        with pytest.raises(JobError):
            question()
    with pytest.raises(JobError):
        view.pages(5)
    assert np.isnan(view.series(0, time.time(), 10).total("pages")).all()


@pytest.mark.parametrize("gone", ["store", "series", "fetches", "status.json", "lock"])
def test_half_deleted(job: Path, gone: str) -> None:
    """Whatever is missing, the rest is shown, or the reason said."""
    view = open_view(str(job), Settings())
    path = job / "suite" / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert view.overview()["state"] == "ended"
    view.pages(5)
    view.series(time.time() - 60, time.time(), 60)
    if gone == "store":
        with pytest.raises(JobError):
            view.hosts("pending", 5)
    else:
        view.hosts("pending", 5)


@pytest.mark.parametrize("status", [
    "", "[]", "{", '{"when": "noon"}', '{"pulse": 3}', '{"pulse": {"counters": [1]}}',
    '{"waits": 5}', '{"waits": [{}]}', '{"pulse": {"end": []}}', '{"ended": "x", "when": []}',
    '{"pulse": {"gauges": {"pending": "<b>", "hosts": 1e999}}}', '{"ended": 1, "exit_code": {}}',
    f'{{"pulse": {{"counters": {{"pages": {"9" * 400}}}, "when": {"9" * 400}}}}}', "[" * 100_000,
    f'{{"when": {"9" * 400}}}', '{"waits": [{"reason": "", "hosts": 1e999, "next_visit": 1}]}',
])  # fmt: skip
def test_foreign_status(job: Path, status: str) -> None:
    """What somebody else wrote breaks nothing: a clear error, or the values that are sound."""
    (job / "suite" / STATUS_FILE).write_text(status)
    try:
        json.dumps(open_view(str(job), Settings()).overview(), allow_nan=False)
    except JobError as error:
        assert "cannot be read" in str(error)  # noqa: PT017


def test_the_last_good_status_stays(job: Path) -> None:
    """While the file is being written, or the disk is full."""
    view = CrawlView(job, Settings())
    before = view.overview()
    (job / "suite" / STATUS_FILE).write_text("{")
    assert view.overview()["counters"] == before["counters"]


def test_another_job_at_the_same_path(job: Path) -> None:
    """Nothing of the old one is left."""
    view = CrawlView(job, Settings())
    assert view.overview()["counters"]["pages"] > 0
    path = job / "suite" / "job.json"
    new = json.loads(path.read_text()) | {"id": "another", "spider": "new", "created": 1.0}
    path.write_text(json.dumps(new))
    (job / "suite" / STATUS_FILE).unlink()
    found = view.overview()
    assert (found["spider"], found["began"], found["counters"]["pages"]) == ("new", 1.0, 0)


@pytest.mark.parametrize("compressed", [False, True])
def test_recent_pages_after_a_rotation(job: Path, compressed: bool) -> None:
    """They come from the file before."""
    view = CrawlView(job, Settings())
    before = view.pages(100)
    folder = job / "suite" / fetch_log.LOG_FOLDER
    path = folder / "fetch-20260101T000000.000Z-20260101T000001.000Z.log"
    (folder / fetch_log.ACTIVE).rename(path)
    line = fetch_log.format_line(1.0, 200, 1, 1, "http://new.test/")
    (folder / fetch_log.ACTIVE).write_bytes(fetch_log.HEAD + line)
    if compressed:
        fetch_log.compress_file(path)
    assert [page["url"] for page in view.pages(100)] == [
        "http://new.test/", *(page["url"] for page in before)
    ]  # fmt: skip


def words(state: CrawlState, **status: Any) -> tuple[bool, str]:
    """Whether a crawl of this *status* is healthy, and the sentence about it."""
    now = 1_000_000.0
    pulse = {"counters": {"pages": 12}, "gauges": {"pending": 5}, "rates": {"pages": 2.0},
             "end": {"trend": "falls", "seconds": 7_200.0}}  # fmt: skip
    found = make_overview({"when": now - 100, "pulse": pulse, **status}, state, now)
    return found["healthy"], found["words"]


def test_one_sentence_says_how_it_is() -> None:
    """Whether it is healthy, and if not, why."""
    running = CrawlState.RUNNING
    assert words(running) == (
        True, "The crawl runs well: it fetches 2.0 a second, 5 URLs to go (about 2 h)."
    )  # fmt: skip
    assert words(running, pauses=["the operator"]) == (True, "The crawl is paused by the operator.")
    assert words(running, pauses=["the disk"]) == (False, "The crawl is paused by the disk.")
    assert words(running, closing=True) == (True, "The crawl is stopping.")
    assert words(CrawlState.KILLED) == (False, "The crawl was killed 100 s ago, after 12 pages.")
    silent = "The crawl has been silent for 100 s: its event loop stands still."
    assert words(CrawlState.SILENT) == (False, silent)
    ended = {"ended": 999_990.0, "finish_reason": "finished", "exit_code": 0}
    assert words(CrawlState.ENDED, **ended) == (
        True, "The crawl ended 10 s ago (finished) after 12 pages."
    )  # fmt: skip
    assert not words(CrawlState.ENDED, **ended | {"exit_code": 6, "finish_reason": "damaged"})[0]
    assert not words(running, silent_name_servers=["127.0.0.1"])[0]
