"""A town of agents in one real Redis, whose clock goes when the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from scrapy_spider_suite.cluster import redis_server, registry
from scrapy_spider_suite.cluster.assignment import Units
from scrapy_spider_suite.cluster.membership import AgentLease, Candidate, Heartbeat, RegistryAnswer
from scrapy_spider_suite.cluster.registry import AgentRegistry, ClusterAdmin
from scrapy_spider_suite.frontier.entries import UNITS
from support.redis_servers import RedisServer

NOON = 1_800_000_000.0
GRACE = 900.0
FETCH = 180.0  # seconds that a fetch may last
ALL: Units = np.arange(UNITS, dtype=np.uint16)

# What stands in the place of world.lua: keys that the test sets.
WORLD = """
local function clock() return tonumber(redis.call('GET', 'test:now')) end
local function server()
  return redis.call('GET', 'test:run'), tonumber(redis.call('GET', 'test:uptime'))
end
"""


def units(*numbers: int) -> Units:
    """As scripts take them."""
    return np.array(numbers, np.uint16)


class Town:
    """All agents of one crawl, each with its own connection, and one clock for them and Redis."""

    def __init__(self, server: RedisServer, client: Any) -> None:
        self.server = server
        self.client = client
        self.now = NOON
        self._open: list[AgentRegistry | ClusterAdmin] = []
        client.mset({"test:run": "a", "test:uptime": 10**9})
        self.wait(0)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.client.set("test:now", round(self.now * 1000))

    def restarted(self) -> None:
        """Redis says that it is another process now."""
        self.client.append("test:run", "b")

    def remember(self) -> dict[bytes, bytes]:
        """All that Redis holds now, for `rewind`."""
        return {key: self.client.dump(key) for key in self.client.scan_iter()}

    def rewind(self, memory: dict[bytes, bytes]) -> None:
        """Redis is restarted, and has forgotten what came since it had *memory*."""
        self.client.flushall()
        for key, value in memory.items():
            self.client.restore(key, 0, value)
        self.wait(0)
        self.restarted()

    def wiped(self) -> None:
        """Redis has lost the crawl."""
        self.client.delete(*self.keys)

    @property
    def keys(self) -> list[str]:
        """What the crawl has in Redis."""
        return [f"suite:{{web}}:{name}" for name in ("crawl", "members", "facts", "holders")]

    def registry(self) -> AgentRegistry:
        """One of a process that has not joined."""
        here = AgentRegistry(
            self.server.url, "web", AgentLease(FETCH), clock=lambda: self.now,
            wall=lambda: self.now,
        )  # fmt: skip
        self._open.append(here)
        return here

    def office(self) -> ClusterAdmin:
        """Of an operator."""
        office = ClusterAdmin(self.server.url, "web")
        self._open.append(office)
        return office

    async def agent(self, name: str, **given: Any) -> AgentRegistry:
        """One that has joined."""
        here = self.registry()
        await here.join(candidate(name, **given))
        return here

    async def close(self) -> None:
        """Close all connections."""
        for each in self._open:
            await each.close()


def candidate(name: str, **given: Any) -> Candidate:
    """An agent whose job directory has the name of the agent."""
    known = {"job": f"job of {name}", "folder": f"folder of {name}", "grace": GRACE}
    return Candidate(name=name, **(known | given))


async def back(town: Town, name: str, **given: Any) -> tuple[AgentRegistry, RegistryAnswer]:
    """A new process of *name*, and how it was taken."""
    here = town.registry()
    return here, await here.join(candidate(name, **given))


async def beat(agent: AgentRegistry, **said: Any) -> RegistryAnswer:
    """A heartbeat of an agent that is at work, unless *said* otherwise."""
    known = {"idle": False, "sent": 0, "received": 0, "activity": 0} | said
    return await agent.renew(lambda: Heartbeat(**({"epoch": agent.answer.epoch} | known)))


async def held(agent: AgentRegistry) -> list[int]:
    """How many units each number holds, from 0 on."""
    counts: list[int] = np.bincount((await agent.holders()).holders, minlength=4).tolist()
    return counts


async def two(town: Town, **given: Any) -> tuple[AgentRegistry, AgentRegistry]:
    """Agents a and b that know of each other; b, whose number is 2, holds the even units."""
    a, b = await town.agent("a", **given), await town.agent("b", **given)
    await beat(a)
    await a.give(ALL[::2], to=2, epoch=a.answer.epoch)
    return a, b


InTown = Callable[[Callable[[Town], Awaitable[None]]], None]
"""Runs a test in an empty town."""


@contextmanager
def towns(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[InTown]:
    """What runs a test in an empty town, again and again."""
    monkeypatch.setattr(redis_server, "WORLD", WORLD)
    monkeypatch.setattr(registry, "TIMEOUT", 60.0)

    async def in_town(test: Callable[[Town], Awaitable[None]], client: Any) -> None:
        client.flushall()
        town = Town(server, client)
        try:
            await test(town)
        finally:
            await town.close()

    with server.client() as client:
        yield lambda test: asyncio.run(in_town(test, client))
