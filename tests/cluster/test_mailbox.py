"""From the outbox of one agent into the frontier of another, whatever happens on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from support.stub_agents import stub_agent
from support.virtual_crawl import POLICY, WALL, entry

from scrapy_spider_suite.cluster.assignment import Member, load_assignment
from scrapy_spider_suite.cluster.mailbox import (
    ClusterMode,
    Mailbox,
    Outbox,
    OwnerRouter,
    ReceivedRows,
)
from scrapy_spider_suite.cluster.membership import Ownership
from scrapy_spider_suite.cluster.messages import (
    Acknowledgement,
    Message,
    MessageCounters,
    MessageLimits,
    OnAcknowledged,
    OnMessage,
    PackedMessage,
    unpack_message,
)
from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.frontier.entries import Flag
from scrapy_spider_suite.store.rocks_store import RocksStore

HOSTS = [f"http://h{n}.example/" for n in range(40)]


class Post:
    """A post office in memory: messages lie there until `deliver`, receipts until `return_all`."""

    bounds = MessageLimits(4_000, 9_000, 1 << 16)

    def __init__(self, offices: dict[str, Post], name: str) -> None:
        self.counters = MessageCounters()
        self.sent: list[tuple[str, PackedMessage]] = []
        self.kept: list[Acknowledgement] = []
        self.withdrawn: list[str] = []
        self.space = 100
        self._offices, self._name = offices, name
        offices[name] = self

    async def start(self, received: OnMessage, acknowledged: OnAcknowledged) -> None:
        """See `Transport`."""
        self.received, self.acknowledged = received, acknowledged

    def room(self, to: str) -> int:
        """See `Transport`."""
        return self.space - len(self.sent)

    def send(self, to: str, message: PackedMessage) -> bool:
        """See `Transport`."""
        self.sent.append((to, message))
        return True

    def acknowledge(self, receipt: Acknowledgement) -> None:
        """See `Transport`."""
        self.kept.append(receipt)

    def withdraw(self, to: str) -> None:
        """See `Transport`."""
        self.withdrawn.append(to)
        self.sent = [each for each in self.sent if each[0] != to]

    async def close(self, seconds: float = 5.0) -> None:
        """See `Transport`."""

    def deliver(self) -> None:
        """Bring what was sent, and leave it here, so that it can be brought again."""
        for to, message in self.sent:
            self._offices[to].received(unpack_message(message.data, self.bounds))

    def return_all(self) -> None:
        """Bring what is kept back to its senders."""
        for receipt in self.kept:
            self._offices[receipt.sender].acknowledged(self._name, receipt.first, receipt.last)


class Agent:
    """An agent of two, by its name."""

    def __init__(self, path: Path, name: str, offices: dict[str, Post], names: str = "ab") -> None:
        self.store = RocksStore(path / name)
        self.ownership = Ownership(load_assignment("ring"), name)
        self.ownership.set_members(1, [Member(each) for each in names])
        self.routing = OwnerRouter(
            Outbox(self.store.kv("outbox")), self.ownership.owner, name, cache=1 << 16
        )
        self.frontier = Frontier(self.store, POLICY, now=0.0, wall=WALL, capacity=100)
        self.frontier.admission.router = self.routing
        self.post = Post(offices, name)
        self.heard: list[Any] = []
        mode = ClusterMode()
        mode.listens, mode.heard = True, self.hear  # type: ignore[method-assign]
        mode.transport = self.post
        agent = stub_agent(
            self.ownership, incarnation=7, written=self.written, frontier=self.frontier,
            store=self.store,
        )  # fmt: skip
        agent.routing, agent.outbox = self.routing, self.routing.outbox
        self.mail = Mailbox(agent, mode)

    def hear(self, sender: str, message: Sequence[Any]) -> None:
        """A number that is none is refused as `lan` refuses it."""
        self.heard.append((sender, [message[0], *map(int, message[1:])]))

    async def written(self) -> None:
        """What was said is on disk."""
        self.frontier.flush()

    def urls(self, mine: bool) -> list[str]:
        """Those of `HOSTS` that this agent owns, or that it does not."""
        own = self.ownership.name
        return [url for url in HOSTS if (self.ownership.owner(url[7:-1], url) == own) is mine]

    def pending(self) -> set[str]:
        """The URLs in its queues."""
        hosts = self.store.records()
        return {row.url for host, _ in hosts for row in self.store.rows(host, b"", 1_000)}


async def until(true: Callable[[], object]) -> None:
    """Wait for what has no other event."""
    for _ in range(2_000):
        if true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it takes too long")


def run(test: Callable[[Agent, Agent], Any], path: Path) -> None:
    """Run *test* with agents a and b."""

    async def go() -> None:
        offices: dict[str, Post] = {}
        a, b = Agent(path, "a", offices), Agent(path, "b", offices)
        for agent in (a, b):
            await agent.mail.start()
        await test(a, b)
        for agent in (a, b):
            await agent.mail.close()
            agent.store.close()

    asyncio.run(go())


def test_rows_leave_the_outbox_when_they_are_kept(tmp_path: Path) -> None:
    """What is a's stays, what is b's arrives once, though messages and receipts come twice."""

    async def test(a: Agent, b: Agent) -> None:
        a.frontier.admission.schedule([entry(url) for url in HOSTS], 0.0)
        assert a.frontier.pending == len(a.urls(True))
        await until(lambda: a.post.sent)
        assert not a.mail.idle
        for _ in range(2):
            kept = len(b.post.kept)
            a.post.deliver()
            await until(lambda before=kept: len(b.post.kept) == before + len(a.post.sent))
        assert b.pending() == set(a.urls(False)) == set(b.urls(True))
        assert b.mail.stored == len(b.urls(True))
        assert not a.mail.idle
        b.post.return_all()
        b.post.return_all()
        assert a.mail.idle
        assert b.mail.idle
        assert a.routing.outbox.put_in == a.routing.outbox.dropped == len(b.urls(True))

    run(test, tmp_path)


def test_a_request_that_is_not_filtered_is_taken_once(tmp_path: Path) -> None:
    """Also if its message comes to the next process."""

    async def test(a: Agent, b: Agent) -> None:
        url = a.urls(False)[0]
        a.frontier.admission.schedule([entry(url, flags=Flag.DONT_FILTER) for _ in range(3)], 0.0)
        await until(lambda: a.post.sent)
        a.post.deliver()
        await until(lambda: b.post.kept)
        assert b.frontier.pending == 3
        b.mail._received_rows = ReceivedRows(b.store.kv("received"))
        a.post.deliver()
        await until(lambda: len(b.post.kept) == 2 * len(a.post.sent))
        assert b.frontier.pending == 3

    run(test, tmp_path)


def test_who_dies_within_a_message_takes_the_rest_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on disk of it is not taken twice, though it is not to be filtered."""

    async def test(a: Agent, b: Agent) -> None:
        entries = [entry(a.urls(False)[0], flags=Flag.DONT_FILTER) for _ in range(5)]
        a.frontier.admission.schedule(entries, 0.0)
        await until(lambda: a.post.sent)
        schedule = b.frontier.admission.schedule

        def dies(*given: Any, **more: Any) -> int:
            found = schedule(*given, **more)
            if b.frontier.pending == 2:
                b.mail._tasks[0].cancel()
            return found

        monkeypatch.setattr("scrapy_spider_suite.cluster.mailbox._PORTION", 1)
        monkeypatch.setattr(b.frontier.admission, "schedule", dies)
        a.post.deliver()
        await until(lambda: b.mail._tasks[0].done())
        b.frontier.flush()
        monkeypatch.undo()
        b.mail._messages.clear()
        b.mail._received_rows = ReceivedRows(b.store.kv("received"))
        await b.mail.start()
        a.post.deliver()
        await until(lambda: b.post.kept)
        assert b.frontier.pending == 5
        assert b.mail._received_rows.has("a", *a.post.sent[0][1][1:3])

    run(test, tmp_path)


