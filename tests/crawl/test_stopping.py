"""How a crawl ends: told to, by its limits, or since only waiting is left; and goes on after."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.crawls import Crawl, crawl, start
from support.polite_crawls import Size, pages_of
from support.webs import FakeWebProcess

from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader

TINY = Size(hosts=6, addresses=3, pages=6, host_delay=0.2, ip_delay=0.02)
STOP = 3.0
"""SUITE_STOP_TIMEOUT, seconds."""
PATIENT = 50.0
"""SUITE_STOP_TIMEOUT where a stop has nothing to wait for."""
PROMPT = 8.0
"""Seconds that a prompt stop takes at most, on a busy machine, the end of the process included."""
BOTH = ["support.spiders.Bulk", "support.odd_spiders.Seeded"]
QUICK = {"SUITE_HOST_DELAY": 0.1, "SUITE_BACKOFF_BASE": 0.1}


class Job:
    """One job on one in-vitro web, over as many runs as a test likes."""

    def __init__(self, folder: Path, spider: str, **knobs: Any) -> None:
        self.folder, self.spider = folder, spider
        self.config = TINY.web(folder / "arrivals", **{"redirects": 0.0, **knobs})
        self.web = FakeWebProcess(self.config)

    def __enter__(self) -> Job:
        self.web.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.web.stop()

    def settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Those of one run."""
        common = {
            "JOBDIR": str(self.folder / "job"), "SUITE_STOP_TIMEOUT": STOP,
            "IMAGES_STORE": str(self.folder / "images"),
        }  # fmt: skip
        return TINY.settings(self.web.ready, **{**common, **settings})

    def run(self, **settings: Any) -> Crawl:
        """Run to the end; the job directory must be sound then."""
        end = crawl(
            self.spider, self.settings(settings), self.folder,
            seeds=str(self.config.seeds_file),
        )  # fmt: skip
        assert end.code == 0, end.log[-3000:]
        assert self.check() == []
        return end

    def stop_after(self, seconds: float, **settings: Any) -> tuple[float, str]:
        """Run, send SIGTERM *seconds* after the spider was opened; how long that took, and why."""
        seeds = str(self.config.seeds_file)
        log = self.folder / "log"
        log.write_text("")
        process = start(self.spider, self.settings(settings), self.folder, seeds=seeds)
        for _ in range(600):
            if "Spider opened" in log.read_text():
                break
            time.sleep(0.05)
        time.sleep(seconds)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(100)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        took = time.monotonic() - began
        assert self.check() == []
        return took, json.loads((self.folder / "stats.json").read_text())["closed"]

    def check(self) -> list[str]:
        """What is wrong with the job directory."""
        with StoreReader(self.folder / "job" / FOLDER) as reader:
            return list(reader.check())

    def missing(self) -> set[str]:
        """URLs that should have been fetched and were not. Stops the web."""
        self.web.stop()
        fetched = Counter(
            f"http://{each.host}:{self.web.ready.http_port}{each.path}"
            for each in pages_of(self.web.arrivals())
        )
        return set(self.web.web.reachable(obey_robots=True)) - set(fetched)


@pytest.mark.parametrize("spider", BOTH)
def test_a_stop_does_not_wait_for_hosts_that_wait(spider: str, tmp_path: Path) -> None:
    """With delays of a minute the crawl ends at once, and goes on where it was."""
    with Job(tmp_path, spider) as job:
        took, reason = job.stop_after(2.0, SUITE_HOST_DELAY=60, SUITE_STOP_TIMEOUT=PATIENT)
        assert reason == "shutdown"
        assert took < PROMPT
        # The hosts are kept waiting for what they were promised, after the restart too.
        assert job.run(SUITE_MAX_WAIT=3, **QUICK).reason == "waiting"


