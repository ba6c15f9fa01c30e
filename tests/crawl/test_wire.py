"""The queue for the wire to a host: its order, those who give up, and what it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scrapy_spider_suite.crawl.gate import WireQueue
from scrapy_spider_suite.crawl.requests import StoppedError
from scrapy_spider_suite.exceptions import HostWaitsTooLong
from scrapy_spider_suite.frontier.workbench import AddressState, HostState, Workbench


class Gate:
    """A host at an address of its own, and who waits for the wire to it, in virtual time."""

    def __init__(self, max_wait: float = 1800.0) -> None:
        self.now = 100.0
        self.woken = 0
        self.bench = Workbench()
        self.host = HostState("a", 0.0, 1, 1)
        self.address = self.bench.addresses["10.0.0.1"] = AddressState("10.0.0.1", 0.0, 1, 0.0)
        self.bench.hosts["a"] = self.host
        self.crawl: Any = SimpleNamespace(
            stopping=False, now=lambda: self.now, wake=self._wake, rates=None,
            frontier=SimpleNamespace(workbench=self.bench),
            settings=SimpleNamespace(max_wait=max_wait),
        )  # fmt: skip
        self.wire = WireQueue(self.crawl)
        self.went: list[str] = []

    def _wake(self) -> None:
        self.woken += 1

    def take(self) -> None:
        """Let bytes flow."""
        self.bench.begin(self.host, self.address, self.now, visit=False)

    def free(self) -> None:
        """They have come to their end."""
        self.bench.end(self.host, self.address, self.now, visit=False)
        self.wire.wake(self.host.key, self.address.key)

    def queue(self, name: str, may: Callable[[], None] = lambda: None) -> asyncio.Task[None]:
        """Someone called *name* waits, and takes the wire."""

        async def wait() -> None:
            await self.wire.queue(self.host, self.address, may)
            self.went.append(name)
            self.take()

        return asyncio.ensure_future(wait())

    def calm(self) -> bool:
        """Whether nothing is left of anybody."""
        counted = (self.host.waiting, self.address.booked, self.address.waiting)
        return counted == (0, 0, 0) and not self.wire._locks and not self.wire._moves


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def _pass_on(gate: Gate, times: int) -> None:
    for _ in range(times):
        gate.free()
        await _settle()


def test_first_come_first_served() -> None:
    """One goes for each time that the wire becomes free; the address knows of all who wait."""

    async def scenario() -> None:
        gate = Gate()
        gate.take()
        for name in "xyz":
            gate.queue(name)
        await _settle()
        assert (gate.went, gate.host.waiting, gate.address.booked) == ([], 3, 3)
        await _pass_on(gate, 1)
        assert (gate.went, gate.host.waiting, gate.address.booked) == (["x"], 2, 2)
        await _pass_on(gate, 2)
        assert gate.went == ["x", "y", "z"]
        assert gate.calm()

    asyncio.run(scenario())


@pytest.mark.parametrize("gives_up", ["x", "y", "z"])
def test_who_gives_up_holds_up_nobody(gives_up: str) -> None:
    """The first, one in the middle or the last is cancelled: the others go, in their order."""

    async def scenario() -> None:
        gate = Gate()
        gate.take()
        tasks = {name: gate.queue(name) for name in "xyz"}
        await _settle()
        tasks[gives_up].cancel()
        await _settle()
        assert gate.address.booked == gate.host.waiting == 2
        await _pass_on(gate, 2)
        assert gate.went == [name for name in "xyz" if name != gives_up]
        assert gate.calm()

    asyncio.run(scenario())


def test_an_address_is_not_forgotten_while_someone_is_bound_for_it() -> None:
    """`booked` says so, also while only the host is in the way."""

    async def scenario() -> None:
        gate = Gate()
        gate.host.wire = 1
        waits = gate.queue("x")
        await _settle()
        assert not list(gate.bench.forget_addresses(1e9))
        waits.cancel()
        await _settle()
        assert list(gate.bench.forget_addresses(1e9)) == [gate.address]

    asyncio.run(scenario())


def test_whoever_waits_for_the_address_alone_goes_before_new_visits() -> None:
    """And once they have given up, visits may go there again, of which the engine is told."""

    async def scenario() -> None:
        gate = Gate()
        gate.address.wire = 1
        waits = gate.queue("x")
        await _settle()
        assert gate.address.waiting == 1
        assert not gate.address.free()
        waits.cancel()
        await _settle()
        assert gate.address.free()
        assert gate.woken == 1

    asyncio.run(scenario())


def test_nobody_waits_longer_than_the_crawl_would() -> None:
    """An item waits for its images: they fail with an error that says why."""

    async def scenario() -> None:
        gate = Gate()
        gate.bench.postpone(gate.host, gate.now + 7200.0, "Retry-After")
        with pytest.raises(HostWaitsTooLong, match=r"a has to wait 7200 s \(Retry-After\)"):
            await gate.queue("x")
        assert gate.calm()

    asyncio.run(scenario())


def test_without_a_longest_wait_they_wait() -> None:
    """SUITE_MAX_WAIT = 0; and a shorter pause is waited for in any case."""

    async def scenario(gate: Gate, seconds: float) -> None:
        gate.bench.postpone(gate.host, gate.now + seconds, "Retry-After")
        waits = gate.queue("x")
        await _settle()
        assert not waits.done()
        gate.now += seconds
        gate.wire.wake()
        await _settle()
        assert gate.went == ["x"]

    asyncio.run(scenario(Gate(max_wait=0.0), 7200.0))
    asyncio.run(scenario(Gate(), 1800.0))


def test_a_stop_lets_everyone_go() -> None:
    """Nobody is sent any more."""

    async def scenario() -> None:
        gate = Gate()
        gate.take()
        tasks = [gate.queue(name) for name in "xyz"]
        await _settle()
        gate.crawl.stopping = True
        gate.wire.wake()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [StoppedError] * 3
        assert gate.calm()

    asyncio.run(scenario())


def test_a_rule_that_comes_while_they_wait_holds_for_them() -> None:
    """What says whether they may be sent is asked each time that something has moved."""

    async def scenario() -> None:
        gate, barred = Gate(), False

        def may() -> None:
            if barred:
                raise ValueError("barred")

        gate.take()
        waits = gate.queue("x", may)
        await _settle()
        barred = True
        gate.wire.wake()
        with pytest.raises(ValueError, match="barred"):
            await waits
        assert gate.calm()

    asyncio.run(scenario())


def test_a_visit_that_waits_again_does_not_hold_its_address() -> None:
    """Others may use it meanwhile; whoever left for it then has to look again."""

    async def scenario() -> None:
        gate = Gate()
        gate.address.out = 1
        gate.bench.postpone(gate.host, gate.now + 5.0, "Crawl-delay")
        waits = asyncio.ensure_future(
            gate.wire.queue_again(gate.host, gate.address, lambda: None)
        )
        await _settle()
        assert (gate.address.out, gate.address.booked) == (0, 1)
        assert gate.address.free()
        gate.now += 5.0
        gate.wire.wake()
        await waits
        assert (gate.address.out, gate.address.booked, gate.address.intrusions) == (1, 0, 1)

    asyncio.run(scenario())
