"""What a crawl writes about itself: log and fetch log for a million pages, and reading them.

    python benchmarks/evidence.py            # full size: a quarter of an hour, 1 GB of disk
    python benchmarks/evidence.py reading    # or `volumes`: one half of it
    python benchmarks/evidence.py --small    # for CI: does it run at all

Volumes: the suite and plain Scrapy crawl the same in-vitro web, with one download in a hundred
failing on the wire; what their logs hold between the opening and the closing of the spider is
scaled to a million pages. Fetch log: the time that a line costs the crawl, the longest flush of a
second's lines, what zstd and gzip make of a file, and how long `frontier log` takes for one host.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import tempfile
import time
from base64 import b32encode
from pathlib import Path
from typing import Any

from backports import zstd
from peers import BROAD_SCRAPY, SUITE, measure

from scrapy_spider_suite.fetch import fetch_log
from scrapy_spider_suite.fetch.fetch_log import (
    FetchFilter,
    FetchLine,
    FetchLog,
    FetchLogReader,
    format_line,
)
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess
from scrapy_spider_suite.testing.fake_web import address_text

POLITENESS_OFF = {
    "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0, "SUITE_IP_CONCURRENCY": 0, "SUITE_RETRY_TIMES": 0,
    "SUITE_BACKOFF_BASE": 0, "SUITE_BACKOFF_MAX": 0, "SUITE_DEAD_HOST_FAILURES": 1_000_000,
}  # fmt: skip
_RUN = re.compile(r"Spider opened\n(.*)\n[^\n]*Closing spider", re.DOTALL)


def volumes(small: bool) -> None:
    """Crawl with both and print what they wrote."""
    hosts = 50 if small else 2_000
    config = FakeWebConfig(hosts=hosts, addresses=hosts // 10, pages=60, degree=40, page_size=6000)
    with FakeWebProcess(config) as web, tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        graph = web.web
        names = {graph.host_name(i): address_text(graph.address_index(i)) for i in range(hosts)}
        (here / "names.json").write_text(json.dumps(names))
        common = {"seeds": list(web.ready.seeds), "dns": str(here / "names.json")}
        plain = {
            **BROAD_SCRAPY, "CLOSESPIDER_PAGECOUNT": 300 if small else 3_000,
            "DOWNLOAD_HANDLERS": {"http": "failing.Plain"},
        }  # fmt: skip
        suite = {
            **SUITE, **POLITENESS_OFF, **web.ready.settings, "JOBDIR": str(here / "job"),
            "CLOSESPIDER_PAGECOUNT": 800 if small else 15_000,
            "DOWNLOAD_HANDLERS": {"http": "failing.Suite"},
        }  # fmt: skip
        for name, spider, settings in (
            ("plain Scrapy, LOG_LEVEL=DEBUG (default)", "plain", {**plain, "LOG_LEVEL": "DEBUG"}),
            ("plain Scrapy, LOG_LEVEL=INFO", "plain", {**plain, "LOG_LEVEL": "INFO"}),
            ("suite, SUITE_QUIET_LOG=False", "bulk", {
                **suite, "LOG_LEVEL": "INFO", "SUITE_QUIET_LOG": False,
                "JOBDIR": str(here / "loud"),
            }),
            ("suite", "bulk", {**suite, "LOG_LEVEL": "INFO"}),
        ):  # fmt: skip
            log = here / f"{len(list(here.iterdir()))}.log"
            crawl = {"spider": spider, "settings": {**settings, "LOG_FILE": str(log)}, **common}
            print_volume(name, log, measure(crawl, timeout=1_200))
        print_fetch_log(here / "job" / "suite" / fetch_log.LOG_FOLDER)


def print_volume(name: str, log: Path, report: dict[str, Any]) -> None:
    """A line about one crawl's log."""
    text = log.read_text(errors="replace")
    run = _RUN.search(text)
    size = len(run[1]) if run else 0
    pages = report["pages"] + text.count("Error downloading")
    print(
        f"{name:42} {size:12,} bytes for {pages:8,} pages at {report['rate']:6,.0f}/s: "
        f"{size / pages:8,.1f} MB a million pages", flush=True,
    )  # fmt: skip


