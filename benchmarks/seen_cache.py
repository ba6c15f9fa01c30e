"""The fingerprint cache beside the obvious other one, two sets: hits and time with the same memory.

Run: ``python benchmarks/seen_cache.py``; ``--small`` to see that it runs. Links are drawn so that
few are found very often and most of them seldom (Zipf, exponent 1.1), as on the pages of sites with
menus; a third of them are found once only. Times are microseconds of CPU a link, and milliseconds
of CPU of the page that took longest: a set that grows or goes does so at once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator

import numpy as np
import xxhash

from scrapy_spider_suite.seen import FingerprintCache

PAGE = 40


class TwoSets:
    """Fingerprints in a set of those used last, and the one before; the older set goes at once."""

    def __init__(self, size: int) -> None:
        # A set's table is at most three fifths full, 16 bytes a place; bytes objects have 33 + 16.
        self._most = int(size / 2 / (16 / 0.45 + sys.getsizeof(bytes(16))))
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()
        self.hits = self.misses = 0

    def new(self, keys: Iterable[bytes]) -> list[bytes]:
        """Remember *keys*; those that were not known."""
        found = []
        for key in keys:
            print_ = xxhash.xxh3_128_digest(key)
            if print_ in self._young:
                continue
            if print_ not in self._old:
                found.append(key)
            self._young.add(print_)
            if len(self._young) >= self._most:
                self._old, self._young = self._young, set()
        return found


def pages(count: int) -> Iterator[list[bytes]]:
    """The links of page after page."""
    draw = np.random.default_rng(1)
    for number in range(count):
        popular = draw.zipf(1.1, PAGE * 2 // 3)
        once = range(number * PAGE, number * PAGE + PAGE - len(popular))
        links = [f"https://www.site{n % 997}.example/menu/{n}.html" for n in popular.tolist()]
        links += [f"https://www.site{n % 997}.example/page/{n}.html" for n in once]
        yield [link.encode() for link in links]


def main() -> None:
    """Print a line for each cache and size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="4,000 links")
    count = 100 if parser.parse_args().small else 50_000
    print(f"{count * PAGE:,} links\n{'cache':18} {'MiB':>4} {'known':>6} {'us':>5} {'ms':>6}")
    for size in (1 << 20, 4 << 20, 16 << 20, 64 << 20):
        for kind in (FingerprintCache, TwoSets):
            cache = kind(size)
            new, spent, longest = 0, 0.0, 0.0
            for links in pages(count):
                began = time.thread_time()
                new += len(cache.new(links))
                took = time.thread_time() - began
                spent, longest = spent + took, max(longest, took)
            total = count * PAGE
            known, each = 1 - new / total, spent / total * 1e6
            figures = f"{size >> 20:4} {known:6.1%} {each:5.2f} {longest * 1e3:6.1f}"
            print(f"{kind.__name__:18} {figures}", flush=True)


if __name__ == "__main__":
    main()
