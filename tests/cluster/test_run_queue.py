"""The queue of runs in a real Redis: nothing is lost, a slot has one fetcher, none starves."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress

import pytest
from support.agent_town import FETCH, GRACE, InTown, Town, beat, candidate

from scrapy_spider_suite.cluster import run_queue
from scrapy_spider_suite.cluster.membership import AgentLease
from scrapy_spider_suite.cluster.registry import AgentRegistry
from scrapy_spider_suite.cluster.run_queue import (
    INPUTS_MAX,
    LITTER_AGE,
    POSTED_MAX,
    FailedRun,
    FetcherReport,
    PartitionCommit,
    Run,
    RunQueue,
    Task,
    TaskList,
)
from scrapy_spider_suite.errors import FencedError, RegistryError

DELAY = 60.0
SLOTS = 12
STATE = b"8 bytes of a blob and more"
WEIGHTS = {"bulk": 5.0, "fresh": 3.0, "one-off": 1.0}


def run_of(number: int, urls: int = 100) -> Run:
    """A run with a number: of three, two have a place, and one has its rows inline."""
    place = b"\0rows" if number % 3 == 0 else b"\1" + b"blob\0\0\0\0" + bytes(12)
    return Run(number.to_bytes(8, "big"), urls, place)


class Fetcher:
    """A process that has joined the crawl, with its list."""

    def __init__(self, town: Town, name: str, incarnation: int) -> None:
        self.registry = AgentRegistry(
            town.server.url, "web", AgentLease(FETCH), incarnation=incarnation,
            clock=lambda: town.now, wall=lambda: town.now,
        )  # fmt: skip
        self.queue = RunQueue(town.server.url, "web")
        self.list = TaskList(self.queue, name, incarnation, DELAY)
        self.name = name
        town._open += [self.registry, self.queue]

    @classmethod
    async def join(cls, town: Town, name: str, incarnation: int) -> Fetcher:
        """Let it join."""
        made = cls(town, name, incarnation)
        await made.registry.join(candidate(name))
        await made.list.restore()
        return made

    @property
    def tasks(self) -> dict[bytes, Task]:
        return self.list.tasks


async def opened(town: Town, **weights: float) -> RunQueue:
    """The queue of an operator, with weights."""
    queue = RunQueue(town.server.url, "web")
    town._open.append(queue)
    await queue.set_weights(weights or WEIGHTS)
    return queue


async def drained(fetcher: Fetcher) -> list[bytes]:
    """All runs that a fetcher gets until there are none, in their order."""
    seen: dict[bytes, None] = dict.fromkeys(fetcher.tasks)
    while True:
        await fetcher.list.sync(FetcherReport(done=list(fetcher.tasks)[:16], want=16))
        seen |= dict.fromkeys(fetcher.tasks)
        if not fetcher.tasks:
            return list(seen)


def test_tasks_stay_at_the_server(in_town: InTown) -> None:
    """A fetcher sees its list, and what is done makes room; another process of it goes on there."""

    async def test(town: Town) -> None:
        queue, first = await opened(town), await Fetcher.join(town, "a", 1)
        runs = [("bulk", slot, run_of(slot)) for slot in range(SLOTS)]
        await queue.enqueue("owner", 1, runs)
        await queue.enqueue("owner", 1, runs)  # the answer was lost
        await first.list.sync(FetcherReport(want=5))
        assert len(first.tasks) == 5
        done, *others = first.tasks
        await first.list.sync(FetcherReport(done=[done], progress={others[0]: b"half"}, want=1))
        assert len(first.tasks) == 5
        assert done not in first.tasks
        again = await Fetcher.join(town, "a", 2)
        await again.list.sync(FetcherReport())
        assert again.tasks.keys() == first.tasks.keys()
        assert again.tasks[others[0]].progress == b"half"
        with pytest.raises(FencedError):
            await first.list.sync(FetcherReport(want=1))
        bulk = (await queue.counts()).queues["bulk"]
        assert (bulk["runs:queued"], bulk["runs:running"], bulk["runs:done"]) == (6, 5, 1)
        assert bulk["urls:running"] == 500
        assert len(await drained(again)) == SLOTS - 1

    in_town(test)


def test_a_slot_has_one_fetcher(in_town: InTown) -> None:
    """Its further runs are for that one, the oldest first, from all queues."""

    async def test(town: Town) -> None:
        queue = await opened(town)
        a, b = [await Fetcher.join(town, name, n) for n, name in enumerate("ab", 1)]
        for number in range(6):
            name = ["bulk", "fresh"][number % 2]
            await queue.enqueue("owner", number + 1, [(name, 7, run_of(number))])
        await a.list.sync(FetcherReport(want=1))
        await b.list.sync(FetcherReport(want=10, more=[7]))
        assert (len(a.tasks), len(b.tasks)) == (1, 0)
        await a.list.sync(FetcherReport(more=[7], want=3))
        assert len(a.tasks) == 2
        [first, second] = a.tasks
        await a.list.sync(FetcherReport(done=[first]))
        await b.list.sync(FetcherReport(want=10))
        assert not b.tasks
        await a.list.sync(FetcherReport(done=[second]))
        await b.list.sync(FetcherReport(want=10))
        assert len(b.tasks) == 1
        got = [*map(int.from_bytes, (first, second)), *map(int.from_bytes, await drained(b))]
        for parity in (0, 1):
            of_queue = [number for number in got if number % 2 == parity]
            assert of_queue == sorted(of_queue)

    in_town(test)


def test_queues_are_drawn_by_weight(in_town: InTown) -> None:
    """5:3:1 while all have free slots; one that is empty or blocked costs nothing."""

    async def test(town: Town) -> None:
        random.seed(1)
        queue, a = await opened(town, **WEIGHTS, empty=1_000.0), await Fetcher.join(town, "a", 1)
        number = 0
        for name in WEIGHTS:
            for _ in range(120):
                runs = [(name, number * 32 + n, run_of(number * 32 + n)) for n in range(32)]
                number += 1
                await queue.enqueue("owner", number, runs)
        drawn: Counter[str] = Counter()
        for _ in range(100):
            await a.list.sync(FetcherReport(done=list(a.tasks), want=16))
            drawn.update(task.queue for task in a.tasks.values())
        assert {name: drawn[name] / 1_600 for name in WEIGHTS} == pytest.approx(
            {"bulk": 5 / 9, "fresh": 3 / 9, "one-off": 1 / 9}, abs=0.04
        )

    in_town(test)


def test_tasks_of_a_dead_fetcher(in_town: InTown) -> None:
    """They are given to others after its lease and the longest delay, with their progress."""

    async def test(town: Town) -> None:
        queue = await opened(town)
        a, b = [await Fetcher.join(town, name, n) for n, name in enumerate("ab", 1)]
        await queue.enqueue("owner", 1, [("bulk", slot, run_of(slot)) for slot in range(30)])
        await a.list.sync(FetcherReport(want=30))
        some = list(a.tasks)[3]
        await a.list.sync(FetcherReport(progress={some: b"half"}))
        for wait in (GRACE - 1, DELAY - 1):
            town.wait(wait)
            assert await queue.sweep() == 0
        town.wait(3)
        moved = 0
        while step := await queue.sweep(most=8):
            assert step <= 8
            moved += step
        assert moved == 30
        with pytest.raises(FencedError):
            await a.list.sync(FetcherReport(done=[some]))
        b = await Fetcher.join(town, "b", 3)
        await b.list.sync(FetcherReport(want=30))
        assert len(b.tasks) == 30
        assert b.tasks[some].progress == b"half"

    in_town(test)


def test_a_lease_that_is_renewed_elsewhere(in_town: InTown) -> None:
    """A fetcher that renews its lease, and does not look at its list, keeps its tasks."""

    async def test(town: Town) -> None:
        queue, a = await opened(town), await Fetcher.join(town, "a", 1)
        await queue.enqueue("owner", 1, [("bulk", 1, run_of(1))])
        await a.list.sync(FetcherReport(want=1))
        for _ in range(4):
            town.wait(GRACE / 2)
            await a.registry.join(candidate("a"))
            assert await queue.sweep() == 0
        assert len(a.tasks) == 1

    in_town(test)


def test_failed_runs_come_back(in_town: InTown) -> None:
    """Later, with their progress; or they are set aside."""

    async def test(town: Town) -> None:
        queue, a = await opened(town), await Fetcher.join(town, "a", 1)
        await queue.enqueue("owner", 1, [("bulk", slot, run_of(slot)) for slot in (1, 2)])
        await a.list.sync(FetcherReport(want=2))
        one, two = a.tasks
        failed = FailedRun(one, b"half", 30.0, "no blob"), FailedRun(two, b"", 0.0, "no blob")
        await a.list.sync(FetcherReport(failed=failed, want=5))
        assert not a.tasks
        assert await queue.sweep() == 0
        town.wait(31)
        assert await queue.sweep() == 1
        await a.list.sync(FetcherReport(want=5))
        assert [task[3:] for task in a.tasks.values()] == [(b"half", 1, b"")]
        bulk = (await queue.counts()).queues["bulk"]
        assert (bulk["runs:aside"], bulk["runs:running"], bulk["urls:aside"]) == (1, 1, 100)

    in_town(test)


def test_a_report_that_is_lost_is_sent_again(
    in_town: InTown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it has arrived or not, it counts once."""

    async def test(town: Town) -> None:
        queue, a = await opened(town), await Fetcher.join(town, "a", 1)
        await queue.enqueue("owner", 1, [("bulk", slot, run_of(slot)) for slot in range(40)])
        for arrives in (True, False):
            real = a.queue._run

            async def lose(script: str, given: dict[str, object]) -> list[object]:
                if arrives:  # noqa: B023
                    await real(script, given)  # noqa: B023
                raise RegistryError("Redis is away", "away")

            monkeypatch.setattr(a.queue, "_run", lose)
            with pytest.raises(RegistryError):
                await a.list.sync(FetcherReport(want=10))
            monkeypatch.setattr(a.queue, "_run", real)
            before = len(a.tasks)
            await a.list.sync(FetcherReport())
            assert len(a.tasks) == before + 10

    in_town(test)


