"""Politeness and speed, both read from the server's log: the suite, and plain Scrapy beside it.

    python -m benchmarks politeness            # 1,000 hosts, some 8 minutes

The web has 1,000 hosts on 300 addresses, with redirects, hosts that begin with 429 or 503 and a
Retry-After, and hosts with a Crawl-delay; connections are kept alive. Counted are the requests that
came sooner than promised after the last answer of their host or address; *of the optimum* is the
time of an optimal schedule of the same fetches over the time that they took (see
``scrapy_spider_suite/testing/arrivals.py``). Needs Pillow for the images. It is wrong if a request
of the suite came too early.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from support.crawls import crawl
from support.polite_crawls import FULL, SMALL, Size, elsewhere, pages_of

from benchmarks.peers import HERE
from benchmarks.peers.scrapy_crawl import BROAD_SCRAPY, RESOLVER
from benchmarks.report import ROOT, Report, Table
from scrapy_spider_suite.testing import Arrival, FakeWebProcess, gaps
from scrapy_spider_suite.testing.fake_web import address_text

_SCRAPYS_ROBOTS = {"scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware": 100}


@dataclass
class Case:
    """One crawl by the suite."""

    name: str
    spider: str = "support.spiders.Bulk"
    settings: dict[str, Any] = field(default_factory=dict)
    images: int = 0
    keeps_crawl_delay: bool = True


def seconds_of(arrivals: list[Arrival]) -> float:
    """Seconds from the first request to the last answer."""
    return max(each.end for each in arrivals) - min(each.start for each in arrivals)


def _add(table: Table, name: str, size: Size, arrivals: list[Arrival], *, ended: bool) -> int:
    """Add a row; how many requests were too early."""
    early, pages = size.too_early(arrivals), pages_of(arrivals)
    table.rows.append([
        name, len(pages), seconds_of(pages), len(early), len(arrivals),
        f"{size.efficiency(arrivals):.2%}" if ended else None,
    ])  # fmt: skip
    print(f"{name}: {len(early):,} of {len(arrivals):,} requests too early", *early[:3], sep="\n  ")
    return len(early)


def _suite(case: Case, size: Size, folder: Path, report: Report, table: Table) -> None:
    size = replace(size, keeps_crawl_delay=case.keeps_crawl_delay)
    knobs = {"overrides": size.gallery(case.images)} if case.images else {}
    log = folder / "arrivals"
    log.unlink(missing_ok=True)
    fast = folder / "overrides"
    fast.write_text(f"h000000.fake.test delay={size.host_delay / 40:g}\n")
    with FakeWebProcess(size.web(log, **knobs)) as web:
        if case.images:
            address = web.web.address_index(0)
            with fast.open("a") as file:
                file.write(f"{address_text(address)}/32 delay={size.host_delay / 40:g}\n")
        settings = size.settings(web.ready, **case.settings)
        if case.images:
            settings |= {"SUITE_OVERRIDES": str(fast), "IMAGES_STORE": str(folder / "images")}
        end = crawl(case.spider, settings, folder, timeout=900, seeds=str(web.config.seeds_file))
        if end.reason != "finished":
            raise RuntimeError(end.log[-3000:])
        web.stop()
        arrivals = web.arrivals()
    judged = elsewhere(arrivals) if case.images else arrivals
    if _add(table, case.name, size, judged, ended=True):
        report.wrong.append(f"{case.name}: a request came too early")
    if not case.images:
        return
    gallery = [each for each in arrivals if each not in set(elsewhere(arrivals))]
    (least,) = gaps(gallery, "host").values()
    images = sum(each.path.startswith("/img") for each in gallery)
    report.say(f"{images:,} images of one host, none sooner than {least.smallest:.4f} s")


def _plain(size: Size, folder: Path, table: Table) -> None:
    log = folder / "arrivals"
    log.unlink(missing_ok=True)
    with FakeWebProcess(size.web(log)) as web:
        graph = web.web
        names_file = folder / "names.json"
        names = {
            graph.host_name(i): address_text(graph.address_index(i)) for i in range(len(graph))
        }
        names_file.write_text(json.dumps(names))
        settings = {
            **BROAD_SCRAPY, **RESOLVER, "CONCURRENT_REQUESTS": 100, "RETRY_ENABLED": True,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 1, "DOWNLOAD_DELAY": size.host_delay,
            "ROBOTSTXT_OBEY": True, "CLOSESPIDER_TIMEOUT": 30 * size.host_delay,
        }  # fmt: skip
        job = {
            "spider": "plain", "settings": settings, "names": str(names_file),
            "seeds": list(web.ready.seeds), "domains": [],
        }  # fmt: skip
        subprocess.run(
            [sys.executable, str(HERE / "scrapy_crawl.py"), json.dumps(job)], check=True,
            capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=900,
        )  # fmt: skip
        web.stop()
        arrivals = web.arrivals()
    _add(table, "plain Scrapy, DOWNLOAD_DELAY (stopped then)", size, arrivals, ended=False)


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Which of it."""
    parser.add_argument("--only", help="the one case whose name begins so")


def run(options: argparse.Namespace, report: Report) -> None:
    """Crawl; a row for each crawl."""
    size = SMALL if options.small else FULL
    images = 50 if options.small else 1000
    pipeline = {"ITEM_PIPELINES": {"scrapy.pipelines.images.ImagesPipeline": 1}}
    cases = [
        Case("suite"),
        Case("suite, Scrapy's robots middleware",
             settings={"DOWNLOADER_MIDDLEWARES": _SCRAPYS_ROBOTS}, keeps_crawl_delay=False),
        Case("suite, images from one host", "support.odd_spiders.Pictures", pipeline, images),
    ]  # fmt: skip
    table = report.table(
        f"{size.hosts:,} hosts, {size.addresses} addresses, {size.host_delay:g} s a host, "
        f"{size.ip_delay:g} s an address",
        ["crawl", "pages", "seconds", "too early", "of requests", "of the optimum"],
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in cases:
            if case.name.startswith(options.only or ""):
                _suite(case, size, folder, report, table)
        if "plain".startswith(options.only or "plain"):
            _plain(size, folder, table)
    report.show(table)
