"""What follows the trie in segments of formats 1 and 2, which are read as they are.

The ids of URLs in buckets of some sixteen: where each bucket begins (4 bytes), then a byte of each
id, then in the same order the numbers of the trie. In format 1 these bytes were the filter, too.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from math import log2
from struct import Struct
from typing import Any, Final

from scrapy_spider_suite.seen.url_ids import KeyOf
from scrapy_spider_suite.seen.url_keys import Identity

_A_BUCKET: Final = 16
_SHIFT: Final = 8


def may_hold(data: mmap.mmap, begin: int, keys: int) -> Callable[[int], bool]:
    """Whether an id may be in the buckets of *keys* URLs, which begin at *begin*."""
    mask, starts, _ = _buckets_of(data, begin, keys)

    def held(ident: int) -> bool:
        bucket = ident >> _SHIFT & mask
        return ident & 255 in data[starts[bucket] : starts[bucket + 1]]

    return held


def leading_back(
    data: mmap.mmap, begin: int, keys: int, width: int, trie: Any, identity: Identity,
    twins: Mapping[bytes, int], removed: tuple[bytes, ...],
) -> KeyOf:  # fmt: skip
    """`Segment.key_of`."""
    mask, starts, checks = _buckets_of(data, begin, keys)
    # Four bytes are read, of which the last ones are the number.
    before, spare = checks + keys - checks * width + width - 4, 8 * (4 - width)
    four, find, restore = Struct("<I").unpack_from, data.find, trie.restore_key

    def key_of(ident: int) -> bytes | None:
        bucket = ident >> _SHIFT & mask
        check, end = bytes([ident & 255]), starts[bucket + 1]
        at = find(check, starts[bucket], end)
        while at >= 0:
            (number,) = four(data, before + at * width)
            key: bytes = restore(number >> spare)
            mine = twins[key] == ident if key in twins else identity.has(key, ident)
            if mine and not (removed and key.startswith(removed)):
                return key
            at = find(check, at + 1, end)
        return None

    return key_of


def _buckets_of(data: mmap.mmap, begin: int, keys: int) -> tuple[int, memoryview, int]:
    """The mask of buckets' numbers, where each bucket starts, and the first does."""
    begin += -begin % 4
    buckets = 1 << round(log2(max(1, keys / _A_BUCKET)))
    end = begin + 4 * (buckets + 1)
    return buckets - 1, memoryview(data)[begin:end].cast("I"), end
