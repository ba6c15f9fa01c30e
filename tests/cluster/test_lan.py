"""Agents on a list: the end is found in rounds, by messages that may get lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from scrapy_spider_suite.agents.assignment import assignment_of
from scrapy_spider_suite.agents.members import Post
from scrapy_spider_suite.cluster import lan
from scrapy_spider_suite.cluster.lan import Neighbour
from scrapy_spider_suite.cluster.shares import Shares
from scrapy_spider_suite.storage.kv import MemoryKV


class Town:
    """Agents a, b and c, whose messages get lost now and then."""

    def __init__(self, *, lost: float = 0.0, terms: dict[str, str] | None = None) -> None:
        self.said = {name: Post(1, True, 0, 0, 0) for name in "abc"}
        self.over: dict[str, list[str]] = {name: [] for name in "abc"}
        self.agents: dict[str, Neighbour] = {}
        self.kept = {name: MemoryKV() for name in "abc"}
        self.deaf: set[str] = set()
        self._random, self._lost = Random(3), lost
        for name in "abc":
            self.agents[name] = self._agent(name, (terms or {}).get(name, "same"))

    def _agent(self, name: str, terms: str) -> Neighbour:
        agent = Neighbour(
            list("cab"), Shares(assignment_of("ring"), name), 1, terms, changed=lambda: None,
            post=lambda: self.said[name], over=self.over[name].append, kv=self.kept[name],
            written=self._written,
        )  # fmt: skip
        agent.tell = lambda to, message: self._bring(name, to, list(message))
        return agent

    async def _written(self) -> None:
        await asyncio.sleep(0)

    async def begin(self, *names: str) -> None:
        """Start those, each in another process, with what the last one has kept."""
        for name in names:
            self.agents[name] = self._agent(name, "same")
            self.deaf.discard(name)
            await self.agents[name].open()
            self.agents[name].start()

    async def kill(self, *names: str) -> None:
        """Those hear nothing any more, and say nothing."""
        self.deaf |= set(names)
        for name in names:
            await self.agents[name].close()

    async def until(self, true: Callable[[], object]) -> None:
        """Wait for what has no other event."""
        async with asyncio.timeout(60):
            while not true():
                await asyncio.sleep(0.005)

    def _bring(self, sender: str, to: str, message: list[Any]) -> bool:
        if self._random.random() >= self._lost and not self.deaf & {sender, to}:
            asyncio.get_running_loop().call_soon(self.agents[to].heard, sender, message)
        return True

    async def go(self, while_: Callable[[], object]) -> None:
        """Let them talk while *while_* is so."""
        for agent in self.agents.values():
            await agent.open()
            agent.start()
        async with asyncio.timeout(60):
            while while_():
                await asyncio.sleep(0.01)
        for agent in self.agents.values():
            await agent.close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lan, "_BEAT", 0.01)


@pytest.mark.parametrize("lost", [0.0, 0.3])
def test_all_of_them_end_when_all_are_idle(lost: float) -> None:
    """Though a message in three gets lost."""
    town = Town(lost=lost)
    asyncio.run(town.go(lambda: not all(town.over.values())))
    assert set(map(tuple, town.over.values())) == {("",)}
    assert all(agent.ended for agent in town.agents.values())


@pytest.mark.parametrize(
    "said",
    [Post(1, False, 0, 0, 0), Post(1, True, 5, 4, 0)],
    ids=["one that works", "a row on its way"],
)  # fmt: skip
def test_it_is_not_over_while(said: Post) -> None:
    """Somebody works, or owes something."""
    town = Town()
    town.said["b"] = said
    rounds = iter(range(60))
    asyncio.run(town.go(lambda: next(rounds, None) is not None))
    assert not any(town.over.values())
    assert town.agents["a"].stats["cluster/round"] > 3


def test_it_is_not_over_while_anything_happens() -> None:
    """What was done between two rounds may have led to more."""
    town = Town()
    rounds = iter(range(60))

    def busy() -> bool:
        town.said["c"] = town.said["c"]._replace(activity=town.said["c"].activity + 1)
        return next(rounds, None) is not None

    asyncio.run(town.go(busy))
    assert not any(town.over.values())


@pytest.mark.parametrize("late", ["c", "ca", "ac"])
def test_who_did_not_hear_of_the_end_hears_it_when_it_is_back(late: str) -> None:
    """Though others have gone by then; also if the first agent is killed, too."""
    town = Town()

    async def test() -> None:
        await town.begin(*"abc")
        bring = town._bring

        def lose(sender: str, to: str, message: list[Any]) -> bool:
            return (to == "c" and message[0] == lan.END) or bring(sender, to, message)

        town._bring = lose  # type: ignore[method-assign]
        await town.until(lambda: town.over["b"])
        await town.kill("b", *late)
        town._bring = bring  # type: ignore[method-assign]
        assert not town.over["c"]
        await town.begin(*late)
        await town.until(lambda: town.over["c"] and town.over["a"])

    asyncio.run(test())
    assert set(map(tuple, town.over.values())) == {("",)}


def test_who_knew_of_the_end_ends_though_all_have_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between hearing of it and ending; but not if the job was closed since."""
    monkeypatch.setattr(lan, "_LAST", 0.05)
    town = Town()

    async def test() -> None:
        town.kept["c"].put(lan.OVER, b"")
        town.kept["a"].put(lan.OVER, b"b\nc")
        await town.begin("c")
        await town.until(lambda: town.over["c"])
        await town.begin("a")
        await town.until(lambda: town.over["a"])
        for name in "ac":
            await town.agents[name].close(over=True)
            assert town.kept[name].get(lan.OVER) is None

    asyncio.run(test())


def test_a_job_that_is_begun_anew_is_another_crawl() -> None:
    """Who is asked what it does forgets that an earlier crawl was over."""
    town = Town()
    town.kept["c"].put(lan.OVER, b"")
    town.said["b"] = Post(1, False, 0, 0, 0)

    async def test() -> None:
        await town.begin(*"abc")
        await town.until(lambda: town.kept["c"].get(lan.OVER) is None)
        assert not town.over["c"]
        town.said["b"] = Post(1, True, 0, 0, 0)
        await town.until(lambda: all(town.over.values()))

    asyncio.run(test())


def test_who_has_other_settings_ends(caplog: pytest.LogCaptureFixture) -> None:
    """And both sides say so, once."""
    town = Town(terms={"c": "other"})
    asyncio.run(town.go(lambda: not town.over["c"]))
    assert town.over["c"][0] == "refused"
    assert not town.over["a"]
    assert "agent a has other fixed settings" in caplog.text
    assert caplog.text.count("c has other settings") <= 1


@pytest.mark.parametrize(
    ("sender", "message"),
    [("b", [lan.END]), ("b", [lan.ASK, 1, "same", 2]), ("a", [lan.POST, 1, 1, 1, 1, 1, 1]),
     ("a", [99]), ("a", [lan.ASK, 1]), ("a", [lan.ASK, 1, "same", "x"])],
)  # fmt: skip
def test_what_no_agent_says_is_refused(sender: str, message: list[Any]) -> None:
    """The crawl does not end by it."""
    town = Town()

    async def hear() -> None:
        with pytest.raises((ValueError, TypeError)):
            town.agents["c"].heard(sender, message)

    asyncio.run(hear())
    assert not town.agents["c"].ended
