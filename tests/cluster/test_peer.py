"""An agent among the others of a real Redis, heartbeat by heartbeat."""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from time import monotonic
from types import SimpleNamespace

import numpy as np
import pytest
from support.agent_town import ALL, InTown, Town, back, beat, candidate
from support.stub_agents import stub_agent

from scrapy_spider_suite.cluster import peers as module
from scrapy_spider_suite.cluster.assignment import Member, Owners, load_assignment
from scrapy_spider_suite.cluster.membership import Candidate, Heartbeat, Ownership, RegistryAnswer
from scrapy_spider_suite.cluster.peers import MemberHeartbeat
from scrapy_spider_suite.cluster.registry import AgentRegistry
from scrapy_spider_suite.errors import FencedError, RegistryError


@pytest.fixture(autouse=True)
def _by_the_town(monkeypatch: pytest.MonkeyPatch, in_town: InTown) -> None:
    """Leases are looked at by the clock of the town."""
    monkeypatch.setattr(module, "boottime", lambda: 0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: 0.0, monotonic=monotonic))


class Here(MemberHeartbeat):
    """An agent *name* of *registry*, and what it says."""

    def __init__(self, registry: AgentRegistry, name: str) -> None:
        self.crawl, self.number = "", 0
        self.over: list[str] = []
        self.hears = [True]
        self.ownership = Ownership(load_assignment("ring"), name)
        super().__init__(
            stub_agent(
                self.ownership, over=self.over.append, set_receiving=self.hears.append,
                heartbeat=lambda: Heartbeat(self.ownership.epoch, True, 0, 0, 0),
            ),
            registry,
        )

    async def candidate(self) -> Candidate:
        """See `MemberHeartbeat`."""
        return candidate(self.agent.name, id=self.crawl, number=self.number)

    def joined(self, joined: RegistryAnswer) -> None:
        """See `MemberHeartbeat`."""
        self.crawl, self.number = joined.id, joined.number


async def _drained(town: Town) -> Here:
    """An agent that has given another one all that it held."""
    a = Here(town.registry(), "a")
    await a.open()
    b = await town.agent("b")
    a.drain()
    await a._beat()
    assert a.hears[-1]  # it holds everything still
    await beat(b)
    moved = await a.registry.give(ALL, 2, a.registry.answer.epoch)
    assert len(moved.units) == len(ALL)
    await a.update_holders()
    return a


def test_who_is_drained_takes_nothing_from_before_it_leaves(in_town: InTown) -> None:
    """What it took after that would stay with it; if it does not leave, it takes part again."""

    async def test(town: Town) -> None:
        a = await _drained(town)
        left, heard = a.registry.finish_leaving, list[bool]()

        async def held() -> bool:
            heard.append(a.hears[-1])
            return len(heard) > 1 and await left()

        a.registry.finish_leaving = held  # type: ignore[method-assign]
        await a._beat()
        assert not a.over
        await a._beat()
        assert a.over == ["drained"]
        assert heard == [False, False]
        assert a.hears[-4:] == [True, False, True, False]

    in_town(test)


def test_who_left_and_heard_no_answer_is_drained(in_town: InTown) -> None:
    """The next heartbeat says that it has left: no other process has its place."""

    async def test(town: Town) -> None:
        a = await _drained(town)
        left = a.registry.finish_leaving

        async def unheard() -> bool:
            await left()
            raise RegistryError("no answer in time", "away")

        a.registry.finish_leaving = unheard  # type: ignore[method-assign]
        with pytest.raises(RegistryError):
            await a._beat()
        with pytest.raises(FencedError) as fenced:
            await a._beat()
        assert not await a._rejoin(fenced.value)
        assert a.over == ["drained"]

    in_town(test)


