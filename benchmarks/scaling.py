"""How a crawl grows with its agents: 1 and 2 processes for real, 1 to 8 in virtual time.

    python -m benchmarks scaling             # some 12 minutes
    python -m benchmarks scaling --up        # by `scrapy cluster up`: 20 minutes
    python -m benchmarks scaling --transport shared-queue --as runs   # 1, 2 and 3 fetchers
    python -m benchmarks agents              # in virtual time: 65,000 pages, some minutes

scaling: two loads, both bound by waiting, so that no agent should need more than 40 % of a core.
*hosts*: two agents have a web of twice as many hosts, which are visited every 4 s: politeness
decides how fast it can be. *seats*: one web for all, and each agent has 16 transfers at a time, of
0.16 s: so fast is an agent. All are given all seeds. The rate is that between the first tenth of
the pages and the sixth, by the server's log; *linear* is the rate by agent over that of one agent
(E12 reports 0.94 for one to three, in the mean of three windows of 10 s; so it is measured of a
shared queue). It is wrong if a page was fetched twice or not at all, or a request came too early.

With `--up` the agents have a Redis of their own, and there is a third load, *cores*: nothing is
waited for, so that each agent needs a core. There the first agent has a core for itself, and all
else is on the other one, which a loop fills: neighbours on a chip slow each other down. So the
clock says little: *its CPU a page* is that of the pages that it fetched itself. On cores of their
own, agents are as many times as fast as one as the last figure says.

agents: each is a frontier with its queues, seen URLs and outbox, and as many transfers at a time as
all the others; transfers take 10 to 300 ms of virtual time, hosts are visited every 4 s. What one
finds for another is delivered twice a virtual second.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from support.chaos import CRAWL, name_of
from support.command_line import script_of
from support.fleet import Fleet
from support.forks import Fork
from support.polite_crawls import Size, pages_of
from support.projects import Project, environment
from support.redis_servers import RedisServer, binary
from support.verdict import REFUSED, url_of, verdict_of
from support.virtual_agents import Agents
from support.virtual_crawl import all_urls, trees
from support.webs import FakeWebProcess

from benchmarks.measure import apart, cpu_at, tree
from benchmarks.report import Report, spread
from scrapy_spider_suite.cluster.assignment import ASSIGNMENTS, load_assignment
from scrapy_spider_suite.fetch.fetch_log import FetchLogReader, parse_line
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.testing import Arrival

FROM, TO = 0.1, 0.6
ROUNDS = 3
"""Of agents that need a core, in turns: medians count."""
PAGES = 13
"""Of each host, in virtual time."""
Samples = dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class WebLoad:
    """A web, and how an agent crawls it."""

    name: str
    size: Size
    seats: int
    latency: float
    grows: bool
    """With the number of agents: that is what bounds the rate."""
    robots: bool = True
    cores: bool = False
    """Whether agents need all of a core."""

    def of(self, agents: int) -> Size:
        """The web for so many."""
        factor = agents if self.grows else 1
        return replace(
            self.size, hosts=self.size.hosts * factor, addresses=self.size.addresses * factor
        )


FULL = (
    WebLoad("hosts", Size(320, 160, 25, 4.0, 0.4), 256, 0.1, True),
    WebLoad("seats", Size(1_600, 800, 13, 4.0, 0.4), 16, 0.16, False),
    WebLoad("cores", Size(800, 400, 150, 0.0, 0.0), 32, 0.0, False, cores=True),
)
SMALL = (
    WebLoad("hosts", Size(20, 10, 8, 0.5, 0.05), 64, 0.02, True),
    WebLoad("seats", Size(60, 30, 4, 0.5, 0.05), 4, 0.1, False),
    WebLoad("cores", Size(40, 20, 10, 0.0, 0.0), 32, 0.0, False, cores=True),
)


@dataclass(frozen=True)
class Run:
    """What came of a crawl."""

    arrivals: list[Arrival]
    samples: Samples
    broken: list[str]
    mail: dict[str, int]
    """Sums of the stats of all agents."""
    first: str = ""
    """The agent that has a core for itself, and *fetched* pages then."""
    fetched: Sequence[float] = ()

    def window(self) -> tuple[float, float, int]:
        """When the first tenth was fetched, when six, and how many pages lie between."""
        ends = sorted(each.end for each in pages_of(self.arrivals))
        first, last = int(len(ends) * FROM), int(len(ends) * TO)
        return ends[first], ends[last], last - first

    def rate(self) -> float:
        """Pages a second."""
        since, until, pages = self.window()
        return pages / (until - since)

    def rate_of_windows(self) -> float:
        """Pages a second, in the mean of three windows of 10 s that follow each other."""
        since, _, _ = self.window()
        ends = [each.end for each in pages_of(self.arrivals)]
        until = min(since + 30.0, max(ends))
        return sum(since <= end < until for end in ends) / (until - since)

    def cores(self) -> Iterator[float]:
        """For each agent, the part of a core that it used meanwhile."""
        since, until, _ = self.window()
        for rows in self.samples.values():
            yield (cpu_at(rows, until) - cpu_at(rows, since)) / (until - since)

    def shares(self) -> str:
        """`cores`, as text."""
        return ", ".join(f"{each:.0%}" for each in self.cores() if each >= 0.005)

    def cost(self) -> float:
        """Seconds of CPU a page."""
        return sum(self.cores()) / self.rate()

    def cost_of_first(self) -> tuple[int, float]:
        """How many pages the first agent fetched, and seconds of its CPU for each."""
        since, until, _ = self.window()
        pages = bisect_left(self.fetched, until) - bisect_left(self.fetched, since)
        rows = self.samples[self.first]
        return pages, (cpu_at(rows, until) - cpu_at(rows, since)) / pages


def web_of(load: WebLoad, agents: int, folder: Path) -> tuple[Size, FakeWebProcess]:
    """The web of *load* for so many agents, which is to be started."""
    size = load.of(agents)
    return size, FakeWebProcess(size.web(
        folder / "arrivals", redirects=0.0, overrides={}, latency=load.latency,
        jitter=load.latency / 2,
    ))  # fmt: skip


def first_agent(up: int) -> tuple[int, str] | None:
    """Process and name of the first agent that the process *up* has started."""
    for process, _, _ in tree(up):
        with suppress(OSError):
            for word in Path(f"/proc/{process}/cmdline").read_text().split("\0"):
                if word.startswith("SUITE_AGENT_NAME="):
                    return process, word.partition("=")[2]
    return None


@contextmanager
def filled() -> Iterator[None]:
    """What this process's core does not do for others, a loop takes."""
    loop = subprocess.Popen(["nice", "-n", "19", sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def hold(process: int, core: set[int]) -> None:
    """Keep all threads of *process* on *core*."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        os.sched_setaffinity(int(thread.name), core)


def crawl_up(load: WebLoad, agents: int, folder: Path, core: set[int] | None) -> Run:
    """Crawl the web of *load* by `scrapy cluster up`; the first agent has *core*, if given."""
    size, web = web_of(load, agents, folder)
    samples: Samples = {}
    first = None
    with web:
        given = size.settings(web.ready) | {
            "CONCURRENT_REQUESTS": load.seats, "SUITE_SEEDS": [str(web.config.seeds_file)],
            "SUITE_IP_CONCURRENCY": 1 if size.ip_delay else 0, "ROBOTSTXT_OBEY": load.robots,
        }  # fmt: skip
        given.pop("ADDONS")
        project = Project(folder / "project", **given)
        path = os.pathsep.join([str(Path(binary()).parent), os.environ["PATH"]])
        with (folder / "said").open("w+b") as out:
            up = Fork(
                script_of("cluster"), ["up", str(agents), "bulk"], project.folder,
                environment() | {"PATH": path}, out, out,
            )  # fmt: skip
            while up.poll() is None:
                if core and first is None and (first := first_agent(up.pid)):
                    hold(first[0], core)
                for process, cpu, _ in tree(up.pid):
                    samples.setdefault(str(process), []).append((time.time(), cpu))
                time.sleep(0.2)
        web.stop()
        arrivals = web.arrivals()
    said = (folder / "said").read_text()
    pages = [page for page in pages_of(arrivals) if page.status not in REFUSED]
    wanted = Counter(dict.fromkeys(web.web.reachable(obey_robots=load.robots), 1))
    broken = [] if up.returncode == 0 else [f"exit code {up.returncode}: {said[-300:]}"]
    if Counter(url_of(web.web, page) for page in pages) != wanted:
        broken.append("not each page once")
    fetched: list[float] = []
    if first is not None:
        log = FetchLogReader(project.folder / "crawls/bulk" / first[1] / "suite/fetches")
        lines = map(parse_line, log.lines())
        fetched = sorted(line.time for line in lines if "robots" not in line.remarks)
    broken += size.too_early(arrivals)[:5]
    return Run(arrivals, samples, broken, {}, "" if first is None else str(first[0]), fetched)


def crawl(load: WebLoad, agents: int, folder: Path, transport: str) -> Run:
    """Crawl the web of *load* by so many agents."""
    size, web = web_of(load, agents, folder)
    with web, RedisServer(folder / "redis", tcp=True) as redis:
        settings = {
            **size.settings(web.ready), "CONCURRENT_REQUESTS": load.seats,
            "SUITE_CLUSTER": transport, "SUITE_REDIS_URL": redis.url, "SUITE_CRAWL_NAME": CRAWL,
            "SUITE_AGENT_ADDRESS": "127.0.0.1", "SUITE_RUNS_DIR": str(folder / "runs"),
        }  # fmt: skip
        arguments = {"seeds": str(web.config.seeds_file)}
        with Fleet(folder, lambda name: settings, arguments) as fleet:
            for number in range(1, agents + 1):
                fleet.start(name_of(number))
            samples: Samples = {name: [] for name in fleet.agents}
            while fleet.alive():
                fleet.look()
                for name, agent in fleet.agents.items():
                    samples[name].append((time.time(), agent.cpu))
                time.sleep(0.2)
            fleet.look()
            web.stop()
            arrivals = web.arrivals()
            verdict = verdict_of(fleet, web.web, size, arrivals)
    mail: dict[str, int] = {}
    for agent in fleet.agents.values():
        for key, value in agent.stats.items():
            if key.startswith("suite/messages/") and isinstance(value, int):
                name = key.removeprefix("suite/messages/")
                mail[name] = mail.get(name, 0) + value
    return Run(arrivals, samples, list(verdict.broken()), mail)


def scaling(report: Report, loads: Sequence[WebLoad], up: bool, transport: str) -> None:
    """Measure each load with one and with two agents, or with up to three fetchers."""
    by_runs = transport == "shared-queue"
    table = report.table(
        "Agents for real",
        ["load", "agents", "pages", "pages/s", "linear", "of a core", "CPU a page, µs"],
    )
    for load in loads:
        one = 0.0
        for agents in (1, 2, 3) if by_runs else (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                if up:
                    run = crawl_up(load, agents, Path(folder), None)
                else:
                    run = crawl(load, agents, Path(folder), transport)
            pages = len(pages_of(run.arrivals))
            rate = run.rate_of_windows() if by_runs else run.rate()
            one = one or rate
            table.rows.append([
                load.name, agents, pages, rate, rate / one / agents, run.shares(),
                run.cost() * 1e6,
            ])  # fmt: skip
            exchanged = ", ".join(
                f"{name} {value / pages:.3f}" for name, value in sorted(run.mail.items()) if value
            )
            report.say(f"{load.name}, {agents} agents, by page: {exchanged or 'nothing'}")
            report.wrong += run.broken
    report.show(table)


def by_cores(report: Report, load: WebLoad, rounds: int) -> None:
    """Measure what a page costs an agent that has a core for itself, alone and beside another."""
    table = report.table(
        "Agents that need a core each",
        ["agents", "pages", "of a core", "pages of the first", "its CPU a page, µs", "rounds",
         "on cores of their own"],
    )  # fmt: skip
    runs: dict[int, list[Run]] = {1: [], 2: []}
    for _ in range(rounds):
        for agents, found in runs.items():
            with tempfile.TemporaryDirectory() as folder, apart() as core, filled():
                found.append(crawl_up(load, agents, Path(folder), core))
            report.wrong += found[-1].broken
    costs = {agents: [run.cost_of_first()[1] for run in found] for agents, found in runs.items()}
    for agents, found in runs.items():
        ratios = [one / cost for one, cost in zip(costs[1], costs[agents], strict=True)]
        table.rows.append([
            agents, len(pages_of(found[-1].arrivals)), found[-1].shares(),
            found[-1].cost_of_first()[0], median(costs[agents]) * 1e6, spread(costs[agents]),
            agents * median(ratios),
        ])  # fmt: skip
    report.show(table)


def virtual(report: Report, hosts: int, seats: int, counts: Sequence[int]) -> None:
    """Crawl the same web with as many agents as *counts* say, by each assignment function."""
    table = report.table(
        f"{hosts * PAGES:,} pages of {hosts:,} hosts, {seats} transfers at a time by agent",
        ["assignment", "agents", "pages/s", "linear", "URLs exchanged by page", "in rows"],
    )
    for name in ASSIGNMENTS:
        one = 0.0
        for count in counts:
            web = trees(hosts, PAGES, addresses=hosts * 100)
            agents = Agents(
                web, load_assignment(name), [MemoryStore() for _ in range(count)], seats=seats,
                cache=1 << 20,
            )  # fmt: skip
            agents.each(lambda crawl: crawl.seed("http://h0.t/0"))
            agents.run()
            if Counter(agents.urls) != Counter(dict.fromkeys(all_urls(web, PAGES), 1)):
                report.wrong.append(f"{count} agents by {name}: not each page once")
            ends = sorted(fetch.end for crawl in agents.crawls.values() for fetch in crawl.fetches)
            first, last = int(len(ends) * FROM), int(len(ends) * TO)
            rate = (last - first) / (ends[last] - ends[first])
            one, pages = one or rate, len(agents.urls)
            table.rows.append([
                name, count, rate, rate / one / count, agents.links / pages, agents.rows / pages,
            ])  # fmt: skip
    report.show(table)


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Those of scaling; agents has none."""
    if name == "scaling":
        names = [load.name for load in FULL]
        parser.add_argument("--only", choices=names, help="the load of that name")
        parser.add_argument("--up", action="store_true", help="by `scrapy cluster up`")
        parser.add_argument("--transport", choices=["peers", "shared-queue"], default="peers",
                            help="SUITE_CLUSTER (peers)")  # fmt: skip


def run(options: argparse.Namespace, report: Report) -> None:
    """Measure."""
    if options.name == "agents":
        virtual(report, *((100, 2, (1, 2)) if options.small else (5_000, 16, (1, 2, 4, 8))))
        return
    loads = [
        load for load in (SMALL if options.small else FULL) if options.only in (None, load.name)
    ]
    if waiting := [load for load in loads if not load.cores]:
        scaling(report, waiting, options.up, options.transport)
    for load in loads:
        if options.up and load.cores:
            by_cores(report, load, 1 if options.small else ROUNDS)
