"""What an agent owes to others is bounded: beyond that it pauses, until they have taken some."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from support import running_crawl as running
from support.chaos import Ground, Plan, ground, name_of
from support.crawls import loopback_settings
from support.fleet import Fleet
from support.inprocess_crawls import QUIET
from support.polite_crawls import Size
from support.redis_servers import RedisServer
from support.verdict import verdict_of

from scrapy_spider_suite.cluster import agent as owing
from scrapy_spider_suite.cluster.agent import Agent
from scrapy_spider_suite.cluster.mailbox import Outbox
from scrapy_spider_suite.store.interface import MemoryKV
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader

LAST = (1 << 64) - 1
PAUSES, GOES_ON = "the crawl pauses until some are taken", "the crawl goes on"
PLAN = Plan(
    size=Size(hosts=16, addresses=16, pages=14, host_delay=0.35, ip_delay=0.0), agents=2,
    seconds=0.0, grace="forever", fault="restart-aof",
)  # fmt: skip
ROWS = 12
LATE = 100.0
"""Seconds that anything may take on a busy machine."""


def most_rows(count: int) -> dict[str, Any]:
    """The settings of an agent that pauses while *count* rows wait for others."""
    return {"TEST_CONSTANTS": {"scrapy_spider_suite.cluster.agent.OUTBOX_ROWS": count}}


class Scene:
    """An agent with an outbox that takes 20 rows, and the pauses of its scheduler."""

    def __init__(self) -> None:
        self.outbox = Outbox(MemoryKV())
        self.stats: Counter[str] = Counter()
        self.pauses: set[str] = set()
        self.changes: Counter[str] = Counter()
        self.closing = False
        stats = SimpleNamespace(inc_value=lambda name: self.stats.update([name]))
        crawl = SimpleNamespace(crawler=SimpleNamespace(stats=stats))
        self.agent: Any = Agent.__new__(Agent)
        self.agent._mode = SimpleNamespace(may_fetch=lambda: True)
        self.agent._scheduler, self.agent.crawl = self, crawl
        self.agent.outbox = self.outbox

    def pause(self, why: str) -> None:
        """As the scheduler does."""
        self.changes["pause"] += 1
        self.pauses.add(why)

    def unpause(self, why: str) -> None:
        """As the scheduler does."""
        self.changes["unpause"] += 1
        self.pauses.discard(why)

    def owe(self, rows: int, to: str = "b") -> None:
        """So many rows more wait."""
        for _ in range(rows):
            self.outbox.put(to, b"row")

    def pay(self, rows: int, to: str = "b") -> None:
        """So many rows are taken."""
        first = next(self.outbox.rows(to))[0]
        self.outbox.drop(to, first, first + rows - 1)

    def may(self) -> bool:
        """Whether it may begin a fetch."""
        return bool(self.agent.may_fetch())


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owing, "_OUTBOX_CHECK", 0.0)
    monkeypatch.setattr(owing, "OUTBOX_ROWS", 20)


async def turns(count: int = 5) -> None:
    """Let what is due be done."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_nothing_is_fetched_while_too_much_is_owed(caplog: pytest.LogCaptureFixture) -> None:
    """Until others have taken a tenth of the bound; it is said once, and counted."""

    async def test() -> None:
        scene = Scene()
        scene.owe(12)
        scene.owe(7, "c")
        assert scene.may()
        scene.owe(1, "c")
        assert [scene.may(), scene.may()] == [False, False]
        assert scene.pauses == {"the outbox"}
        scene.pay(1)
        await turns()
        assert scene.pauses
        scene.pay(1, "c")
        await turns()
        assert not scene.pauses
        assert scene.may()
        scene.owe(2)
        assert not scene.may()
        assert scene.changes == {"pause": 2, "unpause": 1}
        assert scene.stats == {"suite/outbox/pauses": 2}

    with caplog.at_level(logging.INFO):
        asyncio.run(test())
    first, second, _ = [record.getMessage() for record in caplog.records]
    assert first.startswith("the outbox is full: 20 rows wait for other agents (b 12, c 8): ")
    assert second == f"18 rows wait for other agents: {GOES_ON}"


