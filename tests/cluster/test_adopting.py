"""A dead agent's directory goes to who owns its hosts by now."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep

import pytest
from support.handover_sides import Side
from support.virtual_crawl import WALL, all_urls, entry, trees
from support.virtual_handover import Handing, names_of

from scrapy_spider_suite.cluster.assignment import load_assignment
from scrapy_spider_suite.cluster.handover import handover
from scrapy_spider_suite.cluster.handover.dump import HostDump
from scrapy_spider_suite.cluster.handover.handover import AdoptionResult, adopt_directory
from scrapy_spider_suite.cluster.handover.handover_file import (
    FileReceiver,
    FileTransport,
    HandoverLabel,
)
from scrapy_spider_suite.cluster.mailbox import Outbox, OwnerRouter
from scrapy_spider_suite.cluster.membership import MemberRecord, Membership, MemberState, Ownership
from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.errors import ClusterError, TransportError
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.seen_index import DROPPED, SieveIndex


async def town(folder: Path, seen: str) -> tuple[Handing, list[str]]:
    """Three agents that have crawled for a while; the second has just died for good."""
    web = trees(20, 13, 20)
    agents = Handing.of(web, load_assignment("ring"), folder, 3, "tcp", seen)
    names = list(names_of(agents))
    await agents.begin(names[0])
    agents.crawls[names[0]].seed("http://h0.t/0", "http://h1.t/0")
    agents.change(*names)
    await agents.crawl(lambda: agents.now > 20 and agents.settled)
    dead = names[1]
    agents.refetched = len(agents.crawls[dead].out)
    await agents.stop(dead)
    agents.crawls[dead].frontier.flush()
    return agents, names


def bury(agents: Handing, dead: str) -> None:
    """Its lease ends: others are the owners, and take what it held."""
    registry = agents.registry
    registry.dead = {dead}
    mine = registry.holders == registry.numbers[dead]
    agents.change(*(name for name in agents.crawls if name != dead))
    for name, shares in agents.shares.items():
        if name != dead:
            registry.holders[mine & shares.own] = registry.numbers[name]
    del agents.crawls[dead], agents.tasks[dead], agents.routings[dead], agents.handovers[dead]
    agents.meet(*agents.crawls)


@pytest.mark.parametrize("seen", ["trie", "sieve"])
def test_a_directory_is_adopted(tmp_path: Path, seen: str) -> None:
    """Each page is fetched once, but what was in flight; its outbox goes along."""

    async def test() -> None:
        agents, names = await town(tmp_path, seen)
        dead = names[1]
        store = agents.crawls[dead].frontier.store
        assert isinstance(store, RocksStore)
        known = agents.crawls[dead].frontier.counters
        done = known.done
        assert min(done, known.pending) > 0
        fetched = agents.crawls[dead].urls
        routing = OwnerRouter(Outbox(store.kv("outbox")), lambda host, url: names[0], dead)
        # Of a host that nobody else is fetching from: virtual time stands still below.
        hosts = [each.host for each in agents.crawls[dead].fetches]
        late = f"http://{[*hosts, *agents.crawls[dead].frontier.workbench.hosts][0]}/99"
        assert not routing.keeps(entry(late))
        store.kv("outbox").put(b"r" + names[0].encode() + b"\0" + bytes(7) + b"\xff", b"rotten")
        store.flush()
        if store.sieve is not None:
            store.sieve.sieve.close()
            store.sieve = SieveIndex(store.sieve.sieve.path, store.kv(DROPPED))
        frontier = Frontier(
            store, agents.policies[0], now=agents.now, wall=WALL + agents.now, capacity=0,
            counters=Counters.load(store),
        )  # fmt: skip

        async def view() -> Membership:
            return agents.registry.view

        async def adopt(patience: float = 120.0) -> AdoptionResult:
            shares = Ownership(agents.assignment, dead)
            return await adopt_directory(
                frontier, store, shares, agents.make(dead), tmp_path / "adopting", crawl="crawl",
                view=view, say=said.append, patience=patience,
            )  # fmt: skip

        said = list[str]()
        with pytest.raises(ClusterError, match="still a member"):
            await adopt()
        bury(agents, dead)
        addresses, agents.registry.addresses = agents.registry.addresses, {}
        with pytest.raises(TransportError, match="nobody has taken anything"):
            await adopt(patience=0.0)
        agents.registry.addresses = addresses
        found = await adopt()
        assert found.urls >= done
        assert said
        assert (frontier.counters.done, frontier.counters.pending) == (0, 0)
        assert list(store.records()) == []
        assert not len(Outbox(store.kv("outbox")))
        store.close()
        await agents.crawl(lambda: agents.over)
        urls = Counter(fetched + agents.urls)
        assert set(urls) == all_urls(agents.web, 13) | {late}
        assert urls.total() - len(urls) <= agents.refetched
        await agents.close()

    asyncio.run(test())


class Slow(FileTransport):
    """A file_transport of which each *beat* is seen; what it brings is kept in the end, or never.
    """

    def __init__(self, beat: Callable[[Slow, HandoverLabel], None], *, keeps: bool = True) -> None:
        super().__init__(0.0)
        self.calls = 0
        self._beat, self._keeps = beat, keeps

    async def deliver(self, path: Path, label: HandoverLabel, address: str) -> None:
        """See `FileTransport`."""
        self.calls += 1
        for _ in range(40 if self._keeps else 2):
            await asyncio.sleep(0.02)
            self._beat(self, label)
        if not self._keeps:
            raise TransportError("the disk is full")

    async def start(self, inbox: FileReceiver) -> None:
        """See `FileTransport`."""

    async def close(self) -> None:
        """See `FileTransport`."""


def sends(slow: Slow, label: HandoverLabel) -> None:
    """Bytes of a hand-over file go out."""
    slow.counters.bytes_out += 1_000


def waits(slow: Slow, label: HandoverLabel) -> None:
    """The receiver is at work."""
    slow.signs += 1


async def look() -> Membership:
    """Agent a is dead, b is there."""
    rows = [
        MemberRecord(name=name, number=number, incarnation="1", weight=1.0, address="h:1",
        state=state,
            ends=0, heard=0, idle=False, sent=0, received=0)
        for number, (name, state) in enumerate([("a", MemberState.REMOVED), ("b",
        MemberState.ACTIVE)], 1)
    ]  # fmt: skip
    return Membership(1, tuple(rows))


async def adopt(folder: Path, file_transport: Slow, patience: float = 0.3) -> AdoptionResult:
    """What is little, and goes in one hand-over file; patience is in seconds."""
    side = Side(folder / "a")
    for page in range(5):
        side.put("h0.t", page, "pending")
    side.frontier.flush()
    shares = Ownership(load_assignment("ring"), "a")
    try:
        async with asyncio.timeout(20.0):
            return await adopt_directory(
                side.frontier, side.store, shares, file_transport, folder / "out", crawl="crawl",
                view=look, patience=patience,
            )  # fmt: skip
    finally:
        side.close()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is looked at more often than in a crawl."""
    monkeypatch.setattr(handover, "_CHECK", 0.02)
    monkeypatch.setattr(handover, "_FIRST", 0.1)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("beat", [sends, waits])
