"""Agents on a list: the end is found in rounds, by messages that may get lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from support.stub_agents import stub_agent

from scrapy_spider_suite.cluster import lan
from scrapy_spider_suite.cluster import lan as greeting
from scrapy_spider_suite.cluster import lan as late
from scrapy_spider_suite.cluster.assignment import load_assignment
from scrapy_spider_suite.cluster.lan import ENDED, LanMode
from scrapy_spider_suite.cluster.membership import Heartbeat, Ownership
from scrapy_spider_suite.cluster.messages import Message
from scrapy_spider_suite.cluster.transports.udp import BOUNDS
from scrapy_spider_suite.errors import JoinRefusedError
from scrapy_spider_suite.store.interface import MemoryKV


class Town:
    """Agents a, b and c, whose messages get lost now and then.

    *terms* and *lists* are of those that have others.
    """

    def __init__(
        self, *, lost: float = 0.0, terms: dict[str, str] | None = None,
        lists: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.said = {name: Heartbeat(1, True, 0, 0, 0) for name in "abc"}
        self.over: dict[str, list[str]] = {name: [] for name in "abc"}
        self.agents: dict[str, LanMode] = {}
        self.kept = {name: MemoryKV() for name in "abc"}
        self.deaf: set[str] = set()
        self._random, self._lost = Random(3), lost
        self._terms, self._lists = terms or {}, lists or {}
        self.jobs = {name: f"job of {name}" for name in "abc"}
        for name in "abc":
            self.agents[name] = self._agent(name)

    def _agent(self, name: str) -> LanMode:
        return LanMode(
            stub_agent(
                Ownership(load_assignment("ring"), name), job_id=self.jobs[name],
                kv=self.kept[name], written=self._written, heartbeat=lambda: self.said[name],
                over=self.over[name].append,
                send_notice=lambda to, message: self._bring(name, to, list(message)),
            ),
            list(self._lists.get(name, "cab")), {"SUITE_ORDER": self._terms.get(name, "same")},
        )  # fmt: skip

    async def _written(self) -> None:
        await asyncio.sleep(0)

    async def begin(self, *names: str) -> None:
        """Start those, each in another process, with what the last one has kept."""
        for name in names:
            self.agents[name] = self._agent(name)
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
        if to not in self.agents or self.agents[to]._agent.ownership.epoch == 0:
            return True  # it has not begun
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
    monkeypatch.setattr(greeting, "HANDSHAKE_SECONDS", 0.05)
    monkeypatch.setattr(late, "_LATE_CHECK", 0.005)


@pytest.mark.parametrize("lost", [0.0, 0.3])
def test_all_of_them_end_when_all_are_idle(lost: float) -> None:
    """Though a message in three gets lost."""
    town = Town(lost=lost)
    asyncio.run(town.go(lambda: not all(town.over.values())))
    assert set(map(tuple, town.over.values())) == {("",)}
    assert all(agent.ended for agent in town.agents.values())


@pytest.mark.parametrize(
    "said",
    [Heartbeat(1, False, 0, 0, 0), Heartbeat(1, True, 5, 4, 0)],
    ids=["one that works", "a row on its way"],
)  # fmt: skip
def test_it_is_not_over_while(said: Heartbeat) -> None:
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


def test_nothing_piles_up_for_who_never_came() -> None:
    """It is not asked what it does before it is met; then it is, and the end is found."""
    town = Town()
    asked: list[str] = []
    bring = town._bring

    def count(sender: str, to: str, message: list[Any]) -> bool:
        asked.extend(to for _ in range(message[0] == lan.ASK))
        return bring(sender, to, message)

    async def test() -> None:
        town._bring = count  # type: ignore[method-assign]
        await town.begin("a", "b")
        await town.until(lambda: "b" in asked)
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert "c" not in asked
        await town.begin("c")
        await town.until(lambda: all(town.over.values()))
        await town.kill(*"abc")

    town.agents.clear()
    asyncio.run(test())
    assert set(map(tuple, town.over.values())) == {("",)}


@pytest.mark.parametrize("away", ["c", "ca", "ac"])
def test_who_did_not_hear_of_the_end_hears_it_when_it_is_back(away: str) -> None:
    """Though others have gone by then; also if the first agent is killed, too."""
    town = Town()

    async def test() -> None:
        await town.begin(*"abc")
        bring = town._bring

        def lose(sender: str, to: str, message: list[Any]) -> bool:
            return (to == "c" and message[0] == lan.END) or bring(sender, to, message)

        town._bring = lose  # type: ignore[method-assign]
        await town.until(lambda: town.over["b"])
        await town.kill("b", *away)
        town._bring = bring  # type: ignore[method-assign]
        assert not town.over["c"]
        await town.begin(*away)
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
            assert town.kept[name].get(ENDED) is not None

    asyncio.run(test())


WORKS = Heartbeat(1, False, 0, 0, 0, left=True)


class LateTown(Town):
    """One whose agents had ended; nothing is lost that they say now."""

    def __init__(self, late: str = "abc") -> None:
        super().__init__()
        for name in late:
            self.kept[name].put(ENDED, b"")

    def late(self) -> str:
        """Who has the mark that the crawl has ended."""
        return "".join(name for name in "abc" if self.kept[name].get(ENDED) is not None)


@pytest.mark.parametrize("again", ["a", "c", "bc", "abc"])
def test_who_has_nothing_to_do_after_the_end_ends(
    again: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At once if all others are there, and have nothing to do; else when they may be gone."""
    monkeypatch.setattr(late, "ARRIVAL_SECONDS", 60.0 if again == "abc" else 0.1)
    town = LateTown()

    async def test() -> None:
        await town.begin(*again)
        await town.until(lambda: all(town.over[name] for name in again))
        for name in again:
            await town.agents[name].close(over=True)

    asyncio.run(test())
    assert [town.over[name] for name in again] == [[""]] * len(again)
    assert town.late() == "abc"
    assert caplog.text.count("the crawl has ended") == len(again)


