"""Projects of scrapy-redis with the add-on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support import websites
from support.names import Component, Setting
from support.projects import Project
from support.redis_servers import RedisServer
from support.websites import Site, links

THEIRS = "scrapy_redis.scheduler.Scheduler"
OWN = "project.scheduler.OwnScheduler"


@pytest.mark.parametrize("scheduler", [THEIRS, OWN])
def test_scheduler_and_dupefilter_are_replaced_together(scheduler: str, tmp_path: Path) -> None:
    """Those of scrapy-redis make way both; a scheduler of the project's own keeps its dupefilter.

    In both cases all pages come.
    """
    leaves = [f"/{number}" for number in range(9)]
    pages: dict[str, websites.Page] = {"/": links(*leaves), **dict.fromkeys(leaves, links(*leaves))}
    site = Site(pages)
    with RedisServer(tmp_path / "redis") as server, websites.running(site):
        project = Project(
            tmp_path / "here", SCHEDULER=scheduler, SCHEDULER_PERSIST=True,
            DUPEFILTER_CLASS="scrapy_redis.dupefilter.RFPDupeFilter", REDIS_URL=server.url,
            **{Setting.ALLOW_PRIVATE_ADDRESSES: True, Setting.HOST_DELAY: 0},
        )  # fmt: skip
        (tmp_path / "here" / "project" / "scheduler.py").write_text(
            "from scrapy_redis.scheduler import Scheduler\nclass OwnScheduler(Scheduler): pass\n"
        )
        ended = project.scrapy("crawl", "ordinary", "-a", f"start={site.url}/", "-O", "items.json")
        with server.client() as client:
            kept = client.exists("ordinary:dupefilter")
    assert re.findall(r"\w+Error: .*", ended.stderr) == []
    assert ended.returncode == 0
    items = json.loads((tmp_path / "here" / "items.json").read_text())
    assert sorted(item["url"] for item in items) == sorted(site.url + path for path in pages)
    assert bool(kept) == (scheduler == OWN)
    assert (f"so not {Component.SCHEDULER}" in ended.stderr) == (scheduler == OWN)
