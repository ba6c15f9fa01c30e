"""What Mercator's sieve takes as it grows: memory, disk, and time per URL and per flush.

Run: ``python benchmarks/sieve.py`` for 100 million URLs, ``--urls`` for another number of them,
``--bits 64`` for the narrower fingerprints, ``--small`` to see that it runs. One line for every
tenth of them: what an `offer` cost a URL on the caller's thread; how long a flush took in a thread
beside it, and for how long at most the caller's thread was kept from running meanwhile; how long a
URL takes to be looked up; resident memory, now and at most; bytes a URL on disk.

The URLs are of 100,000 hosts. One in four has been offered before.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from scrapy_spider_suite.frontier.keys import state_key
from scrapy_spider_suite.seen import Sieve

HOSTS = 100_000
PAGE = 40
"""Links that are offered at once."""
LOOKS = 5_000


@dataclass(frozen=True)
class Point:
    """The sieve at one moment; times are those since the point before it."""

    known: int
    offer: float
    """Microseconds a URL."""
    flush: float
    """Seconds, of all flushes together."""
    flushes: int
    longest: float
    """Milliseconds that the caller's thread did not run for at most, while a flush did."""
    look: float
    """Microseconds to look a URL up."""
    resident: float
    """Megabytes."""
    most: float
    """Megabytes, the peak of the process."""
    disk: float
    """Bytes a URL."""

    def __str__(self) -> str:
        return (
            f"{self.known:12,} {self.offer:9.2f} {self.flush:8.1f} {self.flushes:8} "
            f"{self.longest:8.1f} {self.look:8.1f} {self.resident:8.0f} {self.most:8.0f} "
            f"{self.disk:8.2f}"
        )


HEAD = "       known  us/offer  flush s  flushes  late ms  us/look   RSS MB   max MB  B/URL"


def url(number: int) -> tuple[str, str]:
    """A host and a URL."""
    host = f"www.host{number * 7919 % HOSTS}.example"
    return host, f"https://{host}/catalogue/category-{number % 977}/item-{number}.html"


class Grower:
    """Offers URLs to a sieve, and flushes it whenever it is full, as a crawl would."""

    def __init__(self, sieve: Sieve) -> None:
        self.sieve = sieve
        self.new = 0
        self._draw = random.Random(5)
        self._clear()

    def _clear(self) -> None:
        self._offer = self._flush = self._longest = 0.0
        self._offered = self._flushes = 0

    def grow(self, first: int, last: int) -> Point:
        """Offer the URLs from number *first* to before *last*, and a third as many known ones."""
        known = PAGE // 4
        for number in range(first, last, PAGE - known):
            numbers = [*range(number, min(number + PAGE - known, last))]
            numbers += [self._draw.randrange(number) for _ in range(known if number else 0)]
            keys = [state_key(*url(each)) for each in numbers]
            began = time.perf_counter()
            self.sieve.offer(keys)
            self._offer += time.perf_counter() - began
            self._offered += len(keys)
            if self.sieve.full:
                self.flush()
        self.flush()
        return self._point(last)

    def flush(self) -> None:
        """Flush in a thread, and see how it disturbs this one."""
        began = before = time.perf_counter()
        flush = self.sieve.begin()
        thread = Thread(target=flush.run)
        thread.start()
        while thread.is_alive():
            time.sleep(0.001)
            now = time.perf_counter()
            self._longest, before = max(self._longest, now - before - 0.001), now
        self._flush += time.perf_counter() - began
        self._flushes += 1
        self.new += sum(map(flush.is_new, range(flush.first, flush.end)))
        flush.accept()

    def _point(self, last: int) -> Point:
        looked = [state_key(*url(self._draw.randrange(2 * last))) for _ in range(LOOKS)]
        began = time.perf_counter()
        for key in looked:
            key in self.sieve  # noqa: B015
        look = time.perf_counter() - began
        stats = self.sieve.stats()
        point = Point(
            stats.known, self._offer / self._offered * 1e6, self._flush, self._flushes,
            self._longest * 1e3, look / LOOKS * 1e6, *_memory(), stats.disk / stats.known,
        )  # fmt: skip
        self._clear()
        return point


def _memory() -> tuple[float, float]:
    """Megabytes that are resident, and that were at most (Linux)."""
    lines = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    return int(lines["VmRSS"].split()[0]) / 1e3, int(lines["VmHWM"].split()[0]) / 1e3


def points(folder: Path, count: int, bits: int, capacity: int) -> Iterator[Point]:
    """Grow a sieve in *folder* to *count* URLs; ten points."""
    sieve = Sieve(folder, bits=bits, capacity=capacity, own_log=False)
    grower = Grower(sieve)
    for tenth in range(10):
        yield grower.grow(count * tenth // 10, count * (tenth + 1) // 10)
    assert len(sieve) == grower.new == count, "something was lost, or found twice"
    sieve.close()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="20,000 URLs")
    parser.add_argument("--urls", type=int, default=100_000_000)
    parser.add_argument("--bits", type=int, choices=(64, 128), default=128)
    parser.add_argument("--capacity", type=int, default=1 << 20, help="URLs between flushes")
    options = parser.parse_args()
    count, capacity = options.urls, options.capacity
    if options.small:
        count, capacity = 20_000, 1_000
    print(f"{options.bits} bits, a flush every {capacity:,} URLs\n{HEAD}")
    with tempfile.TemporaryDirectory() as folder:
        for point in points(Path(folder), count, options.bits, capacity):
            print(point, flush=True)


if __name__ == "__main__":
    main()
