"""A crawl that fetched no page says why, names the setting, and ends for a reason of its own."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from projects import Project
from support.names import Reason, Setting
from websites import Answer, Site, links, running

_GIVEN = """
import scrapy

class Given(scrapy.Spider):
    name = "given"

    def __init__(self, seeds="", **kwargs):
        super().__init__(**kwargs)
        self.start_urls = seeds.split()

    def parse(self, response):
        yield {"url": response.url}
"""
"""An ordinary spider whose seeds are an argument."""
_CHECKER = """
import scrapy

class Checker(scrapy.Spider):
    name = "checker"
    handle_httpstatus_list = [301, 404]

    def __init__(self, start="", **kwargs):
        super().__init__(**kwargs)
        self.start_urls = start.split()

    def parse(self, response):
        self.logger.info("dead: %s", response.url)
"""
"""A link checker: wants answers of any kind, and makes no item of them."""
_AT_ONCE = {Setting.ALLOW_PRIVATE_ADDRESSES: True, Setting.HOST_DELAY: 0, Setting.IP_DELAY: 0}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project without settings for loopback: everybody's first one."""
    return Project(tmp_path / "project", ROBOTSTXT_OBEY=False, RETRY_ENABLED=False)


def _ended(log: str) -> str:
    return log.rpartition("Spider closed (")[2].partition(")")[0]


def _warning(log: str) -> str:
    [warning] = [line for line in log.splitlines() if "no page was fetched" in line]
    return warning


def _spider(project: Project, name: str, code: str) -> dict[str, object]:
    """Add a spider to *project*; what settings find it."""
    (project.folder / "project" / f"{name}.py").write_text(code)
    return {"SPIDER_MODULES": f"project.{name}", Setting.EXIT_CODES: True}


def test_private_address(project: Project) -> None:
    """The warning names the setting that allows seeds on loopback; the exit code is 3."""
    with running(Site({"/": links("/a")})) as site:
        ended = project.scrapy("crawl", "bulk", "-a", f"seeds={site.url}/")
    assert (ended.returncode, _ended(ended.stderr)) == (3, Reason.NO_PAGES), ended.stderr
    [warning] = [line for line in ended.stderr.splitlines() if "no page was fetched" in line]
    assert "WARNING" in warning
    assert Setting.ALLOW_PRIVATE_ADDRESSES in warning
    assert site.visits == []


def test_refused_in_the_spider_profile(project: Project) -> None:
    """The warning says that the connection was refused; Scrapy's exit code 0 stays the default."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        start = f"start=http://127.0.0.1:{unheard.getsockname()[1]}/"
        codes = [
            project.scrapy("crawl", "ordinary", "-a", start),
            project.scrapy("crawl", "ordinary", "-a", start, **{Setting.EXIT_CODES: True}),
        ]
    for code, ended in zip((0, 3), codes, strict=True):
        assert (ended.returncode, _ended(ended.stderr)) == (code, Reason.NO_PAGES), ended.stderr
        [warning] = [line for line in ended.stderr.splitlines() if "no page was fetched" in line]
        assert "connection refused" in warning


@pytest.mark.parametrize("profile", ["broad", "spider"])
def test_no_seeds(project: Project, profile: str) -> None:
    """A spider whose start() yields nothing has no seeds: the warning says where seeds go."""
    (project.folder / "project" / "empty.py").write_text(
        "import scrapy\nclass Empty(scrapy.Spider):\n    name = 'empty'\n    start_urls = []\n"
    )
    ended = project.scrapy(
        "crawl", "empty", SPIDER_MODULES="project.empty",
        **{Setting.PROFILE: profile, Setting.EXIT_CODES: True},
    )  # fmt: skip
    assert (ended.returncode, _ended(ended.stderr)) == (3, Reason.NO_PAGES), ended.stderr
    [warning] = [line for line in ended.stderr.splitlines() if "no page was fetched" in line]
    assert "start()" in warning
    assert Setting.SEEDS in warning


def test_complete_job(project: Project, tmp_path: Path) -> None:
    """A job that fetched its pages in an earlier run ends as `finished` again."""
    with running(Site({"/": links("/a"), "/a": links()})) as site:
        settings = {Setting.ALLOW_PRIVATE_ADDRESSES: True, Setting.HOST_DELAY: 0}
        line = ("crawl", "bulk", "-a", f"seeds={site.url}/")
        for _ in range(2):
            ended = project.scrapy(*line, JOBDIR=tmp_path / "job", **settings)
            assert (ended.returncode, _ended(ended.stderr)) == (0, "finished"), ended.stderr
            assert "no page was fetched" not in ended.stderr
        assert site.paths() == ["/", "/a"]


def test_a_complete_job_counts_its_pages(project: Project, tmp_path: Path) -> None:
    """One page is no `1 pages`."""
    with running(Site({"/": links()})) as site:
        for _ in range(2):
            ended = project.scrapy(
                "crawl", "bulk", "-a", f"seeds={site.url}/", JOBDIR=tmp_path / "job", **_AT_ONCE
            )
    [said] = [line for line in ended.stderr.splitlines() if "this job is complete" in line]
    assert "fetched 1 page " in said


@pytest.mark.parametrize(
    ("spider", "profile"), [("bulk", "broad"), ("given", "broad"), ("given", "spider")]
)
def test_seeds_after_a_run_without(
    project: Project, tmp_path: Path, spider: str, profile: str
) -> None:
    """A job that was begun without seeds takes those of a later run, and is complete then."""
    settings = {**_AT_ONCE, Setting.PROFILE: profile, "JOBDIR": tmp_path / "job"}
    if spider == "given":
        settings |= _spider(project, "given", _GIVEN)
    for _ in range(2):
        empty = project.scrapy("crawl", spider, **settings)
        assert (empty.returncode, _ended(empty.stderr)) == (3, Reason.NO_PAGES), empty.stderr
        assert "no request was queued" in _warning(empty.stderr)
        assert "this job is complete" not in empty.stderr
    with running(Site({"/": links()})) as site:
        line = ("crawl", spider, "-a", f"seeds={site.url}/")
        ended = project.scrapy(*line, **settings)
        assert (ended.returncode, _ended(ended.stderr)) == (0, "finished"), ended.stderr
        assert site.paths() == ["/"]
        assert "this job is complete" not in ended.stderr
        again = project.scrapy(*line, **settings)
        assert "this job is complete" in again.stderr, again.stderr
        assert site.paths() == ["/"]


@pytest.mark.parametrize("profile", ["broad", "spider"])
def test_answers_that_are_no_pages(project: Project, tmp_path: Path, profile: str) -> None:
    """A callback that was given a 404 or a redirect has what it wanted, in later runs too."""
    settings = {**_AT_ONCE, **_spider(project, "checker", _CHECKER), Setting.PROFILE: profile}
    for status in (404, 301):
        settings["JOBDIR"] = tmp_path / f"job{status}"
        with running(Site({"/": Answer(status=status, headers={"Location": "/a"})})) as site:
            for _ in range(2):
                ended = project.scrapy("crawl", "checker", "-a", f"start={site.url}/", **settings)
                assert (ended.returncode, _ended(ended.stderr)) == (0, "finished"), ended.stderr
                assert "no page was fetched" not in ended.stderr
            assert site.paths() == ["/"]
