"""Agents of which one hands hosts over to another: their stores, and what checks them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import sleep

from scrapy_spider_suite.cluster.assignment import Member, OwnerTable, Ring, load_assignment
from scrapy_spider_suite.cluster.handover.dump import HostDump
from scrapy_spider_suite.cluster.handover.handover_context import HandoverContext
from scrapy_spider_suite.cluster.handover.handover_file import HandoverLabel, UnitSet, pack_units
from scrapy_spider_suite.cluster.handover.load import HostLoad
from scrapy_spider_suite.cluster.membership import Ownership
from scrapy_spider_suite.crawl.queue.frontier import Frontier, QueueOptions
from scrapy_spider_suite.frontier.entries import UNITS, Flag, state_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.store.counters import Counters, wrong_rows
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.store.seen_index import ARCHIVE_FOLDER, DROPPED, Archive, SieveIndex
from scrapy_spider_suite.store.seen_index import SIEVE_FOLDER as SIEVE
from support.assignments import moved
from support.virtual_agents import Agents, owner_of
from support.virtual_crawl import POLICY, WALL, copy_of, entry

DONE = UrlState(State.DONE, Event.SUCCESS, 1, 200, 7)
FAILED = UrlState(State.FAILED, Event.TIMEOUT, 3, 0, 7)


def label(units: frozenset[int] = frozenset(range(UNITS)), file_id: str = "p1") -> HandoverLabel:
    """Of what agent a gives agent b."""
    return HandoverLabel(file_id, "crawl", "a", "b", pack_units(units))


@dataclass
class Side:
    """A store with a frontier on it; its archive is used for URLs that are ``archived``.

    Those that are ``asked`` for were done, and are pending again since an operator wants them.
    With a *sieve* its links go through that.
    """

    folder: Path
    now: float = 0.0
    sieve: bool = False
    frontier: Frontier = field(init=False)
    store: RocksStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = RocksStore(self.folder / "store", memory=1 << 20)
        self.store.archive = Archive(self.folder / ARCHIVE_FOLDER)
        if self.sieve:
            self.store.sieve = SieveIndex(self.folder / SIEVE, self.store.kv(DROPPED), capacity=50)
        self.frontier = Frontier(
            self.store, POLICY, now=self.now, wall=WALL, capacity=100,
            counters=Counters.load(self.store), options=QueueOptions(sift=self.sieve),
        )  # fmt: skip
        self.frontier.open(self.now)

    def clock(self) -> tuple[float, float]:
        """The time of the frontier, and wall time."""
        return self.now, self.now + self.frontier.wall_offset

    def context(self, open_sieve: Callable[[], None] | None = None) -> HandoverContext:
        """What hand-overs work on here."""
        return HandoverContext(
            self.frontier, self.store, Ownership(Ring(), "a"), self.clock, open_sieve=open_sieve
        )

    def put(self, host: str, page: int, state: str) -> None:
        """Know a URL so."""
        url = f"http://{host}/{page}"
        if not state:
            return
        self.frontier.admission.schedule([entry(url)], self.now)
        if state == "pending":
            return
        hands = self.context()
        (queued,) = [e for e in self.store.rows(host, b"", 1_000) if e.url == url]
        assert hands.edits.remove(queued)
        known = FAILED if state == "failed" else DONE
        record = hands.residents.records.touch(host)
        hands.states.import_state(state_key(host, url), host, record, known)
        self.frontier.flush()
        if state == "asked":
            again = entry(url, flags=Flag.DONT_FILTER)
            assert hands.edits.requeue(again, known, self.now)
        if state == "archived":
            assert self.store.archive is not None
            self.store.archive.add([state_key(host, url)])
            self.store.put_state(state_key(host, url), None)

    def dump(self, units: UnitSet) -> HostDump:
        """What gives *units*."""
        return HostDump(self.context(), units)

    def load(self, units: UnitSet, path: Path, of: HandoverLabel) -> HostLoad:
        """What takes them."""
        return HostLoad(self.context(), units, path, of)

    def known(self) -> dict[str, str]:
        """What of each URL."""
        found = {}
        for key, data in self.store.states(b""):
            found[key[key.index(b"\0", 2) + 1 :].decode()] = UrlState.from_bytes(data).state.value
        assert self.store.archive is not None
        return dict.fromkeys(self.store.archive.urls, "done") | found

    def queues(self) -> dict[str, list[str]]:
        """What waits of each host, in its order; it is what can be read from its head on."""
        found = {}
        for host, record in self.store.records():
            urls = [e.url for e in self.store.rows(host, record.head, 1_000)]
            assert urls == [e.url for e in self.store.rows(host, b"", 1_000)]
            if urls:
                found[host] = urls
        return found

    def check(self) -> None:
        """Every count agrees with what is there."""
        known, counters = self.known(), self.frontier.counters
        assert list(wrong_rows(self.store)) == []
        per_host = Counter((url.split("/")[2], state) for url, state in known.items())
        records = dict(self.store.records())
        for state in ("pending", "done", "failed"):
            for host, record in records.items():
                assert getattr(record, state) == per_host[host, state], (host, state)
            total = sum(1 for each in known.values() if each == state)
            assert getattr(counters, state) == total
        assert {host for host, _ in per_host} <= set(records)
        assert counters.events.get(Event.SUCCESS, 0) == counters.done
        assert counters.events.get(Event.TIMEOUT, 0) == counters.failed
        assert Counter(u.split("/")[2] for q in self.queues().values() for u in q) == {
            host: n for (host, state), n in per_host.items() if state == "pending"
        }

    def close(self) -> None:
        """End the run."""
        self.frontier.close()
        self.store.close()

    def reopened(self, folder: Path | None = None) -> Side:
        """The next run, after a clean end; or, of *folder*, what a kill has left now."""
        if folder is None:
            self.close()
            return Side(self.folder, self.now, self.sieve)
        folder.mkdir()
        if self.sieve:
            copy_of(self.folder / SIEVE, folder / SIEVE)
        copy_of(self.folder / "store", folder / "store")
        copy_of(self.folder / ARCHIVE_FOLDER, folder / ARCHIVE_FOLDER)
        return Side(folder, self.now, self.sieve)


def units_of(kind: str, numbers: Iterable[int] = range(UNITS)) -> UnitSet:
    """Those units of the assignment *kind*."""
    return UnitSet(load_assignment(kind), numbers)


def drain(steps: Iterator[bool], waits: int = 5_000) -> int:
    """Do all *steps*; how many there were."""
    number = 0
    for waiting in steps:
        number += 1
        waits -= waiting
        assert waits, "it waits for ever"
        if waiting:
            sleep(0.001)  # for a thread
    return number


def hand_over(sender: Side, receiver: Side, folder: Path) -> None:
    """All that the one knows goes to the other."""
    units, path = units_of("ring"), folder / "file"
    drain(sender.dump(units).pack(path, label()))
    drain(receiver.load(units, path, label()).merge())
    drain(sender.dump(units).forget("p1"))
    for side in (sender, receiver):
        side.frontier.flush()
    assert sender.queues() == {}


def killed(
    side: Side, kills: bool, after: int, work: Callable[[Side], Iterator[bool]], folder: Path
) -> Side:
    """Do *work*; if it *kills*, after some steps the process dies, and the next one does it again.
    """
    if kills:
        for _ in islice(work(side), after):
            side.frontier.flush()
        side.frontier.flush()
        again = side.reopened(folder)
        side.close()
        side = again
    drain(work(side))
    side.frontier.flush()
    return side


class Movers(Agents):
    """Agents whose membership changes: what moves goes in hand-over files, portion by portion."""

    folder: Path
    table: OwnerTable
    held: dict[str, set[int]]
    work: list[Iterator[bool]]
    files = 0
    portions = 2
    """Of each hand-over, with each beat."""

    @property
    def over(self) -> bool:
        """Whether nothing is pending, on its way or being handed over."""
        return super().over and not self.work

    def begin(self, folder: Path, *first: str) -> None:
        """Only the *first* hold anything."""
        self.folder, self.work = folder, []
        self.table = OwnerTable.of(self.assignment, map(Member, first))
        self.held = {
            name: {unit for unit in range(UNITS) if self.table.owner(unit) == name}
            for name in self.crawls
        }
        for name in self.crawls:
            self.hold(name)
            self.routings[name].reroute(owner_of(self.assignment, self.table))

    def hold(self, name: str) -> None:
        """What this agent does not hold it does not fetch."""
        held, unit = self.held[name], self.assignment.unit
        self.crawls[name].frontier.leases.foreign.set_rule(
            lambda host, url: unit(host, url or f"http://{host}/") not in held,
            by_host=self.assignment.by_host,
        )

    def change(self, *members: str) -> None:
        """These are the agents from now on."""
        new = OwnerTable.of(self.assignment, map(Member, members))
        for (sender, receiver), units in moved(self.table, new).items():
            self.files += 1
            self.work.append(self.move(sender, receiver, {*units.tolist()}, f"p{self.files}"))
        self.table = new
        for routing in self.routings.values():
            routing.reroute(owner_of(self.assignment, new))

    def move(self, sender: str, receiver: str, numbers: set[int], file_id: str) -> Iterator[bool]:
        """One hand-over."""
        units = UnitSet(self.assignment, numbers)
        self.held[sender] -= numbers
        self.hold(sender)
        of, path = (
            HandoverLabel(file_id, "crawl", sender, receiver, pack_units(numbers)),
            self.folder / file_id,
        )
        context = self.context(sender)
        yield from HostDump(context, units).pack(path, of)
        load = HostLoad(self.context(receiver), units, path, of)
        yield from load.merge()
        assert load.done
        self.held[receiver] |= numbers
        self.hold(receiver)
        yield from HostDump(context, units).forget(file_id)

    def context(self, name: str) -> HandoverContext:
        """What hand-overs of an agent work on."""
        crawl = self.crawls[name]
        frontier = crawl.frontier
        assert isinstance(frontier.store, RocksStore)
        return HandoverContext(
            frontier, frontier.store, Ownership(self.assignment, name),
            lambda: (crawl.now, crawl.now + frontier.wall_offset),
        )  # fmt: skip

    def deliver(self) -> None:
        """Messages, and some portions of each hand-over."""
        super().deliver()
        for steps in list(self.work):
            if not [None for _ in islice(steps, self.portions)]:
                self.work.remove(steps)
