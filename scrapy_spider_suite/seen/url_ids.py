"""From an id to its URL: the table of a segment in a store with ids.

A table with open addressing, seven eighths full: a byte of *checks* for each place, then the trie's
*numbers*. A URL's place is the first free one from the remainder of its id; its check is the
remainder by `CHECKS`. The hash of a found URL lacks the 16 bits of the slot: a table is *exact* if
its places and checks tell those apart.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scrapy_spider_suite.seen.url_keys import END, LOW, SLOT_SHIFT, Ids, UrlIds, digest

CHECKS: Final = 251
"""A prime below 255, which is the check of a place that is free."""
_FREE: Final = 255
_FULL: Final = 7 / 8
_SIZES: Final = 16
"""Sizes of a table that are tried."""
_SLOTS: Final = 1 << 64 - SLOT_SHIFT
_NEAREST: Final = _SLOTS // CHECKS + 1
"""Two of so many ids of one check are as near each other as a table's places divided by it
(Dirichlet): a table of fewer than thousands is never exact."""
_BYTES: Final = [bytes([number]) for number in range(CHECKS)]

KeyOf = Callable[[int], bytes | None]
Numbers = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class IdTableLayout:
    """The layout of a table."""

    places: int  # ids are divided by it; *window* more follow
    window: int  # no URL is as far from its place as this
    exact: bool  # see above


def id_lookup(
    data: mmap.mmap, start: int, end: int, width: int, way: IdTableLayout, trie: Any, ids: UrlIds,
    removed: tuple[bytes, ...],
) -> KeyOf:  # fmt: skip
    """`Segment.key_of` by the table in *data* from *start* to *end*, with numbers of *width* bytes.
    """
    places, window = way.places, way.window
    # Four bytes are read, of which the last ones are the number.
    numbers = start + (end - start) // (1 + width)
    before, spare = numbers - start * width + width - 4, 8 * (4 - width)
    four, find, restore, bytes_of = Struct("<I").unpack_from, data.find, trie.restore_key, _BYTES
    seed, hash_of, low, has, twins = ids.seed, digest, LOW, ids.has, ids.twins
    by_hash = way.exact and ids.mask == LOW

    def key_of(ident: int) -> bytes | None:
        at = start + ident % places
        last, check = at + window, bytes_of[ident % CHECKS]
        # Of what is no id, or ends in zeros as 0 does, whose URL has the id 1, a hash says nothing.
        own = ident & low if by_hash and 0 < ident < END else 0
        while (at := find(check, at, last)) >= 0:
            (number,) = four(data, before + at * width)
            key: bytes = restore(number >> spare)
            if twins:
                mine = twins[key] == ident if key in twins else has(key, ident)
            else:
                mine = (own and hash_of(key, seed) & low == own) or has(key, ident)
            if mine and not (removed and key.startswith(removed)):
                return key
            at += 1
        return None

    return key_of


def build_id_table(ids: Ids, numbers: Numbers, width: int) -> tuple[bytes, IdTableLayout]:
    """The table for *ids* and their *numbers*, in *width* bytes each."""
    size = int(len(ids) / _FULL) | 1
    for places in range(size, size + 2 * _SIZES, 2):
        order, place, way = _placed(ids, places)
        if way.exact or way.window > places // _NEAREST:
            break
    total = places + way.window  # as far as is searched
    checks, held = np.full(total, _FREE, np.uint8), np.zeros((total, width), np.uint8)
    checks[place] = (ids[order] % np.uint64(CHECKS)).astype(np.uint8)
    held[place] = numbers[order].astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width]
    return checks.tobytes() + held.tobytes(), way


def _placed(ids: Ids, places: int) -> tuple[NDArray[np.int64], NDArray[np.int64], IdTableLayout]:
    home = (ids % np.uint64(places)).astype(np.int64)
    order = np.argsort(home, kind="stable")
    home, before = home[order], np.arange(len(ids))
    place = np.maximum.accumulate(home - before) + before
    window = int((place - home).max()) + 1
    return order, place, IdTableLayout(places, window, _is_exact(places, window))


def _is_exact(places: int, window: int) -> bool:
    """Whether ids of one check that differ in their slots alone are a window apart."""
    if places % CHECKS == 0:
        return False
    apart = np.arange(CHECKS, _SLOTS, CHECKS) * ((1 << SLOT_SHIFT) % places) % places
    return bool((apart >= window).all() and (apart <= places - window).all())
