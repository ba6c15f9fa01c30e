"""Revisits in a real crawl: how many pages of its copy are fresh, by what the servers know.

    python benchmarks/freshness.py [--plot FOLDER]   # 250 pages, some seven minutes
    python benchmarks/freshness.py --small           # for CI: 200 pages, 12 seconds

Two crawls of in-vitro webs that are alike, at the same time: one with ``SUITE_REVISIT = fixed``,
one with ``adaptive``. Days are seconds here: pages change as Poisson processes, every other page
sooner than in 20 s, most within 1.6 s to 4 minutes (a log-normal distribution), and each page is
visited again after 20 s, in the second crawl on average. So both have the same number of visits.
Half of the pages have ETag and Last-Modified and answer 304.

When each page was fetched, the servers have logged; when it changed, they know. A page is fresh
from its fetch to its next change. *most* is what visits at the best interval for each page would
come to, were the rates known (Cho, Garcia-Molina, 2003).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from math import exp, expm1
from pathlib import Path
from statistics import NormalDist

from charts import line_charts

from scrapy_spider_suite.frontier.revisit_rules import ChangeRates, interval_for
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess
from scrapy_spider_suite.testing.synthetic_site import PageChanges

SPREAD = 2.5
STATUSES = (200, 304)


@dataclass(frozen=True)
class Size:
    """How large a web, and how long; seconds."""

    hosts: int
    pages: int
    every: float
    seconds: float


FULL, SMALL = Size(25, 10, 20.0, 400.0), Size(20, 10, 3.0, 12.0)


class Reader(BroadSpider):
    """Follows everything."""

    name = "reader"


def run(mode: str, size: Size, folder: Path) -> tuple[FakeWebProcess, subprocess.Popen[bytes]]:
    """Begin a crawl in the given *mode*, and its web."""
    web = FakeWebProcess(FakeWebConfig(
        hosts=size.hosts, pages=size.pages, addresses=10, degree=10, page_size=3000,
        changes=size.every, changes_sigma=SPREAD, conditional=0.5, log=folder / f"{mode}.log",
    ))  # fmt: skip
    ready = web.start()
    settings = {
        "LOG_LEVEL": "WARNING", "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0, "JOBDIR": folder / mode,
        "SUITE_REVISIT": mode, "SUITE_REVISIT_INTERVAL": size.every, "SUITE_REVISIT_LEAST": 1,
        "SUITE_REVISIT_MOST": 10 * size.every,
        "SUITE_IP_CONCURRENCY": 0, "CLOSESPIDER_TIMEOUT": size.seconds, **ready.settings,
    }  # fmt: skip
    given = [f"--set={name}={','.join(v) if isinstance(v, list) else v}"
             for name, v in settings.items()]  # fmt: skip
    crawl = subprocess.Popen(
        [sys.executable, __file__, "--crawl", *given, "--seeds", ",".join(ready.seeds)]
    )
    return web, crawl


def crawl(seeds: str, given: list[str]) -> None:
    """What `run` has a process of its own do."""
    from scrapy.crawler import AsyncCrawlerProcess

    settings = dict(each.split("=", 1) for each in given)
    process = AsyncCrawlerProcess({"ADDONS": {"scrapy_spider_suite.Addon": 500}, **settings})
    process.crawl(Reader, seeds=seeds)
    process.start()


@dataclass
class Judged:
    """What came of a crawl. *fresh* is by the second, *visits* are those of the second half."""

    fresh: list[float]
    visits: int
    unchanged: int

    @property
    def later(self) -> float:
        """Freshness in the second half."""
        half = self.fresh[len(self.fresh) // 2 :]
        return sum(half) / len(half)


def judge(web: FakeWebProcess, size: Size) -> Judged:
    """How fresh the copy was, by the server's log."""
    visits: dict[tuple[int, int], list[float]] = defaultdict(list)
    arrivals = [each for each in web.arrivals() if each.status in STATUSES]
    began = min(each.start for each in arrivals)
    for each in arrivals:
        if each.path == "/" or each.path.endswith(".html"):
            host = web.web.host_index(each.host)
            visits[host, web.web.page_index(host, each.path)].append(each.start)
    changes, end = PageChanges(web.config), int(size.seconds)
    fresh = [0.0] * end
    for (host, page), times in visits.items():
        ends = [*times[1:], began + end]
        for begin, until in zip(times, ends, strict=True):
            _add(fresh, begin - began, min(until, changes.next(host, page, begin)) - began)
    half = began + end / 2
    late = [each for each in arrivals if each.start >= half]
    number = size.hosts * size.pages
    unchanged = sum(each.status == 304 for each in late)
    return Judged([part / number for part in fresh], len(late), unchanged)


def _add(fresh: list[float], begin: float, end: float) -> None:
    """Let a page be fresh from *begin* to *end*."""
    for second in range(int(begin), min(len(fresh), int(end) + 1)):
        fresh[second] += max(0.0, min(end, second + 1) - max(begin, second))


def most(size: Size) -> float:
    """The freshness that is to be had with as many visits, were the rates known."""
    normal, demand = NormalDist(), ChangeRates()
    steps = [normal.inv_cdf((n + 0.5) / 1000) for n in range(1000)]
    rates = [exp(SPREAD * step) / size.every for step in steps]
    for rate in rates:
        demand.changed(None, rate)
    price = demand.price(len(rates) / size.every, 1.0, 10 * size.every)
    total = 0.0
    for rate in rates:
        product = rate * min(10 * size.every, max(1.0, interval_for(rate, price)))
        total += -expm1(-product) / product
    return total / len(rates)


def compare(size: Size, plot: Path | None) -> None:
    """Both crawls at the same time; print what came of them."""
    with tempfile.TemporaryDirectory() as name:
        running = {mode: run(mode, size, Path(name)) for mode in ("fixed", "adaptive")}
        time.sleep(size.seconds)
        found = {}
        for mode, (web, process) in running.items():
            if process.wait(300):
                print(f"{mode}: the crawl ended with exit code {process.returncode}")
            web.stop()
            found[mode] = judge(web, size)
    print(f"{size.hosts * size.pages:,} pages, {size.seconds:.0f} s, each visited after "
          f"{size.every:g} s; the second half:")  # fmt: skip
    for mode, each in found.items():
        rate = each.visits / size.seconds * 2
        print(f"{mode:<9} fresh {each.later:6.1%}, {each.visits:,} visits ({rate:.1f} a second), "
              f"{each.unchanged:,} answered 304")  # fmt: skip
    limit = most(size)
    print(f"{'most':<9} fresh {limit:6.1%}")
    if plot is not None:
        lines = {mode: _smooth(each.fresh, size.every) for mode, each in found.items()}
        lines["most"] = [(0.0, limit), (size.seconds, limit)]
        title = f"fresh, a visit in {size.every:g} s"
        line_charts(plot / "freshness.svg", {title: lines}, "seconds", least=0.3)


def _smooth(fresh: list[float], every: float) -> list[tuple[float, float]]:
    """The means over one round of visits each."""
    width = int(every)
    starts = range(0, len(fresh) - width + 1, width // 2)
    return [(start + width / 2, sum(fresh[start : start + width]) / width) for start in starts]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--small", action="store_true", help="200 pages")
    parser.add_argument("--plot", type=Path, help="a folder for freshness.svg")
    parser.add_argument("--crawl", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--set", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--seeds", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.crawl:
        crawl(options.seeds, options.set)
    else:
        compare(SMALL if options.small else FULL, options.plot)


if __name__ == "__main__":
    main()
