"""What remembering URLs costs as it grows: the trie store and Mercator's sieve.

    python -m benchmarks seen --lists FOLDER          # 100 million URLs of each: some two hours
    python -m benchmarks seen --store sieve --urls 10000000

FOLDER holds ``mixed_500k.txt.xz`` and ``sitemaps_300k.txt.xz``, one URL a line; without it,
made-up URLs are taken. The growth is of URLs made from those of the lists: every round, half of the
hosts have other pages, and the other half of them are other hosts. After each tenth there is a row.
The sieve is flushed in a thread whenever a million URLs wait; its *add* is the time of who offers
them. Times are microseconds by URL, CPU time of the calling thread, those of look-ups the best of
nine rounds over a sample. Look-ups are of URLs in no order, each of another host than the one
before, which is the worst order there is. Each store grows in a process of its own.
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
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any

from benchmarks.report import ROOT, Report
from scrapy_spider_suite.frontier.entries import state_key
from scrapy_spider_suite.seen.fingerprints import fingerprint
from scrapy_spider_suite.seen.sieve import Flush, Sieve
from scrapy_spider_suite.seen.trie_store import TrieStore
from scrapy_spider_suite.urls.normalize import host_of

LISTS = ("mixed_500k", "sitemaps_300k")
BATCH = 40
"""URLs of a page."""
SAMPLE = 20_000
BYTES_A_URL = 64
"""Of the memory of a growth, for each URL that waits for a flush of the sieve."""
STORES = ("trie", "sieve")
COLUMNS = (
    "urls", "add", "in", "not in", "url(id)", "bytes", "own MB", "longest cpu ms", "seconds",
)  # fmt: skip
CHARTS = {
    "own memory, MB": "own MB", "disk, bytes a URL": "bytes", "add, µs": "add", "in, µs": "in",
    "not in, µs": "not in", "resident set, MB": "resident MB",
}  # fmt: skip

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


def microseconds(action: Callable[[Any], object], each: Sequence[Any], rounds: int = 9) -> float:
    """CPU time of *action* for one of *each*, the best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.thread_time()
        for one in each:
            action(one)
        best = min(best, time.thread_time() - start)
    return round(best / max(1, len(each)) * 1e6, 2)


def lookups(known: Callable[[Any], object], urls: Sequence[Any], new: Sequence[Any]) -> Row:
    """Times of look-ups of what is known and of what is not."""
    return {"in": microseconds(known, urls), "not in": microseconds(known, new)}


def resident(kind: str = "VmRSS") -> int:
    """Bytes of the resident set; *kind* as in ``/proc/self/status``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) * 1024


def children() -> float:
    """CPU seconds of the processes that have ended, which are the builder's."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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


def _key(url: str) -> bytes:
    return state_key(host_of(url), url)


class Sifting:
    """The sieve as a crawl has it: what is found waits, and a flush in a thread says what is new.

    *spent* is the CPU time of all flushes.
    """

    def __init__(self, folder: Path, capacity: int) -> None:
        self._sieve = Sieve(folder, capacity=capacity)
        self._thread: Thread | None = None
        self.spent = 0.0

    def __contains__(self, url: str) -> bool:
        return self._sieve.parts.has(fingerprint(_key(url), 16))

    def __len__(self) -> int:
        return len(self._sieve)

    @property
    def behind(self) -> bool:
        """Whether a flush is due, and another one under way."""
        return self._sieve.full and self._thread is not None and self._thread.is_alive()

    def add(self, urls: list[str]) -> None:
        """Offer *urls*, and begin a flush if one is due."""
        self._sieve.offer(map(_key, urls))
        if self._sieve.full and not self.behind:
            self._begin()

    def _begin(self) -> None:
        self.wait()
        self._thread = Thread(target=self._run, args=(self._sieve.begin(),))
        self._thread.start()

    def _run(self, flush: Flush) -> None:
        before = time.thread_time()
        flush.run()
        self.spent += time.thread_time() - before

    def wait(self) -> None:
        """Wait for the flush that is under way, and take what it found."""
        if self._thread is not None:
            self._thread.join()
            self._sieve.begin().accept()
            self._thread = None

    def settle(self) -> None:
        """Flush all that waits."""
        self._begin()
        self.wait()

    def close(self) -> None:
        """Let go of the files."""
        self._sieve.close()


