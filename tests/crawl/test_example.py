"""The example project, as a stranger types it."""

from __future__ import annotations

import re
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support.projects import scrapy

from scrapy_spider_suite.runtime.refusal import ExitCode

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example project."""
    return shutil.copytree(ROOT / "example_project", tmp_path / "example_project")


@pytest.mark.slow
def test_it_crawls_its_own_web_and_ends_with_a_summary(project: Path) -> None:
    """No error, every page of every host, exit code 0; its stats are all documented."""
    done = scrapy(project, "crawl", "broad", "-a", "hosts=30", "-a", "pages=3")
    assert done.returncode == 0, done.stderr
    assert "crawling an in-vitro web of 30 hosts on 3 addresses" in done.stderr
    summary = re.search(r"The crawl ended \(finished\) after \d+ s in all: (.*)", done.stderr)
    assert summary is not None, done.stderr[-3000:]
    assert summary[1].startswith("90 pages done, 0 URLs failed, 0 left (90 success")
    assert not re.search(r"\b(ERROR|CRITICAL): ", done.stderr)
    told = set(re.findall(r"`(suite/[^`]+)`", (ROOT / "docs" / "stats.md").read_text()))
    patterns = {re.sub(r"\b[A-Z]+\b", "*", name) for name in told}
    names = set(re.findall(r"'(suite/[^']+)'", done.stderr))
    assert len(names) > 10
    assert {name for name in names if not any(fnmatch(name, one) for one in patterns)} == set()


@pytest.mark.slow
def test_it_goes_on_with_its_job(project: Path) -> None:
    """What was pending is served where it was: nothing fails, every page is fetched; and with the
    same line again nothing is left to do, and nothing is fetched."""
    line = ("crawl", "broad", "-a", "hosts=5", "-a", "pages=4", "-s", "JOBDIR=crawls/mine")
    first = scrapy(project, *line, "-s", "CLOSESPIDER_PAGECOUNT=5")
    assert first.returncode == ExitCode.WORK_LEFT, first.stderr
    assert " 0 left" not in first.stderr
    again = scrapy(project, *line)
    assert again.returncode == 0, again.stderr
    assert "20 pages done, 0 URLs failed, 0 left (20 success)" in again.stderr
    last = scrapy(project, *line)
    assert last.returncode == 0, last.stderr
    assert "start() ran to its end in an earlier run of this job" in last.stderr
    assert "downloader/request_count" not in last.stderr
    assert "20 pages done, 0 URLs failed, 0 left" in last.stderr


@pytest.mark.parametrize(
    ("agent", "seeds", "said"),
    [
        ("example-crawler/1.0", "a.test", "USER_AGENT = 'example-crawler/1.0': expected the addr"),
        ("me (+https://me.example)", "missing.txt", "seeds: 'missing.txt' is no URL, and there"),
    ],
)
def test_what_it_refuses(project: Path, agent: str, seeds: str, said: str) -> None:
    """To go out without a contact, or without its seeds: one line, exit code 2, no crawl."""
    done = scrapy(project, "crawl", "broad", "-a", f"seeds={seeds}", "-s", f"USER_AGENT={agent}")
    assert done.returncode == 2
    assert sum(said in line for line in done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert "Crawled (" not in done.stderr


def test_it_refuses_what_is_no_number(project: Path) -> None:
    """A slip in an argument is one line, not a traceback."""
    done = scrapy(project, "crawl", "broad", "-a", "hosts=many")
    assert done.returncode == 2
    assert "hosts = 'many': expected a whole number" in done.stderr
    assert "Traceback" not in done.stderr
