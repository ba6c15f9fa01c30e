"""A new project in a fresh environment, with the wheel that the source distribution gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from support.distributions import build
from support.names import Component, Setting
from support.websites import Site, links, running

SPIDER = """
import scrapy

class PageSpider(scrapy.Spider):
    name = "page"
    start_urls = ["{url}/"]

    def parse(self, response):
        yield {{"url": response.url}}
        yield from response.follow_all(css="a")
"""


class Environment(NamedTuple):
    """A virtual environment."""

    folder: Path

    def run(self, folder: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run its Python with *arguments* in *folder*; that has to succeed."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "PATH") if name in os.environ}
        done = subprocess.run(
            [str(self.folder / "bin" / "python"), *arguments], cwd=folder, env=kept,
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done


@pytest.fixture
def fresh(tmp_path: Path) -> Environment:
    """An environment with the wheel; dependencies are those of the tests, the suite apart."""
    source, wheel = build(tmp_path / "dist")
    assert source.stat().st_size > 100_000
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False)
    python = str(folder / "bin" / "python")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel],
        check=True, timeout=600,
    )  # fmt: skip
    dependencies = tmp_path / "dependencies"
    dependencies.mkdir()
    for name in ("purelib", "platlib"):
        for path in Path(sysconfig.get_path(name)).iterdir():
            if "scrapy_spider_suite" not in path.name and not path.name.endswith(".pth"):
                link = dependencies / path.name
                link.exists() or link.symlink_to(path)
    inside = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    (Path(inside) / "dependencies.pth").write_text(f"{dependencies}\n")
    return Environment(folder)


@pytest.mark.slow
def test_a_fresh_project_crawls_with_the_wheel(fresh: Environment, tmp_path: Path) -> None:
    """``startproject``, one line and one setting: items, a job, politeness and the commands."""
    project = tmp_path / "project"
    project.mkdir()
    fresh.run(project, ["-m", "scrapy", "startproject", "demo", "."])
    with (project / "demo" / "settings.py").open("a") as settings:
        settings.write(f'\nADDONS = {{"{Component.ADDON}": 500}}\n')
    pages = {"/": links("/1", "/2"), "/1": links(), "/2": links()}
    with running(Site(pages)) as site:
        spider = project / "demo" / "spiders" / "page.py"
        spider.write_text(SPIDER.format(url=site.local))
        crawl = ["crawl", "page", "-O", "items.json", "-s", "JOBDIR=job"]
        fresh.run(project, ["-m", "scrapy", *crawl, "-s", f"{Setting.HOST_DELAY}=0.2"])
        urls = {f"{site.local}/{path}" for path in ("", "1", "2")}
    assert {item["url"] for item in json.loads((project / "items.json").read_text())} == urls
    visits = [visit for visit in site.visits if visit.path != "/robots.txt"]
    assert all(b.began - a.ended > 0.19 for a, b in pairwise(visits))
    status = fresh.run(project, ["-m", "scrapy", "frontier", "status", "-j", "job", "--json"])
    assert json.loads(status.stdout)["done"] == 3
    where = fresh.run(project, ["-c", "import scrapy_spider_suite as s; print(s.__file__)"])
    assert where.stdout.startswith(str(fresh.folder))
