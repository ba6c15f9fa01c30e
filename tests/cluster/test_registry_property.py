"""Whatever happens to agents and to Redis: no unit is ever fetched by two, and none is lost."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.agent_town import GRACE, InTown, Town
from support.agent_town_model import SOME, Job, Process

from scrapy_spider_suite.cluster.membership import MemberState
from scrapy_spider_suite.errors import ClusterError

NAMES = "abc"
OPS = (
    "start", "start", "kill", "rest", "pause", "resume", "sync", "sync", "sync", "give",
    "give_back", "take", "take", "leave", "remove", "remove dead", "lose", "hold", "hold",
    "deliver", "restart", "wipe", "save", "roll back", "wait", "wait", "wait long", "expire",
    "inherit", "inherit",
)  # fmt: skip
WAITS = {"wait": 5.0, "wait long": 400.0, "expire": GRACE}

Steps = list[tuple[str, int]]


class Model:
    """A town in which anything may happen; after each step it is looked who may fetch what."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.jobs = [Job(name) for name in NAMES]
        self.late: list[Callable[[], Any]] = []
        self.processes: dict[str, Process] = {}
        self.saved: dict[str, bytes] | None = None

    def check(self) -> None:
        """No unit is anybody's but one's."""
        live = [each.live for each in self.processes.values() if not each.ended]
        assert not live or np.sum(live, axis=0).max() <= 1

    async def start(self, number: int) -> None:
        """A process begins, if there is none of its name: the lock of its job proves that."""
        job = self.jobs[number % len(NAMES)]
        old = self.processes.get(job.name)
        if old is None or old.ended:
            process = self.processes[job.name] = Process(self.town, job, self.late)
            await process.join()

    async def step(self, op: str, number: int) -> None:
        """Something happens, to whom *number* says; no two things at the same time."""
        self.town.wait(0.01)
        if op in WAITS:
            self.town.wait(WAITS[op])
        elif op == "start":
            await self.start(number)
        elif op in ("restart", "wipe", "save", "roll back", "deliver"):
            await self.to_redis(op)
        elif op.startswith("remove"):
            await self.remove(NAMES[number % len(NAMES)], dead=op.endswith("dead"))
        else:
            process = self.processes[NAMES[number % len(NAMES)]]
            if not process.ended and (op in ("kill", "resume") or not process.paused):
                await self.to_process(process, op, number)
        self.check()

    async def to_process(self, process: Process, op: str, number: int) -> None:
        """It does something, or something is done to it."""
        if op == "kill":
            process.end()
        elif op in ("pause", "resume"):
            process.paused = op == "pause"
        elif op in ("lose", "hold"):
            process.fault = op
        elif op == "inherit":  # the others were silent for just as long as they may
            self.town.wait(GRACE)
            await process.sync()
            await process.take()
        elif op == "rest":
            await process.attempt(process.registry.announce_stop())
            process.end()
        elif op == "leave":
            await process.attempt(process.registry.leave())
        elif op == "give":
            rows = process.registry.view.rows
            to = Random(number).choice(rows).number if rows else 1
            await process.give(number % 3 == SOME % 3, to)
        else:
            await getattr(process, op)()

    async def to_redis(self, op: str) -> None:
        """Redis is restarted, with or without what it knew, or a call comes late."""
        client, keys = self.town.client, self.town.keys
        if op == "deliver":
            if self.late:
                await self.late.pop(0)()
        elif op == "save":
            self.saved = {key: client.dump(key) for key in keys}
        elif op == "wipe":
            self.town.wiped()
        elif op == "restart":
            self.town.restarted()
        elif self.saved is not None:
            self.town.wiped()
            for key, dump in self.saved.items():
                if dump is not None:
                    client.restore(key, 0, dump)
            self.town.restarted()

    async def remove(self, name: str, *, dead: bool) -> None:
        """An operator sends an agent away; it is dead only if it is."""
        if dead and not self.processes[name].ended:
            return
        try:
            await self.town.office().remove(name, dead=dead)
        except ClusterError:
            return
        if dead:  # that this was said must not be forgotten, for then it may be back in its grace
            self.saved = None

    async def settle(self) -> None:
        """All is well from now on; everybody has what it owns in the end."""
        for late in self.late:
            await late()
        for number in range(len(NAMES)):
            process = self.processes[NAMES[number]]
            process.paused, process.fault = False, ""
            await self.start(number)
        for _ in range(6):
            for number, name in enumerate(NAMES):
                await self.start(number)
                process = self.processes[name]
                await process.sync()
                row = process.registry.row
                if not process.ended and (row is None or row.state is not MemberState.ACTIVE):
                    await process.join()
                await process.take()
                await process.give_back()
                self.check()
            self.town.wait(GRACE / 3)
        tokens = await self.processes["a"].registry.holders()
        numbers = np.array([job.number for job in self.jobs])
        assert np.array_equal(tokens.holders[SOME], numbers[SOME % len(NAMES)])


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 8)), min_size=25, max_size=40))
def test_no_unit_is_ever_two_agents(in_town: InTown, steps: Steps) -> None:
    """And in the end each is its owner's."""

    async def test(town: Town) -> None:
        model = Model(town)
        for number in range(len(NAMES)):
            await model.start(number)
        for op, number in steps:
            await model.step(op, number)
        await model.settle()

    in_town(test)
