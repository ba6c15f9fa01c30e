"""Seeds in bulk: time, memory and the longest stall of the loop; a kill in the middle, resumed.

    python -m benchmarks seeds            # ten million seeds of two million hosts: 20 min, 6 GB

A `BroadSpider` reads a list, compressed with zstd, of which each line is another URL (one in a
thousand is garbage or a comment), while it crawls some of them in the in-vitro web. It is killed
with SIGKILL at two fifths, and run again; then the job must hold each seed once. A stall is how
much later than asked the loop calls back whoever asks every 5 ms. Beside the longest stands the
longest without the time in which its thread was ready to run and the machine's processors ran
something else (Linux's run delay), or in which the machine, a virtual one, had no processor (steal;
counted in 10 ms, and never so much that less is left than the CPU time of the thread); and how much
CPU time one took at most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from io import RawIOBase
from pathlib import Path
from typing import Any

from backports import zstd
from scrapy.http import Response

from benchmarks.report import ROOT, Report
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess

BEAT = 0.005
_STRIDE = 7_919  # prime, so that the hosts come in an order of their own, each once in a round


def write_list(path: Path, seeds: int, hosts: int, port: int) -> int:
    """Write a list of *seeds* different URLs; return how many lines of it are garbage."""
    garbage = 0
    with zstd.open(path, "wt", level=3) as file:
        for n in range(seeds):
            if n % 1_000 == 7:
                file.write("# a comment\n" if n % 2_000 == 7 else "no seed at all\n")
                garbage += n % 2_000 != 7
            host, page = n * _STRIDE % hosts, n // hosts
            file.write(f"http://h{host:06}.fake.test:{port}/section/{n % 97}/page-{page}.html\n")
    return garbage


class Sown(BroadSpider):
    """Crawls seeds and nothing else; reports once a second, and ends when the list is read."""

    name = "sown"

    def choose_links(self, response: Response, links: list[str]) -> Iterable[str]:
        """None: what the job holds are the seeds."""
        return ()

    async def start(self) -> AsyncIterator[Any]:
        """Read the list, with a watch over the loop."""
        began = time.monotonic()
        watch, report = asyncio.ensure_future(self.watch()), asyncio.ensure_future(self.report())
        async for each in super().start():
            yield each
        watch.cancel()
        report.cancel()
        self.say(ended=True, seconds=time.monotonic() - began)
        assert self.crawler.engine is not None
        self.closing = asyncio.ensure_future(self.crawler.engine.close_spider_async(reason="read"))

    async def watch(self) -> None:
        """Note the longest stalls."""
        self.stall = self.own = self.busy = 0.0
        self.stalls = self.own_stalls = 0
        with (
            Path("/proc/thread-self/schedstat").open("rb", buffering=0) as schedule,
            Path("/proc/stat").open("rb", buffering=0) as machine,
        ):
            while True:
                delayed, taken = delay(schedule), steal(machine)
                began, cpu = time.perf_counter(), time.thread_time()
                await asyncio.sleep(BEAT)
                late = time.perf_counter() - began - BEAT
                if late > 0.01:
                    busy = time.thread_time() - cpu
                    others = delay(schedule) - delayed + steal(machine) - taken
                    own = max(late - others, min(busy, late))
                    self.stall, self.own = max(self.stall, late), max(self.own, own)
                    self.busy = max(self.busy, busy)
                    self.stalls += late > 0.05
                    self.own_stalls += own > 0.05

    async def report(self) -> None:
        """Tell the parent how far it is."""
        while True:
            await asyncio.sleep(0.1 if self.settings.getbool("BENCH_SMALL") else 1.0)
            self.say(ended=False)

    def say(self, **more: object) -> None:
        """Print a line of JSON."""
        from scrapy_spider_suite.crawl.context import get_crawl

        counters = get_crawl(self.crawler).frontier.counters
        row = {
            "urls": counters.pending + counters.done + counters.failed,
            "pages": counters.done + counters.failed,
            "stall": self.stall, "stalls": self.stalls, "busy": self.busy,
            "own": self.own, "own_stalls": self.own_stalls,
            "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, **more,
        }  # fmt: skip
        print(json.dumps(row), flush=True)


def steal(machine: RawIOBase) -> float:
    """Seconds that the processors of this machine were taken from it, all together."""
    machine.seek(0)
    return int((machine.read(256) or b"").split()[8]) / os.sysconf("SC_CLK_TCK")


def delay(schedule: RawIOBase) -> float:
    """Seconds for which this thread has waited for a processor."""
    schedule.seek(0)
    return int((schedule.read(64) or b"0 0").split()[1]) / 1e9


def crawl(settings: dict[str, Any], seeds: str) -> None:
    """Be the crawl."""
    from scrapy.crawler import AsyncCrawlerProcess

    process = AsyncCrawlerProcess(settings)
    process.crawl(Sown, seeds=seeds)
    process.start()


def read(settings: dict[str, Any], seeds: Path, stop_at: float = float("inf")) -> dict[str, Any]:
    """Crawl in a process of its own, killed at *stop_at* URLs; return what it said last."""
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.seeds", json.dumps([settings, str(seeds)])],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    row: dict[str, Any] = {"urls": 0, "ended": False}
    with child:
        assert child.stdout is not None
        for line in child.stdout:
            row = json.loads(line)
            if row["urls"] >= stop_at:
                child.send_signal(signal.SIGKILL)
                break
    return row


def show(
    report: Report, name: str, row: dict[str, Any], urls: int, seconds: float
) -> None:  # fmt: skip
    """A line about one run."""
    report.say(
        f"{name:8} {urls:11,} seeds in {seconds:7.1f} s ({urls / seconds:7,.0f}/s), "
        f"{row['pages']:8,} pages beside them; most memory {row['rss']:5.0f} MB; longest stall "
        f"{row['stall'] * 1_000:.0f} ms, {row['stalls']} over 50 ms; without waiting for a "
        f"processor {row['own'] * 1_000:.0f} ms, {row['own_stalls']} over 50 ms; "
        f"{row['busy'] * 1_000:.0f} ms of CPU at most"
    )


def measure(report: Report, seeds: int, hosts: int, small: bool, job: Path) -> bool:
    """Read the list twice over: killed, and to its end; whether the job is as it must be."""
    with FakeWebProcess(FakeWebConfig(hosts=hosts, addresses=200, pages=2, latency=0.2)) as web:
        path = job.parent / "seeds.txt.zst"
        garbage = write_list(path, seeds, hosts, web.ready.http_port)
        report.say(f"{seeds:,} seeds of {hosts:,} hosts, {path.stat().st_size:,} bytes")
        settings = {
            **web.ready.settings, "ADDONS": {"scrapy_spider_suite.Addon": 500},
            "BENCH_SMALL": small, "CONCURRENT_REQUESTS": 16, "JOBDIR": str(job),
            "LOG_FILE": str(job.parent / "log"), "LOG_LEVEL": "INFO", "ROBOTSTXT_OBEY": False,
            "TELNETCONSOLE_ENABLED": False, "SUITE_STOP_TIMEOUT": 2,
            "USER_AGENT": "suite-benchmarks/1.0 (+https://benchmarks.example/)",
        }  # fmt: skip
        began = time.monotonic()
        killed = read(settings, path, seeds * 2 / 5)
        show(report, "killed", killed, killed["urls"], time.monotonic() - began)
        ended = read(settings, path)
        show(report, "resumed", ended, seeds - killed["urls"], ended["seconds"])
    with StoreReader(job / FOLDER) as reader:
        counters = reader.counters()
        held = counters.pending + counters.done + counters.failed
        wrong = list(reader.check()) if small else []
    log = (job.parent / "log").read_text(errors="replace")
    size = sum(file.stat().st_size for file in job.rglob("*") if file.is_file())
    report.say(
        f"the job holds {held:,} of {seeds:,} seeds, {size / seeds:.0f} bytes each; "
        f"{counters.filtered:,} lines were read twice"
    )
    for line in (line for line in log.splitlines() if "seeds.txt.zst" in line and " ended" in line):
        report.say(line)
    counted = f"{garbage:,} lines are no seeds" in log
    return held == seeds and not wrong and counted and "goes on after" in log


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """None."""


def run(options: argparse.Namespace, report: Report) -> None:
    """Measure; it is wrong if a seed was lost or taken twice."""
    with tempfile.TemporaryDirectory() as folder:
        seeds, hosts = (10_000, 2_000) if options.small else (10_000_000, 2_000_000)
        if not measure(report, seeds, hosts, options.small, Path(folder) / "job"):
            print((Path(folder) / "log").read_text(errors="replace")[-3000:])
            report.wrong.append("the job does not hold what it must")


if __name__ == "__main__":
    crawl(*json.loads(sys.argv[1]))
