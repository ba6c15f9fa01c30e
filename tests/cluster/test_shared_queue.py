"""Fetchers of a shared queue, from outside: one polite crawl, whoever comes and goes."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.chaos import CRAWL, Chaos, Ground, Plan, ground, name_of, run
from support.fleet import State
from support.polite_crawls import Size
from support.projects import scrapy
from support.running_crawl import until

from scrapy_spider_suite.cluster.run_queue import RunQueue, Task

REFUSED = 2
PLAN = Plan(
    size=Size(hosts=18, addresses=7, pages=15, host_delay=0.8, ip_delay=0.03), agents=2,
    seconds=0.0, pace=(1.0, 3.0), grace="forever", transport="shared-queue",
)  # fmt: skip


async def tasks_of(queue: RunQueue) -> list[Task]:
    """What the first fetcher has."""
    try:
        return await queue.tasks(name_of(1))
    finally:
        await queue.close()


@contextmanager
def two_at_work(plan: Plan, folder: Path) -> Iterator[tuple[Ground, Chaos]]:
    """Two fetchers that have fetched some pages."""
    with ground(plan, folder) as here:
        chaos = Chaos(plan, here)
        chaos.begin()
        here.fleet.start(name_of(2))
        until(lambda: len(here.web.arrivals()) > 60)
        yield here, chaos


@pytest.mark.slow
def test_two_fetchers_are_one_polite_crawl(tmp_path: Path) -> None:
    """Each page once, delays kept; the crawl ends, and nothing of it is left but a mark."""
    with ground(PLAN, tmp_path) as here:
        chaos = Chaos(PLAN, here)
        chaos.begin()
        here.fleet.start(name_of(2))
        verdict = chaos.go_on()
        assert list(verdict.broken()) == []
        pages = Counter(names[0] for names in verdict.kept.values())
        assert min(pages[name_of(1)], pages[name_of(2)]) > pages.total() / 5  # each has its share


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
    """It comes back with what it held a second before."""
    plan = replace(PLAN, fault="restart-aof", seconds=9.0)
    assert list(run(plan, tmp_path).broken()) == []


@pytest.mark.slow
@pytest.mark.long
def test_a_fetcher_is_gone_for_good(tmp_path: Path) -> None:
    """With its disk: when its lease and the longest delay are over, another one goes on."""
    plan = replace(PLAN, grace=36.0, within=120.0)
    with two_at_work(plan, tmp_path) as (here, chaos):
        here.fleet.kill(name_of(1))
        shutil.rmtree(here.fleet.agents[name_of(1)].job)
        here.fleet.agents[name_of(1)].state = State.LEFT
        verdict = chaos.go_on()
        assert list(verdict.broken()) == []
        assert {name for names in verdict.kept.values() for name in names} == set(here.fleet.agents)


@pytest.mark.slow
@pytest.mark.long
def test_one_is_frozen_past_its_lease(tmp_path: Path) -> None:
    """Others get its runs; as it wakes, it lets go of them before it fetches anything."""
    plan = replace(PLAN, grace=36.0, within=120.0, size=replace(PLAN.size, pages=90))
    with two_at_work(plan, tmp_path) as (here, chaos):
        here.fleet.pause(name_of(1))
        time.sleep(44.0)
        here.fleet.resume(name_of(1))
        assert list(chaos.go_on().broken()) == []


@pytest.mark.slow
@pytest.mark.long
def test_disks_folder_and_redis_are_in_trouble(tmp_path: Path) -> None:
    """All of it, and fetchers that are stopped, killed and frozen past their lease."""
    plan = replace(PLAN, hard=True, agents=3, seconds=75.0, grace=36.0, within=150.0)
    assert list(run(plan, tmp_path).broken()) == []


@pytest.mark.slow
def test_an_operator_asks_for_a_page(tmp_path: Path) -> None:
    """A page that was fetched is fetched once more, at once; queues and runs can be looked at."""
    plan = replace(PLAN, size=replace(PLAN.size, pages=40))
    with ground(plan, tmp_path) as here:
        assert here.redis is not None
        place = ("-j", here.redis.url, "--crawl", CRAWL)
        Chaos(plan, here).begin()
        until(lambda: len(here.web.arrivals()) > 40)
        url = here.web.ready.seeds[0]
        page = url.partition(".test")[2].partition("/")[2]
        said = scrapy(tmp_path, "frontier", "add", url, "--queue", "one-off", "--now", *place)
        assert said.returncode == 0, said.stderr
        assert name_of(1) in said.stdout
        host = url.split("/")[2]
        until(lambda: sum(
            each.path == f"/{page}" and each.host == host.partition(":")[0]
            for each in here.web.arrivals()
        ) == 2)  # fmt: skip
        said = scrapy(tmp_path, "frontier", "runs", "--json", *place)
        assert said.returncode == 0, said.stderr
        by_queue = {row.get("queue"): row for row in map(json.loads, said.stdout.splitlines())}
        assert by_queue["one-off"]["runs_running"] + by_queue["one-off"]["runs_done"] == 1
        assert by_queue["bulk"]["urls_running"] > 0
        assert "bulk" in scrapy(tmp_path, "frontier", "runs", *place).stdout
        said = scrapy(tmp_path, "frontier", "top", "--json", *place)
        queues = {row["queue"]: row for row in json.loads(said.stdout)["queues"]}
        assert (queues["bulk"]["weight"], queues["one-off"]["weight"]) == (1.0, 5.0)
        assert queues["bulk"]["urls_running"] > 0
        assert "one-off" in scrapy(tmp_path, "frontier", "top", *place).stdout
        words = ("frontier", "history", "pages", "pending", "--queue", "bulk", "--json", *place)

        def history() -> list[dict[str, float]]:
            return [json.loads(line) for line in scrapy(tmp_path, *words).stdout.splitlines()]

        until(lambda: sum(row["pages"] for row in history()) > 40)
        assert max(row["pending"] for row in history()) > 1
        queue = RunQueue(here.redis.url, CRAWL)
        ids = [task.run.id.hex() for task in asyncio.run(tasks_of(queue))]
        said = scrapy(tmp_path, "frontier", "runs", "show", *ids, *place)
        assert url.partition("/")[0] in said.stdout, said.stderr
        said = scrapy(tmp_path, "frontier", "why", here.web.ready.seeds[0], "--json", *place)
        assert json.loads(said.stdout)["state"] in ("pending", "done"), said.stderr
        wrong = scrapy(tmp_path, "frontier", "runs", "retry", "00" * 8, *place)
        assert wrong.returncode == 1
        wrong = scrapy(tmp_path, "frontier", "add", url, "--queue", "none", *place)
        assert (wrong.returncode, "there is no queue" in wrong.stderr) == (2, True)


@pytest.mark.slow
def test_another_folder_is_refused(tmp_path: Path) -> None:
    """In one line, which names the setting."""
    with ground(PLAN, tmp_path) as here:
        Chaos(PLAN, here).begin()
        given = here.fleet.settings
        here.fleet.settings = lambda name: {**given(name), "SUITE_RUNS_DIR": str(tmp_path / "x")}
        other = here.fleet.start(name_of(2))
        assert other.process is not None
        assert other.process.wait(60) == REFUSED
        assert "SUITE_RUNS_DIR" in other.log.splitlines()[-1]
        here.fleet.kill(name_of(1))