def test_who_comes_late_is_given_time_to_say_that_it_works() -> None:
    """It is met in the last moment: what it has to say is on its way."""
    now = 0.0

    async def test() -> None:
        nonlocal now
        agent = LanMode(stub_agent(Ownership(load_assignment("ring"), "b")), "ab", {})
        met = agent.handshake.met
        waiting = asyncio.ensure_future(agent._goes_on())
        for now in (
            1.0,
            late.ARRIVAL_SECONDS - 0.1,
            late.ARRIVAL_SECONDS + 0.1,
            2 * late.ARRIVAL_SECONDS - 1,
        ):
            if now > late.ARRIVAL_SECONDS - 1 and not met:
                met.add("a")
            for _ in range(5):
                await asyncio.sleep(0.01)
            assert not waiting.done(), now
        now = 2 * late.ARRIVAL_SECONDS + 1
        assert not await waiting

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(late, "boottime", lambda: now)
        patch.setattr(late, "_LATE_CHECK", 0.001)
        asyncio.run(test())


@pytest.mark.parametrize("works", ["a", "b", "c"])
@pytest.mark.parametrize("marked", ["abc", "ab", "bc", "ac", "b"])
def test_who_is_late_goes_on_with_who_works(works: str, marked: str) -> None:
    """Whether that one has the mark of the end, too, or not; and they end together."""
    town = LateTown(marked)
    town.said[works] = WORKS

    async def test() -> None:
        await town.begin(*"abc")
        await town.until(lambda: not town.late())
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not any(town.over.values())
        town.said[works] = WORKS._replace(idle=True, left=False)
        await town.until(lambda: all(town.over.values()))
        for name in "abc":
            await town.agents[name].close(over=True)

    asyncio.run(test())
    assert set(map(tuple, town.over.values())) == {("",)}
    assert town.late() == "abc"


def test_who_does_not_know_yet_whether_it_has_work_is_waited_for() -> None:
    """It reads its seeds; what it has done between two looks counts, too."""
    town = LateTown()
    town.said["b"] = Heartbeat(1, False, 0, 0, 0)

    async def test() -> None:
        await town.begin(*"abc")
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert not any(town.over.values())
        assert town.late() == "abc"
        town.said["b"] = Heartbeat(1, True, 0, 0, 1)
        await town.until(lambda: not town.late())
        await town.until(lambda: all(town.over.values()))

    asyncio.run(test())


@pytest.mark.parametrize("heard", ["b", "c"])
def test_who_was_killed_as_it_heard_of_the_end_ends_with_those_that_are_late(heard: str) -> None:
    """It knows as much as they do; the first agent has noted that."""
    town = LateTown("abc".replace(heard, ""))
    town.kept[heard].put(lan.OVER, b"")

    async def test() -> None:
        await town.begin(*"abc")
        await town.until(lambda: all(town.over.values()))

    asyncio.run(test())


def test_who_is_late_hears_of_the_end_from_the_first_that_waits_for_it() -> None:
    """That was killed before it had noted all."""
    town = LateTown("bc")
    town.kept["a"].put(lan.OVER, b"c")

    async def test() -> None:
        await town.begin(*"abc")
        await town.until(lambda: all(town.over.values()))

    asyncio.run(test())


def test_a_job_that_is_begun_anew_is_another_crawl() -> None:
    """Who is asked what it does forgets that an earlier crawl was over."""
    town = Town()
    town.kept["c"].put(lan.OVER, b"")
    town.said["b"] = Heartbeat(1, False, 0, 0, 0)

    async def test() -> None:
        await town.begin(*"abc")
        await town.until(lambda: town.kept["c"].get(lan.OVER) is None)
        assert not town.over["c"]
        town.said["b"] = Heartbeat(1, True, 0, 0, 0)
        await town.until(lambda: all(town.over.values()))

    asyncio.run(test())