def test_what_another_agent_owns_by_now_goes_on(tmp_path: Path) -> None:
    """Even back to where it came from, and although it was sent there before."""

    async def test(a: Agent, b: Agent) -> None:
        url = a.urls(False)[0]
        b.frontier.admission.schedule([entry(url)], 0.0)
        b.ownership.set_members(2, [Member("a")])
        b.mail.readdress_outbox()
        a.frontier.admission.schedule([entry(url)], 0.0)
        await until(lambda: a.post.sent)
        a.post.deliver()
        await until(lambda: b.post.sent and b.post.kept)
        a.ownership.set_members(2, [Member("a")])
        a.mail.readdress_outbox()
        b.post.deliver()
        await until(lambda: a.frontier.pending == 1)

    run(test, tmp_path)


def test_rows_for_who_is_gone_are_taken_by_others(tmp_path: Path) -> None:
    """Those on their way, too: they are withdrawn."""

    async def test(a: Agent, b: Agent) -> None:
        a.frontier.admission.schedule([entry(url) for url in HOSTS], 0.0)
        await until(lambda: a.post.sent)
        a.ownership.set_members(2, [Member("a")])
        a.mail.readdress_outbox()
        await until(lambda: a.mail.idle)
        assert a.post.withdrawn == ["b"]
        assert a.pending() == set(HOSTS)

    run(test, tmp_path)


