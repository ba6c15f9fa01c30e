"""The fingerprint cache: what was seen a moment ago, in a fixed amount of memory.

Most links of a crawl are to pages that many pages link to; BUbiNG §4 lets more than nine in ten of
all discovered URLs end here. What the cache knows was seen for certain (up to the collision of 128
bits); what it does not know may have been seen too, and is looked up behind it.

It is a table of sets of eight fingerprints, each set in the order of use: approximately the
least recently used is what goes. A set is 128 bytes, in which ``find`` looks at the speed of C; a
look-up that finds its fingerprint in front changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import xxhash

WAYS = 8
"""Fingerprints of a set."""
_WIDTH = 16
_SET = WAYS * _WIDTH
_EMPTY = bytes(_WIDTH)

_digest = xxhash.xxh3_128_digest


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """How well a cache does.

    Attributes:
        hits: keys that were known.
        misses: keys that were not.
        capacity: fingerprints that there is room for.
        bytes: memory of the table.
    """

    hits: int
    misses: int
    capacity: int
    bytes: int

    @property
    def hit_rate(self) -> float:
        """The share of keys that were known, from 0 to 1."""
        return self.hits / max(1, self.hits + self.misses)


class FingerprintCache:
    """Remembers keys, of which it forgets those that were not used for long.

    *size* is the memory of its table in bytes, rounded down to a power of two, of at least one
    set; 0 remembers nothing. The memory is taken at once, and is what it is until `resize`.

    Attributes:
        hits: how many keys were known when they were asked for, or added.
        misses: how many were not when they were added.
    """

    def __init__(self, size: int) -> None:
        sets = _sets(size)
        self._table = bytearray(sets * _SET)
        self._mask = sets - 1
        self._alike = sets - 1  # of two sets whose numbers agree in this, one may have copies
        self.hits = 0
        self.misses = 0

    def add(self, key: bytes) -> bool:
        """Remember *key*; whether it was not known."""
        return bool(self.new((key,)))

    def knows(self, key: bytes) -> bool:
        """Whether *key* is remembered; if so, it was used a moment ago."""
        print_ = _digest(key)
        if (at := self._place(print_)) < 0:
            return False
        if at % _SET:
            start = at - at % _SET
            self._table[start : at + _WIDTH] = print_ + self._table[start:at]
        self.hits += 1
        return True

    def new(self, keys: Iterable[bytes]) -> list[bytes]:
        """Remember *keys*; those that were not known, in their order."""
        table, mask, digest = self._table, self._mask, _digest
        if not table:
            return self._all(keys)
        find, new, known = table.find, [], 0
        for key in keys:  # `_place`, for each link of a page: a call would cost as much again
            print_ = digest(key)
            start = (hash(print_) & mask) * _SET
            at = find(print_, start, start + _SET)
            while (at - start) % _WIDTH and at >= 0:  # the end of one and the start of another
                at = find(print_, at + 1, start + _SET)
            if at == start:
                known += 1
                continue
            if at < 0:
                new.append(key)
                at = start + _SET - _WIDTH
            else:
                known += 1
            table[start : at + _WIDTH] = print_ + table[start:at]
        self.hits += known
        self.misses += len(new)
        return new

    def _all(self, keys: Iterable[bytes]) -> list[bytes]:
        """Without memory nothing is known."""
        new = list(keys)
        self.misses += len(new)
        return new

    def __contains__(self, key: bytes) -> bool:
        """Whether *key* is remembered; changes nothing."""
        return self._place(_digest(key)) >= 0

    def forget(self, key: bytes) -> None:
        """Remember *key* no longer: it was not kept after all, or is wanted again."""
        if not self._table:
            return
        print_ = _digest(key)
        for one in range(hash(print_) & self._alike, self._mask + 1, self._alike + 1):
            while (at := self._within(print_, one)) >= 0:
                end = at - at % _SET + _SET
                self._table[at:end] = self._table[at + _WIDTH : end] + _EMPTY

    def _place(self, print_: bytes) -> int:
        """Where a fingerprint stands in the table; negative: nowhere."""
        return self._within(print_, hash(print_) & self._mask)

    def _within(self, print_: bytes, number: int) -> int:
        """Where a fingerprint stands in the set with this *number*; negative: not there."""
        start = number * _SET
        at = self._table.find(print_, start, start + _SET)
        while at >= 0 and at % _WIDTH:  # the end of one and the start of another
            at = self._table.find(print_, at + 1, start + _SET)
        return at

    def resize(self, size: int) -> None:
        """Have another *size*, and remember what was used last of what there is room for.

        No fingerprint is looked at: a smaller table has the younger halves of the sets that become
        one, a larger one each set several times, of which one is asked and the others age.
        """
        sets, now = _sets(size), self._mask + 1
        if sets == now:
            return
        if not (sets and now):
            self._table, self._alike = bytearray(sets * _SET), sets - 1
        elif now > sets:
            self._table = _folded(self._table, sets)
        else:
            self._table = self._table * (sets // now)
        self._alike = min(self._alike, sets - 1)
        self._mask = sets - 1

    def clear(self) -> None:
        """Forget everything, but not the counts."""
        self._table[:] = bytes(len(self._table))
        self._alike = self._mask

    def close(self) -> None:
        """Give the memory back, and remember nothing from now on; the counts stay."""
        self._table, self._mask, self._alike = bytearray(), -1, -1

    @property
    def statistics(self) -> CacheStatistics:
        """The counts and the size."""
        size = len(self._table)
        return CacheStatistics(self.hits, self.misses, size // _WIDTH, size)

    def __repr__(self) -> str:
        rate = self.statistics.hit_rate
        return f"<FingerprintCache: {len(self._table):,} bytes, {rate:.0%} hits>"


def _sets(size: int) -> int:
    """How many sets there are in *size* bytes."""
    return 1 << max(0, (size // _SET).bit_length() - 1) if size > 0 else 0


def _folded(table: bytearray, sets: int) -> bytearray:
    """*table* with as few *sets*: those of which one is made take turns in it."""
    old = np.frombuffer(table, f"V{_WIDTH}").reshape(-1, sets, WAYS)
    return bytearray(old.transpose(1, 2, 0).reshape(sets, -1)[:, :WAYS].tobytes())
