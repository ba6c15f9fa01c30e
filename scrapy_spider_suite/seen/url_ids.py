"""From an id to its URL: the table of a segment in a store with ids.

A table with open addressing, seven eighths full: a byte of *checks* for each place, then the trie's
*numbers*. A URL's place is the first free one from the remainder of its id; its check is the
remainder by `CHECKS`.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scrapy_spider_suite.seen.url_keys import Ids, UrlIds

CHECKS: Final = 251  # a prime below 255, which is the check of a place that is free
_FREE: Final = 255
_FULL: Final = 7 / 8
_BYTES: Final = [bytes([number]) for number in range(CHECKS)]

KeyOf = Callable[[int], bytes | None]
Numbers = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class IdTableLayout:
    places: int  # ids are divided by it; *window* more follow
    window: int  # no URL is as far from its place as this
    exact: bool = False  # unused; part of the format


def id_lookup(
    data: mmap.mmap, start: int, end: int, width: int, way: IdTableLayout, trie: Any, ids: UrlIds,
    removed: tuple[bytes, ...],
) -> KeyOf:  # fmt: skip
    """`Segment.key_of` by the table in *data* from *start* to *end*; numbers have *width* bytes."""
    places, window, id_of = way.places, way.window, ids.id_of
    # Four bytes are read, of which the last ones are the number.
    numbers = start + (end - start) // (1 + width)
    before, spare = numbers - start * width + width - 4, 8 * (4 - width)
    four, find, restore, bytes_of = Struct("<I").unpack_from, data.find, trie.restore_key, _BYTES

    def key_of(ident: int) -> bytes | None:
        at = start + ident % places
        last, check = at + window, bytes_of[ident % CHECKS]
        while (at := find(check, at, last)) >= 0:
            (number,) = four(data, before + at * width)
            key: bytes = restore(number >> spare)
            if id_of(key) == ident and not (removed and key.startswith(removed)):
                return key
            at += 1
        return None

    return key_of


def build_id_table(ids: Ids, numbers: Numbers, width: int) -> tuple[bytes, IdTableLayout]:
    """The table for *ids* and their *numbers*, in *width* bytes each."""
    places = int(len(ids) / _FULL) | 1
    home = (ids % np.uint64(places)).astype(np.int64)
    order = np.argsort(home, kind="stable")
    home, before = home[order], np.arange(len(ids))
    place = np.maximum.accumulate(home - before) + before
    window = int((place - home).max()) + 1
    total = places + window  # as far as is searched
    checks, held = np.full(total, _FREE, np.uint8), np.zeros((total, width), np.uint8)
    checks[place] = (ids[order] % np.uint64(CHECKS)).astype(np.uint8)
    held[place] = numbers[order].astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width]
    return checks.tobytes() + held.tobytes(), IdTableLayout(places, window)