def test_what_cannot_be_read_or_sent_is_counted_and_nothing_else_lost(tmp_path: Path) -> None:
    """A row of nobody knows what, between two good ones; a request that fits into no message."""

    async def test(a: Agent, b: Agent) -> None:
        first, second = a.urls(False)[:2]
        a.frontier.admission.schedule([entry(first)], 0.0)
        a.routing.outbox.put("b", b"\xc1 no row at all")
        a.routing.outbox.put("b", Random(1).randbytes(20_000))
        a.frontier.admission.schedule([entry(second)], 0.0)
        await until(lambda: a.mail.too_large == 1 and len(a.post.sent) >= 2)
        a.post.deliver()
        await until(lambda: b.frontier.pending == 2)
        assert b.mail.unread == 1
        await until(lambda: b.post.return_all() or a.mail.idle)

    run(test, tmp_path)


def test_what_is_sent_is_on_disk_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what comes while messages are sent: a kill would give its numbers to other rows."""

    async def test(a: Agent, b: Agent) -> None:
        url = a.urls(False)[0]
        more = [entry(f"{url}{n}", flags=Flag.DONT_FILTER) for n in range(3)]
        dirty = []

        def send(to: str, message: PackedMessage) -> bool:
            dirty.append(a.store.backlog)
            if more:
                loop.call_soon(a.frontier.admission.schedule, [more.pop()], 0.0)
            a.post.sent.append((to, message))
            return True

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(a.post, "send", send)
        a.frontier.admission.schedule([entry(url)], 0.0)
        await until(lambda: sum(message.rows for _, message in a.post.sent) == 4)
        assert not any(dirty)

    run(test, tmp_path)


def test_who_hears_nothing_leaves_messages_to_their_senders(tmp_path: Path) -> None:
    """Until it hears again."""

    async def test(a: Agent, b: Agent) -> None:
        a.frontier.admission.schedule([entry(a.urls(False)[0])], 0.0)
        await until(lambda: a.post.sent)
        b.mail.set_receiving(False)
        a.post.deliver()
        await asyncio.sleep(0.05)
        assert not b.post.kept
        assert not b.mail.idle
        b.mail.set_receiving(True)
        await until(lambda: b.post.kept)

    run(test, tmp_path)


def test_messages_are_no_rows(tmp_path: Path) -> None:
    """They come each time, are refused where nobody listens, and keep nobody from being idle."""

    async def test(a: Agent, b: Agent) -> None:
        for _ in range(2):
            assert a.mail.send_notice("b", ["news", 5])
        a.post.deliver()
        await until(lambda: len(b.heard) == 2)
        assert b.heard[0] == ("a", ["news", 5])
        assert a.mail.idle
        assert b.mail.idle
        assert len(b.post.kept) == 2
        b.post.received(Message("a", 7, 1, 9, 9, (msgpack.packb("no list"),)))
        await until(lambda: b.mail.unread)
        b.post.received(Message("a", 7, 1, 9, 9, (msgpack.packb(["inf", float("inf")]),)))
        await until(lambda: b.mail.unread == 2)

    run(test, tmp_path)
