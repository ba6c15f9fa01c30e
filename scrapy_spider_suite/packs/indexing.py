"""The index of a pack made from its content: what a crash or a full disk left without one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from scrapy_spider_suite.packs import cdxj
from scrapy_spider_suite.packs.cdxj import Entry, Located
from scrapy_spider_suite.packs.packfile import index_path
from scrapy_spider_suite.packs.scan import Group, scan
from scrapy_spider_suite.packs.sorting import sort_lines


def build_index(pack: str | Path, named: Path | None = None) -> int:
    """Write the index of *pack* anew, for a pack that is called *named*; return its lines.

    Raises `PackError` (no pack) and `OSError`.
    """
    pack = Path(pack)
    named = named or pack
    index = index_path(named)
    raw = index.with_name(f"{index.name}.raw")
    count = 0
    try:
        with raw.open("wb") as file:
            for entry in index_entries(pack, named.name):
                file.write(entry.line() + b"\n")
                count += 1
        sort_lines(raw, index)
    finally:
        raw.unlink(missing_ok=True)
    return count


def index_entries(pack: Path, name: str) -> Iterator[Entry]:
    """Yield what an index of *pack*, called *name*, has to hold, in the order of the pack."""
    for bundle in bundles(_located(pack)):
        yield from cdxj.entries(bundle, name)


def bundles(records: Iterable[Located]) -> Iterator[list[Located]]:
    """Put the records of each fetch together: those that follow one and name it."""
    bundle: list[Located] = []
    for located in records:
        if bundle and not cdxj.belongs(located[0], bundle):
            yield bundle
            bundle = []
        bundle.append(located)
    if bundle:
        yield bundle


def _located(pack: Path) -> Iterator[Located]:
    for found in scan(pack):
        if isinstance(found, Group):
            yield from found.records()
