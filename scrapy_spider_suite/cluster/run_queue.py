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
QUEUES_MAX: Final = 8
URLS_MAX: Final = 1_000
_HEAD: Final = struct.Struct(">8sH")
_TIMEOUT: Final = 3.0
_STATES: Final = ("queued", "running", "later", "aside", "done")


@dataclass(frozen=True, slots=True)
class Run:
    """*id*: 8 bytes; *urls*: how many it has; *place*: bytes that say where they are, or they
    themselves.
    """

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
    """A run on a fetcher's list; *progress*: what the fetchers that had it said last."""

    queue: str
    slot: int
    run: Run
    progress: bytes
    failures: int


class FailedRun(NamedTuple):
    """*wait*: seconds until it is tried again, 0: it is set aside."""

    id: bytes
    progress: bytes
    wait: float
    reason: str


class FetcherReport(NamedTuple):
    """What a fetcher reports; *more*: slots whose next run it wants; *want*: further runs."""

    done: Sequence[bytes] = ()
    failed: Sequence[FailedRun] = ()
    progress: Mapping[bytes, bytes] = {}  # by run
    more: Sequence[int] = ()
    want: int = 0


class RunQueue:
    """The queue of *crawl* at *url*. Raises `ValueError`; methods raise `RegistryError`."""

    def __init__(self, url: str, crawl: str) -> None:
        keys = RedisKeys(crawl)
        self._server = RedisServer(url, _TIMEOUT)
        self._keys = [f"{keys.prefix}runs:queues", keys.members]
        self._scripts = {
            name: load_script("world", "rows", "runs", f"runs_{name}")
            for name in ("sync", "enqueue", "sweep", "queues", "counts")
        }

    async def close(self) -> None:
        await self._server.close()

    async def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the weights of queues; a new name is a new queue. Raises `ValueError`."""
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

    async def counts(self) -> dict[str, dict[str, int]]:
        """Runs and URLs of each queue by state, as ``runs:queued``."""
        queues, flat = await self._run("counts", {})
        known = {name.decode(): int(n) for name, n in zip(flat[::2], flat[1::2], strict=True)}
        return {
            queue: {
                f"{unit}:{state}": known.get(f"{unit}:{state}:{queue}", 0)
                for unit in ("runs", "urls") for state in _STATES
            }
            for queue in sorted(name.decode() for name in queues)
        }  # fmt: skip

    async def _run(self, script: str, given: dict[str, Any]) -> list[Any]:
        packed = msgpack.packb(given, use_bin_type=False)  # cmsgpack knows no other
        return await self._server.run(self._scripts[script], self._keys, packed)

    async def sync(
        self, name: str, incarnation: str, call: int, version: int, delay: float,
        report: FetcherReport,
    ) -> tuple[int, list[Task] | None]:
        """Send *report*; the version of the list, and the list unless that is *version*."""
        draws = [random.random() for _ in range(len(report.more) + report.want)]
        found = await self._run("sync", {
            "name": name, "incarnation": incarnation, "call": call, "version": version,
            "delay": round(delay * 1_000), "done": list(report.done),
            "failed": [
                (each.id, each.progress, round(each.wait * 1_000), each.reason)
                for each in report.failed
            ],
            "progress": list(report.progress.items()), "more": list(report.more),
            "drawn": draws[: len(report.more)], "want": draws[len(report.more) :],
        })  # fmt: skip
        if found[0] != b"ok":
            raise FencedError("another process has the name of this agent, or its lease ended",
                              again=True)  # fmt: skip
        if found[2] is None:
            return int(found[1]), None
        return int(found[1]), [_task(packed) for packed in found[2]]


def _task(packed: bytes) -> Task:
    try:
        queue, slot, run, progress, failures = msgpack.unpackb(packed, raw=True)
        return Task(queue.decode(), int(slot), Run.from_bytes(run), progress, int(failures))
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
        self._version = 0
        self._open: FetcherReport | None = None  # that may not have arrived

    async def sync(self, report: FetcherReport) -> None:
        """Send *report*, and read the list. A report that may not have arrived is sent again first.

        Raises `FencedError`, `RegistryError`.
        """
        for each in filter(None, (self._open, report)):
            if each is not self._open:
                self._call += 1
                self._open = each
            self._version, found = await self._queue.sync(
                *self._who, self._call, self._version, self._delay, each
            )
            self._open = None
            if found is not None:
                self.tasks = {task.run.id: task for task in found}
