"""How URLs leave a trie store: at once for who looks, from the files when they are built anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from scrapy_spider_suite.seen.catalogue import RangeRow, SegmentRow
from scrapy_spider_suite.seen.identity import Identity
from scrapy_spider_suite.seen.log import FreshLog
from scrapy_spider_suite.seen.ranges import Range, Ranges
from scrapy_spider_suite.seen.segments import Segment
from scrapy_spider_suite.seen.upkeep import Upkeep


def remove(
    start: bytes, parts: Sequence[Range], ranges: Ranges, upkeep: Upkeep, log: FreshLog,
    twins: dict[bytes, int],
) -> int:  # fmt: skip
    """Remove what begins with *start*, all of it in *parts*; how many. Raises `StoreWriteError`."""
    rows = {part.row.low: part.row for part in ranges}
    count = 0
    for part in parts:
        base, fewer = _without(part.row.base, part.base, start)
        recent, least = _without(part.row.recent, part.recent, start)
        rows[part.row.low] = RangeRow(part.row.low, part.row.mark, base, recent)
        count += fewer + least
    fresh = [(p, np.array([h for _, h in fresh_keys(p, start, log)], np.int64)) for p in parts]
    if not count and not any(len(handles) for _, handles in fresh):
        return 0
    before = upkeep.catalogue
    kept = {key: ident for key, ident in before.twins.items() if not key.startswith(start.hex())}
    upkeep.write(replace(
        before, ranges=tuple(rows.values()), twins=kept,
        removed=(*before.removed, (start.hex(), log.end)),
    ))  # fmt: skip
    ranges.adopt(upkeep.catalogue, verify=False)
    for key in [key for key in twins if key.startswith(start)]:
        del twins[key]
    for part, handles in fresh:
        if len(handles):
            part.drop(handles)
            upkeep.fresh -= len(handles)
            log.forget(handles)
            count += len(handles)
    return count


def fresh_keys(part: Range, prefix: bytes, log: FreshLog) -> Iterator[tuple[bytes, int]]:
    """The fresh URLs of a range that begin with *prefix*, and their handles."""
    ids, handles = part.rows()
    low, high = Identity.span(prefix)
    near = handles[(ids >= np.uint64(low)) & (ids <= np.uint64(high - 1))]
    for handle in np.sort(near).tolist():
        key = log.read(handle)
        if key.startswith(prefix):
            yield key, handle


def _without(
    row: SegmentRow | None, segment: Segment | None, prefix: bytes
) -> tuple[SegmentRow | None, int]:
    """The row of a segment whose URLs with *prefix* count no more, and how many those are."""
    found = 0 if segment is None else sum(1 for _ in segment.keys(prefix))
    if row is None or not found:
        return row, 0
    removed = (*row.removed, prefix.hex())
    return replace(row, removed=removed, gone=row.gone + found), found
