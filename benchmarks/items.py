"""What item packs cost an item: the crawl's thread, the writer's, and the disk.

    python benchmarks/items.py
    python benchmarks/items.py --small

Made-up items of a shop, two of each page, in the blocks in which a crawl of 100 pages a second
writes them. The crawl's thread makes a line of each and collects them by page; compression is the
business of a thread beside it. CPU time, per item.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from scrapy_spider_suite.items import ItemLines
from scrapy_spider_suite.packs.item_file import ItemBuffer, ItemFile, open_items

OF_A_PAGE, OF_A_BLOCK = 2, 200
WORDS = [f"{a}{b}" for a in ("chair", "table", "lamp", "shelf", "sofa") for b in range(400)]


def items(count: int) -> Iterator[dict[str, Any]]:
    """*count* items."""
    draw = random.Random(1)
    for number in range(count):
        text = " ".join(draw.choices(WORDS, k=40))
        url = f"https://shop{draw.randrange(1000)}.example/{draw.choice(WORDS)}/{number}.html"
        yield {"url": url, "name": text[:30], "price": draw.randrange(10**6) / 100, "text": text}


def cost(folder: Path, count: int) -> None:
    """Write *count* items and print what it took."""
    lines, file = ItemLines(), ItemFile(folder / "items.jsonl.gz", 0.0)
    made, beside, size = 0.0, 0.0, 0
    piles: list[ItemBuffer] = []
    for number, item in enumerate(items(count)):
        began = time.thread_time()
        if number % OF_A_PAGE == 0:
            piles.append(ItemBuffer(folder))
        piles[-1].add(lines.line(item))
        made += time.thread_time() - began
        if number % OF_A_BLOCK == OF_A_BLOCK - 1:
            size += sum(pile.size for pile in piles)
            began = time.thread_time()
            file.append(chain.from_iterable(pile.lines() for pile in piles))
            beside += time.thread_time() - began
            piles.clear()
    file.close()
    began = time.thread_time()
    assert sum(1 for _ in open_items(file.path)) == count
    read = time.thread_time() - began
    each = 1e6 / count
    print(
        f"{count} items of {size / count:.0f} bytes: {made * each:.1f} µs on the crawl's "
        f"thread, {beside * each:.1f} beside it; {file.size / count:.0f} bytes on disk; read in "
        f"{read * each:.1f} µs"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--small", action="store_true", help="a second or two")
    small = parser.parse_args().small
    with tempfile.TemporaryDirectory() as folder:
        cost(Path(folder), 2_000 if small else 100_000)


if __name__ == "__main__":
    main()
