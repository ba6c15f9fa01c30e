"""What it costs to watch a crawl: pulses, roll-ups, series, and the page in a browser.

    python -m benchmarks watching                        # some half an hour
    python -m benchmarks watching --part cost --rounds 20
    python -m benchmarks watching --part job             # the page of a job of a million URLs

*cost*: crawls with and without pulses, in turns; in those with, each pulse is timed, too.
*roll-up*: 1,000 agents with 200 counters and 20 gauges, into 100 aggregates. *year*: the series of
a year are read. *job*, *agents*: a running crawl with a million URLs, and one of 10,000 simulated
agents that send a pulse a second: the page in headless Chromium, and the memory of its server.
These two need chromium and chromedriver.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import redis

from benchmarks.crawl import load_of
from benchmarks.measure import Cost, PeerError, apart, measure, tree, visiting
from benchmarks.peers import SUITES
from benchmarks.report import Report, spread
from scrapy_spider_suite.analysis.time_series import TIERS, RollUp, SeriesReader, SeriesWriter
from scrapy_spider_suite.cluster.membership import AgentLease, Candidate
from scrapy_spider_suite.cluster.pulses import PulseSender, columns_id, pack_pulse, process_id
from scrapy_spider_suite.cluster.redis_server import RedisKeys
from scrapy_spider_suite.cluster.registry import AgentRegistry
from scrapy_spider_suite.crawl.pulse import COLUMNS, PULSE
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import read_status
from scrapy_spider_suite.testing import FakeWebConfig

AGENTS: Final = 10_000
URLS: Final = 1_000_000
OPENINGS: Final = 5
_YEAR: Final = 365 * 86_400
_PATIENCE: Final = 1_200.0


def cost(report: Report, small: bool, rounds: int) -> None:
    """Crawls with and without pulses."""
    load = load_of(12, small)
    with_pulses, without, shares = list[Cost](), list[Cost](), list[float]()
    millis: list[float] = []
    with apart() as core:
        turns = [("timed", with_pulses), ("unwatched", without)]
        for _ in range(rounds):
            turns.reverse()  # the second crawl of a round finds another machine than the first
            for spider, costs in turns:
                with visiting(load) as (visit, web):
                    peer = replace(SUITES[0], spider=spider)
                    costs.append(measure(peer.command(visit), visit, web, core))
                print(f"{spider:10} {costs[-1].micros:8,.0f} µs a page", flush=True)
            timed = re.findall(r"pulse ([0-9.]+) of ([0-9.]+) s", with_pulses[-1].output)
            spent, whole = (sum(map(float, column)) for column in zip(*timed, strict=True))
            millis += [float(each) * 1e3 for each, _ in timed]
            shares.append(spent / whole)
    table = report.table(
        "Pulses, 12 links a page", ["crawl", "CPU a page, µs", "rounds", "÷ without pulses"],
        f"A pulse takes {median(millis):.2f} ms of CPU: {median(shares):.2%} of the crawl's.",
    )
    for name, costs in (("with pulses", with_pulses), ("without", without)):
        micros = [each.micros for each in costs]
        pairs = zip(costs, without, strict=True)
        ratio = median(each.micros / beside.micros for each, beside in pairs)
        table.rows.append([name, median(micros), spread(micros), ratio])
    report.show(table)


def roll_up(report: Report, small: bool, rounds: int) -> None:
    """One second of many agents."""
    random = np.random.default_rng(1)
    sources, counted = (100, 20) if small else (1_000, 200)
    members = [np.flatnonzero(random.random(sources) < 0.3).tolist() for _ in range(100)]
    counters = random.integers(0, 1 << 40, (sources, counted)).astype(np.float64)
    gauges = random.random((sources, 20))
    gauges[random.random(gauges.shape) < 0.2] = np.nan

    def step() -> None:
        matrix = RollUp(members, sources)
        matrix.add_counters(counters)
        matrix.add_gauges(gauges)

    report.say(
        f"roll-up of {sources:,} agents with {counted} counters and 20 gauges into 100 aggregates: "
        f"{timed(step, 50):.1f} ms"
    )


def year(report: Report, small: bool, rounds: int) -> None:
    """The series of a crawl that has run for a year."""
    span, latest = (_YEAR // 365, 600) if small else (_YEAR, 7_200)
    now = time.time() // 3_600 * 3_600
    with TemporaryDirectory() as name:
        folder = Path(name)
        writer = SeriesWriter(folder, COLUMNS)
        counters, gauges = np.ones(len(COLUMNS.counters)), np.ones(len(COLUMNS.gauges))
        # A pulse a minute, in the last hours one a second.
        for when in (*np.arange(now - span, now - latest, 60), *np.arange(now - latest, now)):
            writer.add(float(when), 1.0, counters, gauges)
        writer.close()
        reader = SeriesReader(folder)
        for tier, back in zip(TIERS, (7_200, 7 * 86_400, span, span), strict=True):
            spent = timed(partial(reader.read, now - back, now, 500), 20)
            days = f"{back / 86_400:,.3g} days"
            report.say(f"series of {days} ({tier.name}s or above): {spent:.1f} ms")


def timed(call: Callable[[], object], times: int) -> float:
    """Milliseconds of CPU, the median."""
    spent = []
    for _ in range(times):
        began = time.thread_time()
        call()
        spent.append(time.thread_time() - began)
    return median(spent) * 1e3


# The page


@contextmanager
def served(arguments: list[str]) -> Iterator[tuple[str, int]]:
    """Run ``scrapy dashboard``; the URL of its page, and the number of its process."""
    command = [sys.executable, "-m", "scrapy", "dashboard", *arguments, "--port", "0"]
    with TemporaryDirectory() as folder, subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=folder
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line.startswith("http://"):
                raise PeerError(f"scrapy dashboard: {line or 'it said nothing'}")
            yield line.split()[0], process.pid
        finally:
            process.terminate()


def open_page(report: Report, what: str, arguments: list[str]) -> None:
    """Open the page again and again: seconds to its numbers and charts, memory of its server."""
    from support.browser import missing, open_browser

    if missing():
        report.say(f"page of {what}: left out: it {missing()}")
        return
    numbers, charts, memory = list[float](), list[float](), 0
    with served(arguments) as (url, pid), open_browser() as browser:
        for _ in range(OPENINGS):
            browser.get("about:blank")
            began = time.monotonic()
            browser.get(url)
            browser.wait_for("#tiles dd", r"\d")
            numbers.append(time.monotonic() - began)
            while not browser.execute_script("return document.querySelector('canvas')?.width"):
                time.sleep(0.02)
            charts.append(time.monotonic() - began)
            for _ in range(30):  # it asks for hosts and pages, and goes on showing numbers
                memory = max(memory, sum(size for *_, size in tree(pid)))
                time.sleep(0.1)
    table = report.table(
        f"The page of {what}", ["", "first, s", f"median of {OPENINGS}, s", "server, MB"]
    )
    table.rows.append(["numbers", numbers[0], median(numbers), memory >> 20])
    table.rows.append(["charts", charts[0], median(charts), None])
    report.show(table)


def job(report: Report, small: bool, rounds: int) -> None:
    """A running crawl that knows many URLs."""
    from support.running_crawl import running, until
    from support.webs import FakeWebProcess

    count = 2_000 if small else URLS
    config = FakeWebConfig(hosts=200, addresses=200, pages=count // 200, degree=10)
    with TemporaryDirectory() as name, FakeWebProcess(config) as web:
        folder = Path(name)
        with (folder / "seeds.txt").open("w") as file:
            file.writelines(f"{url}\n" for url in web.web.reachable())
        with running(web, folder, SUITE_SEEDS=str(folder / "seeds.txt"), SUITE_FETCH_LOG=True):
            store = folder / "job" / FOLDER
            until(lambda: known_urls(store) >= count, within=_PATIENCE, every=1.0)
            open_page(report, f"a job of {count:,} URLs", [str(folder / "job")])


def known_urls(store: Path) -> int:
    """The URLs that the crawl has found so far."""
    found = (read_status(store) or {}).get(PULSE) or {}
    return int(found.get("counters", {}).get("new_urls", 0))


def agents(report: Report, small: bool, rounds: int) -> None:
    """Many agents of one crawl, whose pulses are rolled up each second."""
    from support.redis_servers import RedisServer, find_binary

    count = 20 if small else AGENTS
    if find_binary() is None:
        report.say("page of many agents: left out: no redis-server is installed")
        return
    with TemporaryDirectory() as name, RedisServer(Path(name), tcp=True) as server:
        over, spent = threading.Event(), list[float]()
        thread = threading.Thread(
            target=lambda: asyncio.run(play_agents(server.url, count, over, spent))
        )
        thread.start()
        try:
            time.sleep(10.0)
            open_page(report, f"{count:,} agents", [server.url, "-s", "SUITE_CRAWL_NAME=web"])
        finally:
            over.set()
            thread.join()
    report.say(f"a roll-up of {count:,} agents takes its agent {median(spent):.2f} s of CPU")


async def play_agents(url: str, count: int, over: threading.Event, spent: list[float]) -> None:
    """Be *count* agents, of which the first is one of the suite, until *over*.

    *spent* gets the seconds of CPU of each roll-up.
    """
    registry = AgentRegistry(url, "web", AgentLease(15.0))
    await registry.join(Candidate(name="a1", job="job 1", folder="folder 1", grace=60.0))
    pulses = SimpleNamespace(
        counted=np.zeros(len(COLUMNS.counters)), gauges=np.ones(len(COLUMNS.gauges)),
        take=lambda: None,
    )  # fmt: skip
    crawl = SimpleNamespace(parts=SimpleNamespace(pulses=pulses))
    first: Any = SimpleNamespace(
        name="a1", crawl_name="web", crawl=crawl, incarnation=1, queue_pulses=dict
    )
    sender, keys = PulseSender(first, url), RedisKeys("web")
    client = redis.Redis.from_url(url)
    row = json.loads(client.hgetall(keys.members)[b"a1"])
    turns = (np.arange(UNITS) % count + 1).astype(">u2")
    client.set(f"{keys.prefix}holders", turns.tobytes())
    while not over.is_set():
        began = time.monotonic()
        now = int(time.time() * 1_000)
        numbers = range(1, count + 1)
        client.hset(keys.members, mapping={
            f"a{n}": json.dumps({**row, "name": f"a{n}", "number": n, "job": f"job {n}",
                                 "heard": now, "incarnation": f"{n:016x}"})
            for n in numbers
        })  # fmt: skip
        pulses.counted += 3.0
        packed = b"%015d" % now + pack_pulse(
            columns_id(COLUMNS), pulses.counted, pulses.gauges
        )
        client.hset(f"{keys.prefix}series:pulses", mapping={
            process_id(f"a{n}", n): packed for n in numbers
        })  # fmt: skip
        before = time.process_time()
        await sender._send()
        spent.append(time.process_time() - before)
        await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - began)))
    await sender._finish()
    await registry.close()


PARTS: Final[dict[str, Callable[[Report, bool, int], None]]] = {
    "cost": cost, "roll-up": roll_up, "year": year, "job": job, "agents": agents,
}  # fmt: skip


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Which of it."""
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of each crawl (10)")


def run(options: argparse.Namespace, report: Report) -> None:
    """Measure."""
    for name in options.part or list(PARTS):
        try:
            PARTS[name](report, options.small, 1 if options.small else options.rounds)
        except PeerError as error:
            report.wrong.append(f"{name}: {error}")
