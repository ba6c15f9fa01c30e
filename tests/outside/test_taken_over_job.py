"""What lies in a JOBDIR is not passed over in silence: Scrapy's own queue, and a finished crawl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.names import Setting
from support.projects import Project
from support.websites import Site, links, running

_AT_ONCE = {Setting.ALLOW_PRIVATE_ADDRESSES: True, Setting.HOST_DELAY: 0, Setting.IP_DELAY: 0}
_PAGES = {"/": links(*(f"/{n}" for n in range(40))), **{f"/{n}": links() for n in range(40)}}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project whose spiders can run with the add-on and without."""
    exporter = {"scrapy.extensions.feedexport.FeedExporter": 0}
    return Project(tmp_path / "project", ROBOTSTXT_OBEY=False, EXTENSIONS=exporter)


@pytest.mark.parametrize("queue", ["Lifo", "Fifo"])
def test_scrapys_own_queue(project: Project, tmp_path: Path, queue: str) -> None:
    """A warning says how many requests are left behind, and how to finish that crawl: once."""
    job = tmp_path / "job"
    with running(Site(_PAGES)) as site:
        line = ("crawl", "ordinary", "-a", f"start={site.url}/")
        plain = project.scrapy(
            *line, JOBDIR=job, CLOSESPIDER_PAGECOUNT=5, CONCURRENT_REQUESTS=1,
            SCHEDULER_DISK_QUEUE=f"scrapy.squeues.Pickle{queue}DiskQueue",
            **{Setting.ENABLED: False},
        )  # fmt: skip
        left = len(_PAGES) - len(site.visits)
        assert left > 20, plain.stderr
        ended, later = (project.scrapy(*line, JOBDIR=job, **_AT_ONCE) for _ in range(2))
    assert ended.returncode == 0, ended.stderr
    warnings = [line for line in ended.stderr.splitlines() if "requests.queue" in line]
    assert len(warnings) == 1, ended.stderr
    assert f" {left} requests" in warnings[0]
    assert Setting.ENABLED in warnings[0]
    assert "requests.queue" not in later.stderr


def test_complete_job(project: Project, tmp_path: Path) -> None:
    """A finished job that is started again says so, and keeps the feed of the first run."""
    feed, other = tmp_path / "items.json", tmp_path / "items.jsonl"
    with running(Site(_PAGES)) as site:
        runs = [
            project.scrapy(
                "crawl", "ordinary", "-a", f"start={site.url}/", "-O", str(feed), "-O", str(other),
                JOBDIR=tmp_path / "job", **_AT_ONCE,
            )
            for _ in range(2)
        ]  # fmt: skip
        assert len(site.visits) == len(_PAGES)
    said = [line for line in runs[1].stderr.splitlines() if "this job is complete" in line]
    assert len(said) == 1, runs[1].stderr
    assert "refetch" in said[0]
    assert "JOBDIR" in said[0]
    assert "this job is complete" not in runs[0].stderr
    assert len(json.loads(feed.read_text() or "[]")) == len(_PAGES)
    assert len(other.read_text().splitlines()) == len(_PAGES)
    kept = [line for line in runs[1].stderr.splitlines() if f"{feed} is kept" in line]
    assert len(kept) == 1, runs[1].stderr
