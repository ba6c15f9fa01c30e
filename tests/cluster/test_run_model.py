"""A crawl of a shared queue in virtual time: fetchers and owners as they are, and a web of rules.

All of it is real (the scripts in a Redis, runs, blobs, links, owners) but the transfers and the
clock. Fetchers die at any point, with their disks, and are gone for longer than their lease.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.agent_town import FETCH, GRACE, InTown, Town, beat, candidate

from scrapy_spider_suite.cluster import held_runs
from scrapy_spider_suite.cluster.held_runs import HeldRuns, LinkBox, run_entries
from scrapy_spider_suite.cluster.mailbox import OwnerRouter
from scrapy_spider_suite.cluster.membership import AgentLease
from scrapy_spider_suite.cluster.registry import AgentRegistry
from scrapy_spider_suite.cluster.run_blobs import BlobFolder, Place, pack_links, unpack_piece
from scrapy_spider_suite.cluster.run_owner import PARTITIONS, Owner, partition_of
from scrapy_spider_suite.cluster.run_queue import FetcherReport, RunQueue, Task, TaskList
from scrapy_spider_suite.errors import FencedError
from scrapy_spider_suite.frontier.entries import Entry, slot_of, state_key
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.store.seen_transfer import LinkOrigin

DELAY = 5.0
PAGES = 25
HOSTS = [f"h{n}.example" for n in range(7)]
OWNER = "a"  # the fetcher that owns all partitions


def url_of(host: str, page: int) -> str:
    """Of a page."""
    return f"http://{host}/{page}"


def links_of(url: str) -> list[tuple[str, str]]:
    """Two pages of the host, and the front page of another one."""
    host, page = url.split("/")[2], int(url.rpartition("/")[2])
    own = [(host, url_of(host, n)) for n in (2 * page + 1, 2 * page + 2) if n < PAGES]
    other = HOSTS[(HOSTS.index(host) + page) % len(HOSTS)]
    return [*own, (other, url_of(other, 0))]


@dataclass
class World:
    """What fetchers share, and what the web's log says."""

    town: Town
    folder: Path
    dice: random.Random
    log: list[tuple[float, str, str, str]] = field(default_factory=list)
    lives: int = 0
    lost: int = 0  # fetches that no durable checkpoint had as their fetcher died

    def __post_init__(self) -> None:
        self.blobs = BlobFolder(str(self.folder / "blobs"), "web")


