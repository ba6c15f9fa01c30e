"""What a page costs as a crawl grows: known URLs, and known hosts. JOBDIR on, one core.

    python -m benchmarks growth                  # to 10 million URLs and 1 million hosts
    python -m benchmarks growth --part urls --most 1000000

*urls*: a web of so many pages, 50 of each host. It is measured when four fifths of them are known,
until 20,000 pages more are fetched (7,000 of the smallest web). *hosts*: a list of so many hosts,
of 20 pages each, is read as seeds; measured is what comes after all of it has been read. A row's
cost is compared with that of the first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.measure import Cost, Load, PeerError, Visit, apart, measure, visiting
from benchmarks.peers import SUITES
from benchmarks.report import Report
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess

URLS = (10_000, 100_000, 1_000_000, 10_000_000)
HOSTS = (1_000, 10_000, 100_000, 1_000_000)
MEASURED = 20_000
"""Pages."""
_PATIENCE = 7_200.0
Prepare = Callable[[Visit, FakeWebProcess], None]


def urls_load(count: int, measured: int) -> Load:
    """A web of *count* pages, and as many fetched as make most of them known."""
    web = FakeWebConfig(hosts=max(20, count // 50), addresses=150, pages=50, degree=40,
                        page_size=6_000)  # fmt: skip
    fetched = count // 10
    measured = min(measured, count - 3 * fetched)
    return Load(web, measured + fetched, 1, 20 if count < 10_000 else 200, timeout=_PATIENCE)


def hosts_load(count: int, measured: int) -> Load:
    """A web of *count* hosts; some of them are fetched while their list is read."""
    web = FakeWebConfig(hosts=count, addresses=150, pages=20, degree=12, page_size=2_600)
    return Load(web, min(measured + count // 5, count * 10), 1, 200, timeout=_PATIENCE)


def write_seeds(visit: Visit, web: FakeWebProcess) -> None:
    """All hosts of the web, in the list of seeds."""
    graph = web.web
    with (visit.folder / "seeds.txt").open("w") as file:
        file.writelines(f"{graph.base(host)}/\n" for host in range(len(graph)))


def as_it_is(visit: Visit, web: FakeWebProcess) -> None:
    """The list of seeds that there is."""


@dataclass(frozen=True)
class Grown:
    """A crawl in its late part. *known*: URLs at its end. *stall*: ms, the 99.9th percentile."""

    known: int
    cost: Cost
    stall: float


def crawl(load: Load, wanted: int, prepare: Prepare, core: set[int]) -> Grown:
    """Crawl; what it was like since *wanted* URLs were known. Raises `PeerError`."""
    peer = replace(
        SUITES[0], spider="counted",
        settings={"SUITE_SEEDS": "TMP/seeds.txt", "SUITE_MEMORY": "256M"},
    )  # fmt: skip
    with visiting(load) as (visit, web):
        prepare(visit, web)
        cost = measure(peer.command(replace(visit, seeds=visit.seeds[:1])), visit, web, core)
    since, known, late = 0.0, 0, list[float]()
    for line in cost.output.splitlines():
        if line.startswith("known "):
            _, when, urls, stalls = line.split()
            known = int(urls)
            if known >= wanted:
                since = since or float(when)
                late += map(float, stalls.split(","))
    if not late:
        raise PeerError(f"{known:,} of {wanted:,} URLs were known")
    late.sort()
    return Grown(known, cost.since(since), late[len(late) * 999 // 1_000])


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Which of it."""
    parser.add_argument("--part", choices=["urls", "hosts"], help="one half of it")
    parser.add_argument("--most", type=int, default=10_000_000, help="the largest web")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of each (1)")


def run(options: argparse.Namespace, report: Report) -> None:
    """Measure, a table and a chart for each part."""
    parts: dict[str, tuple[tuple[int, ...], Callable[[int, int], Load], float, Prepare]] = {
        "urls": ((400,) if options.small else URLS, urls_load, 0.8, as_it_is),
        "hosts": ((200,) if options.small else HOSTS, hosts_load, 1.0, write_seeds),
    }
    lines = {}
    with apart() as core:
        for part, (counts, load_of, share, prepare) in parts.items():
            if options.part not in (None, part):
                continue
            table = report.table(
                f"CPU a page by known {part}",
                [part, "known URLs", "CPU a page, µs", "÷ first", "pages/s", "MB", "stall, ms"],
                "A stall is by how much the event loop comes back late, without the time for which "
                "its thread waited for a processor; of 1,000, one is longer.",
            )
            for count in counts:
                if count > options.most:
                    continue
                load = load_of(count, MEASURED)
                try:
                    found = [
                        crawl(load, int(count * share), prepare, core)
                        for _ in range(options.rounds)
                    ]
                except PeerError as error:
                    report.wrong.append(f"{part}, {count:,}: {error}")
                    continue
                cost = median(each.cost.micros for each in found)
                first = table.rows[0][2] if table.rows else cost
                assert isinstance(first, float)
                table.rows.append([
                    count, found[-1].known, cost, cost / first,
                    median(each.cost.rate for each in found), found[-1].cost.memory >> 20,
                    median(each.stall for each in found),
                ])  # fmt: skip
                print(f"{part} {count:,}: {cost:,.0f} µs a page", flush=True)
            report.show(table)
            lines[part] = [(float(n), float(row[2] or 0)) for n, row in enumerate(table.rows)]
    if all(len(line) > 1 for line in lines.values()):
        report.lines(
            "CPU a page, µs, from row to row of the tables",
            {part: {part: line} for part, line in lines.items()}, "",
        )  # fmt: skip
