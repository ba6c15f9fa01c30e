"""Politeness and speed, both read from the server's log: the suite, and plain Scrapy beside it.

    python benchmarks/politeness.py            # full size: 1,000 hosts, some 8 minutes
    python benchmarks/politeness.py --small    # for CI: does it run at all

The web has 1,000 hosts on 300 addresses, with redirects, hosts that begin with 429 or 503 and a
Retry-After, and hosts with a Crawl-delay; connections are kept alive. For each crawl it prints
the requests that came sooner than promised after the last answer of their host or address, and
the time of an optimal schedule of the same fetches over the time that they took (see
``scrapy_spider_suite/testing/arrivals.py``). Needs Pillow for the images.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from peers import BROAD_SCRAPY, measure

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.crawls import crawl
from support.polite_crawls import FULL, SMALL, Size, elsewhere, pages_of

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


def _report(name: str, size: Size, arrivals: list[Arrival]) -> None:
    early = size.too_early(arrivals)
    print(
        f"{name:34} {len(pages_of(arrivals)):7,} pages in {seconds_of(pages_of(arrivals)):6.1f} s, "
        f"{len(early):6,} of {len(arrivals):,} requests too early, "
        f"{size.efficiency(arrivals):7.2%} of optimal", flush=True,
    )  # fmt: skip
    for each in early[:3]:
        print("   ", each)


def _suite(case: Case, size: Size, folder: Path) -> None:
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
    if not case.images:
        _report(case.name, size, arrivals)
        return
    _report(case.name, size, elsewhere(arrivals))
    gallery = [each for each in arrivals if each not in set(elsewhere(arrivals))]
    (least,) = gaps(gallery, "host").values()
    images = sum(each.path.startswith("/img") for each in gallery)
    print(f"    {images:,} images of one host, none sooner than {least.smallest:.4f} s")


def _plain(size: Size, folder: Path) -> None:
    log = folder / "arrivals"
    log.unlink(missing_ok=True)
    with FakeWebProcess(size.web(log)) as web:
        graph = web.web
        table = folder / "names.json"
        names = {
            graph.host_name(i): address_text(graph.address_index(i)) for i in range(len(graph))
        }
        table.write_text(json.dumps(names))
        settings = {
            **BROAD_SCRAPY, "RETRY_ENABLED": True, "DOWNLOAD_DELAY": size.host_delay,
            "ROBOTSTXT_OBEY": True, "CLOSESPIDER_TIMEOUT": 30 * size.host_delay,
        }  # fmt: skip
        job = {"spider": "plain", "settings": settings, "dns": str(table)}
        measure({**job, "seeds": list(web.ready.seeds)})
        web.stop()
        arrivals = web.arrivals()
    early = size.too_early(arrivals)
    print(
        f"{'plain Scrapy, DOWNLOAD_DELAY':34} {len(pages_of(arrivals)):7,} pages in "
        f"{seconds_of(arrivals):6.1f} s (stopped then), {len(early):6,} of {len(arrivals):,} "
        f"requests too early", flush=True,
    )  # fmt: skip
    for each in early[:3]:
        print("   ", each)


def main() -> None:
    """Crawl and print a line for each crawl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="60 hosts, delays a tenth")
    parser.add_argument("--only", help="the one case whose name begins so")
    options = parser.parse_args()
    size = SMALL if options.small else FULL
    images = 50 if options.small else 1000
    pipeline = {"ITEM_PIPELINES": {"scrapy.pipelines.images.ImagesPipeline": 1}}
    cases = [
        Case("suite"),
        Case("suite, Scrapy's robots middleware",
             settings={"DOWNLOADER_MIDDLEWARES": _SCRAPYS_ROBOTS}, keeps_crawl_delay=False),
        Case("suite, images from one host", "support.odd_spiders.Pictures", pipeline, images),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in cases:
            if case.name.startswith(options.only or ""):
                _suite(case, size, folder)
        if "plain".startswith(options.only or "plain"):
            _plain(size, folder)


if __name__ == "__main__":
    main()