class Fetcher:
    """One process: its disk is gone when it dies."""

    def __init__(self, world: World, name: str) -> None:
        world.lives += 1
        self.world, self.name, self.incarnation = world, name, world.lives
        town = world.town
        self.registry = AgentRegistry(
            town.server.url, "web", AgentLease(FETCH), incarnation=self.incarnation,
            clock=lambda: town.now, wall=lambda: town.now,
        )  # fmt: skip
        self.queue = RunQueue(town.server.url, "web")
        self.list = TaskList(self.queue, name, self.incarnation, DELAY)
        self.held, self.box = HeldRuns(), LinkBox()
        self.router = OwnerRouter(self.box, lambda host, url: str(partition_of(host)), "")
        self.pending: dict[str, list[Entry]] = {}
        self.next: dict[str, float] = {}
        self.posts = 0
        self.said: dict[bytes, bytes] = {}  # progress of runs, as the server has it
        who = name, f"{self.incarnation:016x}"
        disk = world.folder / f"{name}{self.incarnation}"
        disk.mkdir()
        self.owner = Owner(
            self.queue, world.blobs, who, disk, lambda: set(range(PARTITIONS)), lambda: town.now
        )
        town._open += [self.registry, self.queue]

    async def join(self) -> None:
        """Take part, and read the list."""
        await self.registry.join(candidate(self.name))
        await self.list.restore()
        self.restored, self.until = list(self.list.tasks.values()), self.world.town.now + DELAY

    def load(self, task: Task) -> None:
        """Take a task."""
        blobs = self.world.blobs
        if task.hosts and task.slot not in self.held.slots:
            self.next |= json.loads(blobs.read(Place.from_bytes(task.hosts)))
        rows = unpack_piece(task.slot, blobs.read_run(task.run.place))
        for entry in self.held.add(task, run_entries(task, rows)):
            self.pending.setdefault(entry.host, []).append(entry)

    def fetch(self) -> None:
        """Fetch from each host whose delay is over."""
        world, now = self.world, self.world.town.now
        if self.restored and now >= self.until:
            for task in self.restored:
                self.load(task)
            self.restored = []
        for host, entries in self.pending.items():
            if not entries or self.next.get(host, 0.0) > now:
                continue
            entry = entries.pop()
            world.log.append((now, host, entry.url, self.name))
            self.next[host] = now + DELAY
            keys = [state_key(host, url) for host, url in links_of(entry.url)]
            self.router.own_links([(LinkOrigin(1, entry.url), keys)])
            self.held.end(entry.identity, Event.SUCCESS, 200, now)

    def states(self, slots: list[int]) -> dict[int, bytes]:
        """What is known of the hosts of *slots*, in blobs."""
        found = {}
        for slot in slots:
            known = {host: when for host, when in self.next.items() if slot_of(host) == slot}
            [place] = self.world.blobs.write([json.dumps(known).encode()])
            found[slot] = place.to_bytes()
        return found

    async def checkpoint(self) -> bool:
        """Make durable what came; false: it died before that."""
        checkpoint = self.held.cut(self.box.take())
        if self.world.dice.random() < 0.03:
            return False
        links = checkpoint.links
        places = self.world.blobs.write([pack_links(n, each) for n, each in links.items()])
        pairs = [(n, place.to_bytes()) for n, place in zip(links, places, strict=True)]
        if pairs:
            self.posts += 1
            await self.queue.post(f"{self.name}:{self.incarnation}", self.posts, pairs)
            if self.world.dice.random() < 0.02:
                return False
        self.held.settle(checkpoint)
        return True

    async def sync(self) -> None:
        """Report, and take what comes."""
        held, now = self.held, self.world.town.now
        empty = held.empty(now)[:16]
        hosts = self.states(empty)
        hosts |= self.states([slot for slot in held.slots if slot not in hosts][:4])
        done = [id for slot in empty for id in held.slots[slot]][:16]
        done += list(held.finished())[: 16 - len(done)]
        progress = held.progress()
        report = FetcherReport(
            done=done, progress=progress, hosts=hosts, want=self.world.dice.randrange(3),
            more=[slot for slot in held.low(now) if slot not in empty],
        )  # fmt: skip
        new = await self.list.sync(report)
        held.said(list(progress))
        self.said |= progress
        held.remove(done)
        for task in new:
            if any(task.slot == each.slot for each in self.restored):
                self.restored.append(task)
            else:
                self.load(task)
        for host in [host for host in self.next if slot_of(host) not in held.slots]:
            del self.next[host]
            self.pending.pop(host, None)


    def unsaid(self) -> int:
        """Fetches of which the server does not know."""
        count = 0
        for id, run in self.held.runs.items():
            known = self.said.get(id, run.task.progress)
            count += run.task.run.urls - run.left - int.from_bytes(known, "big").bit_count()
        return count


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_each_page_is_fetched_in_time(
    seed: int, in_town: InTown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pages; twice only what a dead fetcher had not made durable; hosts keep their delay."""
    monkeypatch.setattr(held_runs, "LINGER", 1.0)

    async def test(town: Town) -> None:
        world = World(town, tmp_path, random.Random(seed))
        await crawl(world)
        wanted = {url_of(host, page) for host in HOSTS for page in range(PAGES)}
        times = Counter(url for _, _, url, _ in world.log)
        assert times.keys() == wanted
        assert times.total() - len(wanted) <= world.lost
        last: dict[str, float] = {}
        for when, host, url, name in world.log:
            assert when - last.get(host, 0.0) >= DELAY, (url, name)
            last[host] = when

    in_town(test)


async def crawl(world: World) -> None:
    """From a seed to the end."""
    town, dice = world.town, world.dice
    fetchers: dict[str, Fetcher] = {}

    async def start(name: str) -> None:
        fetchers[name] = Fetcher(world, name)
        await fetchers[name].join()

    def die(name: str) -> None:
        fetcher = fetchers.pop(name)
        world.lost += fetcher.unsaid()
        shutil.rmtree(world.folder / f"{name}{fetcher.incarnation}")

    await start(OWNER)
    queue = fetchers[OWNER].queue
    await queue.set_weights({"bulk": 1.0})
    keys = [state_key(host, url_of(host, 0)) for host in HOSTS]
    fetchers[OWNER].router.own_links([(LinkOrigin(0, ""), keys)])
    trouble = 400
    for step in range(20_000):
        town.wait(dice.choice([0.3, 1.0, 2.5]))
        name = dice.choice("abc")
        if name not in fetchers:
            if step > trouble or dice.random() < 0.2:
                await start(name)
            continue
        fetcher = fetchers[name]
        if step < trouble and dice.random() < 0.01 and name != OWNER:
            town.wait(GRACE + FETCH + DELAY)  # nobody renews: all leases are over
            for each in list(fetchers):
                die(each)
            await start(OWNER)
            continue
        try:
            with suppress(FencedError):
                await beat(fetcher.registry)
            if fetcher.registry.lease.may_fetch(town.now, town.now):
                fetcher.fetch()
            if not await fetcher.checkpoint():
                die(name)
                continue
            await fetcher.sync()
            if name == OWNER:
                with suppress(FencedError):
                    await fetcher.owner.work()
            await fetcher.queue.sweep()
        except FencedError:
            die(name)
            continue
        counts = await fetcher.queue.counts()
        left = counts.inputs + counts.open + counts.urls("queued", "running", "later")
        if not left and not any(len(each.box) for each in fetchers.values()):
            return
    raise AssertionError("the crawl does not end")
