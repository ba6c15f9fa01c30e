"""``set`` in a crawl that runs, read from the server's log; and where it is refused."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from support.frontier_command import FAST, HOST, Frontier
from support.running_crawl import running, until
from support.webs import FakeWebProcess

from scrapy_spider_suite.operate.actions import AuditLog
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.testing import FakeWebConfig


def test_without_a_crawl(job: Path, frontier: Frontier) -> None:
    """There is nothing that it could hold for; the way out is named."""
    said = frontier("set", "SUITE_HOST_DELAY", "3", "-j", str(job))
    assert said.code == 1
    assert said.out.startswith("no crawl is running: `set` changes a running crawl")
    assert "change SUITE_HOST_DELAY where the crawl is started" in said.out
    [row] = AuditLog(job / FOLDER).rows()
    assert (row["verb"], row["ok"]) == ("set", False)
    said = frontier("set", "SUITE_HOST_DELLAY", "3", "-j", str(job))
    assert said.code == 1
    assert "did you mean SUITE_HOST_DELAY?" in said.out
    assert "no crawl is running" not in said.out
    said = frontier("set", "CONCURRENT_REQUESTS", "3", "-j", str(job))
    assert "change CONCURRENT_REQUESTS where the crawl is started" in said.out
    assert "use SUITE_HOST_DELAY" in frontier("set", "DOWNLOAD_DELAY", "3", "-j", str(job)).out
    assert frontier("set", "SUITE_REDIS_URL", "redis://me:se/cret@a.test", "-j", str(job)).code == 1
    key = "a key of 16 letters"
    assert frontier("set", "SUITE_CLUSTER_KEY", key, "-j", str(job)).code == 1
    written = AuditLog(job / FOLDER).path.read_text()
    assert "cret" not in written
    assert key not in written


@pytest.mark.slow
def test_a_longer_delay(frontier: Frontier, tmp_path: Path) -> None:
    """From the answer on no two requests to a host are closer; refusals leave it as it is."""
    config = FakeWebConfig(hosts=3, pages=200, log=tmp_path / "arrivals")
    job, delay = str(tmp_path / "job"), 0.5
    with FakeWebProcess(config) as web, running(web, tmp_path, **FAST):
        until(lambda: len(web.arrivals()) > 20)
        said = frontier("set", "SUITE_HOST_DELAY", "0.5", "--why", "asked", "-j", job)
        answered = time.time()
        assert said.out == "SUITE_HOST_DELAY was 0.01 and is 0.5 until this crawl ends\n"
        assert "0.5 already" in frontier("set", "SUITE_HOST_DELAY", "0.5", "-j", job).out
        for name, value, why in (
            ("SUITE_PROFILE", "spider", "SUITE_PROFILE is fixed for the life of a job"),
            ("SUITE_HOST_DELAY", "soon", "expected a number of seconds"),
            ("SUITE_HOST_DELLAY", "3", "did you mean SUITE_HOST_DELAY?"),
            ("SUITE_ENABLED", "false", "fixed for the life of a job"),
        ):
            refused = frontier("set", name, value, "-j", job)
            assert refused.code == 1
            assert why in refused.out
        until(lambda: len([a for a in web.arrivals() if a.start > answered]) > 12)
        later = sorted(a for a in web.arrivals() if a.host == HOST and a.start > answered)
    gaps = [b.start - a.end for a, b in pairwise(later)]
    assert gaps
    assert min(gaps) > delay - 0.005
