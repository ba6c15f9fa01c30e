"""What Mercator's sieve takes as it grows: memory, disk, and time per URL and per flush.

Run: ``python benchmarks/sieve.py`` for 100 million fingerprints, ``--count`` for another number of
them, ``--bits 64`` for narrower ones, ``--small`` to see that it runs. One line for every tenth of
them: what an `offer` of a page's 40 URLs cost each of them; how long the flushes took, in a thread,
by the clock and in CPU, and the longest step of one in CPU; for how long at most the caller's
thread did not run meanwhile (on a busy machine that is the machine's doing); what it costs to look
a URL up; resident memory, now and at most; bytes a URL on disk.

Most of the fingerprints are made by numpy and are not of URLs, so that the time is the sieve's.
They are of 100,000 hosts; one in four has been offered before.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from scrapy_spider_suite.frontier.entries import state_key
from scrapy_spider_suite.seen import Sieve
from scrapy_spider_suite.seen.fingerprints import bytes_of
from scrapy_spider_suite.seen.sieve import Flush

HOSTS = 100_000
PAGE = 40
"""URLs that are offered at once."""
PAGES = 100
"""Pages of real URLs at each point."""
CHUNK = 1 << 16
"""Fingerprints that are made at once."""
HEAD = "      known us/offer flushes flush s  CPU s step ms late ms us/look RSS MB max MB  B/URL"

Numbers = NDArray[np.uint64]


@dataclass(frozen=True)
class Point:
    """The sieve at one moment; counts and times are those since the point before it."""

    known: int
    offer: float
    """Microseconds of CPU a URL."""
    flushes: int
    flush: float
    """Seconds of all flushes together."""
    cpu: float
    """Seconds of CPU of all flushes together."""
    step: float
    """Milliseconds of CPU of the longest step of a flush."""
    late: float
    """Milliseconds that the caller's thread did not run for at most, while a flush did."""
    look: float
    """Microseconds of CPU to look a URL up."""
    resident: float
    """Megabytes."""
    most: float
    """Megabytes, the peak of the process."""
    disk: float
    """Bytes a URL."""

    def __str__(self) -> str:
        return (
            f"{self.known:11,} {self.offer:8.2f} {self.flushes:7} {self.flush:7.1f} "
            f"{self.cpu:6.1f} {self.step:7.1f} {self.late:7.1f} {self.look:7.1f} "
            f"{self.resident:6.0f} {self.most:6.0f} {self.disk:6.2f}"
        )


def mixed(numbers: Numbers) -> Numbers:
    """Bits that look random, the same for the same numbers (splitmix64)."""
    x = numbers * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def prints(numbers: Numbers, bits: int) -> bytes:
    """A fingerprint for each number, with the slot of one of the hosts."""
    slots = mixed(numbers % np.uint64(HOSTS)) >> np.uint64(48)
    firsts = slots << np.uint64(48) | mixed(numbers * np.uint64(2) + np.uint64(1)) >> np.uint64(16)
    both = [firsts, mixed(numbers * np.uint64(2))][: bits // 64]
    return bytes_of(np.stack(both, axis=1))


def page(number: int) -> list[bytes]:
    """The keys of the URLs of a page."""
    host = f"www.host{number % HOSTS}.example"
    urls = (f"https://{host}/catalogue/item-{number}-{link}.html" for link in range(PAGE))
    return [state_key(host, url) for url in urls]


class Grower:
    """Offers to a sieve, and flushes it in a thread whenever it is full, as a crawl would."""

    def __init__(self, sieve: Sieve, bits: int) -> None:
        self.sieve = sieve
        self.pages = 0
        self._bits = bits
        self._draw = np.random.default_rng(5)
        self._clear()

    def _clear(self) -> None:
        self._flush = self._cpu = self._step = self._late = 0.0
        self._flushes = 0

    def grow(self, first: int, last: int) -> Point:
        """Offer the numbers from *first* to before *last*, and a third as many known ones."""
        for start in range(first, last, CHUNK):
            fresh = np.arange(start, min(start + CHUNK, last), dtype=np.uint64)
            known = self._draw.integers(0, start + 1, len(fresh) // 3, dtype=np.uint64)
            self.sieve.offer_prints((), prints(np.concatenate((fresh, known)), self._bits))
            if self.sieve.full:
                self.flush()
        pages = [page(number) for number in range(self.pages, self.pages + PAGES)]
        began = time.thread_time()
        for keys in pages:
            self.sieve.offer(keys)
        offer = time.thread_time() - began
        self.flush()
        self.pages += PAGES
        point = self._point(offer / PAGES / PAGE)
        self._clear()
        return point

    def flush(self) -> None:
        """Flush in a thread, and see how it disturbs this one."""
        began = before = time.perf_counter()
        flush = self.sieve.begin()
        thread = Thread(target=self._run, args=(flush,))
        thread.start()
        while thread.is_alive():
            time.sleep(0.001)
            now = time.perf_counter()
            self._late, before = max(self._late, now - before - 0.001), now
        self._flush += time.perf_counter() - began
        self._flushes += 1
        flush.accept()

    def _run(self, flush: Flush) -> None:
        more = True
        while more:
            began = time.thread_time()
            more = flush.step()
            took = time.thread_time() - began
            self._cpu, self._step = self._cpu + took, max(self._step, took)

    def _point(self, offer: float) -> Point:
        asked = [key for number in range(0, 2 * self.pages, 4) for key in page(number)[:10]]
        began = time.thread_time()
        found = sum(key in self.sieve for key in asked)
        look = (time.thread_time() - began) / len(asked)
        assert found * 2 == len(asked), "what is new is known, or the other way round"
        stats = self.sieve.stats()
        return Point(
            stats.known, offer * 1e6, self._flushes, self._flush, self._cpu, self._step * 1e3,
            self._late * 1e3, look * 1e6, *_memory(), stats.disk / stats.known,
        )  # fmt: skip


def _memory() -> tuple[float, float]:
    """Megabytes that are resident, and that were at most (Linux)."""
    text = Path("/proc/self/status").read_text()
    lines = dict(line.split(":", 1) for line in text.splitlines())
    return int(lines["VmRSS"].split()[0]) / 1e3, int(lines["VmHWM"].split()[0]) / 1e3


def points(folder: Path, count: int, bits: int, capacity: int) -> Iterator[Point]:
    """Grow a sieve in *folder* by *count* fingerprints; ten points."""
    sieve = Sieve(folder, bits=bits, capacity=capacity, own_log=False)
    grower = Grower(sieve, bits)
    for tenth in range(10):
        yield grower.grow(count * tenth // 10, count * (tenth + 1) // 10)
    assert len(sieve) == count + grower.pages * PAGE, "something was lost, or found twice"
    sieve.close()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="200,000 fingerprints")
    parser.add_argument("--count", type=int, default=100_000_000)
    parser.add_argument("--bits", type=int, choices=(64, 128), default=128)
    parser.add_argument("--capacity", type=int, default=1 << 20, help="URLs between flushes")
    options = parser.parse_args()
    count, capacity = options.count, options.capacity
    if options.small:
        count, capacity = 200_000, 20_000
    print(f"{options.bits} bits, a flush every {capacity:,} URLs\n{HEAD}")
    with tempfile.TemporaryDirectory() as folder:
        for point in points(Path(folder), count, options.bits, capacity):
            print(point, flush=True)


if __name__ == "__main__":
    main()
