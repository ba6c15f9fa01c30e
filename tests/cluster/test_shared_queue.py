"""Fetchers of a shared queue, from outside: one polite crawl, whoever comes and goes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.chaos import Chaos, Plan, ground, name_of, run
from support.fleet import State
from support.polite_crawls import Size
from support.running_crawl import until

PLAN = Plan(
    size=Size(hosts=18, addresses=7, pages=15, host_delay=0.8, ip_delay=0.03), agents=2,
    seconds=0.0, pace=(1.0, 3.0), grace="forever", transport="shared-queue",
)  # fmt: skip


@pytest.mark.slow
def test_two_fetchers_are_one_polite_crawl(tmp_path: Path) -> None:
    """Each page once, delays kept; the crawl ends, and nothing of it is left but a mark."""
    with ground(PLAN, tmp_path) as here:
        chaos = Chaos(PLAN, here)
        chaos.begin()
        here.fleet.start(name_of(2))
        assert list(chaos.go_on().broken()) == []


@pytest.mark.slow
def test_they_come_and_go(tmp_path: Path) -> None:
    """Stopped, killed, frozen and started again at random."""
    assert list(run(replace(PLAN, seconds=14.0), tmp_path).broken()) == []


@pytest.mark.slow
def test_a_job_directory_may_vanish(tmp_path: Path) -> None:
    """A fetcher that is killed, and comes back without its disk, goes on with its runs."""
    with ground(PLAN, tmp_path) as here:
        chaos = Chaos(PLAN, here)
        chaos.begin()
        until(lambda: len(here.web.arrivals()) > 40)
        here.fleet.kill(name_of(1))
        shutil.rmtree(here.fleet.agents[name_of(1)].job)
        here.fleet.start(name_of(1))
        assert list(chaos.go_on().broken()) == []


@pytest.mark.slow
@pytest.mark.long
def test_redis_is_restarted(tmp_path: Path) -> None:
    """It comes back with what it held."""
    plan = replace(PLAN, fault="restart-aof", seconds=9.0)
    assert list(run(plan, tmp_path).broken()) == []


@pytest.mark.slow
@pytest.mark.long
def test_a_fetcher_is_gone_for_good(tmp_path: Path) -> None:
    """With its disk: when its lease and the longest delay are over, another one goes on."""
    plan = replace(PLAN, grace=36.0, within=120.0)
    with ground(plan, tmp_path) as here:
        chaos = Chaos(plan, here)
        chaos.begin()
        here.fleet.start(name_of(2))
        until(lambda: len(here.web.arrivals()) > 60)
        here.fleet.kill(name_of(1))
        shutil.rmtree(here.fleet.agents[name_of(1)].job)
        here.fleet.agents[name_of(1)].state = State.LEFT
        verdict = chaos.go_on()
        assert list(verdict.broken()) == []
        assert {name for names in verdict.kept.values() for name in names} == set(here.fleet.agents)
