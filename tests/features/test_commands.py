"""Commands, scripts and new projects with the add-on on, against a site that is served."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from support import forks, projects
from support.uploads import write
from support.websites import Site, links

SPIDER = '''
import scrapy

class PageSpider(scrapy.Spider):
    name = "page"
    start_urls = ["{url}/"]
    {custom}

    def parse(self, response):
        """Items and links.

        @url {url}/
        @returns items 1 1
        @returns requests 2 2
        """
        yield {{"url": response.url}}
        yield from response.follow_all(css="a")
'''
ADDONS = 'ADDONS = {"scrapy_spider_suite.Addon": 500}'


@pytest.fixture
def pages(site: Site) -> Site:
    """Three pages."""
    site.pages |= {"/": links("/1", "/2", title="first"), "/1": links(), "/2": links()}
    return site


def run(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run *script* in *folder* to its end."""
    return forks.run(script, *arguments, folder=folder, environment=projects.environment())


def scrapy(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Scrapy's in *folder*; it has to succeed."""
    done = projects.scrapy(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done


def new_project(folder: Path, site: Site, *, custom: bool = False) -> Path:
    """A project as startproject makes it, with one spider and the add-on."""
    scrapy(folder, "startproject", "demo", ".")
    settings = folder / "demo" / "settings.py"
    text = settings.read_text().replace("DOWNLOAD_DELAY = 1\n", "DOWNLOAD_DELAY = 0.2\n")
    settings.write_text(text if custom else text + ADDONS + "\n")
    own = 'custom_settings = {"ADDONS": {"scrapy_spider_suite.Addon": 500}}' if custom else ""
    code = SPIDER.format(url=site.local, custom=own)
    (folder / "demo" / "spiders" / "page.py").write_text(code)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("custom", [False, True], ids=["settings.py", "custom_settings"])
def test_a_new_project(custom: bool, pages: Site, tmp_path: Path) -> None:
    """A project fresh from startproject crawls localhost politely, with no other setting."""
    project = new_project(tmp_path, pages, custom=custom)
    done = scrapy(project, "crawl", "page", "-O", "items.json")
    items = json.loads((project / "items.json").read_text())
    assert {item["url"] for item in items} == {f"{pages.local}/{path}" for path in ("", "1", "2")}
    visits = [visit for visit in pages.visits if visit.path != "/robots.txt"]
    assert all(b.began - a.ended > 0.19 for a, b in pairwise(visits))
    assert "FrontierScheduler" in done.stderr or "suite/" in done.stderr


@pytest.mark.slow
def test_commands_that_look_at_a_page(pages: Site, tmp_path: Path) -> None:
    """shell, fetch, view, parse and check work on localhost, and touch neither job nor packs."""
    project = new_project(tmp_path, pages)
    packs = project / "packs"
    write(packs, 1)
    before = sorted(packs.iterdir())
    with (project / "demo" / "settings.py").open("a") as settings:
        settings.write(
            'JOBDIR = "job"\nSUITE_PACKS_DIR = "packs"\nSUITE_PACKS_UPLOAD = "memory://far"\n'
            'SUITE_PACKS_KEEP = False\nSUITE_AGENT_NAME = "a"\n'
        )
    url = f"{pages.local}/"
    code = f"[response.css('title::text').get(), fetch('{url}1') or response.url]"
    assert f"['first', '{url}1']" in scrapy(project, "shell", url, "-c", code).stdout
    assert "<title>first</title>" in scrapy(project, "fetch", url, "--nolog").stdout
    assert f"{{'url': '{url}'}}" in scrapy(project, "parse", url, "--spider=page").stdout
    assert "OK" in scrapy(project, "check").stderr
    opened = run(
        project, "import webbrowser, sys; webbrowser.open = lambda url, **_: print(url) or True\n"
        "from scrapy.cmdline import execute; execute(['scrapy', 'view', sys.argv[1]])", url,
    )  # fmt: skip
    assert opened.returncode == 0, opened.stderr
    assert not (project / "job").exists()
    assert sorted(packs.iterdir()) == before


@pytest.mark.slow
def test_commands_that_crawl_nothing(pages: Site, tmp_path: Path) -> None:
    """list, settings, version, genspider and edit take no notice of the suite; bench runs."""
    project = new_project(tmp_path, pages)
    assert scrapy(project, "list").stdout == "page\n"
    assert scrapy(project, "settings", "--get", "BOT_NAME").stdout == "demo\n"
    assert "Scrapy" in scrapy(project, "version").stdout
    scrapy(project, "genspider", "other", "example.com")
    scrapy(project, "edit", "page", "-s", "EDITOR=true")
    bench = scrapy(project, "bench", "-s", "CLOSESPIDER_TIMEOUT=1", "-s", "JOBDIR=job").stderr
    assert "closespider_timeout" in bench
    assert not (project / "job").exists()
    assert pages.visits == []


@pytest.mark.slow
def test_runspider_with_custom_settings(pages: Site, tmp_path: Path) -> None:
    """A spider in a file of its own, with ADDONS in its custom_settings."""
    own = 'custom_settings = {"ADDONS": {"scrapy_spider_suite.Addon": 500}}'
    (tmp_path / "page.py").write_text(SPIDER.format(url=pages.local, custom=own))
    scrapy(tmp_path, "runspider", "page.py", "-O", "items.json")
    assert len(json.loads((tmp_path / "items.json").read_text())) == 3


RUNNERS = {
    "AsyncCrawlerProcess": """
process = AsyncCrawlerProcess(settings)
for url in urls:
    process.crawl(Page, url=url)
process.start()
""",
    "CrawlerProcess": """
process = CrawlerProcess(settings)
for url in urls:
    process.crawl(Page, url=url)
process.start()
""",
    "AsyncCrawlerRunner": """
async def main(reactor):
    runner = AsyncCrawlerRunner(settings)
    for url in urls:
        runner.crawl(Page, url=url)
    await runner.join()
install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
react(deferred_f_from_coro_f(main))
""",
    "CrawlerRunner": """
def main(reactor):
    runner = CrawlerRunner(settings)
    for url in urls:
        runner.crawl(Page, url=url)
    return runner.join()
install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
react(main)
""",
}
SCRIPT = """
import sys
import scrapy
from scrapy.crawler import *
from scrapy.utils.defer import deferred_f_from_coro_f
from scrapy.utils.reactor import install_reactor
if "Runner" in sys.argv[1]:
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
from twisted.internet.task import react

class Page(scrapy.Spider):
    name = "page"
    def __init__(self, url, **kwargs):
        super().__init__(**kwargs)
        self.start_urls = [url]
    def parse(self, response):
        print(response.url)
        yield from response.follow_all(css="a")

settings = {"ADDONS": {"scrapy_spider_suite.Addon": 500}, "LOG_LEVEL": "ERROR"}
urls = sys.argv[2:]
"""


@pytest.mark.slow
@pytest.mark.parametrize("runner", RUNNERS)
def test_scripts_with_two_spiders(runner: str, pages: Site, tmp_path: Path) -> None:
    """Two crawls in one process, by each of Scrapy's four ways, keep their frontiers apart."""
    (tmp_path / "script.py").write_text(SCRIPT + RUNNERS[runner])
    done = run(tmp_path, "import script", runner, f"{pages.local}/", f"{pages.local}/")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(
        f"{pages.local}/{path}" for path in ("", "1", "2") * 2
    )
    assert done.stderr == ""
