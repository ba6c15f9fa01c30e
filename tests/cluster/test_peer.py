"""An agent among the others of a real Redis, heartbeat by heartbeat."""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from time import monotonic
from types import SimpleNamespace

import numpy as np
import pytest
from support.agent_contexts import agent_context
from support.agent_town import ALL, InTown, Town, back, beat, candidate

from scrapy_spider_suite.cluster import peers as module
from scrapy_spider_suite.cluster.assignment import Member, Owners, load_assignment
from scrapy_spider_suite.cluster.membership import Candidate, Heartbeat
from scrapy_spider_suite.cluster.ownership import Ownership
from scrapy_spider_suite.cluster.peers import MemberHeartbeat
from scrapy_spider_suite.cluster.registry import AgentRegistry, Joined
from scrapy_spider_suite.errors import FencedError, RegistryError


@pytest.fixture(autouse=True)
def _by_the_town(monkeypatch: pytest.MonkeyPatch, in_town: InTown) -> None:
    """Leases are looked at by the clock of the town."""
    monkeypatch.setattr(module, "boottime", lambda: 0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: 0.0, monotonic=monotonic))


class Here:
    """A `Peer` of *registry*, and what it says."""

    def __init__(self, registry: AgentRegistry, name: str) -> None:
        self.registry, self.name, self.crawl = registry, name, ""
        self.number = 0
        self.over: list[str] = []
        self.hears = [True]
        self.ownership = Ownership(load_assignment("ring"), name)
        self.peer = MemberHeartbeat(
            agent_context(
                self.ownership, over=self.over.append,
                heartbeat=lambda: Heartbeat(self.ownership.epoch, True, 0, 0, 0),
            ),
            registry, self._candidate, idle=lambda: True, joined=self._joined,
            hear=self.hears.append,
        )  # fmt: skip

    async def _candidate(self) -> Candidate:
        return candidate(self.name, id=self.crawl, number=self.number)

    def _joined(self, joined: object) -> None:
        self.crawl, self.number = joined.id, joined.number  # type: ignore[attr-defined]


async def _drained(town: Town) -> Here:
    """An agent that has given another one all that it held."""
    a = Here(town.registry(), "a")
    await a.peer.open()
    b = await town.agent("b")
    a.peer.drain()
    await a.peer._beat()
    assert a.hears[-1]  # it holds everything still
    await beat(b)
    moved = await a.registry.give(ALL, 2, a.registry.answer.epoch)
    assert len(moved.units) == len(ALL)
    await a.peer.look()
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
        await a.peer._beat()
        assert not a.over
        await a.peer._beat()
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
            await a.peer._beat()
        with pytest.raises(FencedError) as fenced:
            await a.peer._beat()
        assert not await a.peer._again(fenced.value)
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
        await a.peer.open()
        await town.agent("b")
        await a.peer._beat()
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
        await here.peer.open()
        assert not here.ownership.mine.any()
        assert caplog.text.count("what nobody has claimed is taken in 15 s") == 1
        town.wiped()
        town.client.set("test:uptime", 10**9)
        other = Here(town.registry(), "b")
        await other.peer.open()
        assert other.ownership.mine.all()
        assert caplog.text.count("what nobody has claimed") == 1

    in_town(test)


def test_a_clock_that_is_set_is_said_once(
    in_town: InTown, caplog: pytest.LogCaptureFixture
) -> None:
    """And again if it is set wrong after it was right."""

    async def test(town: Town) -> None:
        here = Here(town.registry(), "a")
        await here.peer.open()
        said = []
        for step in (0, 300, 0, -300, 300):
            town.now += step
            await here.peer._beat()
            said.append(caplog.text.count("is 300 s ahead of that of Redis: expected 60 s"))
        assert said == [0, 1, 1, 1, 2]

    in_town(test)


def test_who_is_back_is_found_where_it_is_now(in_town: InTown) -> None:
    """Its hosts wait for it, so the members are the same: its address is another one."""

    async def test(town: Town) -> None:
        await town.agent("a", address="10.0.0.1:7000")
        b = Here(town.registry(), "b")
        await b.peer.open()
        epoch = b.ownership.epoch
        _, joined = await back(town, "a", address="10.0.0.1:7001")
        await b.peer._beat()
        row = b.ownership.record(joined.number)
        assert row is not None
        assert (joined.kept, b.ownership.epoch, row.address) == (True, epoch, "10.0.0.1:7001")

    in_town(test)


def test_under_another_number_an_agent_claims_what_it_held(in_town: InTown) -> None:
    """And not what the agent held that had the number before Redis lost everything."""

    async def test(town: Town) -> None:
        a, b = await town.agent("a"), Here(town.registry(), "b")
        await b.peer.open()
        number = b.number
        for name in "cf":
            await town.agent(name)
        await beat(a)
        await a.give(ALL[::2], 2, a.answer.epoch)
        await a.give(ALL[1::4], 4, a.answer.epoch)
        await b.peer._beat()
        mine = np.flatnonzero(b.ownership.mine)
        town.wiped()
        town.wait(1)
        await back(town, "a", id=b.crawl, number=1)
        for name in "de":
            await town.agent(name)
        with pytest.raises(FencedError) as fenced:
            await b.peer._beat()
        assert await b.peer._again(fenced.value)
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

        async def later(asked: Candidate) -> Joined:
            if "asked again" in caplog.text:
                await closing.announce_stop()
            return await join(asked)

        monkeypatch.setattr(a.registry, "join", later)
        await a.peer.open()
        assert caplog.text.count("its agents are closing") == 1
        assert a.number == 2
        await a.peer._beat()
        assert not a.peer.ended

    in_town(test)