@pytest.mark.slow
def test_a_stop_does_not_wait_for_images_that_wait(tmp_path: Path) -> None:
    """Pages whose images were cut off are fetched again, none is lost."""
    pytest.importorskip("PIL")
    pipeline = {"ITEM_PIPELINES": {"scrapy.pipelines.images.ImagesPipeline": 1}}
    images = {host: {"images": 4} for host in (0, 1)}
    with Job(tmp_path, "support.odd_spiders.Pictures", overrides=images) as job:
        took, reason = job.stop_after(
            2.0, SUITE_HOST_DELAY=3, SUITE_STOP_TIMEOUT=PATIENT, **pipeline
        )
        assert reason == "shutdown"
        assert took < PROMPT  # the four images of a page would take 12
        assert job.run(**QUICK, **pipeline).reason == "finished"
        assert job.missing() == set()


@pytest.mark.slow
@pytest.mark.parametrize("spider", BOTH)
def test_a_stop_cuts_short_what_never_answers(spider: str, tmp_path: Path) -> None:
    """Within SUITE_STOP_TIMEOUT, with the URL still pending."""
    hanging = {host: {"latency": 60} for host in (1, 2)}
    with Job(tmp_path, spider, overrides=hanging) as job:
        took, reason = job.stop_after(2.5, ROBOTSTXT_OBEY=False)
        assert reason == "shutdown"
        assert 1.0 < took < STOP + PROMPT
        with StoreReader(tmp_path / "job" / FOLDER) as reader:
            pending = {key: record.pending for key, record in reader.store.records()}
        assert pending["h000001.fake.test"] >= 1


@pytest.mark.parametrize("spider", BOTH)
def test_limits_of_scrapy_close_the_crawl_and_the_next_run_goes_on(
    spider: str, tmp_path: Path
) -> None:
    """CLOSESPIDER_PAGECOUNT, CLOSESPIDER_TIMEOUT, and then to the end: each page once."""
    with Job(tmp_path, spider) as job:
        assert job.run(CLOSESPIDER_PAGECOUNT=8).reason == "closespider_pagecount"
        assert job.run(CLOSESPIDER_TIMEOUT=1).reason == "closespider_timeout"
        assert job.run().reason == "finished"
        assert job.missing() == set()
        pages = [each for each in pages_of(job.web.arrivals()) if each.status == 200]
        assert len({(each.host, each.path) for each in pages}) == len(pages)
        assert TINY.too_early(job.web.arrivals()) == []


@pytest.mark.slow
def test_a_crawl_that_only_waits_closes_and_can_be_resumed(tmp_path: Path) -> None:
    """SUITE_MAX_WAIT: the reason is 'waiting'; a later run keeps what the host asked for."""
    refusing = {1: {"retry_after_requests": 1, "retry_after_delay": 9.0}}
    with Job(tmp_path, "support.spiders.Bulk", overrides=refusing) as job:
        first = job.run(SUITE_MAX_WAIT=2)
        assert first.reason == "waiting"
        assert first.stats["suite/frontier/pending"] > 0
        assert job.run(SUITE_MAX_WAIT=60).reason == "finished"
        assert job.missing() == set()
        visits = sorted(a for a in job.web.arrivals() if a.host == "h000001.fake.test")
        (at,) = (number for number, each in enumerate(visits) if each.status in (429, 503))
        assert visits[at + 1].start - visits[at].end >= 8.5


@pytest.mark.slow
def test_a_crawl_can_wait_for_more(tmp_path: Path) -> None:
    """SUITE_WHEN_DONE = wait: nothing is left, and it goes on until it is told to stop."""
    with Job(tmp_path, "support.spiders.Bulk") as job:
        assert job.run().reason == "finished"
        took, reason = job.stop_after(1.5, SUITE_WHEN_DONE="wait", SUITE_STOP_TIMEOUT=PATIENT)
        assert (reason, took < PROMPT) == ("shutdown", True)


@pytest.mark.slow
def test_a_pause_sends_nothing_and_loses_nothing(tmp_path: Path) -> None:
    """`engine.pause()`, and on again 1.5 seconds later."""
    with Job(tmp_path, "support.odd_spiders.Seeded") as job:
        end = job.run(EXTENSIONS={"support.odd_spiders.Pauser": 1})
        assert end.reason == "finished"
        assert job.missing() == set()
        starts = sorted(each.start for each in job.web.arrivals())
        assert max(after - before for before, after in pairwise(starts)) > 1.2
