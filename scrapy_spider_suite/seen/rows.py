"""Fingerprints as rows of numpy arrays: sorting, searching and merging many at a time.

A row is one or two words of 64 bits. *Sorted* rows are sorted by their first words only: with 48
random bits in it two rows hardly ever agree in that, and where they do a loop compares the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.uint64]
Mask = NDArray[np.bool_]
Places = NDArray[np.intp]

TOP = 1 << 64
"""Greater than every word."""


def rows_of(prints: bytes | bytearray, width: int) -> Rows:
    """Fingerprints of *width* bytes, one after the other, as rows; big-endian, so order is kept."""
    return np.frombuffer(prints, ">u8").astype(np.uint64).reshape(-1, width // 8)


def bytes_of(rows: Rows) -> bytes:
    """Rows as fingerprints, one after the other."""
    return rows.astype(">u8").tobytes()


def empty(words: int) -> Rows:
    """No rows."""
    return np.empty((0, words), np.uint64)


def place(rows: Rows, word: int) -> int:
    """How many of the sorted *rows* have a first word less than *word*, which may be `TOP`."""
    return len(rows) if word >= TOP else int(np.searchsorted(rows[:, 0], np.uint64(word)))


def within(rows: Rows, low: int, high: int) -> Rows:
    """Those of the sorted *rows* whose first words are at least *low* and less than *high*."""
    return rows[place(rows, low) : place(rows, high)]


def mask_of(slots: Iterable[int]) -> Mask:
    """For each slot whether it is one of *slots*."""
    mask = np.zeros(1 << 16, np.bool_)
    mask[list(slots)] = True
    return mask


def slots_of(rows: Rows) -> Places:
    """The slot of each of *rows*."""
    return (rows[:, 0] >> np.uint64(48)).astype(np.intp)


def sorted_and_unique(batch: Rows, length: int) -> Iterator[tuple[Rows, Places]]:
    """The different rows of *batch*, sorted, and where in it each of them stands first.

    They come in pieces that follow one another and take some *length* rows of the batch each.
    """
    firsts = np.ascontiguousarray(batch[:, 0])
    sample = np.sort(firsts[:: max(1, length // 64)])
    bounds = [0, *map(int, np.unique(sample[64::64])), TOP]
    for low, high in pairwise(bounds):
        chosen = firsts >= np.uint64(low)
        if high < TOP:
            chosen &= firsts < np.uint64(high)
        places = np.flatnonzero(chosen)
        places = places[np.lexsort(batch[places].T[::-1])]  # stable; the last key counts first
        rows = batch[places]
        first = np.ones(len(rows), np.bool_)
        first[1:] = (rows[1:] != rows[:-1]).any(axis=1)
        yield rows[first], places[first]


def found(rows: Rows, asked: Rows) -> Mask:
    """Which of *asked* are among the sorted *rows*."""
    return _find(rows, asked)[0]


def places_of(rows: Rows, asked: Rows) -> Places:
    """Where in the sorted *rows* those of *asked* stand that are there."""
    hit, at = _find(rows, asked)
    return at[hit]


def _find(rows: Rows, asked: Rows) -> tuple[Mask, Places]:
    """Which of *asked* are among the sorted *rows*, and where those stand."""
    if not len(rows):
        return np.zeros(len(asked), np.bool_), np.zeros(len(asked), np.intp)
    firsts = np.ascontiguousarray(rows[:, 0])
    at = np.minimum(np.searchsorted(firsts, asked[:, 0]), len(rows) - 1)
    hit: Mask = (rows[at] == asked).all(axis=1)
    half = (firsts[at] == asked[:, 0]) & ~hit  # in common
    for number in np.flatnonzero(half):
        last = np.searchsorted(firsts, asked[number, 0], "right")
        same = np.flatnonzero((rows[at[number] : last] == asked[number]).all(axis=1))
        if len(same):
            hit[number], at[number] = True, at[number] + same[0]
    return hit, at


def merged(*several: Rows) -> Rows:
    """All rows of *several*, each sorted, as one."""
    some = [rows for rows in several if len(rows)]
    if len(some) < 2:
        return some[0] if some else several[0]
    rows = np.concatenate(some)
    # A stable sort finds the runs that are sorted already.
    return rows[np.argsort(rows[:, 0], kind="stable")]


def slices(rows: Rows, length: int) -> Iterator[Rows]:
    """The sorted *rows* in slices of some *length*; those of one first word stay together."""
    while len(rows) > length:
        cut = place(rows, int(rows[length, 0]))
        cut = cut or int(np.searchsorted(rows[:, 0], rows[0, 0], "right"))
        yield rows[:cut]
        rows = rows[cut:]
    if len(rows):
        yield rows
