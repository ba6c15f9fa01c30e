"""Pulses of agents in Redis: sums exact over late pulses, kills and takeovers; bounded."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from scrapy.settings import Settings
from support.agent_town import NOON, InTown, Town

from scrapy_spider_suite.analysis.time_series import Rows
from scrapy_spider_suite.cluster import pulses
from scrapy_spider_suite.cluster.pulses import AGENT, QUEUE, PulseSender, SeriesClient, process_id
from scrapy_spider_suite.cluster.pulses import PHASE as PHASES
from scrapy_spider_suite.crawl.pulse import COLUMNS
from scrapy_spider_suite.errors import JobError
from scrapy_spider_suite.operate.verb import Invocation
from scrapy_spider_suite.operate.verbs.history import VERBS

PAGES = COLUMNS.counters.index("pages")
PENDING = COLUMNS.gauges.index("pending")
DISK = COLUMNS.gauges.index("disk_free")
PHASE = COLUMNS.gauges.index("phase")


class Member:
    """An agent whose crawl a test plays."""

    def __init__(self, town: Town, name: str, incarnation: int = 1) -> None:
        self.counted = np.zeros(len(COLUMNS.counters))
        self.gauges = np.full(len(COLUMNS.gauges), np.nan)
        crawl = SimpleNamespace(parts=SimpleNamespace(pulses=self))
        drawn = incarnation << 32 | crc32(name.encode())
        self.queues: dict[str, Any] = {}  # pulses of queues
        agent: Any = SimpleNamespace(
            name=name, crawl_name="web", crawl=crawl, incarnation=drawn,
            queue_pulses=lambda: self.queues,
        )  # fmt: skip
        self.process = process_id(name, drawn)
        self.sender = PulseSender(agent, town.server.url)
        town._open.append(self.sender._series)  # type: ignore[arg-type]

    def take(self) -> None:
        """Nothing more is counted."""

    async def fetch(
        self, pages: int, pending: float = 0.0, disk: float = 1e9, phase: float = np.nan
    ) -> None:
        """Count *pages*, and send the pulse."""
        self.counted[PAGES] += pages
        self.gauges[[PENDING, DISK, PHASE]] = pending, disk, phase
        await self.sender._send()

    async def end(self) -> None:
        """End in order."""
        await self.sender._finish()


async def series(town: Town, *, part: str = "", span: float = 7_000, points: int = 7_000) -> Rows:
    """The series of the last seconds."""
    client = SeriesClient(town.server.url, "web")
    try:
        return await client.read(town.now - span, town.now, points, part)
    finally:
        await client.close()


async def total(town: Town, **given: Any) -> int:
    """All pages that the series have."""
    return int(np.nansum((await series(town, **given)).total("pages")))


def test_all_agents_are_added_up(in_town: InTown) -> None:
    """The whole crawl in all tiers, each agent in minutes and above."""

    async def test(town: Town) -> None:
        agents = [Member(town, name) for name in "abc"]
        for _ in range(130):
            for number, agent in enumerate(agents):
                await agent.fetch(number + 1, pending=10.0 * (number + 1), disk=1e9 + number)
            town.wait(1)
        await agents[0].sender._send()
        rows = await series(town, span=120, points=120)
        assert rows.width == 1
        assert rows.rate("pages")[60:110].tolist() == [6.0] * 50
        assert rows.mean("pending")[100] == 60.0
        assert rows.mean("disk_free")[100] == 1e9
        assert np.isnan(rows.mean("phase")).all()
        minutes = await series(town, span=3_600, points=60)
        assert minutes.maximum("pending")[-2] == 60.0
        own = await series(town, part=f"{AGENT}c", span=3_600, points=60)
        assert np.nansum(own.total("pages")) >= 380
        assert np.nanmax(own.maximum("pending")) == 30.0
        await asyncio.gather(*(agent.end() for agent in agents))
        for span, points in ((7_000, 7_000), (86_400, 1_440), (9e6, 9_000), (9e8, 20_000)):
            assert await total(town, span=span, points=points) == 130 * 6
        client = SeriesClient(town.server.url, "web")
        assert (await client.totals())[1]["pages"] == 130 * 6
        last = await client.last_pulses()
        assert {name: each.counters[PAGES] for name, each in last.items()} == {
            "a": 130.0, "b": 260.0, "c": 390.0,
        }  # fmt: skip
        await client.close()

    in_town(test)


def test_late_and_lost_pulses(in_town: InTown) -> None:
    """What a lost pulse had is in the next one; a new process counts anew; gauges bridge a gap."""

    async def test(town: Town) -> None:
        a, b = Member(town, "a"), Member(town, "b")
        for second in range(20):
            await a.fetch(1, pending=1)
            if second % 3 == 0:
                await b.fetch(5, pending=7)
            else:
                b.counted[PAGES] += 5
            town.wait(1)
        rows = await series(town, span=20, points=20)
        assert rows.mean("pending")[5:15].tolist() == [8.0] * 10
        again = Member(town, "b", incarnation=2)
        for each in (again, b, again, b):  # the old process of b is late
            await each.fetch(3)
            await a.fetch(0)
        await asyncio.gather(*(agent.end() for agent in (b, a, again)))
        assert await total(town) == 20 + 20 * 5 + 4 * 3

    in_town(test)


def test_agents_that_end_at_once(in_town: InTown) -> None:
    """Each stays until its last pulse is in rows, whoever has the lease."""

    async def test(town: Town) -> None:
        agents = [Member(town, name) for name in "abcdefgh"]
        for _ in range(3):
            for agent in agents:
                await agent.fetch(1)
            town.wait(1)
        for agent in agents:
            agent.counted[PAGES] += 10
        await asyncio.gather(*(agent.end() for agent in agents))
        assert await total(town) == 8 * 13
        left = town.client.keys("suite:{web}:series:*")
        assert not {b"pulses", b"taken", b"roller"} & {key.rpartition(b":")[2] for key in left}

    in_town(test)


def test_the_last_agent_waits_for_the_lease_of_a_dead_one(in_town: InTown) -> None:
    """It is over after some seconds; the last agent rolls up then."""

    async def test(town: Town) -> None:
        dead, last = Member(town, "a"), Member(town, "b")
        await dead.fetch(5)
        await last.fetch(7)
        town.client.pexpire("suite:{web}:series:roller", 700)
        await last.end()
        assert await total(town) == 12

    in_town(test)


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_is_cut_off(
    in_town: InTown, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """By a cancel or an error while rows are made: the next one has all of its counts."""
    monkeypatch.setattr(pulses, "_PERIOD", 0.01)
    made, make = [], pulses._RollUpState.add

    def slowly(*given: Any) -> None:
        made.append(given)
        time.sleep(0.2)
        make(*given)
        if fails and len(made) == 1:
            raise ZeroDivisionError

    async def test(town: Town) -> None:
        agent = Member(town, "a")
        agent.counted[PAGES] = 3
        monkeypatch.setattr(pulses._RollUpState, "add", slowly)
        task = asyncio.ensure_future(agent.sender.run())
        while len(made) <= fails:
            await asyncio.sleep(0.01)
        agent.counted[PAGES] = 10
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert await total(town) == 10

    in_town(test)


def test_redis_was_away(in_town: InTown) -> None:
    """What was counted meanwhile is in one row that covers the time, whoever rolls up then."""

    async def test(town: Town) -> None:
        a, b = Member(town, "a"), Member(town, "b")
        for _ in range(5):
            await a.fetch(1)
            await b.fetch(1)
            town.wait(1)
        town.wait(1_800)
        await b.fetch(1_800)
        await a.fetch(1_800)
        town.wait(1)
        await asyncio.gather(a.end(), b.end())
        found = await series(town)
        assert np.nansum(found.total("pages")) == 3_610
        assert np.nanmax(found.rate("pages")) < 5

    in_town(test)


def test_phases_have_a_history(in_town: InTown) -> None:
    """Of the agents that are in a phase, while they are."""

    async def test(town: Town) -> None:
        a, b = Member(town, "a"), Member(town, "b")
        for second in range(20):
            await a.fetch(1, pending=4, phase=1 + second // 10)
            await b.fetch(2, pending=5, phase=2)
            town.wait(1)
        await asyncio.gather(a.end(), b.end())
        one, two = [await series(town, part=f"{PHASES}{n}", span=3_600, points=60) for n in (1, 2)]
        assert [np.nansum(each.total("pages")) for each in (one, two)] == [10, 50]
        assert [np.nanmax(each.maximum("pending")) for each in (one, two)] == [4, 9]

    in_town(test)


def test_history_reads_them(in_town: InTown, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole crawl, or an agent or phase of it, also of an agent that has left."""

    async def history(town: Town, **given: Any) -> list[dict[str, Any]]:
        options = {
            "series": ["pages"], "since": town.now - 3_600, "until": town.now, "points": 60,
            "tier": None, "agent": None, "phase": None, "queue": None, "csv": None,
            "parquet": None,
        }  # fmt: skip
        settings = Settings({"SUITE_CRAWL_NAME": "web"})
        chosen = argparse.Namespace(**(options | given))
        call = Invocation(town.server.url, True, settings, chosen, "web")
        assert VERBS[0].run is not None
        assert await asyncio.to_thread(VERBS[0].run, call) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    async def test(town: Town) -> None:
        a, b = Member(town, "a"), Member(town, "b")
        for _ in range(5):
            await a.fetch(1, phase=1)
            await b.fetch(2, phase=2)
            town.wait(1)
        await asyncio.gather(a.end(), b.end())
        for given, pages in (({}, 15), ({"agent": "b"}, 10), ({"phase": 1}, 5)):
            assert sum(row["pages"] for row in await history(town, **given)) == pages
        refused = ({"agent": "c"}, "no rows of agent c"), (
            {"agent": "a", "tier": "second"}, "no rows of a second .* minutes for 24 h, hours for",
        )  # fmt: skip
        for given, words in refused:
            with pytest.raises(JobError, match=words):
                await history(town, **given)

    in_town(test)


