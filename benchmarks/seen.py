"""What remembering URLs costs: the trie store, beside what others use, and as it grows.

    python benchmarks/seen.py table [--small] [--lists FOLDER]
    python benchmarks/seen.py grow [--urls 100000000] [--store sieve] [--small] [--lists FOLDER]

FOLDER holds ``mixed_500k.txt.xz`` and ``sitemaps_300k.txt.xz``, one URL a line; without it,
made-up URLs are taken. Times are microseconds by URL, CPU time of the calling thread (scrapy-redis,
which waits for its server: by the clock); those of look-ups the best of three rounds over a sample.
Look-ups are in the state in which a crawl runs, *steady*: most of the list in base segments, a
tenth in recent ones, a twentieth in no segment yet.

Each store of the table is measured in a process of its own. Sizes are bytes on disk of the trie
stores, of memory of the others: of the nodes as KSpider's C++ would lay them out, as Redis says,
as the Bloom filter says, and what the resident set grew by.

The growth is of URLs made from those of the lists: every round, half of the hosts have other pages,
and the other half of them are other hosts. After each tenth there is a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from kspider import AvlStore
from redis_server import redis_server

from scrapy_spider_suite.seen import SieveSet, TrieStore

LISTS = ("mixed_500k", "sitemaps_300k")
BATCH = 40
"""URLs of a page."""
SAMPLE = 20_000
ERROR_RATE = 0.001
"""Of the Bloom filter: the share of new URLs that it takes for known."""
TREE_URLS = 100_000
"""The tree in Python takes a second for some thousand URLs; its ratio falls little beyond these."""

ROUND_TRIPS = 100_000
"""URLs for scrapy-redis, which asks its server about each."""

Row = dict[str, Any]


def urls_of(lists: Path | None, name: str, count: int | None = None) -> list[str]:
    """The URLs of a list, each once, or as many made up."""
    if lists is None:
        draw = random.Random(name)
        words = [f"{draw.randrange(1 << 40):x}"[: draw.randint(3, 9)] for _ in range(400)]
        hosts = [f"https://www.{draw.choice(words)}{n}.example/" for n in range(300)]
        made = (
            draw.choice(hosts) + "/".join(draw.choices(words, k=draw.randint(1, 4))) + f"-{n}.html"
            for n in range(count or 100_000)
        )
        return list(made)
    with lzma.open(lists / f"{name}.txt.xz") as file:
        lines = (line.rstrip(b"\n").decode("utf-8", "replace") for line in file)
        return list(islice(dict.fromkeys(lines), count))


def batches(urls: Iterable[str], size: int = BATCH) -> Iterator[list[str]]:
    """The links of page after page."""
    rest = iter(urls)
    while batch := list(islice(rest, size)):
        yield batch


def microseconds(action: Callable[[Any], object], each: Sequence[Any], rounds: int = 3) -> float:
    """CPU time of *action* for one of *each*, the best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.thread_time()
        for one in each:
            action(one)
        best = min(best, time.thread_time() - start)
    return round(best / max(1, len(each)) * 1e6, 2)


def once(action: Callable[[Any], object], each: Iterable[Any], count: int) -> float:
    """Like `microseconds`, for what can be done once only; *count* URLs are in all of *each*."""
    start = time.thread_time()
    for one in each:
        action(one)
    return round((time.thread_time() - start) / count * 1e6, 2)


def lookups(known: Callable[[Any], object], urls: Sequence[Any], new: Sequence[Any]) -> Row:
    """Times of look-ups of what is known and of what is not."""
    return {"in": microseconds(known, urls), "not in": microseconds(known, new)}


def sampled(urls: Sequence[str], seed: int = 1) -> list[str]:
    """Some of *urls*, in no order."""
    return random.Random(seed).sample(urls, min(SAMPLE, len(urls)))


def children() -> float:
    """CPU seconds of the processes that have ended, which are the builder's."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
        if ids:
            row["url(id)"] = microseconds(store.url, [store.id(url) for url in some])
        row["steady bytes"] = round(store.stats().bytes_a_url, 1)
        before = children()
        store.compact()
        row["build"] = round((children() - before) / len(urls) * 1e6, 2)
        stats = store.stats()
        row |= {"bytes": round(stats.bytes_a_url, 1), "ratio": round(stats.size / text, 3)}
    return row


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


def resident(kind: str = "VmRSS") -> int:
    """Bytes of the resident set; *kind* as in ``/proc/self/status``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) * 1024


STORES: dict[str, Callable[[list[str], Path], Row]] = {
    "trie": lambda urls, folder: trie(urls, folder, ids=False),
    "trie with ids": lambda urls, folder: trie(urls, folder, ids=True),
    "KSpider's tree": avl,
    "Scrapy": scrapy,
    "scrapy-redis": scrapy_redis,
    "Bloom filter": bloom,
}
COLUMNS = ("ratio", "bytes", "steady bytes", "add", "in", "not in", "url(id)", "build")


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


