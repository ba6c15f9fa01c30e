"""More waits for an agent of a list than may be on the way to it, over UDP: what comes of it when
it is back, and agrees or does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.message_transport_contract import until
from support.stub_agents import stub_agent
from support.udp_ports import KEY, free_addresses
from support.virtual_crawl import POLICY, WALL, entry

from scrapy_spider_suite.cluster import lan
from scrapy_spider_suite.cluster.assignment import load_assignment
from scrapy_spider_suite.cluster.lan import LanMode
from scrapy_spider_suite.cluster.mailbox import Mailbox, Outbox, OwnerRouter
from scrapy_spider_suite.cluster.membership import Heartbeat, Ownership
from scrapy_spider_suite.cluster.transports.udp import UdpTransport
from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.errors import JoinRefusedError
from scrapy_spider_suite.store.rocks_store import RocksStore

WINDOW, SPARE = 48, 32
URLS = [f"http://h{n}.example/{Random(n).randbytes(500).hex()}" for n in range(400)]
"""Two of them fill a message."""


class Agent:
    """One of a and b: a process of it, with all that is on its disk."""

    def __init__(self, path: Path, name: str, places: dict[str, tuple[str, int]],
                 setting: str = "same") -> None:  # fmt: skip
        self.over: list[str] = []
        self.store = RocksStore(path / name)
        self.ownership = Ownership(load_assignment("ring"), name)
        self.routing = OwnerRouter(
            Outbox(self.store.kv("outbox")), self.ownership.owner, name, cache=1 << 16
        )
        self.frontier = Frontier(self.store, POLICY, now=0.0, wall=WALL, capacity=100)
        self.frontier.admission.router = self.routing
        self.post = UdpTransport(name, places, KEY, WINDOW)
        agent = stub_agent(
            self.ownership, job_id=f"job of {name}", kv=self.store.kv("agent"),
            written=self.written, heartbeat=lambda: Heartbeat(1, False, 0, 0, 0),
            over=self.over.append, frontier=self.frontier, store=self.store,
        )  # fmt: skip
        agent.routing, agent.outbox = self.routing, self.routing.outbox
        self.neighbour = LanMode(agent, list(places), {"SUITE_ORDER": setting})
        self.neighbour.transport = self.post
        self.mail = Mailbox(agent, self.neighbour)
        agent.send_notice = self.mail.send_notice

    async def written(self) -> None:
        """What was said is on disk."""
        self.frontier.flush()

    async def begin(self) -> None:
        """As an agency does. Raises `JoinRefusedError`."""
        await self.neighbour.open()
        await self.mail.start()
        self.neighbour.start()
        await self.neighbour.meet()

    async def end(self) -> None:
        """Of the process; nothing is said to anybody."""
        await self.neighbour.close()
        await self.post.close(0.0)
        await self.mail.close()
        self.frontier.flush()
        self.store.close()

    @property
    def met(self) -> bool:
        """Whether it has met the other one."""
        return self.neighbour.agrees("a") or self.neighbour.agrees("b")


Make = Callable[..., Agent]


@pytest.fixture
def village(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """What makes the next process of an agent."""
    monkeypatch.setattr(lan, "HANDSHAKE_SECONDS", 0.5)
    monkeypatch.setattr(lan, "_AGAIN", (0.1,) * 600)
    places = dict(zip("ab", free_addresses(2), strict=True))
    return lambda name, setting="same": Agent(tmp_path, name, places, setting)


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run *test*."""
    asyncio.run(test)


async def backlog(village: Make) -> Agent:
    """Agent a, who has met b; b is away by now, and no more for it may be on the way."""
    a, b = village("a"), village("b")
    await asyncio.gather(a.begin(), b.begin())
    await until(lambda: a.met and b.met)
    await b.end()
    a.frontier.admission.schedule([entry(url) for url in URLS], 0.0)
    await until(lambda: a.post.room("b") <= SPARE)
    return a


def test_who_comes_back_with_another_setting_is_told(
    village: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """So it does not begin; when it is back with the right one it gets all that waited for it."""

    async def test() -> None:
        a = await backlog(village)
        b = village("b", "other")
        with pytest.raises(JoinRefusedError, match="SUITE_ORDER is other here and same there"):
            await b.begin()
        await b.end()
        assert not a.over
        assert not a.neighbour.agrees("b")
        b = village("b")
        await b.begin()
        await until(lambda: a.mail.idle)
        theirs = sum(a.ownership.owner(url.split("/")[2], url) == "b" for url in URLS)
        assert b.frontier.pending == theirs > 2 * WINDOW
        await b.end()
        await a.end()

    caplog.set_level(logging.WARNING)
    run(test())
    assert "agent b is refused by agent a: SUITE_ORDER is same here and other there" in caplog.text


def test_rows_leave_room_for_messages(village: Make) -> None:
    """Who comes back has to be answered, however much waits for it."""

    async def test() -> None:
        a = await backlog(village)
        for _ in range(3):
            a.mail.readdress_outbox()
            await asyncio.sleep(0.01)
        for _ in range(SPARE // 2):
            assert a.mail.send_notice("b", [lan.AGREE])
        await a.end()

    run(test())


def test_rows_wait_until_it_is_known_who_agrees(village: Make) -> None:
    """In the outbox; on the way to one that was never there are questions, and nothing else."""

    async def test() -> None:
        a = village("a")
        await a.begin()
        a.frontier.admission.schedule([entry(url) for url in URLS], 0.0)
        a.mail.readdress_outbox()
        await asyncio.sleep(0.1)
        assert a.post.counters.rows < 20
        b = village("b")
        await b.begin()
        await until(lambda: a.mail.idle)
        assert b.frontier.pending
        await b.end()
        await a.end()

    run(test())
