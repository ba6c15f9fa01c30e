"""The filter before a trie: whether a segment may hold a URL, for a tenth of what the trie takes.

A blocked Bloom filter: an id sets two bits of one word of 16, so that who looks reads one place of
the file. With 4.5 bits a URL, of the URLs that a segment does not hold one in seven passes. The
room that fewer mistakes would take goes to tries that are looked up faster.

Only the lowest 30 bits of an id count: Python has no faster numbers, and who does not know yet
which host a URL has need not find out.
"""

from __future__ import annotations

import mmap
from typing import Final

import numpy as np

from scrapy_spider_suite.seen.table import Ids

WORD: Final = 2
"""Bytes of a word."""
USED: Final = (1 << 30) - 1
"""What of an id is used: the remainder of this by the number of words says which of them."""
PATTERNS: Final = [1 << (n & 15) | 1 << ((n & 15) + 1 + (n >> 4) % 15 & 15) for n in range(256)]
"""The two bits, by the lowest byte of an id."""
_A_WORD: Final = 32 / 9
"""URLs, on average."""


def words_of(ids: Ids) -> bytes:
    """The filter that lets *ids* pass."""
    # An odd number of words: which of them it is then says nothing of what is set in it.
    count = int(len(ids) / _A_WORD) | 1
    low = (ids & np.uint64(USED)).astype(np.int64)
    words = np.zeros(count, np.uint16)
    np.bitwise_or.at(words, low % count, np.array(PATTERNS, np.uint16)[low & 255])
    return words.tobytes()


def words_at(data: mmap.mmap, start: int, count: int) -> memoryview:
    """The *count* words of the filter at *start*."""
    return memoryview(data)[start : start + WORD * count].cast("H")
