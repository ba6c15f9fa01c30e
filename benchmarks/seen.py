"""What remembering URLs costs: the trie store, beside what others use, and as it grows.

    python benchmarks/seen.py table [--small] [--lists FOLDER]
    python benchmarks/seen.py grow [--urls 100000000] [--store sieve] [--small] [--lists FOLDER]
    python benchmarks/seen.py crawl --urls 20000 [--store plain] [--small]
    python benchmarks/seen.py plot --folder FOLDER

FOLDER holds ``mixed_500k.txt.xz`` and ``sitemaps_300k.txt.xz``, one URL a line; without it,
made-up URLs are taken. What the first two print, in ``table.txt`` and ``grow*.jsonl`` of the last
one's FOLDER, becomes its charts.

Times are microseconds by URL, CPU time of the calling thread (of scrapy-redis, which waits for its
server, by the clock); those of look-ups the best of nine rounds over a sample. Look-ups are in the
state in which a crawl runs, *steady*: most of the list in base segments, a tenth in recent ones, a
twentieth in no segment yet. They are of URLs in no order, each of another host than the one before,
which is the worst order there is; *of pages* are those of URLs as links come, forty of one host or
of a few in a row, the pages in no order.

Each store of the table is measured in a process of its own. Sizes are bytes on disk of the trie
stores, of memory of the others: of the nodes as KSpider's C++ would lay them out, as Redis says,
as the Bloom filter says, and what the resident set grew by.

The crawl is a real one, of the in-vitro web, to its end: what its job keeps of the pages that are
done, by the text of their URLs, and what it costs. With ``--store plain`` everything stays in rows.

The growth is of URLs made from those of the lists: every round, half of the hosts have other pages,
and the other half of them are other hosts. After each tenth there is a line of JSON. The sieve is
flushed in a thread whenever a million URLs wait; its "add" is the time of who offers them.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from charts import bar_chart, line_charts
from growing import (
    LISTS,
    SAMPLE,
    Row,
    batches,
    children,
    grow,
    lookups,
    microseconds,
    of_pages,
    once,
    resident,
    sampled,
    urls_of,
)  # fmt: skip
from kspider import AvlStore
from marisa_trie import HUGE_CACHE, BinaryTrie
from peers import SUITE, measure
from redis_server import redis_server

from scrapy_spider_suite.seen import TrieStore
from scrapy_spider_suite.seen.segments import BASE_TRIES
from scrapy_spider_suite.testing import FakeWebConfig, FakeWebProcess

ERROR_RATE = 0.001
"""Of the Bloom filter: the share of new URLs that it takes for known."""
TREE_URLS = 100_000
"""The tree in Python takes a second for some thousand URLs; its ratio falls little beyond these."""

ROUND_TRIPS = 100_000
"""URLs for scrapy-redis, which asks its server about each."""


# The stores of the table


def trie(urls: list[str], folder: Path, ids: bool) -> Row:
    """The trie store, in steady state and compacted."""
    text = sum(len(url.encode()) for url in urls)
    with TrieStore(folder / "seen", ids=ids) as store:
        most, recent = len(urls) * 17 // 20, len(urls) * 19 // 20
        row: Row = {"add": once(store.add, batches(urls[:most]), most)}
        store.flush()
        store.add(urls[most:recent])
        store.flush()
        store.add(urls[recent:])
        some = sampled(urls)
        row |= lookups(store.__contains__, some, [f"{url}~" for url in some])
        links = of_pages(urls)
        row["in, of pages"] = microseconds(store.__contains__, links)
        if ids:
            row["url(id)"] = microseconds(store.url, [store.id(url) for url in some])
            row["of pages"] = microseconds(store.url, [store.id(url) for url in links])
        row["steady bytes"] = round(store.stats().size / len(store), 1)
        before = children()
        store.compact()
        row["build"] = round((children() - before) / len(urls) * 1e6, 2)
        stats = store.stats()
        row |= {"bytes": round(stats.size / len(store), 1), "ratio": round(stats.size / text, 3)}
    return row


def bare(urls: list[str], folder: Path) -> Row:
    """One trie and nothing else: the least that a look-up can cost; "add" is its being built."""
    keys = [url.encode() for url in urls]
    start = time.thread_time()
    made = BinaryTrie(keys, num_tries=BASE_TRIES, cache_size=HUGE_CACHE)
    row: Row = {"add": round((time.thread_time() - start) / len(keys) * 1e6, 2)}
    some = [url.encode() for url in sampled(urls)]
    row |= lookups(made.__contains__, some, [key + b"~" for key in some])
    links = [url.encode() for url in of_pages(urls)]
    row["in, of pages"] = microseconds(made.__contains__, links)
    row["url(id)"] = microseconds(made.restore_key, [made.key_id(key) for key in some])
    row["of pages"] = microseconds(made.restore_key, [made.key_id(key) for key in links])
    return row | sized(len(made.tobytes()), keys)


def avl(urls: list[str], folder: Path) -> Row:
    """KSpider's tree."""
    store = AvlStore()
    keys = [url.encode() for url in urls[:TREE_URLS]]
    row: Row = {"urls": len(keys), "add": once(store.add, keys, len(keys))}
    some = [url.encode() for url in sampled(urls[:TREE_URLS])[: SAMPLE // 10]]
    row |= lookups(store.__contains__, some, [key + b"~" for key in some])
    row["url(id)"] = microseconds(store.get, random.Random(1).sample(range(len(keys)), len(some)))
    return row | sized(store.size, keys)


def requests_of(urls: Iterable[str]) -> list[Any]:
    """Requests; without those of the URLs that Scrapy refuses, which are a few."""
    from scrapy import Request

    made = []
    for url in urls:
        with suppress(ValueError):
            made.append(Request(url))
    return made


def scrapy(urls: list[str], folder: Path) -> Row:
    """Scrapy's own, in memory; "in" is a request that is there already."""
    from scrapy.dupefilters import RFPDupeFilter

    filter_ = RFPDupeFilter()
    filter_.request_seen(requests_of(["http://first.example/"])[0])
    some, before = sampled(urls), resident()
    seconds = 0.0
    for batch in batches(urls):
        requests = requests_of(batch)
        start = time.thread_time()
        for request in requests:
            filter_.request_seen(request)
        seconds += time.thread_time() - start
    row: Row = {"add": round(seconds / len(urls) * 1e6, 2)}
    size = resident() - before
    row["in"] = microseconds(filter_.request_seen, requests_of(some), rounds=1)
    return row | sized(size, [url.encode() for url in urls])


def scrapy_redis(urls: list[str], folder: Path) -> Row:
    """scrapy-redis's, with the memory of its Redis."""
    from scrapy_redis.dupefilter import RFPDupeFilter

    with redis_server(folder) as server:
        filter_ = RFPDupeFilter(server, "seen")
        before = server.info("memory")["used_memory"]
        urls = urls[:ROUND_TRIPS]
        requests = requests_of(urls)
        start = time.perf_counter()
        for request in requests:
            filter_.request_seen(request)
        row: Row = {"add": round((time.perf_counter() - start) / len(urls) * 1e6, 2)}
        used = server.info("memory")["used_memory"] - before
        start = time.perf_counter()
        for request in requests_of(sampled(urls)):
            filter_.request_seen(request)
        row["in"] = round((time.perf_counter() - start) / len(sampled(urls)) * 1e6, 2)
    return row | sized(used, [url.encode() for url in urls])


def bloom(urls: list[str], folder: Path) -> Row:
    """A Bloom filter, which is wrong now and then."""
    from rbloom import Bloom

    filter_ = Bloom(len(urls), ERROR_RATE)
    row: Row = {"add": once(filter_.add, urls, len(urls))}
    some = sampled(urls)
    row |= lookups(filter_.__contains__, some, [f"{url}~" for url in some])
    return row | sized(filter_.size_in_bits // 8, [url.encode() for url in urls])


def sized(size: int, keys: list[bytes]) -> Row:
    """Bytes a URL, and the share of the text."""
    text = sum(map(len, keys))
    return {"bytes": round(size / len(keys), 1), "ratio": round(size / text, 3)}


STORES: dict[str, Callable[[list[str], Path], Row]] = {
    "trie": lambda urls, folder: trie(urls, folder, ids=False),
    "trie with ids": lambda urls, folder: trie(urls, folder, ids=True),
    "marisa-trie": bare,
    "KSpider's tree": avl,
    "Scrapy": scrapy,
    "scrapy-redis": scrapy_redis,
    "Bloom filter": bloom,
}
COLUMNS = (
    "ratio", "bytes", "steady bytes", "add", "in", "in, of pages", "not in", "url(id)", "of pages",
    "build",
)  # fmt: skip


def table(lists: Path | None, small: bool) -> None:
    """A line for each list and store."""
    print(f"{'':13} {'':15}" + "".join(f"{column:>13}" for column in COLUMNS))
    for name in LISTS:
        for store in STORES:
            command = [sys.executable, __file__, "one", "--name", name, "--store", store]
            command += ["--lists", str(lists)] if lists else []
            command += ["--small"] if small else []
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                why = (done.stderr.splitlines() or ["no reason"])[-1]
                print(f"{name:13} {store:15} not measured: {why}", flush=True)
                continue
            row = json.loads(done.stdout)
            cells = "".join(f"{row.get(column, ''):>13}" for column in COLUMNS)
            print(f"{name:13} {store:15}{cells}", flush=True)


def one(lists: Path | None, name: str, store: str, small: bool) -> None:
    """Measure one store and print a line of JSON."""
    urls = urls_of(lists, name, 5_000 if small else None)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(STORES[store](urls, Path(folder))))


def crawl(pages: int, store: str) -> None:
    """Crawl some *pages* of the in-vitro web with SUITE_SEEN_STORE = *store*, and print a line."""
    config = FakeWebConfig(
        hosts=pages // 50, addresses=max(1, pages // 500), pages=50, degree=20, page_size=2_000
    )
    with FakeWebProcess(config) as web, tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        settings = {
            **SUITE, **web.ready.settings, "JOBDIR": str(job), "ROBOTSTXT_OBEY": False,
            "SUITE_SEEN_STORE": store, "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0,
            "SUITE_IP_CONCURRENCY": 0, "SUITE_HOST_CONCURRENCY": 4, "SUITE_FETCH_LOG": False,
        }  # fmt: skip
        spider = {"spider": "bulk", "settings": settings, "seeds": list(web.ready.seeds)}
        report = measure(spider, timeout=7_200)
        row: Row = {
            "store": store, "reason": report["reason"], "pages": report["pages"],
            "seconds": round(report["seconds"]),
            "cpu_us": round(report["cpu"] / report["pages"] * 1e6),
            "cpu_of_children_us": round(report["cpu_of_children"] / report["pages"] * 1e6),
            "database": _size(job / "suite" / "store"),
        }  # fmt: skip
        if (seen := job / "suite" / "seen").exists():
            with TrieStore(seen, readonly=True) as urls:
                text = sum(len(url.encode()) for url in urls)
                row |= {
                    "archived": len(urls), "text": text, "size": _size(seen),
                    "fresh": urls.stats().fresh, "ratio": round(_size(seen) / max(1, text), 3),
                }  # fmt: skip
        print(json.dumps(row), flush=True)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# The charts


def plot(folder: Path) -> None:
    """Charts of the printed table and of growths in *folder*, beside them."""
    rows = [json.loads(line) for path in sorted(folder.glob("grow*.jsonl")) for line in path.open()]
    charts: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for title, field in CHARTS.items():
        for row in rows:
            if field in row:
                line = charts.setdefault(title, {}).setdefault(row["store"], [])
                line.append((row["urls"] / 1e6, row[field]))
    if charts:
        line_charts(folder / "seen-growth.svg", charts, "million URLs")
    table_of = folder / "table.txt"
    if table_of.exists():
        lines = table_of.read_text().splitlines()[1:]
        ratios = [(line[:29], line[29:].split()[0]) for line in lines if "not mea" not in line]
        bars = [(" ".join(label.split()), float(ratio), ratio) for label, ratio in ratios]
        bar_chart(folder / "seen-sizes.svg", "Size, by the text of the URLs", bars)


CHARTS = {
    "resident set, MB": "resident MB", "own memory, MB": "own MB", "disk, bytes a URL": "bytes",
    "add, µs": "add", "in, µs": "in", "not in, µs": "not in",
}  # fmt: skip


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["table", "grow", "crawl", "one", "plot"])
    parser.add_argument("--lists", type=Path, help="the folder of the real lists")
    parser.add_argument("--small", action="store_true", help="only show that it runs")
    parser.add_argument("--urls", type=int, default=100_000_000, help="how many to grow to")
    parser.add_argument("--store", default="trie", help="trie or sieve; for one, of the table")
    parser.add_argument("--name", default=LISTS[0], help="the list, for one")
    parser.add_argument("--memory", type=int, default=64, help="MB of what is fresh")
    parser.add_argument("--folder", type=Path, help="where to grow, or of what to plot")
    options = parser.parse_args()
    if options.what == "table":
        table(options.lists, options.small)
    elif options.what == "plot":
        plot(options.folder)
    elif options.what == "one":
        one(options.lists, options.name, options.store, options.small)
    elif options.what == "crawl":
        crawl(2_000 if options.small else options.urls, options.store)
    else:
        count, memory = options.urls, options.memory << 20
        if options.small:
            count, memory = 20_000, 32 * 8_000
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            grow(options.lists, count, options.store, memory, Path(folder))


if __name__ == "__main__":
    main()
