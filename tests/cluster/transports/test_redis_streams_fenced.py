"""A process that does not stand for its agent any more, and does not know it yet.

It is the older one of agent b. What it keeps nobody may ever see.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.message_transport_contract import Agent, Test, rows_of, until
from support.stream_agents import INBOX, MEMBERS, RECEIPTS, StreamsAgents

from scrapy_spider_suite.cluster.membership import AgentLease, Candidate
from scrapy_spider_suite.cluster.registry import AgentRegistry, ClusterAdmin


class TestFenced(StreamsAgents):
    """Agents that join as they do, unless a test says what Redis knows of them."""

    def enroll(self) -> None:
        """They join by themselves."""

    @pytest.fixture
    def fenced(self, both: Any) -> Callable[[Test], None]:
        """Run a test with agents that have joined."""
        self.registries: dict[tuple[str, int], AgentRegistry] = {}

        def run(test: Test) -> None:
            async def joined(a: Agent, b: Agent) -> None:
                await b.start()
                try:
                    for agent in (a, b):
                        await self.join(agent.name, agent.incarnation, "older")
                    await test(a, b)
                finally:
                    for registry in self.registries.values():
                        await registry.close()

            both(joined)

        return run

    async def join(self, name: str, incarnation: int, job: str) -> None:
        """As the process does, again if it was sent away."""
        if (key := (name, incarnation)) not in self.registries:
            registry = AgentRegistry(
                self.server.url, "crawl", AgentLease(60), incarnation=incarnation
            )
            self.registries[key] = registry
        await self.registries[key].join(Candidate(name=name, job=job, folder=job, grace=900.0))

    async def remove(self, name: str) -> None:
        """As an operator does with one that is dead."""
        office = ClusterAdmin(self.server.url, "crawl")
        await office.remove(name, dead=True)
        await office.close()

    async def newer(self) -> Agent:
        """Another job directory takes the place of b."""
        await self.remove("b")
        newer = self.agents["b"] = Agent("b", self)
        newer.incarnation = 100
        await self.join("b", 101, "newer")
        return await newer.start()

    def test_it_takes_no_message_from_who_has_its_place(self, fenced: Any) -> None:
        """Neither what it had read before, nor what it reads now."""

        async def test(a: Agent, b: Agent) -> None:
            rows = rows_of(1_000)
            a.write("b", rows[:100])
            a.post()
            await until(lambda: b.unkept)
            newer = await self.newer()
            try:
                a.write("b", rows[100:])
                await until(lambda: not a.outbox, lambda: [a.turn(), b.turn(), newer.turn()])
                assert set(newer.kept) == set(rows)
                assert b.kept
                await b.transport.close()
            finally:
                await newer.kill()

        fenced(test)

    def test_it_tells_nobody_that_it_keeps_what_it_has(self, fenced: Any) -> None:
        """Though nobody has its place yet; nor when it closes."""

        async def test(a: Agent, b: Agent) -> None:
            a.write("b", [b"one"])
            a.post()
            await until(lambda: b.unkept)
            await self.remove("b")
            failed = b.transport.counters.failed
            b.keep()
            await until(lambda: b.transport.counters.failed > failed)
            await b.transport.close()
            with self.server.client() as client:
                assert client.xlen(INBOX) == 1
                assert client.xlen(RECEIPTS) == 0
            assert a.outbox

        fenced(test)

    def test_it_sends_nothing(self, fenced: Any, caplog: pytest.LogCaptureFixture) -> None:
        """Until it has joined again; it is said once."""

        async def test(a: Agent, b: Agent) -> None:
            await self.remove("b")
            b.write("a", rows_of(100))
            b.post()
            await until(lambda: b.transport.counters.failed >= 2)
            with self.server.client() as client:
                assert client.xlen("suite:{crawl}:inbox:a") == 0
            await self.join("b", b.incarnation, "older")
            await self.settle(a, b)

        fenced(test)
        lines = [record.message for record in caplog.records]
        assert len(lines) == 1
        assert "agent b: this process is not the member b any more" in lines[0]

    @pytest.mark.parametrize(
        "row",
        [
            None, {"incarnation": "other"}, {"incarnation": ""}, {"state": "left"},
            {"state": "dead"}, {"state": "removed", "ends": 1}, {"ends": 1},
        ],
        ids=str,
    )  # fmt: skip
    def test_who_is_no_member(self, both: Any, row: dict[str, Any] | None) -> None:
        """By the row of the agent in Redis; as soon as it is one again its messages go."""

        async def test(a: Agent, b: Agent) -> None:
            known = StreamsAgents.rows(self)
            with self.server.client() as client:
                if row is not None:
                    client.hset(MEMBERS, "a", json.dumps(json.loads(known["a"]) | row))
                a.write("b", [b"one"])
                await until(lambda: a.transport.counters.failed, a.post)
                assert client.xlen(INBOX) == 0
                client.hset(MEMBERS, "a", known["a"])
                await until(lambda: client.xlen(INBOX))

        both(test)

    def test_members_that_are_no_members(
        self, fenced: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """What somebody else wrote, or another type: nothing is written, and the key is named."""

        async def test(a: Agent, b: Agent) -> None:
            with self.server.client() as client:
                for harm in (
                    lambda: client.hset(MEMBERS, "b", "["), lambda: client.hset(MEMBERS, "b", "1"),
                    lambda: client.set(MEMBERS, "mine"),
                ):  # fmt: skip
                    harm()
                    b.write("a", [b"one"])
                    failed = b.transport.counters.failed
                    await until(lambda failed=failed: b.transport.counters.failed > failed, b.post)
                assert client.xlen("suite:{crawl}:inbox:a") == 0
                client.delete(MEMBERS)
            for agent in (a, b):
                await self.join(agent.name, agent.incarnation, "older")
            await self.settle(a, b)

        fenced(test)
        lines = [record.message for record in caplog.records]
        assert lines
        assert all(f"what the suite did not write ({MEMBERS})" in line for line in lines)
