"""Pages per second, and CPU a page: plain Scrapy and the suite, on the same in-vitro web, by turns.

    python benchmarks/crawl_speed.py            # full size: some minutes
    python benchmarks/crawl_speed.py --small    # for CI: does it run at all

The broad comparison is plain Scrapy with the settings that its documentation advises for broad
crawls against a `BroadSpider`; the spider comparison one ordinary spider without and with the
add-on. No delays on either side; robots.txt off on either side. Figures of one run are
comparable with each other only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from peers import BROAD_SCRAPY, SUITE, measure

from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess
from scrapy_spider_suite.testing.fake_web import address_text

NO_DELAYS = {"SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0, "SUITE_IP_CONCURRENCY": 0}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a few hundred pages")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each (3)")
    parser.add_argument("--only", default="", metavar="WORDS", help="crawls whose names have WORDS")
    options = parser.parse_args()
    hosts = 100 if options.small else 2000
    rounds = 1 if options.small else options.rounds
    config = FakeWebConfig(hosts=hosts, addresses=hosts // 10, pages=50, degree=40, page_size=6000)
    with FakeWebProcess(config) as web, tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "names.json"
        graph = web.web
        table.write_text(
            json.dumps(
                {graph.host_name(i): address_text(graph.address_index(i)) for i in range(hosts)}
            )
        )
        common = {"seeds": list(web.ready.seeds), "dns": str(table)}
        suite = {**SUITE, **NO_DELAYS, **web.ready.settings}
        slow = {"CLOSESPIDER_PAGECOUNT": 200 if options.small else 2_000}
        fast = {"CLOSESPIDER_PAGECOUNT": 500 if options.small else 20_000}
        crawls: dict[str, dict[str, Any]] = {
            "plain Scrapy, broad settings": {
                "spider": "plain", "settings": {**BROAD_SCRAPY, **slow}, **common},
            "suite, BroadSpider": {"spider": "bulk", "settings": {**suite, **fast}, **common},
            "plain Scrapy, ordinary spider": {
                "spider": "items", "settings": {"DNS_RESOLVER": "peers.TableResolver", **slow},
                "job": True, **common},
            "suite, the same spider": {
                "spider": "items", "settings": {**suite, **slow}, "job": True, **common},
        }  # fmt: skip
        crawls = {name: crawls[name] for name in crawls if options.only in name}
        rates: dict[str, list[float]] = {name: [] for name in crawls}
        costs: dict[str, list[float]] = {name: [] for name in crawls}
        for number in range(rounds):
            for name, crawl in crawls.items():
                if crawl.get("job"):
                    crawl["settings"]["JOBDIR"] = str(Path(folder) / f"{name} {number}")
                report = measure(crawl)
                rates[name].append(report["rate"])
                costs[name].append(report["cpu"] / report["pages"] * 1e6)
                print(
                    f"{name:32} {report['pages']:7,} pages {report['seconds']:7.1f} s "
                    f"{report['rate']:8,.0f} pages/s {costs[name][-1]:8,.0f} µs of CPU a page "
                    f"{report['rss'] >> 20:5} MB", flush=True,
                )  # fmt: skip
    for name in crawls:
        print(
            f"{name:32} {median(rates[name]):8,.0f} pages/s {median(costs[name]):8,.0f} µs a page"
        )


if __name__ == "__main__":
    main()