# The growth


def grown(urls: Sequence[str], start: int, stop: int) -> Iterator[str]:
    """The URLs from *start* to *stop* of an endless list that begins with *urls*."""
    for number in range(start, stop):
        turn, at = divmod(number, len(urls))
        url = urls[at]
        if turn:
            scheme, _, rest = url.partition("://")
            host, _, path = rest.partition("/")
            if at % 2:
                name, dot, end = host.rpartition(".")
                url = f"{scheme}://{name}{turn}{dot}{end}/{path}"
            else:
                folder, _, page = path.rpartition("/")
                url = f"{scheme}://{host}/{folder}{turn}/{page}"
        yield url


def grow(lists: Path | None, count: int, kind: str, memory: int, folder: Path) -> None:
    """Add *count* URLs, and measure after each tenth."""
    urls = [url for name in LISTS for url in urls_of(lists, name)]
    # Two URLs that differ in nothing but what a round adds would be one.
    urls = list(dict.fromkeys(urls))
    random.Random(2).shuffle(urls)
    store: TrieStore | SieveSet
    if kind == "trie":
        store = TrieStore(folder, memory=memory)
    else:
        store = SieveSet(folder)
    began, held, waited = time.monotonic(), 0, 0.0
    for tenth in range(10):
        start, stop = count * tenth // 10, count * (tenth + 1) // 10
        spent, longest, called, new = 0.0, [0.0, 0.0], 0, 0
        for batch in batches(grown(urls, start, stop)):
            clock, cpu = time.perf_counter(), time.thread_time()
            new += len(store.add(batch))
            if kind == "sieve" and not called % 100:
                store.poll()
            cpu = time.thread_time() - cpu
            longest = [max(longest[0], time.perf_counter() - clock), max(longest[1], cpu)]
            spent, called = spent + cpu, called + 1
            if isinstance(store, TrieStore) and store.behind:
                clock = time.monotonic()
                store.wait()
                waited += time.monotonic() - clock
        held += new
        row = measured(store, urls, stop, folder) | {
            "add": round(spent / (stop - start) * 1e6, 2), "longest ms": round(longest[0] * 1e3, 1),
            "longest cpu ms": round(longest[1] * 1e3, 1), "held": held,
            "waited s": round(waited), "seconds": round(time.monotonic() - began),
        }  # fmt: skip
        print(json.dumps({"store": kind, "urls": stop} | row), flush=True)
    store.close()


def measured(store: TrieStore | SieveSet, urls: list[str], stop: int, folder: Path) -> Row:
    """Memory, disk and look-ups of a store that holds the first *stop* grown URLs."""
    draw = random.Random(stop)
    places = [draw.randrange(stop) for _ in range(min(SAMPLE, stop // 4))]
    some = [next(grown(urls, at, at + 1)) for at in places]
    row = lookups(store.__contains__, some, [f"{url}~" for url in some])
    if isinstance(store, TrieStore):
        row["url(id)"] = microseconds(store.url, [store.id(url) for url in some])
        stats = store.stats()
        row |= {"ranges": stats.ranges, "segments": stats.segments, "fresh": stats.fresh}
    disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return row | {
        "resident MB": resident() >> 20, "own MB": resident("RssAnon") >> 20,
        "disk MB": disk >> 20, "bytes": round(disk / len(store), 1),
        "builder s": round(children()), "builder MB": peak_of_children(),
    }  # fmt: skip


def peak_of_children() -> int:
    """The largest resident set of a process that has ended."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["table", "grow", "one"])
    parser.add_argument("--lists", type=Path, help="the folder of the real lists")
    parser.add_argument("--small", action="store_true", help="only show that it runs")
    parser.add_argument("--urls", type=int, default=100_000_000, help="how many to grow to")
    parser.add_argument("--store", default="trie", help="trie or sieve; for one, of the table")
    parser.add_argument("--name", default=LISTS[0], help="the list, for one")
    parser.add_argument("--memory", type=int, default=64, help="MB of the index of fresh URLs")
    parser.add_argument("--folder", type=Path, help="where to grow; else a temporary one")
    options = parser.parse_args()
    if options.what == "table":
        table(options.lists, options.small)
    elif options.what == "one":
        one(options.lists, options.name, options.store, options.small)
    else:
        count, memory = options.urls, options.memory << 20
        if options.small:
            count, memory = 20_000, 32 * 8_000
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            grow(options.lists, count, options.store, memory, Path(folder))


if __name__ == "__main__":
    main()