def print_fetch_log(folder: Path) -> None:
    """A line about the fetch log of a crawl, with what each compression makes of it."""
    lines = list(FetchLogReader(folder).lines())
    text = b"".join(lines)
    each = len(text) / len(lines)
    for name, pack, unpack in (
        ("zstd 3", lambda data: zstd.compress(data, 3), zstd.decompress),
        ("gzip 6", lambda data: gzip.compress(data, 6), gzip.decompress),
    ):
        start = time.process_time()
        packed = pack(text)
        middle = time.process_time()
        unpack(packed)
        ended = time.process_time()
        print(
            f"fetch log: {len(lines):,} lines of {each:.0f} bytes ({each:.0f} MB a million fetches "
            f"while it is written), {len(packed) / len(lines):.0f} with {name}; a million in "
            f"{(middle - start) / len(lines) * 1e6:.1f} s, back in "
            f"{(ended - middle) / len(lines) * 1e6:.1f} s", flush=True,
        )  # fmt: skip


def reading(small: bool) -> None:
    """Write many lines and look one host up."""
    count = 100_000 if small else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        log = FetchLog(Path(folder), (4 if small else 64) << 20)
        draw, began, making, longest = random.Random(1), time.time(), 0.0, 0.0
        hosts = [f"www.site{draw.randrange(10**9)}.example" for _ in range(50_000)]
        when = began
        for at in range(0, count, 1_000):
            fetches = [made_up(draw, hosts, when + n / 1_000) for n in range(1_000)]
            when += 1.0
            start = time.perf_counter()
            for fetch in fetches:
                log.add(format_line(fetch), fetch.time)
            middle = time.perf_counter()
            log.flush()
            longest = max(longest, time.perf_counter() - middle)
            making += time.perf_counter() - start
            if at % 1_000_000 == 0:
                print(f"\r{at:,} lines", end="", flush=True)
        log.close()
        print(
            f"\r{count:,} lines: {making / count * 1e6:.1f} µs each, longest flush of 1,000 lines "
            f"{longest * 1_000:.1f} ms, {sum(f.stat().st_size for f in Path(folder).iterdir()):,} "
            "bytes in the end", flush=True,
        )  # fmt: skip
        for name, since in (("all of it", 0.0), ("the last tenth", when - count / 10_000)):
            start = time.perf_counter()
            wanted = FetchFilter.parse(hosts[7])
            found = sum(1 for _ in FetchLogReader(Path(folder)).lines(wanted, since))
            took = time.perf_counter() - start
            print(f"one host in {name}: {found} lines in {took:.1f} s", flush=True)


def made_up(draw: random.Random, hosts: list[str], when: float) -> FetchLine:
    """A fetch as a crawl has them: paths and vias that are alike, digests that are not."""
    host = draw.choice(hosts)
    page = f"http://{host}/{draw.choice('abcdefgh')}/news/{draw.randrange(100_000)}.html"
    digest = b32encode(draw.randbytes(20)).decode()
    return FetchLine(
        when, 200, draw.randrange(500, 60_000), draw.randrange(5, 900), page,
        f"http://{host}/{draw.choice('abcdefgh')}/", draw.randrange(9), "text/html", digest,
        f"192.0.{draw.randrange(256)}.{draw.randrange(256)}", "success",
    )  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a few hundred pages")
    parser.add_argument("part", nargs="?", choices=["volumes", "reading"], help="only this")
    options = parser.parse_args()
    if options.part != "reading":
        volumes(options.small)
    if options.part != "volumes":
        reading(options.small)


if __name__ == "__main__":
    main()