@pytest.mark.parametrize(
    ("terms", "lists", "differ"),
    [({"c": "other"}, {}, "SUITE_ORDER is other here and same there"),
     ({}, {"c": "acd"}, "SUITE_AGENTS is a, c, d here and a, b, c there")],
    ids=["a setting", "a name"],
)  # fmt: skip
def test_who_goes_by_something_else_does_not_begin(
    terms: dict[str, str], lists: dict[str, str], differ: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It learns what it is; whom it met says so, too, once; the others take none of its rows."""
    town = Town(terms=terms, lists=lists)

    async def test() -> None:
        await town.begin("a", "b")
        await town.agents["a"].meet()
        await town.agents["b"].meet()
        await town.begin("c")
        with pytest.raises(JoinRefusedError) as refused:
            await town.agents["c"].meet()
        assert str(refused.value).endswith(f"agents of a crawl need the same: {differ}")
        assert not any(town.over.values())
        epochs = {name: town.agents[name]._agent.ownership.epoch for name in "abc"}
        assert epochs["a"] == epochs["b"] != epochs["c"]
        for sender, taken in (("b", True), ("c", False), ("c", False)):
            message = Message(sender, 1, epochs[sender], 1, 1, (b"",))
            assert town.agents["a"].accepts(message) == taken
        for _ in range(20):
            await asyncio.sleep(0)
        await town.kill(*"abc")

    asyncio.run(test())
    assert caplog.text.count("agent c is refused by agent a: ") == 1
    assert caplog.text.count("agent a does not take the URLs that agent c sends: ") == 1


def test_who_began_alone_ends_when_it_meets_others(caplog: pytest.LogCaptureFixture) -> None:
    """Though its name is the first: they have met, and it has not; later it is of no account."""
    town = Town(terms={"a": "other"})

    async def test() -> None:
        await town.begin("b", "c")
        await town.agents["b"].meet()
        town.deaf.add("a")
        await town.begin("a")
        town.deaf.add("a")
        await town.agents["a"].meet()
        await town.kill("b")
        town.deaf.discard("a")
        await town.begin("b")
        await town.until(lambda: town.over["a"])
        await town.kill(*"abc")

    asyncio.run(test())
    assert town.over == {"a": ["refused"], "b": [], "c": []}
    assert caplog.text.count("SUITE_ORDER is other here and same there: this agent ends") == 1
    assert "agent a is refused by agent b: SUITE_ORDER is same here" in caplog.text


def test_who_has_lost_its_directory_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """By those that knew it; not when it is merely started again."""
    town = Town()
    town.said["b"] = Heartbeat(1, False, 0, 0, 0)

    async def test() -> None:
        await town.begin(*"abc")
        await town.until(lambda: all(len(town.agents[n].handshake.met) == 2 for n in "abc"))
        for job in ("job of b", "another"):
            assert "directory was lost" not in caplog.text
            await town.kill("b")
            if job == "another":
                town.kept["b"] = MemoryKV()
            town.jobs["b"] = job
            await town.begin("b")
            await town.until(lambda: len(town.agents["b"].handshake.met) == 2)
        await town.kill(*"abc")

    asyncio.run(test())
    assert caplog.text.count("agent b has begun anew: its job directory was lost") == 2


def test_terms_fit_into_a_message() -> None:
    """However long a list of agents, or a setting."""
    said: list[Any] = []
    names = [f"agent-{n}-\N{SNOWMAN}" for n in range(900)]
    terms = {f"SUITE_{n}": f"{n}" * 5_000 for n in range(15)}
    one = greeting.Handshake(
        stub_agent(
            Ownership(load_assignment("ring"), names[0]),
            send_notice=lambda to, message: not said.append(message),  # type: ignore[func-returns-value]
        ),
        names[1:], terms,
    )  # fmt: skip
    one.greet(names[1])
    assert len(msgpack.packb(said[0])) < BOUNDS.alone


@pytest.mark.parametrize(
    ("sender", "message"),
    [("b", [lan.END]), ("b", [lan.ASK, 2]), ("a", [lan.POST, 1, 1, 1, 1, 1, 1]),
     ("a", [99]), ("a", [lan.ASK]), ("a", [lan.ASK, "x"]), ("a", [greeting.MEET]),
     ("a", [greeting.MEET, "x", 1, "job", 1.0, 0.0, 9.0]),
     ("a", [greeting.MEET, {}, 9, "job", 1.0, 0.0, 9.0]),
     ("a", [greeting.MEET, {}, 1, "job", float("nan"), 0.0, 9.0]),
     ("a", [greeting.MEET, {}, 1, "job", 1.0, "x", 9.0])],
)  # fmt: skip
def test_what_no_agent_says_is_refused(sender: str, message: list[Any]) -> None:
    """The crawl does not end by it; what somebody says who was not met is not even looked at."""
    town = Town()

    async def hear() -> None:
        if message[0] < greeting.MEET:
            town.agents["c"].heard(sender, message)
        town.agents["c"].handshake.met |= {"a", "b"}
        assert town.agents["c"].agrees("a")
        with pytest.raises((ValueError, TypeError)):
            town.agents["c"].heard(sender, message)

    asyncio.run(hear())
    assert not town.agents["c"].ended
