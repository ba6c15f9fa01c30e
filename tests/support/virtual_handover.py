"""Agents in virtual time that hand hosts over as real ones do: file_transports, registry, kills."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scrapy_spider_suite.cluster.assignment import Assignment, Units
from scrapy_spider_suite.cluster.handover.handover import Handover
from scrapy_spider_suite.cluster.handover.handover_context import HandoverContext
from scrapy_spider_suite.cluster.handover.handover_file import FileTransport
from scrapy_spider_suite.cluster.mailbox import Outbox, OwnerRouter
from scrapy_spider_suite.cluster.membership import (
    Holders,
    MemberRecord,
    Membership,
    MemberState,
    Ownership,
)
from scrapy_spider_suite.cluster.registry import MovedUnits
from scrapy_spider_suite.cluster.transports.shared_folder import FolderTransport
from scrapy_spider_suite.cluster.transports.tcp import TcpTransport
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.seen_index import DROPPED, Archive, SieveIndex
from support.virtual_agents import Agents
from support.virtual_crawl import Crawl, Web, copy_of

KEY = b"what all agents share"


class FakeRegistry:
    """Who holds what, as the scripts keep it; `away` makes each call fail."""

    def __init__(self) -> None:
        self.epoch = 0
        self.holders: Units = np.zeros(UNITS, np.uint16)
        self.numbers: dict[str, int] = {}
        self.addresses: dict[str, str] = {}
        self.active: set[str] = set()
        self.dead: set[str] = set()
        self.gives = 0
        self.trouble: list[Exception] = []

    @property
    def view(self) -> Membership:
        """The members."""
        rows = [
            MemberRecord(
                name=name, number=number, incarnation="1", weight=1.0,
                address=self.addresses.get(name, ""),
                state=self._state(name), ends=0, heard=0,
                idle=False, sent=0, received=0,
            )
            for name, number in sorted(self.numbers.items())
        ]  # fmt: skip
        return Membership(self.epoch, tuple(rows))

    def _state(self, name: str) -> MemberState:
        if name in self.dead:
            return MemberState.DEAD
        return MemberState.ACTIVE if name in self.active else MemberState.LEAVING

    @property
    def tokens(self) -> Holders:
        """Who holds what."""
        return Holders(self.holders.copy(), 0.0, self.epoch, 0, 0, 0.0)

    def giving_of(self, name: str) -> Callable[[Units, int, int], Any]:
        """`Registry.give` of that agent."""

        async def give(units: Units, to: int, epoch: int) -> MovedUnits:
            await asyncio.sleep(0)
            if self.trouble:
                raise self.trouble.pop()
            none = np.empty(0, np.uint16)
            if epoch != self.epoch:
                return MovedUnits(none, "epoch")
            if (
                next(row for row in self.view.rows if row.number == to).state
                is not MemberState.ACTIVE
            ):
                return MovedUnits(none, "target")
            self.gives += 1
            mine = self.holders[units] == self.numbers[name]
            self.holders[units[mine]] = to
            return MovedUnits(units[self.holders[units] == to], "")

        return give


class Handing(Agents):
    """Agents that hand over while they crawl; every lease is checked against the registry."""

    registry: FakeRegistry
    shares: dict[str, Ownership]
    handovers: dict[str, Handover]
    file_transports: dict[str, FileTransport]
    tasks: dict[str, asyncio.Task[None]]
    out: dict[int, str]
    folder: Path
    homes: dict[str, Path]
    kills: int
    refetched: int
    make: Callable[[str], FileTransport]

    @classmethod
    def of(
        cls, web: Web, assignment: Assignment, folder: Path, count: int, kind: str,
        seen: str = "trie",
    ) -> Handing:  # fmt: skip
        """So many agents with stores in *folder*, with file_transports of that *kind*."""
        stores = []
        for number in range(count):
            store = RocksStore(folder / f"s{number}", memory=1 << 20)
            store.archive = Archive(folder / f"a{number}")
            if seen == "sieve":
                store.sieve = SieveIndex(folder / f"v{number}", store.kv(DROPPED))
            stores.append(store)
        self = cls(web, assignment, stores, sift=seen == "sieve")
        self.each(lambda crawl: setattr(crawl, "status", 200))
        self.registry, self.folder, self.kills, self.refetched = FakeRegistry(), folder, 0, 0
        self.shares, self.handovers, self.file_transports, self.tasks = {}, {}, {}, {}
        self.homes = {}
        self.make = self.tcp if kind == "tcp" else self.shared
        return self

    def tcp(self, name: str) -> FileTransport:
        """Over sockets."""
        return TcpTransport("127.0.0.1", 0, KEY, self.folder / name / "in")

    def shared(self, name: str) -> FileTransport:
        """Through a folder."""
        return FolderTransport(self.folder / "shared", "crawl", name, poll=0.01)

    # Life

    async def begin(self, *first: str) -> None:
        """Those are members; the first of them holds everything."""
        for number, name in enumerate(self.crawls, 1):
            self.registry.numbers[name] = number
        self.registry.holders[:] = self.registry.numbers[first[0]]
        self.registry.active = set(first)
        for name in self.crawls:
            await self.start(name)
        self.meet()

    async def start(self, name: str) -> None:
        """A process of that agent."""
        shares = self.shares[name] = Ownership(self.assignment, name)
        shares.number = self.registry.numbers[name]
        shares.set_membership(self.registry.view)
        shares.set_holders(self.registry.tokens)
        crawl, file_transport = self.crawls[name], self.make(name)
        self.file_transports[name] = file_transport
        self.routings[name].reroute(shares.owner)
        self._check(name, crawl)
        frontier = crawl.frontier
        assert isinstance(frontier.store, RocksStore)

        def changed() -> None:
            frontier.leases.foreign.set_rule(
                shares.is_held_elsewhere, by_host=self.assignment.by_host
            )

        async def look() -> None:
            shares.set_holders(self.registry.tokens)
            changed()

        context = HandoverContext(
            frontier, frontier.store, shares, lambda: (crawl.now, crawl.now + frontier.wall_offset),
            changed,
        )  # fmt: skip
        handover = self.handovers[name] = Handover(
            context, file_transport, self.folder / name / "out", give=self.registry.giving_of(name),
            update_holders=look,
        )  # fmt: skip
        changed()
        await file_transport.start(handover.inbox)
        self.registry.addresses[name] = file_transport.address
        self.tasks[name] = asyncio.ensure_future(handover.run("crawl"))

    def _check(self, name: str, crawl: Crawl) -> None:
        """Only the holder of a unit ever leases anything of it."""
        acquire, unit = crawl.frontier.leases.acquire, self.assignment.unit

        def checked(now: float) -> Any:
            leases = acquire(now)
            for lease in leases:
                holder = self.registry.holders[unit(lease.entry.host, lease.entry.url)]
                assert holder == self.registry.numbers[name], f"{name} fetches {lease.entry.url}"
            return leases

        crawl.frontier.leases.acquire = checked  # type: ignore[method-assign]

    async def stop(self, name: str) -> None:
        """Its process ends, in whatever it is at."""
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks[name], return_exceptions=True)
        await self.file_transports[name].close()

    async def die(self, name: str) -> None:
        """Its process is killed."""
        self.refetched += len(self.crawls[name].out)
        await self.stop(name)
        self.away.add(name)

    async def kill(self, name: str) -> None:
        """Its process is killed, if it is not yet, and one begins with what is on disk."""
        self.kills += 1
        crawl = self.crawls[name]
        if name not in self.away:
            await self.die(name)
        self.away.discard(name)
        number = list(self.crawls).index(name)
        old, home = crawl.frontier.store, self.folder / f"k{self.kills}"
        assert isinstance(old, RocksStore)
        copy_of(self.homes.get(name, self.folder / f"s{number}"), home)
        # What is in the archive was put there for good.
        archive, old.archive = old.archive, None
        old.close()
        store = RocksStore(home, memory=1 << 20)
        store.archive, self.homes[name] = archive, home
        if self.sift:
            store.sieve = SieveIndex(self.folder / f"v{number}", store.kv(DROPPED))
        routing = OwnerRouter(
            Outbox(store.kv("outbox")), self.shares[name].owner, name,
            by_host=self.assignment.by_host,
        )  # fmt: skip
        self.routings[name] = routing
        again = self.crawls[name] = Crawl(
            store, self.web, seats=self.seats, seed=number, routing=routing, start=self.now,
            resume=True, unclean=True, sift=self.sift,
        )  # fmt: skip
        again.fetches, again.status = crawl.fetches, crawl.status
        await self.start(name)
        self.meet()

    async def close(self) -> None:
        """All of them end; raises what a hand-over has raised."""
        failed = [
            task for name, task in self.tasks.items() if task.done() and name not in self.away
        ]  # fmt: skip
        for name in self.crawls:
            if not self.tasks[name].done():
                await self.stop(name)
        for crawl in self.crawls.values():
            crawl.frontier.store.close()
        for task in failed:
            task.result()

    # What happens

    def change(self, *members: str) -> None:
        """Those are members from now on."""
        self.registry.active = set(members)
        self.registry.epoch += 1
        self.meet()

    def meet(self, *names: str) -> None:
        """Those agents hear of the members, and of who holds what; all, if none is named."""
        for name in names or [name for name in self.crawls if name not in self.away]:
            shares = self.shares[name]
            known = shares.epoch, shares.mine.sum()
            if known == (self.registry.epoch, (self.registry.holders == shares.number).sum()):
                continue
            if shares.epoch != self.registry.epoch:
                shares.set_membership(self.registry.view)
            shares.set_holders(self.registry.tokens)
            self.routings[name].reroute(shares.owner)
            self.crawls[name].frontier.leases.foreign.set_rule(
                shares.is_held_elsewhere, by_host=self.assignment.by_host
            )
            self.handovers[name].poke()

    @property
    def events(self) -> int:
        """How much has happened to hand-over files, whatever it was."""
        facts = sum(sum(handover.facts.values()) for handover in self.handovers.values())
        held = sum(int(shares.in_transfer.any()) for shares in self.shares.values())
        return self.registry.gives + facts + held

    @property
    def busy(self) -> bool:
        """Whether anything is on its way."""
        return any(handover.busy for handover in self.handovers.values())

    @property
    def settled(self) -> bool:
        """Whether everybody holds what he owns."""
        self.meet()
        return not self.busy and all(
            shares.settled
            for name, shares in self.shares.items()
            if name in self.registry.active
        )

    async def crawl(self, until: Callable[[], bool], beats: int = 6_000) -> None:
        """Go on until *until* holds: a beat of virtual time, then a turn of the real loop."""
        for beat in range(beats):
            if until():
                return
            self.now += self.beat
            for name, crawl in self.crawls.items():
                if name in self.away:
                    continue
                crawl.run(until=self.now)
                crawl.now = max(crawl.now, self.now)
                crawl.frontier.flush()
            self.deliver()
            if not beat % 10:
                self.meet()
            for name, task in self.tasks.items():
                if task.done() and name not in self.away:
                    task.result()
            await asyncio.sleep(0.001)
        raise AssertionError(f"it takes too long: {self.told()}")

    async def slowly(self, until: Callable[[], bool]) -> None:
        """`crawl`, with little virtual time during hand-overs, which take real time."""
        beat, self.beat = self.beat, 0.01
        await self.crawl(until)
        self.beat = beat

    def told(self) -> list[tuple[object, ...]]:
        """Where each of them stands."""
        return [
            (
                name, crawl.frontier.pending, len(self.routings[name].outbox),
                crawl.frontier.leases.out, self.handovers[name].busy, self.shares[name].settled,
                int(self.shares[name].in_transfer.sum()), self.tasks[name].done(),
            )
            for name, crawl in self.crawls.items()
        ]  # fmt: skip

    async def some(self, events: int) -> None:
        """Go on until so many things have happened to hand-over files, or none is left."""
        until = self.events + events
        await self.crawl(lambda: self.events >= until or self.settled)

    @property
    def over(self) -> bool:
        """Whether nothing is pending or on its way anywhere."""
        return super().over and self.settled


def names_of(agents: Handing) -> Sequence[str]:
    """Of the agents."""
    return list(agents.crawls)
