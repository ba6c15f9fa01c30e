"""Names that SUITE_DNS_SERVERS find outside and the system finds inside, with other handlers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.name_servers import name_server
from support.names import Component, Setting, Stat
from support.projects import Project
from support.websites import Site, running

SPIDER = """
import scrapy

class Inside(scrapy.Spider):
    name = "inside"
    custom_settings = {"RETRY_ENABLED": False, "ROBOTSTXT_OBEY": False}
    proxy = None

    async def start(self):
        for number in range(2):
            errback = self.failed if number else None
            # As after an attempt without the proxy.
            meta = {"proxy": self.proxy, "suite_address": "192.0.2.1"} if self.proxy else {}
            yield scrapy.Request(f"{self.url}/{number}", errback=errback, meta=meta)

    def parse(self, response):
        self.logger.info(f"read: {response.text}")

    def failed(self, failure):
        kinds = [kind.__name__ for kind in failure.type.__mro__]
        self.logger.info(f"failed: {kinds}: {failure.value}")
"""
SCRAPYS = "scrapy.core.downloader.handlers.http11.HTTP11DownloadHandler"
OTHERS = {
    "factory": {
        "DOWNLOADER_CLIENTCONTEXTFACTORY":
            "scrapy.core.downloader.contextfactory.BrowserLikeContextFactory"
    },
    "handler": {"DOWNLOAD_HANDLERS": {"http": SCRAPYS}},
}  # fmt: skip
"""What keeps another handler in place."""
OUTSIDE = {"localhost": "8.8.8.8"}


def crawl(folder: Path, url: str, *arguments: str, **settings: Any) -> str:
    """The log of a crawl of two pages whose host is outside by SUITE_DNS_SERVERS."""
    project = Project(folder, SPIDER_MODULES=["project.inside"], LOG_LEVEL="INFO", **settings)
    (folder / "project" / "inside.py").write_text(SPIDER)
    with name_server(OUTSIDE) as server:
        given = {Setting.DNS_SERVERS: server, Setting.HOST_DELAY: 0.001, Setting.IP_DELAY: 0.001}
        done = project.scrapy("crawl", "inside", "-a", f"url={url}", *arguments, **given)
    assert "Spider closed" in done.stderr, done.stderr[-3000:]
    return done.stderr


@pytest.mark.parametrize("profile", ["spider", "broad"])
@pytest.mark.parametrize("other", OTHERS)
def test_an_answer_from_inside_reaches_nobody(other: str, profile: str, tmp_path: Path) -> None:
    """The errback gets the error of a private address; without one it is a line in the log."""
    with running(Site({"/0": "secret", "/1": "secret"})) as site:
        log = crawl(tmp_path, site.local, **OTHERS[other], **{Setting.PROFILE: profile})
        assert site.visits, log  # its handler asks the system
    assert "read:" not in log
    error = Component.PRIVATE_ADDRESS_ERROR.rpartition(".")[2]
    lines = [line for line in log.splitlines() if "localhost: 127.0.0.1 is a loopback" in line]
    assert any(f"'{error}'" in line for line in lines), log
    [said] = [line for line in lines if f"{site.local}/0" in line]
    assert "Answer thrown away: " in said
    assert f"'{Stat.OUTCOME}private_address': 2" in log
    (kept,) = (line for line in log.splitlines() if "own components are kept" in line)
    assert f"in place: {SCRAPYS};" in kept
    assert "checked only after the response" in kept
    assert Setting.DNS_SERVERS in kept


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_allowed_inside_is_read(other: str, tmp_path: Path) -> None:
    """SUITE_ALLOW_PRIVATE_ADDRESSES holds for what another handler finds, too."""
    with running(Site({"/0": "mine", "/1": "mine"})) as site:
        allowed = {Setting.ALLOW_PRIVATE_ADDRESSES: ["127.0.0.0/8"]}
        log = crawl(tmp_path, site.local, **OTHERS[other], **allowed)
    assert log.count("read: mine") == 2
    assert f"'{Stat.ADDRESS_MISMATCH}': 2" in log


@pytest.mark.parametrize("other", OTHERS)
def test_the_address_of_a_proxy_is_no_matter(other: str, tmp_path: Path) -> None:
    """What a proxy inside has fetched is read: the address is not the page's."""
    url = "http://page.example"
    with running(Site({f"{url}/{number}": "page" for number in range(2)})) as site:
        log = crawl(tmp_path, url, "-a", f"proxy={site.url}", **OTHERS[other])
    assert log.count("read: page") == 2