def test_a_file_may_take_longer_than_the_patience(
    tmp_path: Path, beat: Callable[[Slow, HandoverLabel], None]
) -> None:
    """As long as something is heard of it."""
    file_transport = Slow(beat)
    assert asyncio.run(adopt(tmp_path, file_transport)).urls == 5
    assert file_transport.calls == 1


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("beat", [sends, waits])
def test_what_is_called_off_again_and_again_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beat: Callable[[Slow, HandoverLabel], None]
) -> None:
    """Though each time it gets on for a while."""
    monkeypatch.setattr(handover, "SILENCE", 0.05)
    monkeypatch.setattr(handover, "_MOST", 0.1)
    file_transport = Slow(beat, keeps=False)
    with pytest.raises(TransportError, match="nobody has taken anything"):
        asyncio.run(adopt(tmp_path, file_transport, 3.0))
    assert file_transport.calls > 2


@pytest.mark.usefixtures("soon")
def test_a_file_may_take_long_to_be_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as that goes on."""
    real = HostDump.pack

    def slowly(giving: HostDump, path: Path, of: HandoverLabel) -> Iterator[bool]:
        for _ in range(80):
            sleep(0.01)
            yield False
        yield from real(giving, path, of)

    monkeypatch.setattr(HostDump, "pack", slowly)
    file_transport = Slow(sends)
    assert asyncio.run(adopt(tmp_path, file_transport)).urls == 5
    assert file_transport.calls == 1