def grow(lists: Path | None, count: int, kind: str, memory: int, folder: Path) -> None:
    """Add *count* URLs, and measure before, with the lists in memory, and after each tenth."""
    made = None if lists else min(count, 100_000)
    urls = [url for name in LISTS for url in urls_of(lists, name, made)]
    # Two URLs that differ in nothing but what a round adds would be one.
    urls = list(dict.fromkeys(urls))
    random.Random(2).shuffle(urls)
    trie = kind == "trie"
    store: TrieStore | Sifting
    store = TrieStore(folder, memory=memory) if trie else Sifting(folder, memory // BYTES_A_URL)
    began, waited = time.monotonic(), 0.0
    before = {"resident MB": resident() >> 20, "own MB": resident("RssAnon") >> 20}
    print(json.dumps({"store": kind, "urls": 0} | before), flush=True)
    for tenth in range(10):
        start, stop = count * tenth // 10, count * (tenth + 1) // 10
        spent, longest = 0.0, [0.0, 0.0]
        for batch in batches(grown(urls, start, stop)):
            clock, cpu = time.perf_counter(), time.thread_time()
            store.add(batch)
            cpu = time.thread_time() - cpu
            longest = [max(longest[0], time.perf_counter() - clock), max(longest[1], cpu)]
            spent += cpu
            if store.behind:
                clock = time.monotonic()
                store.wait()
                waited += time.monotonic() - clock
        if isinstance(store, Sifting):
            store.settle()
        row = measured(store, urls, stop, folder) | {
            "add": round(spent / (stop - start) * 1e6, 2), "longest ms": round(longest[0] * 1e3, 1),
            "longest cpu ms": round(longest[1] * 1e3, 1), "held": len(store),
            "waited s": round(waited), "seconds": round(time.monotonic() - began),
        }  # fmt: skip
        print(json.dumps({"store": kind, "urls": stop} | row), flush=True)
    store.close()


def measured(store: TrieStore | Sifting, urls: list[str], stop: int, folder: Path) -> Row:
    """Memory, disk and look-ups of a store that holds the first *stop* grown URLs."""
    draw = random.Random(stop)
    places = [draw.randrange(stop) for _ in range(min(SAMPLE, stop // 4))]
    some = [next(grown(urls, at, at + 1)) for at in places]
    row = lookups(store.__contains__, some, [f"{url}~" for url in some])
    if isinstance(store, TrieStore):
        row["url(id)"] = microseconds(store.url, [store.id(url) for url in some])
        stats = store.stats()
        row |= {"ranges": stats.ranges, "segments": stats.segments, "fresh": stats.fresh}
    else:
        row["flushes s"] = round(store.spent, 1)
    disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return row | {
        "resident MB": resident() >> 20, "own MB": resident("RssAnon") >> 20,
        "disk MB": disk >> 20, "bytes": round(disk / len(store), 1),
        "builder s": round(children()), "builder MB": peak_of_children(),
    }  # fmt: skip


def peak_of_children() -> int:
    """The largest resident set of a process that has ended."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Which store, and how far."""
    parser.add_argument("--lists", type=Path, help="the folder of the real lists")
    parser.add_argument("--urls", type=int, default=100_000_000, help="how many to grow to")
    parser.add_argument("--store", action="append", choices=STORES, help="only this one")
    parser.add_argument("--memory", type=int, default=64, help="MB of what is fresh")
    parser.add_argument("--folder", type=Path, help="where to grow")


def run(options: argparse.Namespace, report: Report) -> None:
    """Let each store grow in a process of its own; it is wrong if a URL is lost."""
    count, memory = options.urls, options.memory << 20
    if options.small:
        count, memory = 4_000, 144 * 4_000
    charts: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for store in options.store or STORES:
        table = report.table(f"{store}, growing to {count:,} URLs", COLUMNS)
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            job = [str(options.lists) if options.lists else None, count, store, memory, folder]
            child = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.seen", json.dumps(job)],
                stdout=subprocess.PIPE, text=True, cwd=ROOT,
            )  # fmt: skip
            with child:
                assert child.stdout is not None
                for line in child.stdout:
                    row = json.loads(line)
                    print(line, end="", flush=True)
                    if row["urls"]:
                        table.rows.append([row.get(column) for column in COLUMNS])
                        if row["held"] != row["urls"]:
                            report.wrong.append(f"{store}: {row['held']} of {row['urls']} URLs")
                    for title, name in CHARTS.items():
                        if name in row:
                            lines = charts.setdefault(title, {}).setdefault(store, [])
                            lines.append((row["urls"] / 1e6, row[name]))
            if child.returncode:
                report.wrong.append(f"{store}: it ended with {child.returncode}")
        report.show(table)
    report.lines("Growth", charts, "million URLs")


if __name__ == "__main__":
    of_lists, to, kind_of, given, place = json.loads(sys.argv[1])
    grow(Path(of_lists) if of_lists else None, to, kind_of, given, Path(place))
