"""Queries that differ in the order of their parameters only."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from itertools import permutations

import xxhash


class Permutations:
    """Remembers in which order the parameters of some 260,000 queries came, in 2 MiB."""

    def __init__(self, slots: int = 1 << 18) -> None:
        self._slots = slots
        self._table: array[int] | None = None

    def met(self, url: str) -> bool:
        """Whether the normal *url* was met before with the parameters of its query in another
        order; else this is its order from now on."""
        path, _, query = url.partition("?")
        pairs = sorted(query.split("&"))
        if len(pairs) < 2:
            return False
        if self._table is None:
            self._table = array("Q", bytes(8 * self._slots))
        whole = xxhash.xxh3_64_intdigest(f"{path}?{'&'.join(pairs)}".encode())
        slot, order = whole % self._slots, xxhash.xxh3_64_intdigest(query.encode()) & 0xFFFF
        mixed = whole & ~0xFFFF | order
        known = self._table[slot]
        if known != mixed and known & ~0xFFFF == whole & ~0xFFFF:
            return True
        self._table[slot] = mixed
        return False


def permutations_of(url: str, most: int = 24) -> Iterator[str]:
    """The normal *url* with the parameters of its query in every other order.

    None where there are more than *most*.
    """
    path, _, query = url.partition("?")
    pairs = query.split("&")
    if 1 < math.factorial(len(pairs)) <= most:
        for order in permutations(pairs):
            other = f"{path}?{'&'.join(order)}"
            if other != url:
                yield other
