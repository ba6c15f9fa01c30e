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


class Town:
    """Agents a, b and c, whose messages get lost now and then."""

    def __init__(self, *, lost: float = 0.0, terms: dict[str, str] | None = None) -> None:
        self.said = {name: Post(1, True, 0, 0, 0) for name in "abc"}
        self.over: dict[str, list[str]] = {name: [] for name in "abc"}
        self.agents: dict[str, Neighbour] = {}
        self._random, self._lost = Random(3), lost
        for name in "abc":
            self.agents[name] = self._agent(name, (terms or {}).get(name, "same"))

    def _agent(self, name: str, terms: str) -> Neighbour:
        agent = Neighbour(
            list("cab"), Shares(assignment_of("ring"), name), 1, terms, changed=lambda: None,
            post=lambda: self.said[name], over=self.over[name].append,
        )  # fmt: skip
        agent.tell = lambda to, message: self._bring(name, to, list(message))
        return agent

    def _bring(self, sender: str, to: str, message: list[Any]) -> bool:
        if self._random.random() >= self._lost:
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
