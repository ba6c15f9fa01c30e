"""What the frontier costs: time per URL, memory per pending URL and per host, and refills.

    python -m benchmarks frontier
    python -m benchmarks frontier --part many-hosts

Every part runs in a process of its own, so that memory is its own too. *cost* is schedule +
acquire + release + settle of one URL, in CPU time; *peak* the largest resident set of the process,
imports of Scrapy included, while URLs are scheduled and a crawl of them has begun. Memory on the
way is said on the standard error output.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random

import scrapy  # noqa: F401  (a crawl has it in memory as well)

from benchmarks.report import ROOT, Report
from scrapy_spider_suite.crawl.context import _HOST_BYTES
from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.frontier.entries import Entry, order_key
from scrapy_spider_suite.frontier.outcomes import Event, Pace
from scrapy_spider_suite.frontier.policy import Phases, Policy
from scrapy_spider_suite.frontier.workbench import Workbench
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.store.rocks_store import RocksStore, Store

WALL = 1_800_000_000.0
MEMORY = 64 << 20
SMALL_MEMORY = 8 << 20
"""For a hundredth of the hosts, so that they are still more than memory holds."""
ROOMY = 1_400 << 20
"""For 200,000 hosts, so that memory holds them all."""
Row = dict[str, object]


def entry(host: int, page: int) -> Entry:
    """A bulk link with a URL of common length."""
    name = f"www.host-{host}.example.com"
    url = f"https://{name}/some/folder/of/articles/page-{page:06}.html"
    return Entry(name, url, depth=3, referrer=f"https://{name}/index.html")


def open_frontier(
    store: Store, delay: float = 0.0, memory: int = MEMORY, phases: Phases | None = None
) -> Frontier:
    """A frontier with the *memory* (bytes) that a crawl has by default."""
    policy = Policy(host=Pace(delay), address=Pace(0.0), phases=phases)
    capacity = memory // _HOST_BYTES
    return Frontier(store, policy, now=0.0, wall=WALL, capacity=capacity)


def place(frontier: Frontier, now: float) -> None:
    """Give every host that wants one an address of its own."""
    for host in frontier.residents.unresolved.due(now, 1_000_000):
        frontier.set_address(host, "192.0.2.1", f"a{host.key}", 1e18, now)


def pop(frontier: Frontier, count: int, now: float, batch: int = 16) -> float:
    """Fetch *count* URLs, *batch* at a time; the time when that is done."""
    while count > 0:
        place(frontier, now)
        out: list[Fetch] = []
        while len(out) < batch and (fetches := frontier.leases.acquire(now)):
            out += fetches
        for fetch in out:
            visit = fetch.visit
            if visit is None:
                raise RuntimeError("a fetch without a visit")
            frontier.workbench.begin(visit.host, visit.address, now, visit=True)
            frontier.workbench.end(visit.host, visit.address, now, visit=True)
            fetch.event = Event.SUCCESS
            frontier.leases.release(fetch, now)
            frontier.commit.settle([fetch], now)
        count -= len(out)
        frontier.flush()
        if not out:
            now += 1.0
            frontier.tick(now)
    return now


def peak() -> int:
    """The largest resident set so far, in MB."""
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage // (1 << 20 if sys.platform == "darwin" else 1 << 10)


def cost(store: Store, urls: int, hosts: int) -> Row:
    """Microseconds per URL to schedule it, and to fetch it."""
    frontier = open_frontier(store)
    order = list(range(urls))
    Random(1).shuffle(order)
    start = time.process_time()
    for at in range(0, urls, 40):
        entries = [entry(n % hosts, n // hosts) for n in order[at : at + 40]]
        frontier.admission.schedule(entries, 0.0)
        frontier.flush()
    scheduled = time.process_time()
    pop(frontier, urls, 1.0)
    done = time.process_time()
    start_entries = time.process_time()
    for n in order:
        entry(n % hosts, n // hosts)
    making = time.process_time() - start_entries
    if frontier.pending:
        raise RuntimeError("something is left")
    return {
        "URLs": urls, "hosts": hosts,
        "schedule": f"{(scheduled - start - making) / urls * 1e6:.1f} us",
        "fetch": f"{(done - scheduled) / urls * 1e6:.1f} us",
        "cost": f"{(done - start - making) / urls * 1e6:.1f} us",
        "peak": f"{peak()} MB",
    }  # fmt: skip


def cost_in_memory(folder: Path, scale: int) -> Row:
    """Without a job directory."""
    return cost(MemoryStore(), 200_000 // scale, 5_000 // scale)


def cost_on_disk(folder: Path, scale: int) -> Row:
    """With one, and all hosts resident."""
    return cost(RocksStore(folder / "store", memory=MEMORY), 200_000 // scale, 5_000 // scale)


def cost_crowded(folder: Path, scale: int) -> Row:
    """With far more hosts than memory holds."""
    return cost(RocksStore(folder / "store", memory=MEMORY), 400_000 // scale, 100_000 // scale)


def pending(
    folder: Path, scale: int, hosts: int, memory: int = MEMORY, phases: Phases | None = None
) -> Row:
    """Schedule 5,000,000 URLs, as pages bring them, and begin to fetch them."""
    urls, hosts, pops = 5_000_000 // scale, hosts // scale, 100_000 // scale
    if scale > 1:
        urls //= 2  # as many as meet most of the hosts
        memory = SMALL_MEMORY if memory == MEMORY else memory
    store = RocksStore(folder / "store", memory=min(memory, MEMORY))
    frontier = open_frontier(store, delay=4.0, memory=memory, phases=phases)
    random = Random(1)
    start = time.process_time()
    for at in range(0, urls, 40):
        frontier.admission.schedule(
            [entry(random.randrange(hosts), n) for n in range(at, min(at + 40, urls))], 0.0
        )
        if at % 400 == 0:
            frontier.flush()
        if at % (urls // 20) == 0:
            print(f"{at:,} scheduled: {peak()} MB", file=sys.stderr, flush=True)
    scheduled = time.process_time()
    before = peak()
    pop(frontier, pops, 1.0)
    size = sum(file.stat().st_size for file in (folder / "store").iterdir())
    return {
        "URLs": urls, "hosts": hosts, "resident": len(frontier.workbench.hosts),
        "schedule": f"{(scheduled - start) / urls * 1e6:.1f} us",
        "fetch": f"{(time.process_time() - scheduled) / pops * 1e6:.1f} us",
        "peak": f"{peak()} MB", "peak scheduling": f"{before} MB", "disk": f"{size >> 20} MB",
    }  # fmt: skip


def some_hosts(folder: Path, scale: int) -> Row:
    """5,000,000 URLs on 200,000 hosts."""
    return pending(folder, scale, 200_000)


def many_hosts(folder: Path, scale: int) -> Row:
    """5,000,000 URLs on 2,000,000 hosts."""
    return pending(folder, scale, 2_000_000)


def one_phase(folder: Path, scale: int) -> Row:
    """5,000,000 URLs on 200,000 hosts, with room for all hosts."""
    return pending(folder, scale, 200_000, ROOMY // scale)


def six_phases(folder: Path, scale: int) -> Row:
    """The same, a sixth of the hosts at a time (K4)."""
    return pending(folder, scale, 200_000, ROOMY // scale, Phases(6, 300.0))


def refills(folder: Path, scale: int) -> Row:
    """The first refills of one host, and those after 200,000 pops."""
    pops = 200_000 // scale
    store = RocksStore(folder / "store", memory=MEMORY)
    frontier = open_frontier(store)
    frontier.admission.schedule((entry(0, n) for n in range(pops + 5_000)), 0.0)
    frontier.flush()
    host = frontier.workbench.hosts["www.host-0.example.com"]
    fronts = frontier.residents.fronts
    times: list[float] = []
    popped = 0
    while popped < pops:
        for _, gone in host.front:
            store.delete_row(host.key, gone.key)
        popped += len(host.front)
        host.front.clear()
        store.flush()
        start = time.perf_counter()
        fronts.refill(host)
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    store.rows(host.key, b"", 16)
    from_start = time.perf_counter() - start
    return {
        "pops": pops,
        "first 100": f"{sorted(times[:100])[50] * 1e6:.0f} us",
        "last 100": f"{sorted(times[-100:])[50] * 1e6:.0f} us",
        "from the host's start": f"{from_start * 1e6:.0f} us",
    }


def host_bytes(folder: Path, scale: int) -> Row:
    """What a resident host costs, with a full front, its address and its records in the heaps."""
    hosts = 10_000 // scale
    frontier = open_frontier(RocksStore(folder / "store", memory=MEMORY))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(hosts):
        frontier.admission.schedule([entry(number, page) for page in range(33)], 0.0)
        frontier.flush()
    place(frontier, 0.0)
    full = (tracemalloc.get_traced_memory()[0] - before) / hosts
    bench: Workbench = frontier.workbench
    entries = sum(len(host.front) for host in bench.hosts.values()) / len(bench.hosts)
    keys = [order_key(0, n) for n in range(2)]
    return {
        "hosts": len(bench.hosts), "entries in a front": f"{entries:.1f}",
        "bytes a host": f"{full:.0f}", "_HOST_BYTES": _HOST_BYTES, "bytes a key": len(keys[0]),
    }  # fmt: skip


PARTS: dict[str, Callable[[Path, int], Row]] = {
    "in-memory": cost_in_memory,
    "on-disk": cost_on_disk,
    "crowded": cost_crowded,
    "refills": refills,
    "host-bytes": host_bytes,
    "some-hosts": some_hosts,
    "many-hosts": many_hosts,
    "one-phase": one_phase,
    "six-phases": six_phases,
}


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Which of it."""
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part")


def run(options: argparse.Namespace, report: Report) -> None:
    """Run each part in a process of its own; --small: with a hundredth of everything."""
    for name in options.part or list(PARTS):
        scale = "100" if options.small else "1"
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.frontier", name, scale],
            stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT,
        )  # fmt: skip
        cells = "  ".join(
            f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}"
            for key, value in json.loads(done.stdout).items()
        )
        report.say(f"{name:<11} {cells}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as here:
        print(json.dumps(PARTS[sys.argv[1]](Path(here), int(sys.argv[2]))))
