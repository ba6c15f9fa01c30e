"""A crawl that fetched no page says why, names the setting, and ends for a reason of its own."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
from pathlib import Path

import pytest
from support.crawls import loopback_settings, start
from support.names import STATUS_FILE, Reason, Setting
from support.projects import Project
from support.running_crawl import until
from support.websites import Answer, Site, links, running

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
        seed = f"start=http://127.0.0.1:{unheard.getsockname()[1]}/"
        codes = [
            project.scrapy("crawl", "ordinary", "-a", seed),
            project.scrapy("crawl", "ordinary", "-a", seed, **{Setting.EXIT_CODES: True}),
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
        [said] = [line for line in again.stderr.splitlines() if "this job is complete" in line]
        assert "fetched 1 page " in said
        assert site.paths() == ["/"]


def test_the_setting_is_enough(project: Project, tmp_path: Path) -> None:
    """What was refused as a private address is tried again once the setting allows it."""
    allow, settings = Setting.ALLOW_PRIVATE_ADDRESSES, {"JOBDIR": tmp_path / "job"}
    with running(Site({"/": links()})) as site:
        line = ("crawl", "bulk", "-a", f"seeds={site.url}/")
        for others in ({}, {}, {allow: "10.0.0.0/8"}):
            ended = project.scrapy(*line, **settings, **others)
            assert (ended.returncode, _ended(ended.stderr)) == (3, Reason.NO_PAGES), ended.stderr
            assert allow in _warning(ended.stderr)
            assert "frontier retry" not in ended.stderr
            assert site.visits == []
        ended = project.scrapy(*line, **settings, **{allow: "10.0.0.0/8,127.0.0.0/8"})
        assert (ended.returncode, _ended(ended.stderr)) == (0, "finished"), ended.stderr
        assert f"{allow} was ['10.0.0.0/8']: 1 URL that it refused is tried again" in ended.stderr
        assert site.paths() == ["/"]
        again = project.scrapy(*line, **settings, **{allow: True})
        assert "tried again" not in again.stderr
        assert site.paths() == ["/"]


def _failed(job: Path) -> int:
    status = job / STATUS_FILE
    return int(json.loads(status.read_text())["failed"]) if status.exists() else 0


def test_the_setting_holds_from_a_start(project: Project, tmp_path: Path) -> None:
    """A running crawl refuses the setting in one line; a restart with it tries the URL again."""
    job, log, allow = tmp_path / "job", tmp_path / "log", Setting.ALLOW_PRIVATE_ADDRESSES
    settings = loopback_settings(**{
        "JOBDIR": str(job), "ROBOTSTXT_OBEY": False, Setting.IDLE: "wait", allow: False,
    })  # fmt: skip
    with running(Site({"/": links()})) as site:
        process = start("support.spiders.Bulk", settings, tmp_path, seeds=f"{site.url}/")
        try:
            until(lambda: _failed(job) == 1)
            told = project.scrapy("frontier", "set", allow, "127.0.0.0/8", "-j", str(job))
            assert told.returncode != 0
            [refused] = [line for line in told.stderr.splitlines() if allow in line]
            assert "start it again" in refused
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        finally:
            if process.poll() is None:
                process.kill()
        assert site.visits == []
        settings |= {allow: "127.0.0.0/8"}
        del settings[Setting.IDLE]
        process = start("support.spiders.Bulk", settings, tmp_path, seeds=f"{site.url}/")
        try:
            process.wait(30)
        finally:
            if process.poll() is None:
                process.kill()
        assert site.paths() == ["/"]
    assert "1 URL that it refused is tried again" in log.read_text()


def _commands(log: str, verb: str) -> list[str]:
    return re.findall(f"`scrapy (frontier {verb} [^`]*)`", _warning(log))


@pytest.mark.parametrize(
    ("spider", "refused"), [("bulk", False), ("given", False), ("given", True)]
)
def test_the_command_of_the_warning(
    project: Project, tmp_path: Path, spider: str, refused: bool
) -> None:
    """What failed stays failed in its JOBDIR: the warning has the command that tries it again.

    So does what was *refused* as a private address, of a spider with callbacks of its own.
    """
    settings = {**_AT_ONCE, Setting.PROFILE: "broad", "JOBDIR": tmp_path / "my job"}
    if spider == "given":
        settings |= _spider(project, "given", _GIVEN)
    before = {**settings, Setting.ALLOW_PRIVATE_ADDRESSES: not refused}
    with running(Site()) as site:
        line = ("crawl", spider, "-a", f"seeds={site.url}/")
        first = project.scrapy(*line, **before)
        assert (first.returncode, _ended(first.stderr)) == (3, Reason.NO_PAGES), first.stderr
        assert "in this run" not in _warning(first.stderr)
        site.pages["/"] = links()
        second = project.scrapy(*line, **settings)
        assert (second.returncode, _ended(second.stderr)) == (3, Reason.NO_PAGES), second.stderr
        assert "no page was fetched: nothing was left to try in this run" in second.stderr
        [command] = _commands(second.stderr, "retry")
        assert _commands(first.stderr, "retry") == [command]
        said = project.scrapy(*shlex.split(command))
        assert "1 URL" in said.stdout, said.stderr
        third = project.scrapy(*line, **settings)
        assert (third.returncode, _ended(third.stderr)) == (0, "finished"), third.stderr
    assert site.paths() == (["/"] if refused else ["/", "/"])


@pytest.mark.parametrize("spider", ["bulk", "given"])
def test_other_seeds_for_a_job_that_failed(
    project: Project, tmp_path: Path, spider: str
) -> None:
    """In a job whose seeds failed start() is over: the warning says how it gets others."""
    settings = {**_AT_ONCE, "JOBDIR": tmp_path / "job"}
    if spider == "given":
        settings |= _spider(project, "given", _GIVEN)
    with running(Site({"/right": links()})) as site:
        for path in ("wrong", "right"):
            line = ("crawl", spider, "-a", f"seeds={site.url}/{path}")
            ended = project.scrapy(*line, **settings)
            assert (ended.returncode, _ended(ended.stderr)) == (3, Reason.NO_PAGES), ended.stderr
            if spider == "given":
                assert "another JOBDIR" in _warning(ended.stderr)
                assert _commands(ended.stderr, "retry") == []
        [command] = _commands(ended.stderr, "add")
        said = project.scrapy(*shlex.split(command.replace("URL", f"{site.url}/right")))
        assert said.returncode == 0, said.stderr
        ended = project.scrapy(*line, **settings)
        assert (ended.returncode, _ended(ended.stderr)) == (0, "finished"), ended.stderr
        assert site.paths() == ["/wrong", "/right"]


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
