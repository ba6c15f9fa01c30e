"""The suite's scheduler with a downloader of another kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import websites
from support.crawls import crawl
from support.names import Component, Setting, Stat
from support.websites import Answer, Site, links, moved


@pytest.mark.parametrize(
    "switched_on",
    [
        {"SCHEDULER": Component.SCHEDULER},
        {"ADDONS": {Component.ADDON: 500}, "DOWNLOADER": "scrapy.core.downloader.Downloader"},
    ],
    ids=["no add-on", "add-on"],
)
def test_how_requests_end_is_counted(switched_on: dict[str, Any], tmp_path: Path) -> None:
    """A redirect, a refusal by robots.txt, an error and an answer, as with the suite's downloader.
    """
    pages: dict[str, websites.Page] = {
        "/robots.txt": "User-agent: *\nDisallow: /private\n",
        "/": links("/moved", "/private", "/missing", "/short"),
        "/moved": moved("/target"), "/target": links(), "/private": links(),
        "/short": Answer(b"a", headers={"Content-Length": "9"}),
    }  # fmt: skip
    settings = {
        "RETRY_ENABLED": False, "ROBOTSTXT_OBEY": True, "TELNETCONSOLE_ENABLED": False,
        "USER_AGENT": "tests/1.0 (+https://tests.example/)",
        Setting.ALLOW_PRIVATE_ADDRESSES: True, Setting.HOST_DELAY: 0, **switched_on,
    }  # fmt: skip
    with websites.running(Site(pages)) as site:
        ended = crawl("support.visiting_spider.Persistent", settings, tmp_path, site=site.url)
    assert ended.reason == "finished", ended.log[-3000:]
    outcomes = {name: n for name, n in ended.stats.items() if name.startswith(Stat.OUTCOME)}
    assert outcomes == {
        Stat.OUTCOME + name: n
        for name, n in {
            "success": 2, "replaced": 1, "robots": 1, "client_error": 1, "data_loss": 1,
        }.items()
    }  # fmt: skip
