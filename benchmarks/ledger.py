"""What a fetch costs that needs grants of a ledger, and how many grants a second there are.

    python benchmarks/ledger.py [--small]

For a ledger in Redis and one in a file: one process visits hosts, each with its address, as fast as
the ledger lets it, with no delay between fetches and so many visits at once; then 4 processes do,
each with its own hosts, so that only the ledger is shared. Each fetch has two keys: a line of its
ends and one of the next ask. Printed are, for each fetch: microseconds of CPU of the caller
(all of its process: `grants` and the client; for the file that is all there is), and of
the server (its whole process, and within the script); then fetches a second, and keys in a call.

Then a broad crawl of a web in a process of its own, alone, with a file and with a Redis, in turns:
microseconds of CPU of the whole process for each page, and seconds, both without what a crawl of
one page takes; the seconds that its delays ask for at the least; and keys asked for by page.
The exit code is 1 if a fetch was started without a grant of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.crawls import start, web_settings  # noqa: E402
from support.ledger_processes import begin_fetch, ledger_of  # noqa: E402
from support.redis_servers import RedisServer  # noqa: E402

from scrapy_spider_suite.cluster.ledger.grants import Grants, Need  # noqa: E402
from scrapy_spider_suite.cluster.ledger.shared_limits import LedgerClient  # noqa: E402
from scrapy_spider_suite.runtime.clock import boottime  # noqa: E402
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess  # noqa: E402

TIMEOUT, WINDOW = 1.0, 1.0
DELAY = 0.4
"""Seconds between two requests to a host of the web that is crawled."""


async def visit(client: LedgerClient, grants: Grants, needs: list[Need], fetches: int) -> None:
    """Fetch a host so many times; the fetch itself takes no time."""
    for _ in range(fetches):
        await begin_fetch(grants, needs, client.poke)
        await asyncio.sleep(0)
        grants.end(needs, boottime())
        client.poke()


async def fetch(where: str, number: int, hosts: int, fetches: int) -> dict[str, float]:
    """One process: what it did and what it cost."""
    grants = Grants(f"{number + 1:016x}", timeout=TIMEOUT, window=WINDOW)
    client = LedgerClient(ledger_of(where), grants, pause=0.0)
    running = asyncio.create_task(client.run())
    began, cpu = time.perf_counter(), time.process_time()
    names = [f"{number} {host}" for host in range(hosts)]
    needs = [[Need(f"host {name}", 0), Need(f"address {name}", 0)] for name in names]
    await asyncio.gather(*(visit(client, grants, each, fetches) for each in needs))
    spent, took = time.process_time() - cpu, time.perf_counter() - began
    await client.close()
    await running
    figures = grants.counters
    return {
        "fetches": hosts * fetches, "ended": figures.ended, "calls": figures.calls,
        "cpu": spent, "seconds": took, "failures": figures.failures,
    }  # fmt: skip


def processes(where: str, count: int, hosts: int, fetches: int) -> list[dict[str, float]]:
    """So many processes at once."""
    command = [sys.executable, __file__, "--process", where, str(hosts), str(fetches)]
    started = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE) for number in range(count)
    ]
    return [json.loads(each.communicate()[0]) for each in started]


def cpu_of(process: int) -> float:
    """Seconds of CPU of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def row(name: str, done: list[dict[str, float]], server: tuple[float, float] | None) -> bool:
    """Print a line; whether each fetch had its grants."""
    total = {key: sum(each[key] for each in done) for key in done[0]}
    fetches = total["fetches"]
    cost = "      -      -" if server is None else "".join(
        f"{1e6 * seconds / fetches:7.1f}" for seconds in server
    )  # fmt: skip
    rate = sum(each["fetches"] / each["seconds"] for each in done)
    keys = 2 * fetches / total["calls"]
    print(f"{name:6}{len(done):5}{1e6 * total['cpu'] / fetches:9.1f}{cost}{rate:10.0f}{keys:9.1f}")
    return total["ended"] == 2 * fetches


