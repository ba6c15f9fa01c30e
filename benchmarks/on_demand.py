"""Links read on demand beside links read at once (SUITE_READ_LINKS), on the same in-vitro web.

    python benchmarks/on_demand.py [--small] [--hosts N] [--pages N]

The web is crawled to its end in either way, with packs and a job directory. Both must have come to
the same URLs with the same outcomes; most URLs that were queued at a time are compared, and the
CPU of the crawl's process for each page, its writer of packs included. Without delays: in a polite
crawl the frontiers are the same, and the rest of the time is spent waiting.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from peers import SUITE, measure

from scrapy_spider_suite.packs import open_packs
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess

NO_DELAYS = {"SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0, "SUITE_IP_CONCURRENCY": 0}
AT_ONCE = 32
MOST = 0.1
"""What the frontier may have of what it has when links are read at once."""


def outcomes(folder: Path) -> dict[str, str]:
    """What became of each URL that the job in *folder* knows."""
    with StoreReader(folder / "job" / FOLDER) as reader:
        wrong = list(reader.check())
        if wrong:
            raise RuntimeError("; ".join(wrong))
        rows = (row for host, _ in reader.hosts() for row in reader.urls(host))
        return {row.url: str(row.state.event) for row in rows}


def run(how: str, web: FakeWebProcess, folder: Path) -> dict[str, Any]:
    """Crawl *web* with links read in that way."""
    settings = {
        **SUITE, **NO_DELAYS, **web.ready.settings, "SUITE_READ_LINKS": how,
        "CONCURRENT_REQUESTS": AT_ONCE, "JOBDIR": str(folder / "job"),
        "SUITE_PACKS_DIR": str(folder / "packs"), "SUITE_SEEN_STORE": "plain",
    }  # fmt: skip
    seeds = [web.ready.seeds[0]]
    report = measure({"spider": "bulk", "settings": settings, "seeds": seeds}, timeout=3_600)
    stats = report["stats"]
    report["peak"] = stats["suite/frontier/queued_max"]
    print(
        f"{how:10} {report['pages']:7,} pages {report['seconds']:6.1f} s  at most "
        f"{report['peak']:7,} URLs queued  {1e6 * report['cpu'] / report['pages']:6,.0f} us of "
        f"CPU a page  {report['rss'] >> 20:4} MB  read later: "
        f"{stats.get('suite/extract/read', 0):,}", flush=True,
    )  # fmt: skip
    return report


def main() -> int:
    """Measure, print, and return how many things are not as they should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="for CI: 4 hosts of 300 pages")
    parser.add_argument("--hosts", type=int, default=50)
    parser.add_argument("--pages", type=int, default=400, help="of each host")
    parser.add_argument("--degree", type=int, default=20, help="links of a page")
    options = parser.parse_args()
    hosts, pages = (4, 300) if options.small else (options.hosts, options.pages)
    degree = 10 if options.small else options.degree
    config = FakeWebConfig(
        hosts=hosts, addresses=max(1, hosts // 4), pages=pages, degree=degree,
        page_size=6000, errors=0.0, redirects=0.02,
    )  # fmt: skip
    found: dict[str, dict[str, str]] = {}
    peaks: dict[str, int] = {}
    with FakeWebProcess(config) as web, tempfile.TemporaryDirectory() as folder:
        for how in ("eager", "on-demand"):
            place = Path(folder) / how
            place.mkdir()
            peaks[how] = run(how, web, place)["peak"]
            found[how] = outcomes(place)
            packed = {page.url for page in open_packs(place / "packs")}
            print(f"           {len(found[how]):,} URLs known, {len(packed):,} in packs")
    different = found["eager"].items() ^ found["on-demand"].items()
    ratio = peaks["on-demand"] / peaks["eager"]
    print(f"{len(different)} outcomes differ; frontier {ratio:.3f} of that of eager")
    return bool(different) + (ratio > MOST)


if __name__ == "__main__":
    sys.exit(main())