def test_a_crawl_that_ends_in_the_pause_is_not_looked_at_again() -> None:
    """It stays paused."""

    async def test() -> None:
        scene = Scene()
        scene.owe(20)
        assert not scene.may()
        scene.closing = True
        scene.pay(20)
        await turns()
        assert scene.pauses
        assert scene.changes == {"pause": 1}

    asyncio.run(test())


@pytest.mark.slow
@pytest.mark.long
def test_the_crawl_pauses_while_redis_is_away_and_goes_on_after(tmp_path: Path) -> None:
    """Long before leases end; nothing is lost."""
    with ground(PLAN, tmp_path) as here:
        assert here.redis is not None
        known = here.fleet.settings
        here.fleet.settings = lambda name: {**known(name), **most_rows(ROWS)}
        names = [name_of(1), name_of(2)]
        for name in names:
            here.fleet.start(name)
        both = f"agents that share the crawl: {', '.join(names)}"
        until(here, lambda: all(both in said for said in logs(here)))
        until(here, lambda: len(here.web.arrivals()) > 20)
        here.redis.kill()
        until(here, lambda: all(PAUSES in said for said in logs(here)))
        time.sleep(2.0)  # what was under way ends
        count = len(here.web.arrivals())
        time.sleep(2.0)
        assert len(here.web.arrivals()) == count
        here.redis.start()
        until(here, lambda: all(GOES_ON in said for said in logs(here)))
        here.fleet.wait(60.0, lambda: here.log.stat().st_size)
        here.web.stop()
        verdict = verdict_of(here.fleet, here.web.web, PLAN.size, here.web.arrivals(), 1e9, ())
        assert list(verdict.broken()) == []
        assert all(each.stats["suite/outbox/pauses"] for each in here.fleet.agents.values())


@pytest.mark.slow
def test_no_more_seeds_are_read_than_others_take(tmp_path: Path) -> None:
    """An agent whose list nobody else is given, and another one that is away."""
    redis, seeds = RedisServer(tmp_path / "redis"), tmp_path / "seeds"
    hosts = (f"127.{n // 250 % 250}.{n // 62_500}.{n % 250 + 1}" for n in range(250, 40_250))
    seeds.write_text("".join(f"http://{host}:9/\n" for host in hosts))
    common = loopback_settings(
        **QUIET, ROBOTSTXT_OBEY=False, SUITE_CLUSTER="peers", SUITE_CRAWL_NAME="owing",
        SUITE_WHEN_DONE="wait", **most_rows(100), SUITE_REDIS_URL=redis.url,
        SUITE_SHARED_SEEDS=False,
    )  # fmt: skip
    with redis, Fleet(tmp_path, lambda name: common, {}) as fleet:
        for name in "ab":
            fleet.start(name)
        for name, agent in fleet.agents.items():
            running.until(lambda known=agent: "share the crawl: a, b" in known.log, LATE)
            fleet.stop(name)
        common["SUITE_SEEDS"] = [str(seeds)]
        fleet.start("a")
        running.until(lambda: PAUSES in fleet.agents["a"].log, LATE)
        at = -1
        while at != (at := seeds_read(fleet.agents["a"].job)):
            time.sleep(2.0)  # some slices, also of a busy machine
        fleet.stop("a")
        assert fleet.wrong == []
        assert 100 <= fleet.agents["a"].stats["suite/messages/waiting"] < 8_000


def seeds_read(job: Path) -> int:
    """How many lines of its only list a job has taken."""
    with StoreReader(job / FOLDER) as reader:
        kept = (msgpack.unpackb(value) for _, value in reader.store.kv("seed_lists").items())
        return sum(each["counts"]["lines"] for each in kept)


def logs(here: Ground) -> list[str]:
    """What each agent has said."""
    return [agent.log for agent in here.fleet.agents.values()]


def until(here: Ground, met: Callable[[], bool]) -> None:
    """Wait until something is so, while all agents run."""
    end = time.monotonic() + 90
    while not met():
        here.fleet.look()
        assert len(here.fleet.alive()) == len(here.fleet.agents), here.fleet.wrong
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.1)
