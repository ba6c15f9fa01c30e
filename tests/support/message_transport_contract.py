"""The contract of what carries messages between agents, and agents that are as small as can be."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

from scrapy_spider_suite.cluster.messages import (
    Message,
    MessageCounters,
    MessageLimits,
    MessagePacker,
    MessageTransport,
    PackedMessage,
)

Run = Callable[[Coroutine[Any, Any, Any]], Any]

PATIENCE = 90.0
"""Seconds for what takes one on an idle machine."""


def rows_of(count: int, begin: int = 0) -> list[bytes]:
    """Rows that all differ."""
    return [
        f"https://www.host{n % 37}.example/a/path/of/page-{n * 7919 % 100_003}?number={n}".encode()
        for n in range(begin, begin + count)
    ]


async def until(condition: Callable[[], object], step: Callable[[], object] = lambda: None) -> None:
    """Do *step* again and again until *condition* holds."""
    end = asyncio.get_running_loop().time() + PATIENCE
    while not condition():
        step()
        assert asyncio.get_running_loop().time() < end, "it takes too long"
        await asyncio.sleep(0.005)


class Agent:
    """What an agent does with messages; `outbox` and `kept` are its disk, the rest its process."""

    def __init__(self, name: str, contract: Agents) -> None:
        self.name = name
        self.outbox: dict[int, tuple[str, bytes]] = {}
        self.kept: list[bytes] = []
        self.incarnation = 0
        self._contract = contract
        self._next = 1

    async def start(self) -> Agent:
        """Begin as a process that has what is on disk."""
        self.incarnation += 1
        self.unkept: list[Message] = []
        self.on_the_way: set[int] = set()
        self.transport = self._contract.open(self.name, self.incarnation)
        self.packer = MessagePacker(self.name, self.incarnation, self.transport.bounds)
        await self.transport.start(self.unkept.append, self._acknowledged)
        return self

    async def kill(self) -> None:
        """As a process ends that cannot say good-bye."""
        await self.transport.close(0.0)

    async def restart(self) -> None:
        """Another process."""
        await self.kill()
        await self.start()

    def write(self, to: str, rows: Iterable[bytes]) -> None:
        """Put *rows* for *to* into the outbox."""
        for row in rows:
            self.outbox[self._next] = to, row
            self._next += 1

    def post(self) -> None:
        """Send what is in the outbox, as far as there is room."""
        for to in {to for to, _ in self.outbox.values()}:
            rows = [
                (number, row)
                for number, (whose, row) in self.outbox.items()
                if whose == to and number not in self.on_the_way
            ]
            while rows and self.transport.room(to):
                message = self.packer.pack(rows, epoch=1)
                assert self.transport.send(to, message)
                self.on_the_way |= {number for number, _ in rows[: message.rows]}
                del rows[: message.rows]

    def keep(self) -> None:
        """Put what has arrived on disk, and say so."""
        for message in self.unkept:
            self.kept += message.rows
            self.transport.acknowledge(message.receipt)
        self.unkept.clear()

    def turn(self) -> None:
        """What it does all the time."""
        self.post()
        self.keep()

    def _acknowledged(self, to: str, first: int, last: int) -> None:
        kept = set(self._contract.agents[to].kept)
        numbers = [n for n, (whose, _) in self.outbox.items() if whose == to and first <= n <= last]
        for number in numbers:
            assert self.outbox.pop(number)[1] in kept, "acknowledged, and not kept"


Test = Callable[[Agent, Agent], Coroutine[Any, Any, None]]


class Agents(ABC):
    """Two agents for each test."""

    @abstractmethod
    def open(self, name: str, incarnation: int) -> MessageTransport:
        """A transport for the agent *name*: one of ``a`` and ``b``."""

    @pytest.fixture
    def both(self, run: Run) -> Callable[[Test], None]:
        """Run a test with two agents, ``a`` and ``b``, of which only ``a`` has started."""

        async def main(test: Test) -> None:
            self.agents = {name: Agent(name, self) for name in "ab"}
            a, b = self.agents.values()
            try:
                await a.start()
                await test(a, b)
            finally:
                for agent in (a, b):
                    if agent.incarnation:
                        await agent.transport.close(0.0)

        return lambda test: run(main(test))

    async def settle(self, *agents: Agent) -> None:
        """Until all that was written is kept and forgotten by its sender."""

        def turn() -> None:
            for agent in agents:
                agent.turn()

        await until(lambda: not any(agent.outbox for agent in agents), turn)


class TransportContract(Agents):
    """What every `Transport` does."""

    count = 2_000
    """Rows that need several messages."""

    loses = False
    """Whether what is said last may be lost."""

    def test_both_ways(self, both: Any) -> None:
        """Everything arrives, though one begins while the other is not there yet."""

        async def test(a: Agent, b: Agent) -> None:
            there, back = rows_of(self.count), rows_of(self.count, self.count)
            a.write("b", there)
            a.post()
            await b.start()
            b.write("a", back)
            await self.settle(a, b)
            assert set(b.kept) == set(there)
            assert set(a.kept) == set(back)
            counters = a.transport.counters
            assert counters.acknowledged == counters.taken > 1
            assert counters.rows == self.count
            assert refused(counters) == counters.remade == 0
            assert a.transport.room("b") == b.transport.room("a") > 0

        both(test)

    def test_acknowledged_when_it_is_kept(self, both: Any) -> None:
        """And not when it has arrived, even if other things come back."""

        async def test(a: Agent, b: Agent) -> None:
            await b.start()
            a.write("b", [b"one"])
            a.post()
            await until(lambda: b.unkept)
            b.write("a", [b"two"])
            b.post()
            await until(lambda: not b.outbox, a.keep)
            assert a.kept == [b"two"]
            assert a.outbox
            assert a.transport.counters.acknowledged == 0
            b.keep()
            await until(lambda: not a.outbox)
            assert b.kept == [b"one"]

        both(test)

    def test_receiver_is_killed(self, both: Any) -> None:
        """What it had and did not keep comes again."""

        async def test(a: Agent, b: Agent) -> None:
            await b.start()
            rows = rows_of(self.count)
            a.write("b", rows)
            a.post()
            await until(lambda: b.unkept, a.post)
            b.unkept.clear()
            await b.restart()
            await until(lambda: b.unkept, a.post)
            b.keep()
            await b.kill()
            await b.start()
            await self.settle(a, b)
            assert set(b.kept) == set(rows)

        both(test)

    def test_sender_is_killed(self, both: Any) -> None:
        """What is in its outbox is sent again, though it is cut otherwise; what is kept counts."""

        async def test(a: Agent, b: Agent) -> None:
            await b.start()
            rows = rows_of(self.count)
            a.write("b", rows[:100])
            a.post()
            await until(lambda: b.unkept)
            a.write("b", rows[100:])
            await a.restart()
            b.keep()  # of which the new process is told nothing, or nothing wrong
            await self.settle(a, b)
            assert set(b.kept) == set(rows)

        both(test)

    def test_no_more_than_there_is_room_for(self, both: Any) -> None:
        """Who does not keep is not sent more and more; then it goes on."""

        async def test(a: Agent, b: Agent) -> None:
            await b.start()
            room = a.transport.room("b")
            rows = rows_of(2 * room)
            messages = [MessagePacker("a", 1, a.transport.bounds).pack([(n, row)], 1) for n, row in
                       enumerate(rows, 1)]  # fmt: skip
            a.write("b", rows)
            taken = [a.transport.send("b", message) for message in messages]
            assert taken == [True] * room + [False] * room
            assert a.transport.send("b", messages[0])  # is on its way already
            assert a.transport.counters.taken == room
            a.on_the_way = set(range(1, room + 1))
            await until(lambda: len(b.unkept) == room)
            assert a.transport.room("b") == 0
            await self.settle(a, b)
            assert set(b.kept) == set(rows)

        both(test)

    def test_withdrawn(self, both: Any) -> None:
        """Who is gone for good takes up no room; nobody is told of what was withdrawn."""

        async def test(a: Agent, b: Agent) -> None:
            room = a.transport.room("b")
            a.write("b", [b"one"])
            a.post()
            assert a.transport.room("b") == room - 1
            a.transport.withdraw("b")
            a.transport.withdraw("b")
            assert a.transport.room("b") == room
            assert a.transport.counters.withdrawn == 1
            assert len(a.outbox) == 1
            await b.start()
            a.write("b", [b"two"])
            a.on_the_way.clear()
            await self.settle(a, b)
            assert set(b.kept) == {b"one", b"two"}

        both(test)

    def test_close(self, both: Any) -> None:
        """What is acknowledged at the last moment is told; then nothing is done any more."""

        async def test(a: Agent, b: Agent) -> None:
            await b.start()
            a.write("b", [b"one"])
            a.post()
            await until(lambda: b.unkept)
            message = b.unkept[0]
            b.keep()
            await b.transport.close()
            await b.transport.close()
            b.transport.acknowledge(message.receipt)
            if not self.loses:
                await until(lambda: not a.outbox)
            a.write("b", [b"two"])
            a.post()
            await a.transport.close()
            assert not b.unkept
            assert a.outbox

        both(test)


def refused(counters: MessageCounters) -> int:
    """How many messages were refused, for whatever reason."""
    kinds = counters.forged, counters.replayed, counters.malformed, counters.oversized
    return sum(kinds) + counters.unknown


def message_of(sender: str, *rows: bytes, bounds: MessageLimits, first: int = 1) -> PackedMessage:
    """A message with *rows*."""
    return MessagePacker(sender, 1, bounds).pack(list(enumerate(rows, first)), epoch=1)
