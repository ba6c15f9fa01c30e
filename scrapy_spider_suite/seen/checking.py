"""Whether the files of a trie store are as they were written, and what can be done if not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.seen.catalogue import Catalogue, RangeRow, SegmentRow
from scrapy_spider_suite.seen.ranges import Ranges
from scrapy_spider_suite.seen.upkeep import Upkeep

ASIDE = "damaged-"
"""What the names of files begin with that were damaged and are kept to be looked at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is damaged.

    Attributes:
        file: its name.
        what: what is wrong with it.
        urls: how many URLs count as not seen while it is.
        lost: how many of those still do after the repair.
        remedy: what the repair does.
        repaired: whether that was done.
    """

    file: str
    what: str
    urls: int
    lost: int
    remedy: str
    repaired: bool = False


def check(
    folder: Path, upkeep: Upkeep, ranges: Ranges, damaged: dict[str, str], repair: bool
) -> list[Finding]:
    """Read all segments anew; see `TrieStore.check`."""
    upkeep.settle()
    found = [
        finding
        for row in upkeep.catalogue.ranges
        for segment in (row.base, row.recent)
        if segment is not None and (finding := _judge(folder, segment)) is not None
    ]
    names = {finding.file for finding in found}
    others = {name: why for name, why in damaged.items() if name not in names}
    found += [
        Finding(name, why, 0, 0, "what can be read is written anew")
        for name, why in others.items()
    ]
    if not repair or not found:
        return found
    _repair(folder, upkeep, ranges, found)
    damaged.clear()
    return [replace(finding, repaired=True) for finding in found]


def _judge(folder: Path, row: SegmentRow) -> Finding | None:
    """What is wrong with a segment, if anything is."""
    try:
        data = (folder / row.name).read_bytes()
    except OSError as error:
        data = b""
        what = error.strerror or "it cannot be read"
    else:
        what = "it is not as it was written"
    if xxhash.xxh3_128_hexdigest(data[: row.trie]) != row.sums[0]:
        urls = row.keys - row.gone
        return Finding(row.name, what, urls, urls, "it is put aside, and its URLs are forgotten")
    if xxhash.xxh3_128_hexdigest(data[row.trie :]) != row.sums[1]:
        return Finding(row.name, what, row.keys - row.gone, 0, "it is built anew from its trie")
    return None


def _repair(folder: Path, upkeep: Upkeep, ranges: Ranges, found: list[Finding]) -> None:
    """Raises `StoreWriteError`."""
    lost = {finding.file for finding in found if finding.lost}
    bad = {finding.file for finding in found}
    upkeep.write(_leaving_out(upkeep.catalogue, lost))
    for name in lost & {path.name for path in folder.iterdir()}:
        try:
            (folder / name).rename(folder / f"{ASIDE}{name}")
        except OSError as error:
            raise StoreWriteError(f"{folder / name}: {error.strerror}") from error
    ranges.damage.clear()
    ranges.damage.update(dict.fromkeys(bad - lost, "to be built anew"))
    ranges.adopt(upkeep.catalogue)
    # What is missing is missing in memory only: a builder needs no more than the tries.
    again = [part for part in ranges if part.damaged]
    for part in again:
        part.damaged = False
    fresh = [part for part in ranges if part.count]
    upkeep.rebuild([part.row.low for part in {*again, *fresh}], lambda part: True)
    ranges.damage.clear()


def _leaving_out(catalogue: Catalogue, names: set[str]) -> Catalogue:
    def kept(row: SegmentRow | None) -> SegmentRow | None:
        return None if row is None or row.name in names else row

    ranges = tuple(
        RangeRow(row.low, row.mark, kept(row.base), kept(row.recent)) for row in catalogue.ranges
    )
    return replace(catalogue, ranges=ranges)