@pytest.mark.parametrize("seed", range(6))
def test_at_random(in_town: InTown, seed: int) -> None:
    """Whatever happens, each run is in one place, a slot with one fetcher, and all end."""

    async def test(town: Town) -> None:
        dice = random.Random(seed)
        random.seed(seed)
        queue = await opened(town)
        incarnation, calls, number = 0, 0, 0
        fetchers: dict[str, Fetcher] = {}
        ended: set[bytes] = set()

        async def join(name: str) -> None:
            nonlocal incarnation
            incarnation += 1
            fetchers[name] = await Fetcher.join(town, name, incarnation)

        async def step(fetcher: Fetcher, *, only_end: bool = False) -> None:
            tasks = list(fetcher.tasks)
            dice.shuffle(tasks)
            done, rest = tasks[: dice.randrange(4)], tasks[4:]
            if only_end:
                done, rest = tasks[:16], []
            failed = [FailedRun(each, b"", dice.choice([1.0, 40.0]), "no") for each in rest[:1]]
            slots = [task.slot for task in fetcher.tasks.values()]
            report = FetcherReport(
                done, [] if only_end else failed, [(each, b"y", 5.0) for each in rest[3:4]],
                dict.fromkeys(rest[1:3], b"x"), dict.fromkeys(slots[:2], STATE),
                dice.sample(slots, min(3, len(slots))), dice.randrange(1, 6),
            )  # fmt: skip
            with suppress(FencedError):
                await fetcher.list.sync(report)
                ended.update(done)

        for name in "abc":
            await join(name)
        for _ in range(150):
            what = dice.random()
            if what < 0.25:
                calls += 1
                runs = []
                for _ in range(dice.randrange(5)):
                    runs.append((dice.choice([*WEIGHTS]), dice.randrange(SLOTS), run_of(number)))
                    number += 1
                await queue.enqueue("owner", calls, runs)
            elif what < 0.85:
                await step(fetchers[dice.choice("abc")])
            elif what < 0.92:
                await queue.sweep(dice.randrange(1, 5))
            elif what < 0.96:
                await join(dice.choice("abc"))
            else:
                town.wait(dice.choice([5, 400, GRACE + DELAY + 1]))
            await check(town, number)
        for _ in range(400):
            town.wait(60)
            for name in "abc":
                await join(name)
                await fetchers[name].list.sync(FetcherReport())
                await step(fetchers[name], only_end=True)
            await queue.sweep()
            if len(ended) == number:
                break
        assert len(ended) == number
        totals = Counter[str]()
        for counts in (await queue.counts()).queues.values():
            totals.update(counts)
        assert totals["runs:done"] == number
        assert not any(n for name, n in totals.items() if not name.endswith(":done"))
        left = {key.decode() for key in town.client.keys("suite:{web}:runs:*")}
        assert {key.rpartition(":")[2] for key in left} == {
            "queues", "counts", "calls", "called", "sources", "states", "blobs", "litter",
        }  # fmt: skip
        assert town.client.zrange("suite:{web}:runs:litter", 0, -1) == [b"blob\0\0\0\0"]
        slots = town.client.hlen("suite:{web}:runs:states")
        assert town.client.hgetall("suite:{web}:runs:blobs") == {STATE[:8]: b"%d" % slots}

    in_town(test)


