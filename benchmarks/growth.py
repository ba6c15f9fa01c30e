"""What a page costs as a crawl grows: known URLs, and known hosts. JOBDIR on, one core.

    python -m benchmarks growth                  # to 10 million URLs and 1 million hosts: an hour
    python -m benchmarks growth --part urls --most 1000000
    python -m benchmarks growth --part time      # memory through an hour of one crawl

The list of seeds has all pages of the web, and is read before any of them is fetched. *urls*: so
many pages on 100 hosts, measured when each host has been visited ten times: 20,000 pages, or half
of those of a smaller web. *hosts*: so many hosts of 5 pages, each of which is looked up, visited
five times, and left; nine tenths of all pages are measured. Of a million hosts, more than memory
holds, 100,000 pages are measured, behind the first million. So in all rows a page does the same:
its links are known, and it has a connection of its own. The smallest web is
crawled five times before each other web, and five times after it. The cost of a row is compared
with the median of these ten, since the machine may become slower meanwhile.

*time*: a crawl of 2,000 hosts that does not end, and its memory each minute. Anonymous memory is
the crawl's own. Other memory holds parts of files, such as those of seen URLs: the kernel takes it
back when it needs it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.measure import (
    Cost,
    Load,
    PeerError,
    apart,
    crawling,
    measure,
    pages_in,
    tree,
    visiting,
)
from benchmarks.peers import SUITES
from benchmarks.report import Report
from scrapy_spider_suite.testing import FakeWebConfig

URLS = (10_000, 100_000, 1_000_000, 10_000_000)
HOSTS = (1_000, 10_000, 100_000, 1_000_000)
MEASURED = 20_000
"""Pages, of *urls*."""
_BESIDE = 5  # crawls of the smallest web before a row, and after it
_PATIENCE = 7_200.0
_MINUTES = 60
_SAME: Final[dict[str, Any]] = {"keep_alive": 0.0, "ttl": 86_400, "addresses": 150}


def urls_load(count: int) -> Load:
    """A web of *count* pages on 100 hosts: so each host has more pages than a page has links."""
    hosts = 100
    web = FakeWebConfig(hosts=hosts, pages=count // hosts, degree=40, page_size=6_000, **_SAME)
    return Load(web, min(MEASURED, count // 2), 10 * hosts, timeout=_PATIENCE)


def hosts_load(count: int) -> Load:
    """A web of *count* hosts."""
    places = 20 if count < 1_000 else 200
    web = FakeWebConfig(hosts=count, pages=5, degree=12, page_size=2_600, **_SAME)
    if count > 100_000:
        return Load(web, 100_000, count, places, timeout=_PATIENCE)
    return Load(web, count * 9 // 2, count // 4, places, timeout=_PATIENCE)


@dataclass(frozen=True)
class Grown:
    """A crawl in its late part. *known*: URLs at its end. *stall*: ms, the 99.9th percentile."""

    known: int
    cost: Cost
    stall: float


def crawl(load: Load, core: set[int]) -> Grown:
    """Crawl; what it was like after its first pages. Raises `PeerError`."""
    wanted = load.web.hosts * int(load.web.pages)
    peer = replace(
        SUITES[0], spider="counted",
        settings={"SUITE_SEEDS": "TMP/seeds.txt", "SUITE_MEMORY": "512M", "BENCH_KNOWN": wanted},
    )  # fmt: skip
    with visiting(load) as (visit, web):
        with (visit.folder / "seeds.txt").open("w") as file:
            file.writelines(f"{url}\n" for url in web.web.reachable())
        cost = measure(peer.command(replace(visit, seeds=visit.seeds[:1])), visit, web, core)
    begin, known, lines = pages_in(cost.arrivals)[load.warm].end, 0, list[tuple[float, str]]()
    for line in cost.output.splitlines():
        if line.startswith("known "):
            _, when, urls, stalls = line.split()
            known = int(urls)
            lines.append((float(when), stalls))
    if known < wanted:
        raise PeerError(f"{known:,} of {wanted:,} URLs were known")
    # A small web may be over before the next line comes.
    measured = [stalls for when, stalls in lines if when >= begin] or [lines[-1][1]]
    late = sorted(float(each) for stalls in measured for each in stalls.split(","))
    return Grown(known, replace(cost, arrivals=[]), late[len(late) * 999 // 1_000])


def anonymous(process: int) -> int:
    """Bytes of memory of *process* that no file backs."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def through_time(report: Report, minutes: int, minute: float) -> None:
    """Crawl for so many *minutes* of *minute* seconds."""
    table = report.table(
        "A crawl that does not end",
        ["minutes", "pages", "pages/s", "CPU a page, µs", "MB", "anonymous, MB"],
    )
    web = FakeWebConfig(hosts=2_000, addresses=150, pages=100_000, degree=12, page_size=2_600)
    count, spent, own = 0, 0.0, list[tuple[float, float]]()
    with apart() as core, visiting(Load(web, 1, 0)) as (visit, _):
        command = SUITES[0].command(visit)
        with crawling(command, visit, core) as child, (visit.folder / "arrivals.tsv").open() as log:
            for number in range(1, minutes + 1):
                time.sleep(minute)
                if child.poll() is not None:
                    report.wrong.append(f"the crawl ended after {number} minutes")
                    break
                [(_, cpu, memory), *_] = tree(child.pid)
                pages = sum(1 for _ in log)
                own.append((float(number), anonymous(child.pid) / 2**20))
                table.rows.append([
                    number, count + pages, pages / minute, (cpu - spent) / max(1, pages) * 1e6,
                    memory >> 20, own[-1][1],
                ])  # fmt: skip
                count, spent = count + pages, cpu
                print(f"{number} min: {count:,} pages, {own[-1][1]:,.0f} MB", flush=True)
    step = max(1, minutes // 6)
    table.rows = table.rows[step - 1 :: step]
    report.show(table)
    if len(own) > 1:
        report.lines("Anonymous memory, MB, by minutes", {"time": {"suite": own}}, "")


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Which of it."""
    parser.add_argument("--part", choices=["urls", "hosts", "time"], help="this part alone")
    parser.add_argument("--most", type=int, default=10_000_000, help="the largest web")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of each (1)")


def run(options: argparse.Namespace, report: Report) -> None:
    """Measure, a table and a chart for each part."""
    if options.part == "time":
        through_time(report, *((2, 3.0) if options.small else (_MINUTES, 60.0)))
        return
    parts: dict[str, tuple[tuple[int, ...], Callable[[int], Load]]] = {
        "urls": ((4_000,) if options.small else URLS, urls_load),
        "hosts": ((200,) if options.small else HOSTS, hosts_load),
    }
    lines = {}
    with apart() as core:
        for part, (counts, load_of) in parts.items():
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
                beside = 1 if options.small else _BESIDE
                try:
                    if count == counts[0]:
                        first = found = _crawl_some(beside, load_of(count), core)
                    else:
                        first = _crawl_some(beside, load_of(counts[0]), core)
                        found = _crawl_some(options.rounds, load_of(count), core)
                        first += _crawl_some(beside, load_of(counts[0]), core)
                except PeerError as error:
                    report.wrong.append(f"{part}, {count:,}: {error}")
                    continue
                cost = median(each.cost.micros for each in found)
                table.rows.append([
                    count, found[-1].known, cost, cost / median(each.cost.micros for each in first),
                    median(each.cost.rate for each in found), found[-1].cost.memory >> 20,
                    median(each.stall for each in found),
                ])  # fmt: skip
                said = f"{cost:,.0f} µs a page, {table.rows[-1][3]:.2f} times the first"
                print(f"{part} {count:,}: {said}", flush=True)
            report.show(table)
            lines[part] = [(float(n), float(row[3] or 0)) for n, row in enumerate(table.rows)]
    if all(len(line) > 1 for line in lines.values()):
        report.lines(
            "CPU a page by that of the smallest, from row to row of the tables",
            {part: {part: line} for part, line in lines.items()}, "",
        )  # fmt: skip


def _crawl_some(times: int, load: Load, core: set[int]) -> list[Grown]:
    return [crawl(load, core) for _ in range(times)]
