"""An agent that is started again after the end of its crawl."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from support.crawls import loopback_settings
from support.fleet import Fleet
from support.inprocess_crawls import QUIET
from support.redis_servers import RedisServer
from support.running_crawl import until
from support.websites import Answer, Site, Visit, running

CRAWL = "again"
LATE = 100.0
"""Seconds that anything may take on a busy machine."""


def is_over(redis: RedisServer) -> bool:
    """Whether Redis knows that the crawl is over."""
    with redis.client() as client:
        return bool(json.loads(client.get(f"suite:{{{CRAWL}}}:crawl"))["ended"])


def settings_of(redis: RedisServer, **more: Any) -> dict[str, Any]:
    """Of all agents."""
    return loopback_settings(
        **QUIET, ROBOTSTXT_OBEY=False, SUITE_CLUSTER="peers", SUITE_CRAWL_NAME=CRAWL,
        SUITE_IP_DELAY=0, SUITE_REDIS_URL=redis.url, **more,
    )  # fmt: skip


@pytest.mark.slow
def test_with_more_to_do_the_others_join_it(tmp_path: Path) -> None:
    """It opens the crawl again, which then ends for all."""
    reached, released = Event(), Event()

    def second(visit: Visit) -> Answer:
        """Not before the other agent is there."""
        reached.set()
        released.wait(LATE)
        return Answer(b"x")

    site = Site({"/first": "x", "/second": second}, "0.0.0.0")
    redis = RedisServer(tmp_path / "redis")
    hosts = [f"http://127.0.0.{number}:{site.server_port}" for number in range(2, 18)]
    seeds = tmp_path / "seeds"
    settings = settings_of(redis, SUITE_SEEDS=[str(seeds)])
    with running(site), redis, Fleet(tmp_path, lambda name: settings, {}) as fleet:
        seeds.write_text("".join(f"{host}/first\n" for host in hosts))
        fleet.start("a")
        fleet.start("b")
        assert fleet.wait(LATE)
        assert is_over(redis)
        seeds = tmp_path / "more"
        settings["SUITE_SEEDS"] = [str(seeds)]
        seeds.write_text("".join(f"{host}/second\n" for host in hosts))
        fleet.start("b")
        until(reached.is_set, LATE)
        fleet.start("a")
        until(lambda: fleet.agents["a"].log.count("this is agent a") == 2, LATE)
        released.set()
        assert fleet.wait(LATE)
        assert fleet.wrong == []
    asked = sorted((visit.headers["Host"], visit.path) for visit in site.visits)
    assert asked == sorted(
        (host.removeprefix("http://"), path) for host in hosts for path in ("/first", "/second")
    )


@pytest.mark.slow
@pytest.mark.long
def test_without_more_to_do_it_ends(tmp_path: Path) -> None:
    """Also if more could be pushed to it: the others have gone, and their leases never end."""
    redis = RedisServer(tmp_path / "redis")
    settings = settings_of(
        redis, REDIS_URL=redis.url, SUITE_AGENT_GRACE="forever", MAX_IDLE_TIME_BEFORE_CLOSE=7
    )
    spider = "support.pushed_spiders.Broad"
    with redis, Fleet(tmp_path, lambda name: settings, {}, spider) as fleet:
        fleet.start("a")
        fleet.start("b")
        assert fleet.wait(LATE)
        assert is_over(redis)
        fleet.start("b")
        assert fleet.wait(LATE)
        assert fleet.wrong == []
