"""What published crawlers report, with their hardware, and the suite's figures in the same table.

    python -m benchmarks papers                # 50 and 300 connections; 1, 2 and 4 agents
    python -m benchmarks papers --agents 1 --agents 2

Connections: a broad crawl without delays on one core, JOBDIR on, of pages with 12 links. Agents: by
`scrapy cluster up`, from 400,000 seeds, without delays, to the end of the web, with each page once.
The web has a part of the cores there. So beside what the clock said stands what the crawl's CPU
would come to on as many cores as it has agents. MB/s: of answers as they are sent, head included.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from support.polite_crawls import Size, pages_of

from benchmarks.crawl import load_of
from benchmarks.measure import PeerError, apart, measure, visiting
from benchmarks.peers import SUITES
from benchmarks.report import Cell, Report, machine
from benchmarks.scaling import WebLoad, crawl_up
from scrapy_spider_suite.testing import FakeWebConfig, SyntheticWeb
from scrapy_spider_suite.testing.http import Request
from scrapy_spider_suite.testing.synthetic_site import SyntheticSite

PUBLISHED: list[list[Cell]] = [
    ["KSpider (2004)", "4 x Athlon XP 1500+, 786 MB, 6 SCSI disks, gigabit", 618, 6, "about 300"],
    ["Erachnid (2009)", "1 multicore of 2 to 2.4 GHz, 100 Mbit", 78.3, None, None],
    ["Tarantula (2011)", "1 x Turion 64 X2 2 GHz, 1 GB, 2 Mbit", 2, None, "10 threads"],
    ["IRLbot (2008)", "1 machine", 1_790, 40, None],
    ["Nutch (ClueWeb09)", "100 machines, Hadoop", 430, 10, None],
    ["Heritrix (ClueWeb12)", "5 machines", 300, 19, None],
    ["BUbiNG, real web (2014)", "1 x 48 cores, 512 GB, 2 Gbit", 5_400, 135, None],
    ["BUbiNG, in vitro (2014)", "4 agents of 64 cores, 64 GB", 36_600, 584, None],
    ["BUbiNG, in vitro, one of them", "64 cores, 64 GB", 9_150, 146, None],
]
COLUMNS = ["crawler", "hardware", "pages/s", "MB/s", "connections", "pages/s a core", "MB/s a core"]
CORES = {"BUbiNG, real web (2014)": 48, "BUbiNG, in vitro (2014)": 256,
         "BUbiNG, in vitro, one of them": 64, "KSpider (2004)": 4}  # fmt: skip
_DRAWN = 200


def bytes_of(config: FakeWebConfig) -> float:
    """The mean size of an answer of that web."""
    graph, draw = SyntheticWeb(config, (80,)), Random(1)
    site = SyntheticSite(graph)
    sizes = []
    for _ in range(_DRAWN):
        host = draw.randrange(len(graph))
        path = graph.path(draw.randrange(max(1, graph.traits(host).pages)))
        name = urlsplit(graph.base(host)).hostname or ""
        sizes.append(len(site.answer(Request("GET", path, path, name, True, 0)).data))
    return mean(sizes)


def published() -> list[list[Cell]]:
    """The rows of others, with what it comes to a core where that is known."""
    rows = []
    for name, hardware, rate, size, connections in PUBLISHED:
        cores = CORES.get(str(name))
        known = [float(each) / cores if each and cores else None for each in (rate, size)]
        rows.append([name, hardware, rate, size, connections, *known])
    return rows


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Which of it."""
    parser.add_argument("--connections", type=int, action="append", help="50 and 300")
    parser.add_argument("--agents", type=int, action="append", help="1, 2 and 4")
    parser.add_argument("--seeds", type=int, default=400_000, help="of the agents (400,000)")


def run(options: argparse.Namespace, report: Report) -> None:
    """Measure, and put both in one table."""
    table = report.table("Published figures, and the suite's on this machine", COLUMNS)
    table.rows += published()
    here = machine()["processor"]
    load = load_of(12, options.small)
    size = bytes_of(load.web) / 1e6
    with apart() as core:
        for count in options.connections or ([20] if options.small else [50, 300]):
            try:
                with visiting(replace(load, concurrency=count)) as (visit, web):
                    cost = measure(SUITES[0].command(visit), visit, web, core)
            except PeerError as error:
                report.wrong.append(f"{count} connections: {error}")
                continue
            alone = 1e6 / cost.micros
            table.rows.append([
                "suite", f"one core of {here}", cost.rate, cost.rate * size, str(count), alone,
                alone * size,
            ])  # fmt: skip
    hosts = 30 if options.small else options.seeds
    web_load = WebLoad("seeds", Size(hosts, min(hosts, 4_000), 3 if options.small else 1, 0.0, 0.0),
                       32, 0.0, grows=False, robots=False)  # fmt: skip
    for agents in options.agents or ([1] if options.small else [1, 2, 4]):
        with TemporaryDirectory() as folder:
            found = crawl_up(web_load, agents, Path(folder), None)
        report.wrong += found.broken
        rate, used = found.rate(), max(sum(found.cores()), 0.01)
        size = bytes_of(web_load.size.web(Path("none"), overrides={})) / 1e6
        name = "suite, 1 agent" if agents == 1 else f"suite, {agents} agents"
        table.rows.append([
            name, f"{here}, the web among it; {hosts:,} seeds, {len(pages_of(found.arrivals)):,} "
            "pages", rate, rate * size, str(agents * web_load.seats), rate / used,
            rate / used * size,
        ])  # fmt: skip
    report.show(table)
