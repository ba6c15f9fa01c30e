"""Several requests to one host at a time, by the server's log."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from support.names import Component, Setting
from support.projects import scrapy
from support.stamped_sites import stamped_site
from support.tls_sites import Authority
from support.websites import Answer, Site, running

SPIDER = f"""
import asyncio
import scrapy

class HoldsUp:
    async def process_request(self, request):
        # Every second request is held up on its way, after it was given leave.
        if request.url.endswith(("0", "2", "4", "6")):
            await asyncio.sleep(0.4)

class Probe(scrapy.Spider):
    name = "probe"
    custom_settings = {{
        "ADDONS": {{"{Component.ADDON}": 500}},
        "DOWNLOADER_MIDDLEWARES": {{HoldsUp: 1000}},
        "{Setting.ALLOW_PRIVATE_ADDRESSES}": True,
        "{Setting.HOST_DELAY}": 0.5,
        "{Setting.HOST_CONCURRENCY}": 4,
        "{Setting.IP_DELAY}": 0,
    }}

    async def start(self):
        for number in range(8):
            yield scrapy.Request(f"{{self.url}}/{{number}}")

    def parse(self, response):
        pass
"""

MANY = """
import scrapy

class Many(scrapy.Spider):
    name = "many"

    async def start(self):
        for number in range(96):
            host = self.hosts.split(",")[number % len(self.hosts.split(","))]
            yield scrapy.Request(f"https://{host}:{self.port}/{number}", errback=self.failed)

    def parse(self, response):
        pass

    def failed(self, failure):
        self.logger.error(f"failed: {failure}")
"""
DELAY = 0.1
SLOW = (0.0, 0.08, 0.25, 0.08)
"""Seconds that handshakes take: some less than the delay, some more."""


def test_the_delay_runs_between_requests_as_they_go_out(tmp_path: Path) -> None:
    """A request that was held up before it went out is followed by the next after the delay."""
    (tmp_path / "probe.py").write_text(SPIDER)
    with running(Site({f"/{number}": Answer(b"page", wait=1.0) for number in range(8)})) as site:
        scrapy(tmp_path, "runspider", "probe.py", "-a", f"url={site.url}", "-sROBOTSTXT_OBEY=0")
        began = sorted(visit.began for visit in site.visits)
        ended = sorted(visit.ended for visit in site.visits)
    assert len(began) == 8
    assert any(start < end for start, end in zip(began[1:], ended, strict=False))  # side by side
    gaps = [later - earlier for earlier, later in pairwise(began)]
    assert min(gaps) > 0.4, gaps  # 0.5, and what a busy machine takes off


@pytest.mark.parametrize("kind", ["host", "address"])
def test_slow_handshakes_do_not_shorten_the_delay(kind: str, tmp_path: Path) -> None:
    """It runs from the moment at which the server gets a request, on a new connection or another.
    """
    (tmp_path / "many.py").write_text(MANY)
    settings = {
        "ADDONS": f'{{"{Component.ADDON}": 500}}', "ROBOTSTXT_OBEY": False, "LOG_LEVEL": "INFO",
        Setting.ALLOW_PRIVATE_ADDRESSES: True, Setting.HOST_DELAY: 0, Setting.IP_DELAY: 0,
        Setting.HOST_CONCURRENCY: 3,
    }  # fmt: skip
    settings |= {
        "host": {Setting.HOST_DELAY: DELAY},
        "address": {Setting.IP_DELAY: DELAY, Setting.IP_CONCURRENCY: 3},
    }[kind]
    hosts = {"host": "localhost", "address": "localhost,127.0.0.1"}[kind]
    line = [f"-s{name}={value}" for name, value in settings.items()]
    with stamped_site(Authority(tmp_path), SLOW) as site:
        where = ["-a", f"port={site.port}", "-a", f"hosts={hosts}"]
        ended = scrapy(tmp_path, "runspider", "many.py", *where, *line, timeout=600)
    assert "failed:" not in ended.stderr
    assert len(site.arrivals) == 96
    assert 32 <= site.connections < 90  # the other requests went over one that was kept
    gaps = [later - earlier for earlier, later in pairwise(sorted(site.arrivals))]
    # A server on a busy machine notes one or the other too late, and the next gap is short then.
    assert sum(gap < DELAY - 0.003 for gap in gaps) <= 2, sorted(gaps)[:10]
    assert min(gaps) > 0.8 * DELAY
