"""Two agents, a Redis and a web, each with an address of its own; the cable of an agent is cut."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.chaos import FROZEN, Plan, name_of
from support.fleet import Fleet
from support.network_namespaces import Network
from support.polite_crawls import Size
from support.redis_servers import binary
from support.running_crawl import until
from support.verdict import table, verdict_of

from scrapy_spider_suite.testing import FakeWebProcess

PLAN = Plan(
    size=Size(hosts=12, addresses=5, pages=24, host_delay=1.25, ip_delay=0.03), agents=2, seconds=0
)
GRACE = 36.0
PORT = 6379


@contextmanager
def redis_at(network: Network, name: str, folder: Path) -> Iterator[str]:
    """A Redis in that namespace; gives its URL."""
    address = network.address(name)
    server = subprocess.Popen(
        [*network.inside(name), binary(), "--bind", address, "--port", str(PORT),
         "--protected-mode", "no", "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"redis://{address}:{PORT}"
    finally:
        server.kill()
        server.wait()


@pytest.mark.slow
@pytest.mark.long
def test_a_cable_is_cut_for_longer_than_a_lease(tmp_path: Path) -> None:
    """The other agent takes over; the cable is plugged in again: one crawl, polite and complete."""
    agents = [name_of(1), name_of(2)]
    size, log = PLAN.size, tmp_path / "arrivals"
    with Network([*agents, "redis", "web"], "web") as network:
        config = size.web(log, seeds=1, seeds_file=None)
        web = FakeWebProcess(config, inside=network.inside("web"))
        with redis_at(network, "redis", tmp_path) as url, web:
            settings = {**size.settings(web.ready), **PLAN.settings(), "SUITE_REDIS_URL": url}

            def own(name: str) -> dict[str, Any]:
                return {**settings, "SUITE_AGENT_ADDRESS": network.address(name)}

            arguments = {"seeds": web.ready.seeds[0]}
            with Fleet(tmp_path, own, arguments, namespace=network.file) as fleet:
                for name in agents:
                    fleet.start(name)
                until(lambda: len(web.arrivals()) > 24 or not fleet.alive(), 60, 0.5)
                network.cut(agents[1])
                fleet.note("cut", agents[1])
                time.sleep(GRACE + 4)
                network.plug(agents[1])
                fleet.note("plug", agents[1])
                fleet.wait(60, lambda: log.stat().st_size)
                web.stop()
                verdict = verdict_of(fleet, web.web, size, web.arrivals(), GRACE, FROZEN)
    print(table(verdict.rows()))
    assert list(verdict.broken()) == []
    assert {name for names in verdict.kept.values() for name in names} == set(agents)
