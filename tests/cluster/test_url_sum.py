"""KSpider itself: every agent has a part of every host, and phases and a ledger keep them apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.chaos import CRAWL, name_of
from support.fleet import Fleet
from support.polite_crawls import Size
from support.redis_servers import RedisServer
from support.verdict import verdict_of
from support.webs import FakeWebProcess

AGENTS = 3
TURN, GUARD, TIMEOUT = 1.3, 1.1, 0.6
SWAPS = 20
SIZE = Size(hosts=12, addresses=9, pages=4, host_delay=0.3, ip_delay=0.01)
"""The delay is longer than what the guard leaves of a turn: a page of each host in each."""


@pytest.mark.slow
@pytest.mark.long
def test_agents_that_share_hosts_are_one_polite_crawl(tmp_path: Path) -> None:
    """Each page once, no delay too short over the swaps, a part for each; it ends by itself."""
    web = FakeWebProcess(SIZE.web(tmp_path / "arrivals", redirects=0.0))
    with web, RedisServer(tmp_path / "redis", tcp=True) as redis:
        settings = {
            **SIZE.settings(web.ready),
            "SUITE_CLUSTER": "peers", "SUITE_REDIS_URL": redis.url, "SUITE_CRAWL_NAME": CRAWL,
            "SUITE_AGENT_ADDRESS": "127.0.0.1", "SUITE_ASSIGNMENT": "url-sum",
            "SUITE_RATE_LEDGER": redis.url, "SUITE_PHASES": AGENTS, "SUITE_PHASE_SECONDS": TURN,
            "SUITE_PHASE_GUARD": GUARD, "DOWNLOAD_TIMEOUT": TIMEOUT,
        }  # fmt: skip
        seeds = {"seeds": str(web.config.seeds_file)}
        with Fleet(tmp_path, lambda name: settings, seeds) as fleet:
            for number in range(1, AGENTS + 1):
                fleet.start(name_of(number))
            assert fleet.wait(300)
            web.stop()
            verdict = verdict_of(fleet, web.web, SIZE, web.arrivals())
            assert list(verdict.broken()) == []
            reasons = [agent.stats["closed"] for agent in fleet.agents.values()]
            assert reasons == ["finished"] * AGENTS
            assert {name for names in verdict.kept.values() for name in names} == set(fleet.agents)
            swaps = (verdict.arrivals[-1].end - verdict.arrivals[0].start) / TURN
            assert swaps >= SWAPS
