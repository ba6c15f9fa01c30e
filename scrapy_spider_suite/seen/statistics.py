"""What a trie store says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scrapy_spider_suite.seen.log import FileLog, FreshLog
from scrapy_spider_suite.seen.ranges import Ranges
from scrapy_spider_suite.seen.table import BYTES_A_ROW


@dataclass(frozen=True, slots=True)
class TrieStatistics:
    """A trie store at one moment. Sizes are in bytes.

    Attributes:
        urls: how many there are.
        fresh: those in no segment yet.
        removed: those in segments that count no more.
        ranges: of ids.
        segments: files with tries.
        tries: bytes of the tries.
        filters: bytes of the filters before them.
        ids: bytes of the ways from ids to URLs; 0 in a store without ids.
        log: bytes of the log of what is fresh; 0 if that is not the store's own.
        memory: bytes of the index of what is fresh.
        size: bytes of the whole store on disk.
    """

    urls: int
    fresh: int
    removed: int
    ranges: int
    segments: int
    tries: int
    filters: int
    ids: int
    log: int
    memory: int
    size: int

    @property
    def bytes_a_url(self) -> float:
        """Of the whole store."""
        return self.size / max(1, self.urls)


def statistics_of(ranges: Ranges, log: FreshLog, fresh: int, path: Path) -> TrieStatistics:
    """Of the store in *path*."""
    rows = [segment.row for part in ranges for segment in part.segments]
    ids = sum(row.way_back for row in rows)
    tries = sum(row.trie for row in rows)
    other = sum(file.stat().st_size for file in path.glob("catalogue-?"))
    kept = log.size if isinstance(log, FileLog) else 0
    return TrieStatistics(
        urls=fresh + sum(row.keys - row.gone for row in rows),
        fresh=fresh, removed=sum(row.gone for row in rows),
        ranges=len(ranges), segments=len(rows), tries=tries,
        filters=sum(row.size for row in rows) - tries - ids, ids=ids, log=kept,
        memory=fresh * BYTES_A_ROW, size=sum(row.size for row in rows) + kept + other,
    )  # fmt: skip
