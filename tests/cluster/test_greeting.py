"""Agents that disagree, or whose clocks do: one of them ends, whatever comes when."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from random import Random
from typing import Any

import pytest
from support.stub_agents import stub_agent

from scrapy_spider_suite.cluster import lan
from scrapy_spider_suite.cluster.assignment import load_assignment
from scrapy_spider_suite.cluster.lan import AGREE, REFUSE, Handshake
from scrapy_spider_suite.cluster.membership import Ownership
from scrapy_spider_suite.errors import JoinRefusedError
from scrapy_spider_suite.store.interface import MemoryKV

HOUR = 3_600.0


class Street:
    """Agents a and b, what they have said and was not heard yet, and the time.

    Each goes by its `terms`, and its clock is ahead by so many seconds as `ahead` says; it allows
    as many as `skew` says.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **terms: str) -> None:
        self.now = 1e9
        self.terms = terms or {"a": "same", "b": "same"}
        self.ahead = dict.fromkeys("ab", 0.0)
        self.skew = dict.fromkeys("ab", 60.0)
        self.kept = {name: MemoryKV() for name in "ab"}
        self.waits: dict[str, deque[list[Any]]] = {name: deque() for name in "ab"}
        self.ended: list[str] = []
        self.why = self.kind = ""
        self.agents: dict[str, Handshake] = {}
        monkeypatch.setattr(lan, "HANDSHAKE_SECONDS", 0.0)
        monkeypatch.setattr(lan, "boottime", lambda: self.now)
        for name in "ab":
            self.begin(name)

    def begin(self, name: str) -> None:
        """Another process of that agent; what was said to it waits for it."""
        other = "ab".replace(name, "")
        self.agents[name] = Handshake(
            stub_agent(
                Ownership(load_assignment("ring"), name), job_id=f"job of {name}",
                kv=self.kept[name], over=lambda reason: self.ended.append(name),
                send_notice=lambda to, message: not self.waits[to].append(list(message)),  # type: ignore[func-returns-value]
            ),
            [other], {"SUITE_ORDER": self.terms[name]},
            skew=self.skew[name], wall=lambda: self.now + self.ahead[name],
        )  # fmt: skip

    def ask(self, name: str) -> None:
        """That agent asks the other."""
        self.agents[name].greet("ab".replace(name, ""))

    def hear(self, name: str) -> None:
        """That agent hears the next of what was said to it."""
        if self.waits[name]:
            self.agents[name].heard("ab".replace(name, ""), self.waits[name].popleft())

    def talk(self) -> None:
        """Until nobody has anything to say."""
        for _ in range(40):
            self.hear("a")
            self.hear("b")
        assert not any(self.waits.values()), "they talk for ever"

    async def goes_on(self, name: str) -> None:
        """That agent has waited for long enough."""
        try:
            await self.agents[name].meet()
        except JoinRefusedError as error:
            self.why, self.kind = str(error), error.kind
            self.ended.append(name)

    @property
    def met(self) -> str:
        """Those that have met the other."""
        return "".join(name for name in "ab" if self.agents[name].met)


def test_of_two_that_disagree_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if both were alone for long, and each was asked to end by the other."""

    async def test(seed: int) -> list[str]:
        draw, street = Random(seed), Street(monkeypatch, a="one", b="other")
        steps = [*"ab" * 3, "A", "B"]
        draw.shuffle(steps)
        for step in steps:
            if step.isupper():
                await street.goes_on(step.lower())
            else:
                street.ask(step)
            for _ in range(draw.randrange(3)):
                street.hear(draw.choice("ab"))
        street.talk()
        return street.ended

    ends = [tuple(asyncio.run(test(seed))) for seed in range(300)]
    assert set(ends) == {("a",), ("b",)}


def test_two_that_were_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The later by name ends, and the other one is not told to by what was said before."""
    street = Street(monkeypatch, a="one", b="other")

    async def test() -> None:
        for name in "ab":
            street.ask(name)
            await street.goes_on(name)
        street.talk()

    asyncio.run(test())
    assert street.ended == ["b"]


