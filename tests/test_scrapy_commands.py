"""Scrapy's own commands work with the add-on on, and only ``crawl`` takes the job directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.projects import scrapy

SETTINGS = """
ADDONS = {"scrapy_spider_suite.Addon": 500}
JOBDIR = "job"
ROBOTSTXT_OBEY = False
DOWNLOAD_DELAY = 0
"""
SPIDER = '''
import scrapy

class PageSpider(scrapy.Spider):
    name = "page"
    start_urls = [URL]

    def parse(self, response):
        """The title.

        @url URL
        @returns items 1 1
        """
        yield {"title": response.css("title::text").get()}

PageSpider.parse.__doc__ = PageSpider.parse.__doc__.replace("URL", URL)
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a project as ``scrapy startproject`` does, with a spider for one page on disk."""
    folder = tmp_path_factory.mktemp("project")
    scrapy(folder, "startproject", "demo", ".")
    page = folder / "page.html"
    page.write_text("<title>Page of the test</title>")
    with (folder / "demo" / "settings.py").open("a") as settings:
        settings.write(SETTINGS)
    spider = f"URL = {page.as_uri()!r}\n{SPIDER}"
    (folder / "demo" / "spiders" / "page.py").write_text(spider)
    return folder


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["shell", "URL", "-c", "response.css('title::text').get()"], "Page of the test"),
        (["fetch", "URL"], "Page of the test"),
        (["parse", "--spider=page", "URL"], "{'title': 'Page of the test'}"),
        (["check", "page"], "Ran 1 contract"),
    ],
)
def test_these_commands_leave_the_job_directory_alone(
    project: Path, arguments: list[str], shown: str
) -> None:
    """They do what they are for, beside a crawl that may be running in that very directory."""
    url = (project / "page.html").as_uri()
    done = scrapy(project, *[url if argument == "URL" else argument for argument in arguments])
    assert done.returncode == 0, done.stderr
    assert "Disabled" not in done.stderr
    assert shown in done.stdout + done.stderr
    assert not (project / "job").exists()


def test_a_crawl_takes_the_job_directory(project: Path) -> None:
    """The same project, the same settings: here the crawl is one that can be resumed."""
    done = scrapy(project, "crawl", "page", "-s", "JOBDIR=crawled")
    assert done.returncode == 0, done.stderr
    assert "{'title': 'Page of the test'}" in done.stderr
    assert (project / "crawled").is_dir()


def test_a_shell_has_a_loop_that_survives_its_end(project: Path) -> None:
    """It runs in a thread that is not stopped before Python ends; a crawl has the faster one."""
    url = (project / "page.html").as_uri()
    assert "PreferredLoop" not in scrapy(project, "shell", url, "-c", "1").stderr
    assert "PreferredLoop" in scrapy(project, "fetch", url).stderr
