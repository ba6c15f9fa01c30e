"""The queue of runs in Redis, which keeps the tasks of each fetcher (BloomReach's run queue).

A run is up to 1,000 URLs of one slot. A fetcher never owns a run: the fetcher reads its list of
tasks and reports finished runs, and the server changes the list. The next queue is drawn by weight,
so every queue gets its share. A slot has one fetcher at a time, which gets all runs of the slot.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.cluster.redis_server import RedisKeys, RedisServer, load_script
from scrapy_spider_suite.errors import FencedError, RegistryError

ENTRIES_MAX: Final = 16  # of one kind in a call: so no script takes a millisecond
NAMES_MAX: Final = 64  # fetchers among which the least busy one is looked for
LITTER_AGE: Final = 60.0  # seconds: a restarted Redis has forgotten less
INPUTS_MAX: Final = 64  # places of links that wait for the owner of a partition
POSTED_MAX: Final = 64  # places of links in a call
QUEUES_MAX: Final = 8
TAKEN_MAX: Final = 4  # places that an owner takes at a time
URLS_MAX: Final = 1_000
_HEAD: Final = struct.Struct(">8sH")
_TIMEOUT: Final = 3.0
_SEEDS: Final = "seeds"  # a source: see runs_counts.lua
STATES: Final = ("queued", "running", "later", "aside", "done")


@dataclass(frozen=True, slots=True)
class Run:
    """*id*: 8 bytes; *urls*: how many; *place*: 1 and the place of its rows, or 0 and they."""

    id: bytes
    urls: int
    place: bytes

    def to_bytes(self) -> bytes:
        return _HEAD.pack(self.id, self.urls) + self.place

    @classmethod
    def from_bytes(cls, data: bytes) -> Run:
        """Unpack a run. Raises `struct.error`."""
        id, urls = _HEAD.unpack_from(data)
        return cls(id, urls, data[_HEAD.size :])


class Task(NamedTuple):
    """A run on a fetcher's list; *progress*: what the fetchers that had it said last; *hosts*: the
    place of what was known of its slot's hosts, or nothing.
    """

    queue: str
    slot: int
    run: Run
    progress: bytes
    failures: int
    hosts: bytes


class AsideRun(NamedTuple):
    """A run that is set aside, with the reason of the last of its failures."""

    queue: str
    slot: int
    run: Run
    progress: bytes
    failures: int
    reason: str


class FailedRun(NamedTuple):
    """*wait*: seconds until it is tried again, 0: it is set aside."""

    id: bytes
    progress: bytes
    wait: float
    reason: str


class FetcherReport(NamedTuple):
    """What a fetcher reports; *returned*: id, progress, and seconds until others may have the run.

    *more*: slots whose next run it wants; *want*: further runs; *takes*: whether it has room for
    any: who has none leaves its share of the slots to others. *again*: runs that it was given, as
    the server may have forgotten.
    """

    done: Sequence[bytes] = ()
    failed: Sequence[FailedRun] = ()
    returned: Sequence[tuple[bytes, bytes, float]] = ()
    progress: Mapping[bytes, bytes] = {}  # by run
    hosts: Mapping[int, bytes] = {}  # places of what is known of them, by slot
    more: Sequence[int] = ()
    want: int = 0
    takes: bool = True
    again: Sequence[Task] = ()


class Slots(NamedTuple):
    """*fetchers* that had room within the last ten seconds; slots that are *held*, and *free* ones
    with runs.
    """

    fetchers: int
    held: int
    free: int

    @property
    def share(self) -> int:
        """How many slots a fetcher may have, so that each finds some."""
        if self.fetchers < 2 or self.free >= self.fetchers * ENTRIES_MAX:
            return self.held + self.free + ENTRIES_MAX  # there are enough for all
        return -(-(self.held + self.free) // self.fetchers)


class Input(NamedTuple):
    """What waits for owners: places of links by partition; *free*: slots with runs, by queue."""

    places: Mapping[int, Sequence[bytes]]
    free: Mapping[str, int]


class PartitionCommit(NamedTuple):
    """What an owner did with a *partition*, whose first unit is *unit*.

    *number*: of this commit of the partition; *token*: of this call; *open*: URLs in no run yet;
    *taken*: places of links; *used*, *unused*: blobs that the manifest names now, or no longer.
    """

    partition: int
    unit: int
    number: int
    token: bytes
    manifest: bytes
    open: int
    taken: int = 0
    runs: Sequence[tuple[str, int, Run]] = ()  # `ENTRIES_MAX` in a call
    used: Sequence[bytes] = ()
    unused: Sequence[bytes] = ()


class QueueCounts(NamedTuple):
    """Runs and URLs of each of the *queues* by state, as ``runs:queued``.

    *inputs*: places of links that wait; *open*: URLs in no run yet; *seeded*: see `note_seeded`.
    """

    queues: Mapping[str, Mapping[str, int]]
    weights: Mapping[str, float]
    inputs: int
    open: int
    seeded: bool

    def rows(self) -> list[dict[str, Any]]:
        """A row for each queue, for tables; *share*: of the runs that are given now."""
        drawn = sum(self.weights[name] for name, counts in self.queues.items()
                    if counts["runs:queued"])  # fmt: skip
        return [
            {
                "queue": name, "weight": self.weights[name],
                "share": self.weights[name] / drawn if counts["runs:queued"] else 0.0,
            } | {key.replace(":", "_"): count for key, count in counts.items()}
            for name, counts in self.queues.items()
        ]  # fmt: skip

    def urls(self, *states: str) -> int:
        """URLs of all queues that are in one of *states*."""
        return sum(counts[f"urls:{state}"] for counts in self.queues.values() for state in states)


class RunQueue:
    """The queue of *crawl* at *url*. Raises `ValueError`; methods raise `RegistryError`."""

    def __init__(self, url: str, crawl: str) -> None:
        keys = RedisKeys(crawl)
        self._server = RedisServer(url, _TIMEOUT)
        self._keys = [f"{keys.prefix}runs:queues", keys.members]
        self._scripts = {
            name: load_script("world", "rows", "runs", f"runs_{name}")
            for name in (
                "sync", "enqueue", "sweep", "queues", "counts", "post", "take", "owned", "commit",
                "litter", "tasks", "aside", "resume",
                "give",
            )
        }

    async def close(self) -> None:
        await self._server.close()

    async def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the weights of queues; a new name is a new queue, others go once they are empty.

        Raises `ValueError`.
        """
        if any(not 0 < weight < 1e9 for weight in weights.values()):
            raise ValueError(f"{dict(weights)}: expected weights above 0")
        [code] = await self._run("queues", {"weights": dict(weights), "most": QUEUES_MAX})
        if code != b"ok":
            raise ValueError(f"more than {QUEUES_MAX} queues")

    async def enqueue(
        self, source: str, number: int, runs: Sequence[tuple[str, int, Run]]
    ) -> None:
        """Add *runs* (queue, slot, run), `ENTRIES_MAX` at most.

        *number* rises with each call of *source*; a call that comes again changes nothing. Raises
        `ValueError`: an unknown queue.
        """
        found = await self._run("enqueue", {
            "source": source, "number": number,
            "runs": [(queue, slot, run.to_bytes()) for queue, slot, run in runs],
        })  # fmt: skip
        if found[0] != b"ok":
            raise ValueError(f"there is no queue {found[1].decode('utf-8', 'replace')!r}")

    async def sweep(self, most: int = ENTRIES_MAX) -> int:
        """Put back *most* tasks of a dead fetcher, and *most* failed runs that are due.

        Return how many.
        """
        [moved] = await self._run("sweep", {"most": most})
        return int(moved)

    async def counts(self) -> QueueCounts:
        """How many runs and URLs there are."""
        flat_weights, flat, seeded = await self._run("counts", {})
        weights = {name.decode(): float(n) for name, n in _pairs(flat_weights)}
        known = {name.decode(): int(n) for name, n in _pairs(flat)}
        queues = {
            queue: {
                f"{unit}:{state}": known.get(f"{unit}:{state}:{queue}", 0)
                for unit in ("runs", "urls") for state in STATES
            }
            for queue in sorted(weights)
        }  # fmt: skip
        inputs, waiting = known.get("inputs", 0), known.get("open", 0)
        return QueueCounts(queues, weights, inputs, waiting, bool(seeded))

    # Operators

    async def aside(self) -> list[AsideRun]:
        """The runs that are set aside."""
        runs, cursor = dict[bytes, AsideRun](), b"0"
        while True:
            cursor, found = await self._run("aside", {"cursor": cursor, "most": ENTRIES_MAX})
            runs |= {each.run.id: each for each in map(_aside, found)}
            if cursor == b"0":
                return sorted(runs.values(), key=lambda each: each.run.id)

    async def give(
        self, runs: Sequence[tuple[str, int, Run]], names: Sequence[str]
    ) -> list[str]:
        """Give *runs*, `ENTRIES_MAX` at most, to fetchers past the lottery; to whom ("": nobody).

        *names*: of fetchers. The one that has a run's slot gets it, else the least busy one.
        Raises `ValueError`: an unknown queue.
        """
        packed = [(queue, slot, run.to_bytes()) for queue, slot, run in runs]
        found = await self._run("give", {"runs": packed, "names": list(names)[:NAMES_MAX]})
        if found[0] != b"ok":
            raise ValueError(f"there is no queue {found[1].decode('utf-8', 'replace')!r}")
        return [name.decode() for name in found[1]]

    async def resume(
        self, ids: Sequence[bytes], queue: str = "", *, drop: bool = False
    ) -> list[bool]:
        """Put runs that are set aside back into their queue, or into *queue*; or *drop* them.

        Which of *ids*, `ENTRIES_MAX` at most, were there. Raises `ValueError`: an unknown queue.
        """
        given = {"ids": list(ids), "queue": queue, "drop": drop}
        found = await self._run("resume", given)
        if found[0] != b"ok":
            raise ValueError(f"there is no queue {queue!r}")
        return [bool(there) for there in found[1]]

    # Owners

    async def post(self, source: str, number: int, places: Sequence[tuple[int, bytes]]) -> bool:
        """Leave *places* of links for the owners of partitions, `POSTED_MAX` at most.

        All places of a blob belong into one call: a blob that nothing uses any more is removed.
        *number* as in `enqueue`. False: too much waits there; nothing was done.
        """
        [code] = await self._run("post", {
            "source": source, "number": number, "places": list(places), "most": INPUTS_MAX,
        })  # fmt: skip
        return bool(code == b"ok")

    async def note_seeded(self) -> None:
        """All seeds of the crawl are in the queue, or on their way to it."""
        await self.post(_SEEDS, 1, [])

    async def take(self, partitions: Sequence[int]) -> Input:
        """What waits for some of the owner's *partitions*; it stays until a commit."""
        _, found, free = await self._run("take", {
            "partitions": dict.fromkeys(partitions, True), "most": ENTRIES_MAX, "each": TAKEN_MAX,
        })  # fmt: skip
        return Input(
            {int(partition): places for partition, places in found},
            {name.decode(): int(n) for name, n in _pairs(free)},
        )

    async def owned(self, partitions: Sequence[int]) -> list[tuple[int, bytes]]:
        """For each of *partitions* the number of its last commit, and its manifest."""
        _, found = await self._run("owned", {"partitions": list(partitions)})
        return [(int(number), manifest) for number, manifest in found]

    async def commit(
        self, name: str, incarnation: str, parts: Sequence[PartitionCommit]
    ) -> list[bool]:  # fmt: skip
        """Commit *parts*; which are done. The same call may come again. Raises `FencedError`."""
        found = await self._run("commit", {
            "name": name, "incarnation": incarnation, "parts": [
                part._asdict() | {
                    "runs": [(queue, slot, run.to_bytes()) for queue, slot, run in part.runs]
                }
                for part in parts
            ],
        })  # fmt: skip
        _refuse_fenced(found)
        return [bool(done) for done in found[1]]

    async def litter(self, back: Sequence[bytes] = ()) -> list[bytes]:
        """Take some blobs that nothing has used for `LITTER_AGE`; *back*: not removed after all."""
        _, found = await self._run("litter", {
            "back": list(back), "most": ENTRIES_MAX, "age": round(LITTER_AGE * 1_000),
        })  # fmt: skip
        return list(found)

    async def _run(self, script: str, given: dict[str, Any]) -> list[Any]:
        packed = msgpack.packb(given, use_bin_type=False)  # cmsgpack knows no other
        return await self._server.run(self._scripts[script], self._keys, packed)

    async def sync(
        self, name: str, incarnation: str, call: int, delay: float, report: FetcherReport
    ) -> tuple[list[Task], Slots]:
        """Send *report* as the *call* of this process; the tasks that it is given."""
        draws = [random.random() for _ in range(len(report.more) + report.want)]
        found = await self._run("sync", {
            "name": name, "incarnation": incarnation, "call": call, "delay": round(delay * 1_000),
            "again": [(task.queue, task.slot, task.run.id) for task in report.again],
            "done": list(report.done),
            "failed": [
                (each.id, each.progress, round(each.wait * 1_000), each.reason)
                for each in report.failed
            ],
            "returned": [
                (id, progress, round(wait * 1_000)) for id, progress, wait in report.returned
            ],
            "progress": list(report.progress.items()), "states": list(report.hosts.items()),
            "more": list(report.more), "drawn": draws[: len(report.more)],
            "want": draws[len(report.more) :], "takes": report.takes,
        })  # fmt: skip
        _refuse_fenced(found)
        _, packed, places, slots = found
        return _tasks(packed, places), Slots(*map(int, slots))

    async def tasks(self, name: str) -> list[Task]:
        """All tasks of the fetcher *name*."""
        tasks, cursor = dict[bytes, Task](), b"0"
        while True:
            cursor, *found = await self._run("tasks", {
                "name": name, "cursor": cursor, "most": ENTRIES_MAX,
            })  # fmt: skip
            tasks |= {task.run.id: task for task in _tasks(*found)}
            if cursor == b"0":
                return list(tasks.values())


