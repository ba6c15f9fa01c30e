"""``pause`` and ``resume``, on a crawl that runs and on a job that lies still."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.frontier_command import FAST, Frontier, small_crawl
from support.running_crawl import running, until
from support.webs import FakeWebProcess

from scrapy_spider_suite.operate.actions import AuditLog
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.testing import FakeWebConfig


def test_a_job_that_lies_still(job: Path, frontier: Frontier) -> None:
    """The job keeps it; asking twice is no error; who and why are written down."""
    said = frontier("pause", "-j", str(job), "--why", "the night", "--who", "ops@h", "--json")
    assert (said.code, said.rows[0]["changed"]) == (0, True)
    again = frontier("pause", "-j", str(job))
    assert again.out == "it was paused already: ops@h: the night\n"
    assert frontier("resume", "-j", str(job)).out == "the crawl goes on\n"
    assert frontier("resume", "-j", str(job)).out == "it was not paused\n"
    rows = list(AuditLog(job / FOLDER).rows())
    assert [(row["verb"], row["why"]) for row in rows] == [
        ("pause", "the night"), ("pause", ""), ("resume", ""), ("resume", ""),
    ]  # fmt: skip
    assert rows[0]["who"] == "ops@h"
    assert "@" in rows[1]["who"]
    assert frontier("check", "-j", str(job)).code == 0


def test_it_is_why_a_host_waits(job: Path, frontier: Frontier) -> None:
    """`hosts` says so, where it would promise a visit otherwise."""
    assert frontier("add", "http://waits.test/", "-j", str(job)).code == 0
    assert frontier("pause", "-j", str(job), "--why", "lunch", "--who", "ops@h").code == 0
    rows = {row["host"]: row for row in frontier("hosts", "-j", str(job), "--json").rows}
    assert rows["waits.test"]["next_visit"] is None
    assert rows["waits.test"]["why"].startswith("the job is paused by ops@h: lunch; ")


def test_a_finished_job_that_is_paused_goes_on_when_it_is_resumed(
    web: FakeWebProcess, job: Path, frontier: Frontier
) -> None:
    """An unclean end stays one: acting on a job does not make it look well."""
    assert frontier("pause", "-j", str(job)).code == 0
    assert frontier("resume", "-j", str(job)).code == 0
    assert small_crawl(web, job.parent, JOBDIR=str(job)).reason == "finished"


def test_a_crawl_that_begins_paused(
    web: FakeWebProcess, frontier: Frontier, tmp_path: Path
) -> None:
    """What is asked where no job is yet is done by the crawl that begins one, before it begins."""
    job = tmp_path / "new" / "job"
    missing = frontier("pause", "-j", str(job))
    assert missing.code == 2
    assert "cannot be written" in missing.out
    job.parent.mkdir()
    said = frontier("pause", "-j", str(job), "--why", "not yet", "--who", "ops@h")
    assert said.out == f"{job} holds no job yet: the crawl that begins a job there waits\n"
    crawled = small_crawl(web, tmp_path, JOBDIR=str(job), CLOSESPIDER_TIMEOUT=1)
    assert crawled.reason == "closespider_timeout"
    [row] = AuditLog(job / FOLDER).rows()
    assert (row["verb"], row["who"], row["why"], row["ok"]) == ("pause", "ops@h", "not yet", True)
    assert frontier("status", "-j", str(job), "--json").rows[0]["done"] == 0
    assert frontier("resume", "-j", str(job)).out == "the crawl goes on\n"


@pytest.mark.slow
def test_a_running_crawl(frontier: Frontier, tmp_path: Path) -> None:
    """Nothing reaches the server while it is paused; it does not end; a restart stays paused."""
    config = FakeWebConfig(hosts=10, pages=100, log=tmp_path / "arrivals")
    job = tmp_path / "job"
    settings = {**FAST, "SUITE_HOST_DELAY": 0.2, "SUITE_MAX_WAIT": 1.0}
    with FakeWebProcess(config) as web:
        with running(web, tmp_path, **settings):
            until(web.arrivals)
            asked = time.time()
            assert frontier("pause", "-j", str(job), "--json").rows[0]["paused"]
            assert time.time() - asked < 10  # seconds: generous to a busy machine
            began = time.time()
            until(lambda: frontier("status", "-j", str(job), "--json").rows[0]["paused"])
            time.sleep(2.0)
            assert [a for a in web.arrivals() if a.start > began + 0.5] == []
            status = frontier("status", "-j", str(job), "--json").rows[0]
            assert status["running"]
        before = len(web.arrivals())
        with running(web, tmp_path, **settings) as process:
            until(lambda: frontier("status", "-j", str(job), "--json").rows[0].get("paused"))
            time.sleep(1.0)
            assert len(web.arrivals()) == before
            assert process.poll() is None
            assert frontier("resume", "-j", str(job)).code == 0
            until(lambda: len(web.arrivals()) > before)
    assert frontier("check", "-j", str(job)).code == 0