def test_who_comes_back_with_another_setting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its job has met the other before, and its name is the first."""
    street = Street(monkeypatch)

    async def test() -> None:
        street.ask("a")
        street.talk()
        assert street.met == "ab"
        for name in "ab":
            await street.goes_on(name)
        street.terms["a"] = "other"
        street.begin("a")
        street.ask("a")
        street.talk()
        await street.goes_on("a")

    asyncio.run(test())
    assert street.ended == ["a"]
    assert "SUITE_ORDER is other here and same there" in street.why


@pytest.mark.parametrize("ahead", [90.0, -90.0])
@pytest.mark.parametrize("asks", ["a", "b"])
def test_a_clock_that_is_off(
    ahead: float, asks: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who comes ends, whoever is asked: a line on either side says whose clock, how far it is off,
    what is allowed and by what."""
    street = Street(monkeypatch)

    async def test() -> None:
        await street.goes_on("b")
        street.ahead["a"] = ahead
        street.ask(asks)
        street.talk()
        assert not street.agents["b"].met
        await street.goes_on("a")
        assert street.kept["a"].get(b"met") is None

    asyncio.run(test())
    here, there = ("behind", "ahead of") if ahead > 0 else ("ahead of", "behind")
    line = "the clock of agent {} is 90.0 s {} that of agent {}: expected 60 s at most by {}; set"
    assert street.ended == ["a"]
    assert street.kind == "clock"
    assert street.why.startswith(line.format("b", here, "a", "SUITE_CLUSTER"))
    alone = [each for each in caplog.records if "has answered agent b within 0" in each.message]
    assert len(alone) == 1  # it had begun before the other one was there
    (record,) = (each for each in caplog.records if each not in alone)
    assert record.levelno == logging.WARNING
    assert "agent a is refused by agent b: " in record.message
    assert line.format("a", there, "b", "SUITE_CLUSTER") in record.message


@pytest.mark.parametrize("strict", ["a", "b"])
def test_the_smaller_bound_counts(
    strict: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of one that goes by phases, whichever it is."""
    street = Street(monkeypatch)
    street.skew[strict] = 5.0
    street.ahead["b"] = 7.0

    async def test() -> None:
        for name in "ab":
            street.begin(name)
            street.ask(name)
        street.talk()
        for name in "ab":
            await street.goes_on(name)

    asyncio.run(test())
    assert street.ended == ["b"]
    line = "7.0 s {} that of agent {}: expected 5 s at most by SUITE_PHASE_GUARD"
    assert line.format("behind", "b") in street.why
    assert line.format("ahead of", "a") in caplog.text


def test_a_message_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing of a clock: one that is away for an hour finds what was said meanwhile."""
    street = Street(monkeypatch)
    street.ahead["b"] = 59.0

    async def test() -> None:
        street.ask("a")
        await street.goes_on("a")
        street.now += HOUR
        street.begin("b")
        street.ask("b")
        street.talk()

    asyncio.run(test())
    assert street.met == "ab"
    assert not street.ended


def test_a_clock_that_is_set_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is what it says now, and not when the question was asked."""
    street = Street(monkeypatch)

    async def test() -> None:
        street.ahead["a"] = HOUR
        street.ask("a")
        await street.goes_on("a")
        street.ahead["a"] = 0.0
        street.now += 9.0
        street.begin("b")
        street.talk()

    asyncio.run(test())
    assert street.met == "ab"


@pytest.mark.parametrize("kind", [AGREE, REFUSE])
def test_what_was_said_to_an_earlier_process(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """That one's clock may have been another: it is asked again, and neither met nor obeyed."""
    street = Street(monkeypatch)

    async def test() -> None:
        await street.goes_on("a")
        street.ask("b")
        (question,) = street.waits["a"]
        street.waits["a"].clear()
        street.agents["a"].greet("b", kind, question[4])
        street.now += HOUR
        street.begin("b")
        street.hear("b")
        assert not street.met
        street.talk()

    asyncio.run(test())
    assert street.met == "ab"
    assert not street.ended


def test_who_speaks_and_is_not_met_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much it has to say: all that had waited for an agent comes to it at once."""
    street = Street(monkeypatch)
    for _ in range(100):
        street.agents["b"].wonder("a")
    assert len(street.waits["a"]) == 1
    street.now += 1.0
    street.agents["b"].wonder("a")
    assert len(street.waits["a"]) == 2


def test_who_finds_that_a_clock_is_off_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one to whom it looks as if it would just do: a message may have taken longer."""
    street = Street(monkeypatch)
    street.ahead["a"] = 59.0

    async def test() -> None:
        await street.goes_on("a")
        street.ask("b")
        (question,) = street.waits["a"]
        street.agents["a"].greet("b", REFUSE, question[4])
        street.hear("b")
        await street.goes_on("b")

    asyncio.run(test())
    assert street.ended == ["b"]
    assert "the clock of agent a is 59.0 s ahead" in street.why


def test_who_is_on_no_other_list_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it begins."""
    street = Street(monkeypatch)
    street.agents["a"].unlisted("b")
    asyncio.run(street.goes_on("a"))
    assert "agent b runs with another list, on which agent a is not" in street.why
    assert street.kind == "terms"
    assert street.ended == ["a"]


@pytest.mark.parametrize("met", [True, False])
def test_who_runs_already_stays(
    met: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Alone, too: it is the other one whose list is new."""
    street = Street(monkeypatch)
    if met:
        street.ask("a")
        street.talk()
    asyncio.run(street.goes_on("a"))
    for _ in range(2):
        street.agents["a"].unlisted("b")
    assert not street.ended
    assert caplog.text.count("runs with another list, on which agent a is not") == 1
