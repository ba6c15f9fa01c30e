"""Agents come and go at random, in bad company: one polite crawl; `chaos` is longer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.chaos import CRAWL, Chaos, Ground, Plan, ground, name_of, run
from support.crawls import Process, start, web_settings
from support.fleet import SPIDER
from support.hostile_peers import in_datagrams, in_streams, vandal
from support.polite_crawls import Size
from support.redis_servers import RedisServer
from support.running_crawl import until

REFUSED = 2
PLAN = Plan(
    size=Size(hosts=18, addresses=7, pages=15, host_delay=0.8, ip_delay=0.03), agents=2,
    seconds=14.0, pace=(1.0, 3.0), grace="forever",
)  # fmt: skip


def counted(here: Ground, name: str) -> int:
    """The sum of a stat over the last processes of all agents."""
    return sum(int(agent.stats.get(name, 0)) for agent in here.fleet.agents.values())


def said_by(process: Process, folder: Path) -> str:
    """The line that says why a process was refused, after the tracebacks of Scrapy's clean-up."""
    try:
        code = process.wait(120)
    finally:
        process.kill()
        process.wait()
    log = (folder / "log").read_text()
    assert code == REFUSED, log[-2000:]
    return log.splitlines()[-1]


@contextmanager
def intruders(here: Ground, folder: Path) -> Iterator[None]:
    """Agents start that do not fit with those of *here*; each has to end with one line."""
    common = {**here.fleet.settings(name_of(1)), "JOBDIR": "job", "LOG_LEVEL": "ERROR"}
    cases: dict[str, dict[str, str]] = {
        f"the name {name_of(1)}": {"SUITE_AGENT_NAME": name_of(1)},
        "SUITE_ASSIGNMENT is 'host-parity'": {
            "SUITE_AGENT_NAME": "other", "SUITE_ASSIGNMENT": "host-parity",
        },
    }  # fmt: skip
    started = {}
    for line, settings in cases.items():
        path = folder / settings["SUITE_AGENT_NAME"]
        path.mkdir()
        process = start(SPIDER, {**common, **settings}, path, **here.fleet.arguments)
        started[line] = process, path
    yield
    for line, (process, path) in started.items():
        assert line in said_by(process, path)


@pytest.mark.slow
def test_over_redis(tmp_path: Path) -> None:
    """With garbage in an inbox all the time, and two agents that are refused."""
    with ground(PLAN, tmp_path) as here:
        assert here.redis is not None
        with here.redis.client() as client:
            chaos = Chaos(PLAN, here)
            chaos.begin()
            with intruders(here, tmp_path), vandal(in_streams(client, CRAWL, name_of(1))):
                verdict = chaos.go_on()
        assert list(verdict.broken()) == []
        assert counted(here, "suite/messages/malformed") > 0
        assert counted(here, "suite/messages/oversized") > 0


@pytest.mark.slow
@pytest.mark.long
def test_over_udp(tmp_path: Path) -> None:
    """Where datagrams get lost, come twice or out of order, and others send some too."""
    plan = replace(PLAN, transport="lan")
    with ground(plan, tmp_path) as here, vandal(in_datagrams(here.places)):
        verdict = Chaos(plan, here).run()
    assert list(verdict.broken()) == []
    for kind in ("forged", "malformed", "oversized"):
        assert counted(here, f"suite/messages/{kind}") > 0


@pytest.mark.slow
@pytest.mark.long
def test_redis_is_not_there_for_a_while(tmp_path: Path) -> None:
    """It comes back, with all that it held and without any of it: as if it had been there."""
    size = replace(PLAN.size, pages=8, host_delay=0.8)
    plan = replace(PLAN, size=size, fault="restart", seconds=1.5, fault_seconds=6.0, grace=120.0)
    back = list[float]()

    def say(line: str) -> None:
        back.extend([time.time()] * ("Redis is back" in line))

    with ground(plan, tmp_path) as here:
        chaos = Chaos(plan, here, say)
        chaos.begin()
        chaos.spoil_redis("pause")
        began = len(here.web.arrivals())
        until(lambda: len(here.web.arrivals()) > began)
        verdict = chaos.go_on()
    assert list(verdict.broken()) == []
    assert any(back[0] < each.start < back[1] for each in verdict.arrivals)
    assert verdict.arrivals[-1].start > back[1]
    assert {name for names in verdict.kept.values() for name in names} == set(here.fleet.agents)


@pytest.mark.slow
def test_the_verdict_tells_several_crawls_from_one(tmp_path: Path) -> None:
    """Agents that know nothing of each other fetch everything twice, and too soon."""
    size = Size(hosts=6, addresses=3, pages=4, host_delay=0.4, ip_delay=0.1)
    plan = Plan(size=size, agents=2, seconds=0.0, transport="")
    broken = [line.partition(":")[0] for line in run(plan, tmp_path).broken()]
    assert broken == ["fetched twice, and not in flight at a kill", "too early"]


@pytest.mark.parametrize(
    ("options", "value", "line"),
    [
        ({"maxmemory": "50mb", "maxmemory-policy": "allkeys-lru"}, None, "allkeys-lru"),
        ({"maxmemory": "1"}, None, "out of memory"),
        ({}, "what is this", "another type under our name (suite:{"),
    ],
    ids=["evicts", "full", "wrong type"],
)
def test_a_redis_that_does_not_do_is_refused(
    options: dict[str, str], value: str | None, line: str, tmp_path: Path
) -> None:
    """In one line, before anything is fetched."""
    with RedisServer(tmp_path / "redis", **options) as redis, redis.client() as client:
        if value is not None:
            client.set(f"suite:{{{CRAWL}}}:members", value)
        settings: dict[str, Any] = web_settings(
            9, SUITE_CLUSTER="peers", SUITE_CRAWL_NAME=CRAWL, SUITE_REDIS_URL=redis.url,
            SUITE_AGENT_NAME="a", JOBDIR="job", LOG_LEVEL="ERROR",
        )  # fmt: skip
        process = start(SPIDER, settings, tmp_path, seeds="http://h000000.fake.test/")
        assert line in said_by(process, tmp_path)
