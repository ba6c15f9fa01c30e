"""What the sliding windows cost: ``python benchmarks/windows.py [--small]``.

The same web is crawled in virtual time without a window and with each of them, under the same
delays, which are checked at every transfer. Nothing depends on the machine: the figures are those
of the schedule.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.virtual_crawl import POLICY, Crawl, Web

from scrapy_spider_suite.frontier.entries import BottomUp
from scrapy_spider_suite.frontier.windows import Window
from scrapy_spider_suite.store.rocks_store import RocksStore

WINDOWS = (("none", 0), ("top", 10), ("top", 100), ("top", 1_000), ("leaf", 5), ("leaf", 100))


def measure(kind: str, size: int, hosts: int, pages: int) -> str:
    """One row: pages a second, most hosts in memory, the least and mean time between two of one."""
    web = Web({f"h{n}.t": f"10.0.{n // 250}.{n % 250}" for n in range(hosts)}, seconds=(0.05, 2.0))
    with tempfile.TemporaryDirectory() as folder:
        store = RocksStore(Path(folder) / "store", memory=16 << 20)
        crawl = Crawl(
            store, web, POLICY, capacity=1_000, seats=500, window=Window.from_settings(kind, size),
            order=BottomUp(alternating=kind == "leaf"),
        )  # fmt: skip
        most = 0

        def page(_: object) -> None:
            nonlocal most
            most = max(most, len(crawl.frontier.workbench.hosts))

        crawl.on_page = page
        crawl.seed(*(f"http://{host}/{n}" for n in range(pages) for host in web.addresses))
        crawl.run()
        assert len(set(crawl.urls)) == hosts * pages
        rate = len(crawl.fetches) / max(fetch.end for fetch in crawl.fetches)
        gaps = [gap for host in web.addresses for gap in gaps_of(crawl, host)]
        store.close()
    return (
        f"{kind:5} {size or '':>6} {rate:8.1f} {most:8,} {min(gaps):9.1f} "
        f"{sum(gaps) / len(gaps):9.1f}"
    )


def gaps_of(crawl: Crawl, host: str) -> list[float]:
    """The seconds between the visits of *host*."""
    visits = [fetch for fetch in crawl.fetches if fetch.host == host]
    return [after.start - before.end for before, after in pairwise(visits)]


def main() -> None:
    """Print the table."""
    hosts, pages = (40, 5) if "--small" in sys.argv else (1_000, 20)
    print(f"{hosts:,} hosts of {pages} pages, an address each; delay 4 s, answers in 0.05 to 2 s")
    print("window  size  pages/s   hosts    least s    mean s")
    for kind, size in WINDOWS:
        print(measure(kind, size, hosts, pages), flush=True)


if __name__ == "__main__":
    main()
