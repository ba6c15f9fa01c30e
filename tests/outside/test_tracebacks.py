"""Where a line is enough, the log has no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.names import Component, Setting
from support.projects import Project, environment, scrapy

PAGES = 12
SPIDER = """
import scrapy
from scrapy.utils.misc import load_object

class Page(scrapy.Spider):
    name = "page"

    async def start(self):
        for number in range({pages}):
            yield scrapy.Request("data:text/html,<p>%d" % number, self.follow)

    def follow(self, response):
        number = response.css("p::text").get()
        yield scrapy.Request(f"http://10.0.0.{{number}}/")
        yield scrapy.Request(f"http://10.0.1.{{number}}/", errback=self.failed)

    def parse(self, response):
        '''A contract.

        @url data:,page
        @returns items 0 0
        '''

    def failed(self, failure):
        self.logger.info("errback: %s", isinstance(failure.value, load_object({error!r})))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the add-on; pages of its spider link to private addresses."""
    made = Project(tmp_path, SPIDER_MODULES=["project.page"])
    spider = SPIDER.format(pages=PAGES, error=Component.PRIVATE_ADDRESS_ERROR)
    (tmp_path / "project" / "page.py").write_text(spider)
    return made.folder


def test_a_private_address_is_one_line(project: Path) -> None:
    """In the spider profile, whose log is Scrapy's; the stats and errbacks know of each."""
    done = scrapy(project, "crawl", "page", "-s", f"{Setting.HOST_DELAY}=0")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    for number in range(PAGES):
        (line,) = [line for line in lines if f"<GET http://10.0.0.{number}/>" in line]
        assert f"10.0.0.{number} is a private address" in line
        assert Setting.ALLOW_PRIVATE_ADDRESSES in line
    assert done.stderr.count("errback: True") == PAGES


def test_its_robots_txt_is_no_line(project: Path) -> None:
    """The page is named, whose robots.txt cannot be asked for either; the address is said once."""
    done = scrapy(project, "crawl", "page", "-s", f"{Setting.HOST_DELAY}=0", "-sROBOTSTXT_OBEY=1")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stderr.splitlines() if "WARNING: Not fetched" in line]
    assert len(lines) == PAGES, lines
    for number in range(PAGES):
        (line,) = [line for line in lines if f"<GET http://10.0.0.{number}/>" in line]
        assert f"/>: 10.0.0.{number} is a private address" in line
    assert done.stderr.count("errback: True") == PAGES


@pytest.mark.slow
@pytest.mark.parametrize("command", [["check"], ["crawl", "pgae"]])
def test_a_command_leaves_no_open_loop(project: Path, command: list[str]) -> None:
    """Python would close it at its end, too late for its sockets."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-m", "scrapy", *command], cwd=project,
        env=environment(), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert "unclosed event loop" not in done.stderr
    assert "Invalid file descriptor" not in done.stderr
