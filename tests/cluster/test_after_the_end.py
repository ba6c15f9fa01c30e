"""An agent that was killed before it heard of the end, and is started again with more to do."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from crawls import ADDON
from fleet import Fleet
from inprocess import QUIET
from redis_servers import RedisServer
from running import until
from websites import Answer, Site, Visit, running

CRAWL = "again"
LATE = 100.0
"""Seconds that anything may take on a busy machine."""


def unheard(redis: RedisServer, name: str) -> None:
    """Have the crawl be over, and the agent *name* not know it: it was killed just before."""
    crawl, members = (f"suite:{{{CRAWL}}}:{key}" for key in ("crawl", "members"))
    with redis.client() as client:
        assert json.loads(client.get(crawl))["ended"]
        row = json.loads(client.hget(members, name))
        assert row.pop("told")
        client.hset(members, name, json.dumps(row))


@pytest.mark.slow
def test_the_others_join_it(tmp_path: Path) -> None:
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
    settings: dict[str, Any] = {
        "ADDONS": ADDON, **QUIET, "LOG_LEVEL": "INFO", "ROBOTSTXT_OBEY": False,
        "SUITE_ALLOW_PRIVATE_ADDRESSES": ["127.0.0.0/8"], "SUITE_CLUSTER": "peers",
        "SUITE_CRAWL_NAME": CRAWL, "SUITE_IP_DELAY": 0, "SUITE_REDIS_URL": redis.url,
        "SUITE_SEEDS": [str(seeds)], "USER_AGENT": "suite-tests/1.0 (+https://tests.example/)",
    }  # fmt: skip
    with running(site), redis, Fleet(tmp_path, lambda name: settings, {}) as fleet:
        seeds.write_text("".join(f"{host}/first\n" for host in hosts))
        fleet.start("a")
        fleet.start("b")
        assert fleet.wait(LATE)
        unheard(redis, "b")
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
