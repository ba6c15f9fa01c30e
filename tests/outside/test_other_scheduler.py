"""The gate with another scheduler than the suite's: whom start() names, and runs without a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.names import Component, Reason, Setting
from support.projects import Project
from support.websites import Site, links, moved, running

SCRAPYS = "scrapy.core.scheduler.Scheduler"
WAYS: dict[str, dict[str, Any]] = {
    "add-on": {"SCHEDULER": SCRAPYS},
    "downloader alone": {"ADDONS": {}, "DOWNLOADER": Component.DOWNLOADER},
}
SPIDER = """
import scrapy

class Careless(scrapy.Spider):
    name = "careless"

    async def start(self):
        yield scrapy.Request(self.url)
        yield scrapy.Request(self.url + "moved")

    def parse(self, response):
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link, meta=response.meta)
            yield response.request.replace(url=response.urljoin(link) + "?replaced")

class Checker(scrapy.Spider):
    name = "checker"
    handle_httpstatus_list = [404]

    async def start(self):
        yield scrapy.Request(self.url)

    def parse(self, response):
        self.logger.info(f"heard {response.status}")

class Pushed(Careless):
    name = "pushed"
    redis_key = "pushed:start_urls"
"""


@pytest.fixture(params=WAYS)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    """A project with the gate and Scrapy's scheduler."""
    made = Project(
        tmp_path / "project", ROBOTSTXT_OBEY=True, RETRY_ENABLED=False,
        **{Setting.HOST_DELAY: 0}, **WAYS[request.param],
    )  # fmt: skip
    (made.folder / "project" / "careless.py").write_text(SPIDER)
    return made


@pytest.fixture
def site() -> Iterator[Site]:
    """A site at all addresses of loopback."""
    with running(Site(host="0.0.0.0")) as served:
        yield served


def _ended(log: str) -> str:
    return log.rpartition("Spider closed (")[2].partition(")")[0]


def test_hosts_of_start_are_trusted(project: Project, site: Site) -> None:
    """Their pages and their robots.txt are fetched from loopback without a setting."""
    site.pages = {"/": links("/a"), "/a": links()}
    start = f"start=http://localhost:{site.server_port}/"
    ended = project.scrapy("crawl", "ordinary", "-a", start, **{Setting.EXIT_CODES: True})
    assert (ended.returncode, _ended(ended.stderr)) == (0, "finished"), ended.stderr
    assert site.paths() == ["/robots.txt", "/", "/a"]
    assert "no page was fetched" not in ended.stderr


def test_with_another_downloader(tmp_path: Path, site: Site) -> None:
    """The suite's handler, which refuses private addresses too, trusts the hosts of start()."""
    site.pages = {"/": links()}
    project = Project(
        tmp_path / "project", SCHEDULER=SCRAPYS, DOWNLOADER="scrapy.core.downloader.Downloader"
    )
    start = f"start=http://localhost:{site.server_port}/"
    ended = project.scrapy("crawl", "ordinary", "-a", start)
    assert _ended(ended.stderr) == "finished", ended.stderr
    assert site.paths() == ["/"]


def test_no_page_leads_inside(project: Project, site: Site) -> None:
    """Not by a redirect of a start request, nor by a link whose request has its meta."""
    inside = f"http://127.0.0.2:{site.server_port}"
    site.pages = {
        "/": links(f"{inside}/linked"), "/moved": moved(f"{inside}/moved-to"),
        "/linked": links(), "/moved-to": links(),
    }  # fmt: skip
    url = f"url=http://localhost:{site.server_port}/"
    ended = project.scrapy("crawl", "careless", "-a", url, SPIDER_MODULES="project.careless")
    assert _ended(ended.stderr) == "finished", ended.stderr
    assert sorted(site.paths()) == ["/", "/moved", "/robots.txt"]
    for path in ("linked", "linked?replaced", "moved-to"):
        [line] = [line for line in ended.stderr.splitlines() if f"/{path}>: 127.0.0.2 is" in line]
        assert Setting.ALLOW_PRIVATE_ADDRESSES in line


def test_what_is_pushed_is_not_trusted(project: Project, site: Site) -> None:
    """A spider of scrapy-redis yields in start() what others have pushed to Redis."""
    url = f"url=http://localhost:{site.server_port}/"
    ended = project.scrapy("crawl", "pushed", "-a", url, SPIDER_MODULES="project.careless")
    assert _ended(ended.stderr) == Reason.NO_PAGES, ended.stderr
    assert "2 private address" in ended.stderr
    assert site.visits == []


def test_private_address(project: Project, site: Site) -> None:
    """The broad profile trusts nobody: the warning names the setting, and the exit code is 3."""
    start = f"start=http://localhost:{site.server_port}/"
    ended = project.scrapy("crawl", "ordinary", "-a", start, **{Setting.PROFILE: "broad"})
    assert (ended.returncode, _ended(ended.stderr)) == (3, Reason.NO_PAGES), ended.stderr
    [warning] = [line for line in ended.stderr.splitlines() if "no page was fetched" in line]
    assert "WARNING" in warning
    assert "1 private address" in warning
    assert Setting.ALLOW_PRIVATE_ADDRESSES in warning
    assert site.visits == []


def test_no_page(project: Project, site: Site) -> None:
    """Pages that are missing are none; Scrapy's exit code 0 stays the spider profile's default."""
    start = f"start=http://localhost:{site.server_port}/missing"
    for code, settings in ((0, {}), (3, {Setting.EXIT_CODES: True})):
        ended = project.scrapy("crawl", "ordinary", "-a", start, **settings)
        assert (ended.returncode, _ended(ended.stderr)) == (code, Reason.NO_PAGES), ended.stderr
        [warning] = [line for line in ended.stderr.splitlines() if "no page was fetched" in line]
        assert "1 client error" in warning


def test_a_run_of_a_job_that_has_pages(project: Project, site: Site, tmp_path: Path) -> None:
    """Another run of it that has none ends as Scrapy has it end."""
    site.pages = {"/": links()}
    start = f"start=http://localhost:{site.server_port}/"
    for path in ("", "missing"):
        line = ("crawl", "ordinary", "-a", start + path)
        ended = project.scrapy(*line, JOBDIR=tmp_path / "job")
        assert _ended(ended.stderr) == "finished", ended.stderr
        assert "no page was fetched" not in ended.stderr
    assert site.paths()[-1] == "/missing"


def test_answers_that_a_callback_asked_for(project: Project, site: Site) -> None:
    """A spider that checks links gets 404s, and has not failed."""
    url = f"url=http://localhost:{site.server_port}/missing"
    ended = project.scrapy("crawl", "checker", "-a", url, SPIDER_MODULES="project.careless")
    assert "heard 404" in ended.stderr
    assert _ended(ended.stderr) == "finished", ended.stderr
    assert "no page was fetched" not in ended.stderr
