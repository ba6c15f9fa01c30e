"""What link statistics cost a page, and what they take on disk.

    python benchmarks/linkstats.py
    python benchmarks/linkstats.py --small

Made-up pages of 40 links on a store on disk, which is flushed every 200 pages as a crawl does once
a second: with half of the links to other hosts, drawn from many (the worst), and with four links
to other hosts, some of them to those that many link to. The last tenth of the pages is timed, when
the rows no longer fit into the store's memory: CPU time of the crawl's thread, with the rows' share
of the flush; and the longest of all saves.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from scrapy_spider_suite.analysis.link_stats import LinkStats, PageFacts, degree_counts
from scrapy_spider_suite.store.rocks_store import RocksStore

LINKS, BATCH = 40, 200


def page(draw: random.Random, hosts: int, external: int) -> PageFacts:
    """A page of one of *hosts* hosts, with *external* links to others."""
    own = f"http://www.h{draw.randrange(hosts)}.test"
    links = [f"{own}/p/{draw.randrange(10**6)}.html" for _ in range(LINKS - external)]
    for _ in range(external):
        other = int(hosts * draw.random() ** 3)  # some hosts are linked to by many
        links.append(f"http://www.h{other}.test/x/{draw.randrange(1000)}")
    size = int(draw.lognormvariate(9, 1))
    return PageFacts(f"{own}/{draw.random()}", 200, "text/html", size, "en", links)


def cost(folder: Path, pages: int, hosts: int, external: int) -> None:
    """Count *pages* pages and print what it took."""
    draw = random.Random(1)
    store = RocksStore(folder / f"{external}")
    stats = LinkStats(store.kv("links"))
    spent, longest = 0.0, 0.0
    for number in range(0, pages, BATCH):
        batch = [page(draw, hosts, external) for _ in range(BATCH)]
        began = time.thread_time()
        for each in batch:
            stats.page(each)
        save = time.thread_time()
        stats.save()
        longest = max(longest, time.thread_time() - save)
        store.flush()
        if number >= pages * 9 // 10:
            spent += time.thread_time() - began
    began = time.thread_time()
    hosts = sum(degree_counts(stats)["in_hosts"].values())
    seconds = time.thread_time() - began
    edges = sum(1 for _ in stats.edges())
    print(
        f"{LINKS} links, {external:2} to other hosts: {spent / (pages / 10) * 1e6:5.0f} us a page, "
        f"longest save {longest * 1e3:.0f} ms; after {pages:,} pages {hosts:,} hosts and "
        f"{edges:,} edges between them, {store.size() / (hosts + edges):.0f} bytes each, "
        f"report {seconds:.1f} s"
    )
    store.close()


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--small", action="store_true", help="a few thousand pages")
    pages, hosts = (2_000, 500) if parser.parse_args().small else (200_000, 200_000)
    with tempfile.TemporaryDirectory() as folder:
        for external in (4, LINKS // 2):
            cost(Path(folder), pages, hosts, external)


if __name__ == "__main__":
    main()
