"""What Scrapy promises to a project's settings, signals, stats and spiders, the suite keeps."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.names import Component, Setting
from support.projects import scrapy
from support.websites import Site, running

SPIDER = f"""
import json
from collections import Counter
import scrapy
from scrapy import signals

class Probe(scrapy.Spider):
    name = "probe"
    custom_settings = {{
        "ADDONS": {{"{Component.ADDON}": 500}},
        "RETRY_ENABLED": False,
        "ROBOTSTXT_OBEY": False,
        "{Setting.ALLOW_PRIVATE_ADDRESSES}": ["127.0.0.0/8"],
        "{Setting.DNS_SERVERS}": ["127.0.0.1:1"],  # nobody is there
        "{Setting.HOST_DELAY}": 0.001,
        "{Setting.IP_DELAY}": 0.001,
    }}

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.sent = Counter()
        for name in ("request_reached_downloader", "request_left_downloader"):
            note = lambda request, name=name: spider.sent.update([name])
            crawler.signals.connect(note, getattr(signals, name), weak=False)
        crawler.signals.connect(spider.tell, signals.spider_closed)
        return spider

    async def start(self):
        for url in json.loads(self.urls):
            yield scrapy.Request(url, errback=lambda failure: None, dont_filter=True)

    def parse(self, response):
        pass

    def tell(self):
        print(json.dumps(self.sent))

class Bare(scrapy.Spider):
    name = "bare"
    custom_settings = Probe.custom_settings

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        return cls(*args, **kwargs)

    async def start(self):
        for url in json.loads(self.urls):
            yield scrapy.Request(url)

    def parse(self, response):
        pass
"""


def crawl(
    folder: Path, urls: str, spider: str = "probe", **settings: object
) -> subprocess.CompletedProcess[str]:
    """Crawl *urls*, a list in JSON, by one of the two spiders."""
    project = folder / "spiders"
    project.mkdir()
    (folder / "scrapy.cfg").write_text("[settings]\ndefault = settings\n")
    (folder / "settings.py").write_text("SPIDER_MODULES = ['spiders']\n")
    (project / "__init__.py").write_text(SPIDER)
    line = [f"-s{name}={value}" for name, value in settings.items()]
    return scrapy(folder, "crawl", spider, "-a", f"urls={urls}", *line)


@pytest.mark.parametrize("profile", ["spider", "broad"])
def test_no_concurrent_requests_mean_no_limit(profile: str, tmp_path: Path) -> None:
    """CONCURRENT_REQUESTS = 0 is a crawl without that limit."""
    with running(Site({"/": "page"})) as site:
        ended = crawl(
            tmp_path, f'["{site.url}/"]', CONCURRENT_REQUESTS=0, **{Setting.PROFILE: profile}
        )
    assert ended.returncode == 0, ended.stderr[-500:]
    assert site.paths() == ["/"]


def test_every_request_that_reached_the_downloader_leaves_it(tmp_path: Path) -> None:
    """Also names that do not resolve, private addresses and hosts that are dead."""
    with running(Site({"/": "page"})) as site:
        urls = f'''["{site.url}/", "http://no-such.example/", "http://10.0.0.1/",
            "http://127.0.0.2:1/", "http://127.0.0.2:1/"]'''
        ended = crawl(tmp_path, urls, **{Setting.DEAD_HOST_FAILURES: 1})
    assert '"request_reached_downloader": 5, "request_left_downloader": 5' in ended.stdout


def test_requests_that_cannot_be_stored_are_counted_as_by_scrapy(tmp_path: Path) -> None:
    """A lambda as errback cannot be stored in a job."""
    with running(Site({"/": "page"})) as site:
        ended = crawl(tmp_path, f'["{site.url}/", "{site.url}/"]', JOBDIR=tmp_path / "job")
    assert "'scheduler/unserializable': 2," in ended.stderr


def test_a_spider_without_settings_starts(tmp_path: Path) -> None:
    """A ``from_crawler`` that sets neither crawler nor settings is enough for a job, too."""
    with running(Site({"/": "page"})) as site:
        crawl(tmp_path, f'["{site.url}/"]', "bare", JOBDIR=tmp_path / "job")
    assert site.paths() == ["/"]