def in_redis(folder: Path, count: int, hosts: int, fetches: int) -> bool:
    """One line for a server of its own, which has run for longer than a grant."""
    with RedisServer(folder) as server, server.client() as client:
        time.sleep(TIMEOUT + WINDOW + 2.0)
        number = client.info("server")["process_id"]
        client.config_resetstat()
        before = cpu_of(number)
        done = processes(server.url, count, hosts, fetches)
        spent = cpu_of(number) - before
        stats = client.info("commandstats")
        script = sum(
            each["usec"] for name, each in stats.items() if name.startswith("cmdstat_eval")
        )
        return row("redis", done, (spent, script / 1e6))


def crawled(web: FakeWebProcess, folder: Path, ledger: str) -> tuple[float, float, int, int]:
    """A crawl of *web*: seconds of CPU, seconds, pages, and keys that were asked for."""
    folder.mkdir(parents=True)
    settings = web_settings(
        web.ready.dns_port, SUITE_SEEDS=str(web.config.seeds_file), SUITE_HOST_DELAY=DELAY,
        SUITE_IP_DELAY=0.0, DOWNLOAD_TIMEOUT=TIMEOUT, LOG_LEVEL="ERROR", SUITE_RATE_LEDGER=ledger,
    )  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    # Not forked by another process, whose children are not this one's.
    process = start("support.spiders.Bulk", settings, folder, inside=["env"])
    process.wait()
    seconds = time.monotonic() - began
    stats = json.loads((folder / "stats.json").read_text())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    pages = stats["suite/job/done"]
    keys, ended = (stats.get(f"suite/ledger/{name}", 0) for name in ("asked", "ended"))
    requests = stats["downloader/request_count"]
    if stats["closed"] != "finished" or (ledger and ended != 2 * requests):
        log = (folder / "log").read_text()
        raise RuntimeError(f"{ledger}: {ended} grants ended\n{log[-2000:]}")
    return cpu, seconds, pages, keys


def crawls(folder: Path, rounds: int, hosts: int, pages: int) -> None:
    """Print the lines of whole crawls."""
    print("crawl  µs/page   s  least s  keys/page")
    found: dict[str, list[tuple[float, float, int, int]]] = {}
    tiny = FakeWebConfig(hosts=1, pages=1, seeds=1, seeds_file=folder / "one")
    with FakeWebProcess(tiny) as web:
        idle = [crawled(web, folder / f"tiny{number}", "") for number in range(rounds)]
    empty, began, *_ = (statistics.median(values) for values in zip(*idle, strict=True))
    config = FakeWebConfig(
        hosts=hosts, addresses=hosts, pages=pages, seeds=hosts, seeds_file=folder / "many"
    )
    with FakeWebProcess(config) as web, RedisServer(folder / "crawls") as server:
        time.sleep(2 * TIMEOUT + 5.0 + 2.0)
        places = {"alone": "", "file": str(folder / "shared"), "redis": server.url}
        for number in range(rounds):
            for name, where in places.items():
                done = crawled(web, folder / f"{name}{number}", where)
                found.setdefault(name, []).append(done)
    for name, each in found.items():
        cpu, took, fetched, keys = (statistics.median(values) for values in zip(*each, strict=True))
        cost, least = 1e6 * (cpu - empty) / fetched, pages * DELAY
        print(f"{name:6}{cost:8.0f}{took - began:6.1f}{least:8.1f}{keys / fetched:9.2f}")


def main() -> int:
    """Print the table."""
    if sys.argv[1:2] == ["--process"]:
        where, hosts, fetches, number = sys.argv[2], *map(int, sys.argv[3:6])
        print(json.dumps(asyncio.run(fetch(where, number, hosts, fetches))))
        return 0
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="a few hundred fetches")
    options = parser.parse_args()
    fetches = 4 if options.small else 100
    print("ledger  by   caller server script fetches/s keys/call")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for hosts in (20,) if options.small else (1, 10, 100):
            print(f"visits at once by each process: {hosts}", flush=True)
            for count in (1, 4):
                turns = fetches if hosts > 1 else 3 * fetches
                there = Path(folder) / f"{hosts} {count}"
                good &= in_redis(there, count, hosts, turns)
                done = processes(str(there / "ledger"), count, hosts, turns)
                good &= row("file", done, None)
        crawls(Path(folder), *((1, 4, 3) if options.small else (3, 100, 20)))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