def test_who_owns_what_is_found_out_beside_the_loop(
    in_town: InTown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of many new agents takes long."""

    async def test(town: Town) -> None:
        a, threads = Here(town.registry(), "a"), list[int]()
        table = a.ownership.assignment.table

        def noting(members: Sequence[Member]) -> Owners:
            threads.append(get_ident())
            return table(members)

        monkeypatch.setattr(a.ownership.assignment, "table", noting)
        await a.open()
        await town.agent("b")
        await a._beat()
        assert [member.name for member in a.ownership.table.members] == ["a", "b"]  # type: ignore[union-attr]
        assert len(threads) == 2
        assert get_ident() not in threads

    in_town(test)


def test_why_the_first_agent_waits_is_said(
    in_town: InTown, caplog: pytest.LogCaptureFixture
) -> None:
    """Where Redis has just been started; elsewhere it takes everything at once."""
    caplog.set_level("INFO")

    async def test(town: Town) -> None:
        town.client.set("test:uptime", 1_000)
        here = Here(town.registry(), "a")
        await here.open()
        assert not here.ownership.mine.any()
        assert caplog.text.count("what nobody has claimed is taken in 15 s") == 1
        town.wiped()
        town.client.set("test:uptime", 10**9)
        other = Here(town.registry(), "b")
        await other.open()
        assert other.ownership.mine.all()
        assert caplog.text.count("what nobody has claimed") == 1

    in_town(test)


def test_a_clock_that_is_set_is_said_once(
    in_town: InTown, caplog: pytest.LogCaptureFixture
) -> None:
    """And again if it is set wrong after it was right."""

    async def test(town: Town) -> None:
        here = Here(town.registry(), "a")
        await here.open()
        said = []
        for step in (0, 300, 0, -300, 300):
            town.now += step
            await here._beat()
            said.append(caplog.text.count("is 300 s ahead of that of Redis: expected 60 s"))
        assert said == [0, 1, 1, 1, 2]

    in_town(test)


def test_who_is_back_is_found_where_it_is_now(in_town: InTown) -> None:
    """Its hosts wait for it, so the members are the same: its address is another one."""

    async def test(town: Town) -> None:
        await town.agent("a", address="10.0.0.1:7000")
        b = Here(town.registry(), "b")
        await b.open()
        epoch = b.ownership.epoch
        _, joined = await back(town, "a", address="10.0.0.1:7001")
        await b._beat()
        row = b.ownership.records[joined.number]
        assert row is not None
        assert (joined.kept, b.ownership.epoch, row.address) == (True, epoch, "10.0.0.1:7001")

    in_town(test)


def test_under_another_number_an_agent_claims_what_it_held(in_town: InTown) -> None:
    """And not what the agent held that had the number before Redis lost everything."""

    async def test(town: Town) -> None:
        a, b = await town.agent("a"), Here(town.registry(), "b")
        await b.open()
        number = b.number
        for name in "cf":
            await town.agent(name)
        await beat(a)
        await a.give(ALL[::2], 2, a.answer.epoch)
        await a.give(ALL[1::4], 4, a.answer.epoch)
        await b._beat()
        mine = np.flatnonzero(b.ownership.mine)
        town.wiped()
        town.wait(1)
        await back(town, "a", id=b.crawl, number=1)
        for name in "de":
            await town.agent(name)
        with pytest.raises(FencedError) as fenced:
            await b._beat()
        assert await b._rejoin(fenced.value)
        assert (number, b.number) == (2, 4)
        assert np.flatnonzero(b.ownership.mine).tolist() == mine.tolist()

    in_town(test)


def test_who_begins_while_the_others_close_waits_for_them(
    in_town: InTown, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For a while."""
    monkeypatch.setattr(module, "_FIRST", 0.01)

    async def test(town: Town) -> None:
        a, closing = Here(town.registry(), "a"), await town.agent("b")
        while not (await beat(closing, idle=True)).ended:
            pass
        join = a.registry.join

        async def later(asked: Candidate) -> RegistryAnswer:
            if "asked again" in caplog.text:
                await closing.announce_stop()
            return await join(asked)

        monkeypatch.setattr(a.registry, "join", later)
        await a.open()
        assert caplog.text.count("its agents are closing") == 1
        assert a.number == 2
        await a._beat()
        assert not a.ended

    in_town(test)