def test_queues_have_a_history(in_town: InTown) -> None:
    """What all agents have done for a queue; the whole crawl does not count it again."""

    async def test(town: Town) -> None:
        members = [Member(town, name) for name in "ab"]
        for second in range(1, 8):
            for number, each in enumerate(members, 1):
                gauges = np.array([number, np.nan, np.nan, np.nan])
                each.queues = {"bulk": (np.array([second * number, 1.0, 0.0, 0.0]), gauges)}
                await each.fetch(number)
            town.wait(1)
        await asyncio.gather(*(each.end() for each in members))
        client = SeriesClient(town.server.url, "web")
        try:
            rows = await client.read(town.now - 3_600, town.now, 60, f"{QUEUE}bulk")
            assert len(await client.last_pulses()) == 2
        finally:
            await client.close()
        assert (np.nansum(rows.total("pages")), np.nansum(rows.total("failed"))) == (21, 2)
        assert np.nanmax(rows.maximum("pending")) == 3
        assert await total(town) == 21

    in_town(test)


def test_processes_that_are_gone_are_forgotten(
    in_town: InTown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute after they were heard, unless they may come back; new agents take their places."""
    monkeypatch.setattr(pulses, "PARTS_MAX", 2)

    async def test(town: Town) -> None:
        roller, gone, away = (Member(town, name) for name in ("a", "gone", "away"))
        for each in (roller, away):
            row = {"incarnation": each.process[:16]}
            town.client.hset("suite:{web}:members", each.process[16:], json.dumps(row))
        for agent in (roller, gone, away):
            await agent.fetch(1)
        for _ in range(130):
            await roller.fetch(1)
            town.wait(1)
        late = Member(town, "late")
        await late.fetch(5)
        await roller.fetch(0)
        state = roller.sender._roll_up._state
        assert state is not None
        assert state.bases.keys() == {roller.process, away.process, late.process}
        assert state.open.keys() == {"", f"{AGENT}a", f"{AGENT}late"}
        assert not town.client.hexists("suite:{web}:series:rolled", gone.process)
        await away.fetch(1)  # nothing is counted twice
        await asyncio.gather(*(agent.end() for agent in (away, late, roller)))
        assert await total(town) == 3 + 130 + 5 + 1
        assert await total(town, part=f"{AGENT}late", span=3_600, points=60) == 5

    in_town(test)


def test_another_agent_goes_on_where_one_was_killed(in_town: InTown) -> None:
    """Whenever the one that rolls up is killed, no count is lost or counted twice."""

    async def test(town: Town) -> None:
        expected, living = 0, [Member(town, name) for name in "abcd"]
        random = np.random.default_rng(7)
        while len(living) > 1:
            for _ in range(8):
                for agent in living:
                    number = int(random.integers(0, 9))
                    expected += number
                    await agent.fetch(number)
                town.wait(1)
            killed = living.pop(0)  # it rolls up
            if len(living) % 2:  # in the middle: it has handed out pulses, whose rows are lost
                await killed.sender._roll_up.step()
            town.client.delete("suite:{web}:series:roller")  # its lease runs out
        for _ in range(3):
            await living[0].fetch(0)
            town.wait(1)
        await living[0].end()
        assert await total(town) == expected
        assert await total(town, span=9e8, points=20_000) == expected

    in_town(test)


def test_a_lease_that_was_another_ones_meanwhile(in_town: InTown) -> None:
    """What the other one has rolled up stays."""

    async def test(town: Town) -> None:
        a, b = Member(town, "a"), Member(town, "b")
        for agent in (a, b):
            for _ in range(2):
                await agent.fetch(1)
        town.client.delete("suite:{web}:series:roller")  # a stood still for too long
        await b.end()
        for _ in range(2):
            await a.fetch(1)
        await a.end()
        assert await total(town) == 6

    in_town(test)


def test_redis_loses_everything(in_town: InTown) -> None:
    """The crawl goes on, with the columns sent again."""

    async def test(town: Town) -> None:
        agent = Member(town, "a")
        for _ in range(5):
            await agent.fetch(1)
            town.wait(1)
        town.client.delete(*town.client.keys("suite:*"))
        for _ in range(5):
            await agent.fetch(1)
            town.wait(1)
        await agent.end()
        assert 5 <= await total(town) <= 15

    in_town(test)


def test_it_is_bounded(in_town: InTown, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pulses have a cap in bytes; raw ones stay a minute; foreign ones do no harm."""
    monkeypatch.setattr(pulses, "_BYTES_MAX", 3_000)
    monkeypatch.setattr(pulses, "PARTS_MAX", 2)

    async def test(town: Town) -> None:
        first = Member(town, "a0")
        await first.fetch(1)
        assert 0 < town.client.pttl("suite:{web}:series:taken") <= 60_000
        await first.sender._roll_up.step()
        others = [Member(town, f"a{n}") for n in range(1, 20)]
        for other in others:
            await other.fetch(1)
        kept = town.client.hgetall("suite:{web}:series:pulses")
        assert 1 <= len(kept) < 10
        assert sum(map(len, kept.values())) < 4_000
        assert 0 < town.client.pttl("suite:{web}:series:pulses") <= 60_000
        town.client.hset("suite:{web}:series:pulses", mapping={"x": "", "y": "y" * 2_000})
        nan = np.full(len(COLUMNS.counters), np.nan)
        packed = pulses.pack_pulse(pulses._IDS[COLUMNS], nan, np.ones(len(COLUMNS.gauges)))
        town.client.hset("suite:{web}:series:pulses", "z", b"%015d" % 1 + packed)
        town.client.hset("suite:{web}:series:columns", "0" * 16, "no JSON")
        town.wait(1)
        await first.fetch(1)
        await first.end()
        assert len(town.client.keys("suite:{web}:series:minute:*")) <= 3
        assert await total(town) >= 2

    in_town(test)


def test_the_clock_of_redis_jumps(in_town: InTown) -> None:
    """Back into rows that are closed, and ahead: nothing is lost in the coarser tiers."""

    async def test(town: Town) -> None:
        agent, expected = Member(town, "a"), 0
        for step in (1, 1, -600, 1, 4_000, -3_000, 1, 1, -1, 1) * 3:
            await agent.fetch(10)
            expected += 10
            town.wait(step)
        await agent.end()
        town.wait(100_000)
        assert await total(town, span=9e8, points=20_000) == expected
        assert town.now > NOON

    in_town(test)


def test_many_agents(in_town: InTown) -> None:
    """A roll-up of 1,000 agents takes well below the second that it has."""

    async def test(town: Town) -> None:
        roller = Member(town, "m")
        await roller.fetch(0)
        await roller.sender._roll_up.step()
        packed = pulses.pack_pulse(
            pulses._IDS[COLUMNS], np.ones(len(COLUMNS.counters)), np.ones(len(COLUMNS.gauges))
        )
        stamped = b"%015d" % round(town.now * 1_000) + packed
        names = {process_id(f"n{n}", 1): stamped for n in range(1_000)}
        town.client.hset("suite:{web}:series:pulses", mapping=names)
        began = time.process_time()
        await roller.sender._roll_up.step()
        await roller.sender._roll_up.step()
        assert time.process_time() - began < 1.0
        town.wait(1)
        assert await total(town) == 1_000
        await roller.end()

    in_town(test)


def test_it_runs_beside_the_agent(in_town: InTown, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pulse a second; the last one as it is cancelled, and nothing while Redis is away."""
    monkeypatch.setattr(pulses, "_PERIOD", 0.01)

    async def test(town: Town) -> None:
        agent = Member(town, "a")
        agent.counted[PAGES] = 3

        async def cancelled(run: Callable[[], Awaitable[None]], seconds: float) -> None:
            task = asyncio.ensure_future(run())
            await asyncio.sleep(seconds)
            agent.counted[PAGES] += 4
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        await cancelled(agent.sender.run, 0.1)
        assert await total(town) == 7
        assert town.client.get("suite:{web}:series:roller") is None

    in_town(test)
