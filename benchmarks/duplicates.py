"""What it costs to find out that a page was there before: three digests, three tables.

    python benchmarks/duplicates.py --pages FOLDER
    python benchmarks/duplicates.py --small             # made-up pages

Pages are the ``.html`` files below FOLDER of 4 to 9 kB, or made up. CPU time of the best of three
rounds, for each page: the digest, and then looking it up in a table (of rows on disk, or of 16 MiB
in memory with rows on disk behind it) and adding it; and what a page costs the next run that begins
with those of that memory. And how many of the pages repeat another, by each of the three.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from extract import made_up_page
from growing import microseconds

from scrapy_spider_suite.analysis.duplicates import NEAR, Original, Originals
from scrapy_spider_suite.analysis.near_duplicates import NearIndex, Signature, signature
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.urls.page_digests import sha1_of, structural_digest

T = TypeVar("T")
MEMORY = 16 << 20


def pages_of(folder: Path | None, number: int) -> list[bytes]:
    """Up to *number* pages, in an order drawn at random."""
    draw = random.Random(1)
    if folder is None:
        return [made_up_page(draw) for _ in range(number)]
    files = [path for path in folder.rglob("*.html") if 4_000 <= path.stat().st_size <= 9_000]
    draw.shuffle(files)
    return [path.read_bytes() for path in files[:number]]


def timed(what: str, function: Callable[[T], object], values: Sequence[T], rounds: int = 3) -> None:
    """Print the CPU time of *function* for each value."""
    print(f"{what:<44} {microseconds(function, values, rounds):6.1f} us a page")


def on_disk(name: str, store: RocksStore, digests: Sequence[bytes]) -> int:
    """Time looking each digest up; how many were there."""
    table = Originals(store.kv(name))
    known = 0

    def meet(digest: bytes) -> None:
        nonlocal known
        if table.find(digest) is None:
            table.add_original(digest, Original("http://a.test/some/page.html", 1.0))
        else:
            known += 1

    timed(f"{name}: look up and add, on disk", meet, digests, 1)
    store.flush()
    return known


def in_memory(store: RocksStore, memory: int, signatures: Iterable[Signature]) -> int:
    """The same with signatures; then fill the index, and begin the next run with it."""
    rows = store.kv(NEAR)
    index = NearIndex(memory, rows=rows)
    known = 0

    def meet(page: Signature) -> None:
        nonlocal known
        if index.find(page) is None:
            index.add(page, 1)
        else:
            known += 1

    found = list(signatures)
    timed(f"near: look up and add, of {index.capacity:,} pages", meet, found, 1)
    for number in range(len(index), index.capacity):
        index.add(found[number % len(found)], number)
    store.flush()
    began = time.thread_time()
    again = NearIndex(memory, rows=rows)
    cost = (time.thread_time() - began) / len(again) * 1e6
    print(f"{f'near: begin with {len(again):,} of a run before':<44} {cost:6.1f} us a page")
    return known


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--pages", type=Path, help="a folder of HTML files")
    parser.add_argument("--small", action="store_true", help="a hundred pages")
    options = parser.parse_args()
    pages = pages_of(options.pages, 100 if options.small else 2_000)
    print(f"{len(pages):,} pages of {sum(map(len, pages)) / len(pages):,.0f} bytes")
    timed("payload: SHA-1", sha1_of, pages)
    timed("structure", lambda page: structural_digest(page, "a.test"), pages)
    timed("near: 64 MinHashes", signature, pages)
    with tempfile.TemporaryDirectory() as folder:
        store = RocksStore(Path(folder) / "db")
        payloads = on_disk("payloads", store, [sha1_of(page) for page in pages])
        structures = on_disk("structures", store, [structural_digest(page) for page in pages])
        signatures = (found for page in pages if (found := signature(page)) is not None)
        near = in_memory(store, MEMORY >> 4 if options.small else MEMORY, signatures)
        store.close()
    print(f"repeat another: {payloads} by payload, {structures} by structure, {near} nearly")


if __name__ == "__main__":
    main()
