"""One slow host with 100,000 URLs, or full of images, beside 999 quick ones (G3).

    python benchmarks/slow_host.py            # full size: some minutes
    python benchmarks/slow_host.py --small    # for CI: does it run at all

Three webs are crawled: quick hosts only; with a host that takes two seconds for each of its many
pages, all of them among the ``start_urls``; with a host that takes two seconds for each of its many
images. Printed is when the last page of a quick host has come: for a `BroadSpider` of the suite,
for an ordinary spider with the suite's add-on (the spider profile), and for the same spider in
plain Scrapy, with its default queue and with the one it has for broad crawls. A crawl is ended at
that moment, or when it has taken 150 seconds (30 with ``--small``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TABLE: dict[str, str] = {}
"""Addresses by name, for `peers.TableResolver`."""
SLOW = 2.0
PAGES = 10
DELAY = 0.25
SUITE = {
    "ADDONS": {"scrapy_spider_suite.Addon": 500}, "SUITE_HOST_DELAY": DELAY, "SUITE_IP_DELAY": 0.0,
}  # fmt: skip
NAMES = {
    "suite, BroadSpider": {**SUITE, "SUITE_PROFILE": "broad"},
    "suite, ordinary spider": {**SUITE, "SUITE_PROFILE": "spider"},
}
PLAIN = {"DNS_RESOLVER": "peers.TableResolver"}
AWARE = {**PLAIN, "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue"}


def run(job: dict[str, Any]) -> None:
    """Crawl as *job* says, in this process; print when the last quick page came."""
    from scrapy import signals
    from scrapy.crawler import AsyncCrawlerProcess
    from support.odd_spiders import Mixed, Pictures

    TABLE.update(job["names"])
    process = AsyncCrawlerProcess(job["settings"])
    broad = job["settings"].get("SUITE_PROFILE") == "broad"
    crawler = process.create_crawler(Pictures if broad else Mixed)
    began, last = time.monotonic(), 0.0
    quick: set[str] = set()

    def finish() -> None:
        # At once: plain Scrapy ends only after all that it has begun, which takes minutes.
        print(json.dumps({"seconds": last, "missing": job["quick"] - len(quick)}), flush=True)
        os._exit(0)

    def received(response: Any) -> None:
        nonlocal last
        if "//h000000." not in response.url:
            quick.add(response.url)
            last = time.monotonic() - began
            if len(quick) == job["quick"]:
                finish()

    def opened() -> None:
        asyncio.get_running_loop().call_later(job["limit"], finish)

    crawler.signals.connect(received, signals.response_received)
    crawler.signals.connect(opened, signals.spider_opened)
    process.crawl(crawler, seeds=job["seeds"])
    process.start()


def measure(
    web: Any, folder: Path, quick: int, limit: float, settings: dict[str, Any]
) -> str:
    """Crawl *web* in a process of its own."""
    from scrapy_spider_suite.testing.fake_web import address_text

    graph = web.web
    names = {graph.host_name(i): address_text(graph.address_index(i)) for i in range(len(graph))}
    job = folder / "job.json"
    common = {
        "LOG_LEVEL": "ERROR", "TELNETCONSOLE_ENABLED": False, "DOWNLOAD_DELAY": DELAY,
        "DOWNLOAD_DELAY_JITTER": 0, "CONCURRENT_REQUESTS": 100,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
        "IMAGES_STORE": str(folder / "images"), "DOWNLOAD_TIMEOUT": 20,
        "ITEM_PIPELINES": {"scrapy.pipelines.images.ImagesPipeline": 1}, **web.ready.settings,
    }  # fmt: skip
    job.write_text(
        json.dumps(
            {
                "names": names, "quick": quick, "limit": limit, "seeds": str(folder / "seeds"),
                "settings": {**common, **settings},
            }
        )
    )  # fmt: skip
    path = [str(HERE), str(HERE.parent), str(HERE.parent / "tests")]
    path += filter(None, [os.environ.get("PYTHONPATH")])
    done = subprocess.run(
        [sys.executable, str(HERE / "slow_host.py"), "--job", str(job)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    report = json.loads(done.stdout.splitlines()[-1])
    missing = f" ({report['missing']:,} never came)" if report["missing"] else ""
    return f"{report['seconds']:6.1f} s{missing}"


def compare(
    name: str, crawlers: list[dict[str, Any]], hosts: int, traits: dict[str, float], urls: int,
    limit: float,
) -> None:  # fmt: skip
    """Print a line for the web whose host 0 has *traits* and *urls* URLs among the seeds."""
    from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess

    shared = hosts // 4
    # Whoever shares an address with the slow host has to wait for it: that is promise 1.
    overrides: dict[int, dict[str, float]] = {
        host: {"address": host % shared} for host in range(hosts)
    }
    overrides[0] = {"address": shared, **traits}
    config = FakeWebConfig(
        hosts=hosts, addresses=shared + 1, pages=PAGES, degree=5, external=0.0, latency=0.01,
        overrides=overrides,
    )  # fmt: skip
    quick = (hosts - 1) * PAGES
    with FakeWebProcess(config) as web, tempfile.TemporaryDirectory() as folder:
        roots = web.web.roots()
        many = (web.web.base(0) + web.web.path(page) for page in range(1, urls))
        Path(folder, "seeds").write_text("\n".join([*roots[bool(not traits) :], *many]))
        results = [
            measure(web, Path(folder), quick, limit, settings)
            for settings in crawlers
        ]
    print(f"{name:28}" + "".join(f"{each:>30}" for each in results), flush=True)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="30 hosts, 1,000 URLs, 50 images")
    parser.add_argument("--suite", action="store_true", help="without plain Scrapy")
    parser.add_argument("--hosts", type=int, help="so many hosts, the slow one included")
    parser.add_argument("--urls", type=int, help="so many slow URLs")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        run(json.loads(Path(options.job).read_text()))
        return
    hosts, urls, images = (30, 1_000, 50) if options.small else (1_000, 100_000, 1_000)
    hosts, urls = options.hosts or hosts, options.urls or urls
    limit = 30.0 if options.small else 150.0
    names = {**NAMES, "plain Scrapy": PLAIN, "plain, aware of slots": AWARE}
    if options.suite:
        names = NAMES
    crawlers = list(names.values())
    print(f"{'last quick page after':28}" + "".join(f"{each:>30}" for each in names))
    slow = {"latency": SLOW}
    compare("quick hosts only", crawlers, hosts, {}, 0, limit)
    compare(f"and {urls:,} slow URLs", crawlers, hosts, {**slow, "pages": urls}, urls, limit)
    gallery = {**slow, "images": images // PAGES, "pages": PAGES}
    compare(f"and {images:,} slow images", crawlers, hosts, gallery, 0, limit)


if __name__ == "__main__":
    main()
