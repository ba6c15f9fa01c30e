"""An agent that is started again after the whole crawl has ended says so, and ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.crawls import loopback_settings
from support.fleet import Fleet
from support.inprocess_crawls import QUIET
from support.names import Setting
from support.redis_servers import RedisServer
from support.websites import Site, running

LATE = 100.0
"""Seconds that anything may take on a busy machine: less than a lease."""


@pytest.mark.slow
def test_nothing_more_to_do(tmp_path: Path) -> None:
    """It waits for nobody: the others have gone, and their leases run for an hour."""
    redis = RedisServer(tmp_path / "redis")
    seeds = tmp_path / "seeds"

    def settings(name: str) -> dict[str, Any]:
        return loopback_settings(**{
            **QUIET, "ROBOTSTXT_OBEY": False, Setting.CLUSTER: "peers", Setting.IP_DELAY: 0,
            Setting.CRAWL_NAME: "over", Setting.AGENT_GRACE: 3600, Setting.REDIS_URL: redis.url,
            Setting.SEEDS: [str(seeds)],
        })  # fmt: skip

    site = Site({"/": "x"}, "0.0.0.0")
    with running(site), redis, Fleet(tmp_path, settings, {}) as fleet:
        urls = [f"http://127.0.0.{number}:{site.server_port}/" for number in range(2, 18)]
        seeds.write_text("\n".join(urls))
        for name in "abc":
            fleet.start(name)
        assert fleet.wait(LATE)
        for again in ("b", "ac"):
            for name in again:
                fleet.start(name)
            assert fleet.wait(LATE), fleet.wrong
        assert fleet.wrong == []
        for agent in fleet.agents.values():
            assert agent.log.count("the crawl has ended") == 1
    assert len(site.visits) == len(urls)