def test_all_tasks_of_a_dead_fetcher_go_back(in_town: InTown) -> None:
    """Also if there are many of them."""

    async def test(town: Town) -> None:
        queue, a = await opened(town), await Fetcher.join(town, "a", 1)
        runs = [("bulk", slot, run_of(slot)) for slot in range(600)]
        for number, at in enumerate(range(0, len(runs), 16), 1):
            await queue.enqueue("owner", number, runs[at : at + 16])
        while len(a.tasks) < len(runs):
            await a.list.sync(FetcherReport(want=16))
        town.wait(GRACE + DELAY + 1)
        moved = [await queue.sweep() for _ in range(len(runs) // 16 + 2)]
        assert sum(moved) == len(runs)

    in_town(test)


def test_a_fetcher_has_again_what_the_server_forgot(in_town: InTown) -> None:
    """Its tasks in their order, unless another one has their slot; what it had done is done."""

    async def test(town: Town) -> None:
        queue = await opened(town)
        a, b = [await Fetcher.join(town, name, n) for n, name in enumerate("ab", 1)]
        runs = [("bulk", slot, run_of(n)) for n, slot in enumerate([7, 7, 7, 8, 9, 10])]
        await queue.enqueue("owner", 1, runs)
        memory = town.remember()
        while len(a.tasks) < len(runs):
            await a.list.sync(FetcherReport(want=16, more=[7]))
        tasks = {int.from_bytes(id): task for id, task in a.tasks.items()}
        town.rewind(memory)
        await a.list.restore()
        assert not a.tasks
        await b.list.sync(FetcherReport(again=[tasks[4]], want=16))
        assert list(b.tasks.values()) == [tasks[4]]  # no more is given for now
        late = FetcherReport(again=[tasks[5], tasks[2]])  # it had others of this slot before
        await a.list.sync(FetcherReport(again=[tasks[4]]))
        await a.list.sync(FetcherReport(again=[tasks[3]], done=[tasks[3].run.id]))
        await a.list.sync(FetcherReport(again=[tasks[0], tasks[1]]))
        await a.list.sync(late)
        await a.list.sync(late)
        assert [tasks[n].run.id for n in (0, 1, 5, 2)] == list(a.tasks)
        counts = (await queue.counts()).queues["bulk"]
        assert [counts[f"runs:{state}"] for state in ("queued", "running", "done")] == [0, 5, 1]
        await a.list.sync(FetcherReport(done=list(a.tasks)))
        await b.list.sync(FetcherReport(done=list(b.tasks)))
        assert (await queue.counts()).queues["bulk"]["runs:done"] == len(runs)

    in_town(test)


def test_links_are_posted_for_all_owners_or_for_none(in_town: InTown) -> None:
    """Else the blob of a call would be removed while some of its places wait."""

    async def test(town: Town) -> None:
        queue = await opened(town)
        places = [(partition, b"%08d" % partition + bytes(12)) for partition in range(POSTED_MAX)]
        assert await queue.post("a", 1, places)
        for number in range(1, INPUTS_MAX):
            assert await queue.post("b", number, places[:1])
        assert not await queue.post("a", 2, places)
        assert (await queue.counts()).inputs == POSTED_MAX + INPUTS_MAX - 1
        assert await queue.post("a", 2, places[1:])

    in_town(test)


def test_a_blob_that_is_used_again_stays(in_town: InTown) -> None:
    """It is no litter any more; nor is anything, after a restart of Redis, for a while."""
    place, other = b"blob one" + bytes(12), b"blob two" + bytes(12)

    async def test(town: Town) -> None:
        queue = await opened(town)
        owner = await Fetcher.join(town, "a", 1)
        for number, part in enumerate([place, other], 1):
            await queue.post("fetcher", number, [(0, part)])
            commit = PartitionCommit(0, 0, number, bytes([number]), b"manifest", 0, taken=1)
            assert await owner.queue.commit("a", f"{1:016x}", [commit]) == [True]
        await queue.post("fetcher", 3, [(0, place)])  # again: the server seemed to have forgotten
        assert await queue.litter() == []
        town.wait(LITTER_AGE + 1)
        town.restarted()
        assert await queue.litter() == []
        for _ in range(20):
            town.wait(GRACE / 10)
            await beat(owner.registry)
        assert await queue.litter() == [other[:8]]
        assert await queue.litter() == []

    in_town(test)


async def check(town: Town, number: int) -> None:
    """The invariants of the keys in Redis."""
    client, prefix = town.client, "suite:{web}:runs:"

    def key(*parts: object) -> str:
        return prefix + ":".join(map(str, parts))

    holders = {int(slot): name.decode() for slot, name in client.hgetall(key("holders")).items()}
    runs: list[bytes] = []
    for queue in WEIGHTS:
        lists = {slot: client.lrange(key("list", queue, slot), 0, -1) for slot in range(SLOTS)}
        for slot, behind in lists.items():
            placed = client.hget(key("next", queue, slot // 64), slot)
            assert len(placed or b"") in (0, 31, 62)
            assert (placed is None) == (not placed and not behind)
            pair = [placed[at : at + 31] for at in range(0, len(placed), 31)] if placed else []
            lists[slot] = [*pair, *behind]
        runs += [run[:8] for each in lists.values() for run in each]
        free = {int(slot) for slot in client.smembers(key("free", queue))}
        assert free == {slot for slot, each in lists.items() if each and slot not in holders}
    held: dict[int, str] = {}
    for name in "abc":
        ids = client.hkeys(key("tasks", name))
        runs += ids
        for slot, count in client.hgetall(key("held", name)).items():
            assert int(count) > 0
            assert held.setdefault(int(slot), name) == name
        tasks = [run_queue._task(each, b"") for each in client.hvals(key("tasks", name))]
        slots = Counter(task.slot for task in tasks)
        assert slots == {int(s): int(n) for s, n in client.hgetall(key("held", name)).items()}
    assert held == holders
    waiting = client.zcard(key("later"))
    counted = client.hgetall(key("counts"))
    done = sum(int(n) for name, n in counted.items() if name.startswith(b"runs:done:"))
    assert len(runs) == len(set(runs))
    assert len(runs) + waiting + done == number


