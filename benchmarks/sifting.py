"""What a link costs in a crawl, with each way of knowing what was seen: plain, trie and sieve.

Run: ``python benchmarks/sifting.py`` for a web of a million pages, ``--pages`` for another number
of them, ``--kind sieve`` for one way alone, ``--small`` to see that it runs. Every way is a crawl
in a process of its own, without a network: pages are leased, bring ten links each, and are
committed with status 200, until all are done. One link in five leads to a new page as long as there
are any; of the others half lead to one of the last 10,000 that were found, and half anywhere. The
cache has room for one page in sixteen, the database 64 MB.

Microseconds of CPU of the crawl's thread a link: *offer* with the commit of its page, *sift* when
the sieve has decided; *page* is everything else, a page. *beside* is CPU that others used, a link:
the thread that flushes, the process that builds tries. *move* is what moving to the trie takes of
the crawl's thread. Then the longest step of a flush, and portion of *sift*, in milliseconds of CPU;
the peak of resident memory; bytes on disk a page that was found, of the database and of what lies
beside it, half-way and at the end.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Thread

from scrapy_spider_suite.crawl.queue.frontier import Frontier, QueueOptions
from scrapy_spider_suite.crawl.queue.leases import Lease
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import Event, Pace
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.seen.sieve import Flush
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.seen_index import ARCHIVE_FOLDER as ARCHIVE
from scrapy_spider_suite.store.seen_index import DROPPED, Archive, SieveIndex
from scrapy_spider_suite.store.seen_index import SIEVE_FOLDER as SIEVE
from scrapy_spider_suite.store.seen_transfer import Archiver, make_archiver

KINDS = ("plain", "trie", "sieve")
LINKS = 10
"""Links of a page."""
RECENT = 10_000
WALL = 1_800_000_000.0
MEMORY = 64 << 20
AT_ONCE = 16
PORTION = 0.005
"""Seconds for which new links are scheduled before anyone else has a turn, as in a crawl."""
HEAD = (
    "kind        pages offer  sift  page  move beside step ms sift ms max MB "
    "db B/2 +B/2  db B   +B"
)


def url_of(number: int, hosts: int) -> str:
    """A URL of common length."""
    host = f"www.host-{number % hosts}.example.com"
    return f"https://{host}/some/folder/of/articles/page-{number // hosts:06}.html"


class Measured:
    """A crawl of *pages* pages in *folder*."""

    def __init__(self, kind: str, folder: Path, pages: int, waiting: int) -> None:
        self.times = dict.fromkeys(("offer", "sift", "move", "beside", "all"), 0.0)
        self.longest = {"step": 0.0, "sift": 0.0}
        self._kind, self._folder, self._pages = kind, folder, pages
        self._hosts = max(100, pages // 100)
        self._random = Random(1)
        self._found = 1
        store = RocksStore(folder / "store", memory=MEMORY)
        if kind == "trie":
            store.archive = Archive(folder / ARCHIVE)
        elif kind == "sieve":
            store.sieve = SieveIndex(folder / SIEVE, store.kv(DROPPED), capacity=waiting)
        self._store = store
        # Hosts wait for nobody, so that time is not what is measured.
        policy = Policy(host=Pace(0.0), address=Pace(0.0))
        self._frontier = Frontier(
            store, policy, now=0.0, wall=WALL, capacity=20_000,
            options=QueueOptions(cache=pages, sift=kind == "sieve"),
        )
        self._thread: Thread | None = None
        self._archiver: Archiver | None = make_archiver(
            store, self._frontier.counters, self._frontier.flush
        )

    @contextmanager
    def _measured(self, name: str) -> Iterator[None]:
        began = time.thread_time()
        yield
        self.times[name] += time.thread_time() - began

    def _links(self) -> list[str]:
        """What a page leads to."""
        draw, numbers = self._random.random, []
        for _ in range(LINKS):
            if self._found < self._pages and draw() < 0.2:
                number, self._found = self._found, self._found + 1
            else:
                since = 0 if draw() < 0.5 else max(0, self._found - RECENT)
                number = self._random.randrange(since, self._found)
            numbers.append(number)
        return [url_of(number, self._hosts) for number in numbers]

    def run(self) -> dict[str, float]:
        """Crawl all of it."""
        frontier, row = self._frontier, dict[str, float]()
        with self._measured("all"):
            first = url_of(0, self._hosts)
            frontier.admission.schedule([Entry(first.split("/")[2], first)], 0.0)
        done, now = 0, 0.0
        while frontier.pending or frontier.states.in_sieve or self._thread is not None:
            now += 0.01
            with self._measured("all"):
                done += self._some(now)
                self._keep_house(now)
            if not row and done > self._pages // 2:
                row = {"half_db": self._size("store"), "half_beside": self._beside}
                row |= {"half_found": self._found}
        if done != self._pages or frontier.counters.done != self._pages:
            raise RuntimeError(f"{done} fetched, {frontier.counters.done} done")
        frontier.close()
        self._store.close()
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.times["beside"] += children.ru_utime + children.ru_stime
        return row | self.times | {
            "longest_step": self.longest["step"], "longest_sift": self.longest["sift"],
            "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
            "db": self._size("store"), "beside_size": self._beside,
        }  # fmt: skip

    def _some(self, now: float) -> int:
        """Fetch and commit some pages."""
        frontier = self._frontier
        for host in frontier.residents.unresolved.due(now, 1_000):
            frontier.set_address(host, "192.0.2.1", f"a{host.key}", 1e18, now)
        out: list[Lease] = []
        while len(out) < AT_ONCE and (leases := frontier.leases.acquire(now)):
            out += leases
        for lease in out:
            assert lease.visit is not None
            frontier.workbench.begin(lease.visit.host, lease.visit.address, now, visit=True)
            frontier.workbench.end(lease.visit.host, lease.visit.address, now, visit=True)
            lease.event, lease.status = Event.SUCCESS, 200
            frontier.leases.release(lease, now)
            lease.links = self._links()
            with self._measured("offer"):
                frontier.admission.spill(lease, now)
            frontier.commit.settle(lease, now)
        frontier.flush()
        return len(out)

    def _keep_house(self, now: float) -> None:
        """What a crawl does beside it, as often as it does."""
        if int(now * 100) % 100 == 0:
            self._frontier.tick(now)
        if self._archiver is not None and int(now * 100) % 5 == 0:
            with self._measured("move"):
                self._archiver.step()
        self._sift(now)

    def _sift(self, now: float) -> None:
        sifter = self._frontier.states.sieve_queue
        if sifter is None:
            return
        if self._thread is not None:
            if self._thread.is_alive():
                if not self._frontier.pending:
                    self._thread.join()
                return
            self._thread = None
        if sifter.decided:
            began = time.thread_time()
            with self._measured("sift"):
                for _ in self._frontier.admission.sift(now):
                    if time.thread_time() - began >= PORTION:
                        self._frontier.flush()
                        break
                self.longest["sift"] = max(self.longest["sift"], time.thread_time() - began)
        elif sifter.sieve.full or (sifter.waiting and not self._frontier.pending):
            self._frontier.flush()
            flush = sifter.begin()
            if flush is not None:
                self._thread = Thread(target=self._run, args=(flush,))
                self._thread.start()

    def _run(self, flush: Flush) -> None:
        began = time.thread_time()
        self._store.sync_log()
        more = True
        while more:
            step = time.thread_time()
            more = flush.step()
            self.longest["step"] = max(self.longest["step"], time.thread_time() - step)
        self.times["beside"] += time.thread_time() - began

    def _size(self, name: str) -> int:
        files = (self._folder / name).rglob("*")
        return sum(path.stat().st_size for path in files if path.is_file())

    @property
    def _beside(self) -> int:
        return self._size({"trie": ARCHIVE, "sieve": SIEVE}.get(self._kind, "none"))


def shown(kind: str, pages: int, row: dict[str, float]) -> str:
    """A line of the table."""
    links = pages * LINKS
    rest = row["all"] - row["offer"] - row["sift"] - row["move"]
    found = row["half_found"]
    return (
        f"{kind:6} {pages:10,} {row['offer'] / links * 1e6:5.2f} {row['sift'] / links * 1e6:5.2f} "
        f"{rest / pages * 1e6:5.0f} {row['move'] / links * 1e6:5.2f} "
        f"{row['beside'] / links * 1e6:6.2f} {row['longest_step'] * 1e3:7.1f} "
        f"{row['longest_sift'] * 1e3:7.1f} {row['peak']:6.0f} {row['half_db'] / found:6.0f} "
        f"{row['half_beside'] / found:4.1f} {row['db'] / pages:5.0f} "
        f"{row['beside_size'] / pages:4.1f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="3,000 pages")
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--waiting", type=int, default=1 << 17, help="URLs that wait in memory")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    pages, waiting = options.pages, options.waiting
    if options.small:
        pages, waiting = 3_000, 1_024
    if options.row:
        print(json.dumps(Measured(options.kind, Path(options.row), pages, waiting).run()))
        return
    print(f"a flush every {waiting:,} links\n{HEAD}", flush=True)
    for kind in [options.kind] if options.kind else KINDS:
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable, __file__, "--kind", kind, "--row", folder, "--pages", str(pages),
                "--waiting", str(waiting),
            ]  # fmt: skip
            said = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            print(shown(kind, pages, json.loads(said)), flush=True)


if __name__ == "__main__":
    main()