def _pairs(flat: Sequence[bytes]) -> zip[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _refuse_fenced(found: list[Any]) -> None:
    if found[0] == b"fenced":
        text = "another process has the name of this agent, or its lease ended"
        raise FencedError(text, again=True)


def _aside(packed: bytes) -> AsideRun:
    try:
        queue, slot, run, progress, failures, reason = msgpack.unpackb(packed, raw=True)
        text = reason.decode("utf-8", "replace")
        return AsideRun(
            queue.decode(), int(slot), Run.from_bytes(run), progress, int(failures), text
        )
    except (ValueError, TypeError, struct.error) as error:
        raise RegistryError(f"Redis holds a run that the suite did not write: {error}",
                            "damaged") from error  # fmt: skip


def _tasks(packed: Sequence[bytes], hosts: Sequence[bytes]) -> list[Task]:
    return [_task(*each) for each in zip(packed, hosts, strict=True)]


def _task(packed: bytes, hosts: bytes) -> Task:
    try:
        queue, slot, run, progress, failures = msgpack.unpackb(packed, raw=True)
        return Task(queue.decode(), int(slot), Run.from_bytes(run), progress, int(failures), hosts)
    except (ValueError, TypeError, struct.error) as error:
        raise RegistryError(f"Redis holds a task that the suite did not write: {error}",
                            "damaged") from error  # fmt: skip


class TaskList:
    """The tasks of one fetcher, as the server has them.

    *delay*: seconds after the fetcher's lease before another fetcher may have the tasks.
    """

    def __init__(self, queue: RunQueue, name: str, incarnation: int, delay: float) -> None:
        self.tasks: dict[bytes, Task] = {}  # by the ids of their runs
        self._queue = queue
        self._who = name, f"{incarnation:016x}"
        self._delay = delay
        self._call = 0
        self.slots = Slots(1, 0, 0)
        self._open: FetcherReport | None = None  # that may not have arrived

    async def restore(self) -> None:
        """Read the whole list: this process, or its lease, has just begun. Raises `RegistryError`.
        """
        self._open = None
        self.tasks = {task.run.id: task for task in await self._queue.tasks(self._who[0])}

    async def sync(self, report: FetcherReport) -> list[Task]:
        """Send *report*; the new tasks. A report that may not have arrived is sent again first.

        Raises `FencedError`, `RegistryError`.
        """
        new = list[Task]()
        for each in filter(None, (self._open, report)):
            if each is not self._open:
                self._call += 1
                self._open = each
            given, self.slots = await self._queue.sync(*self._who, self._call, self._delay, each)
            self._open = None
            ended = [*each.done, *(run.id for run in each.failed)]
            for id in [*ended, *(id for id, _, _ in each.returned)]:
                self.tasks.pop(id, None)
            self.tasks |= {task.run.id: task for task in given}
            new += given
        return new
