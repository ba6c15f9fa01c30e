"""What a crawl has seen is compressed when it ends, in an ordinary crawl of some thousand pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.crawls import crawl, web_settings
from support.names import SEEN_FOLDER, Setting
from support.projects import scrapy
from support.webs import FakeWebProcess

from scrapy_spider_suite.testing import FakeWebConfig


@pytest.mark.slow
@pytest.mark.long
def test_less_than_its_text(tmp_path: Path) -> None:
    """Files of the folder, those of fresh URLs too, by the text of all URLs that were fetched.

    The web is small, so it is 0.11 of it; 0.08 with 20,000 pages (`docs/measurements.md`).
    """
    log = tmp_path / "arrivals"
    config = FakeWebConfig(hosts=46, addresses=46, pages=100, degree=20, page_size=500, log=log)
    with FakeWebProcess(config) as web:
        settings = web_settings(
            web.ready.dns_port, JOBDIR=str(tmp_path / "job"), ROBOTSTXT_OBEY=False,
            **{Setting.HOST_DELAY: 0, Setting.IP_DELAY: 0, Setting.SEEN: "trie"},
        )  # fmt: skip
        seeds = ",".join(web.ready.seeds)
        ended = crawl("support.spiders.Bulk", settings, tmp_path, seeds=seeds, timeout=300)
        port = web.ready.ports[0]
        pages = {f"http://{each.host}:{port}{each.path}" for each in web.arrivals()}
    assert ended.reason == "finished", ended.log[-3000:]
    files = [path for path in (tmp_path / "job" / SEEN_FOLDER).rglob("*") if path.is_file()]
    status = scrapy(tmp_path, "frontier", "status", "--json", "-jjob")
    assert json.loads(status.stdout)["in_trie"] > 4_000, status.stderr
    assert sum(path.stat().st_size for path in files) < 0.15 * sum(map(len, pages))
