"""Several requests to one host at a time, by the server's log."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from projects import scrapy
from support.names import Component, Setting
from websites import Answer, Site, running

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
