"""The fingerprint cache: keys met lately, in a fixed amount of memory (BUbiNG §4).

A table of sets of eight fingerprints in the order of use: a set is 128 bytes, in which ``find``
looks at the speed of C. A known key was seen for certain, up to a collision of 128 bits.
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

WAYS = 8  # fingerprints of a set
_WIDTH = 16
_SET = WAYS * _WIDTH
_EMPTY = bytes(_WIDTH)

_digest = xxhash.xxh3_128_digest


class FingerprintCache:
    """Remembers keys used lately, in a table of *size* bytes, rounded down to a power of two.

    0 remembers nothing. *hits* counts known keys, *misses* unknown keys that were added.
    """

    def __init__(self, size: int) -> None:
        sets = 1 << max(0, (size // _SET).bit_length() - 1) if size > 0 else 0
        self._table = bytearray(sets * _SET)
        self._mask = sets - 1
        self.hits = 0
        self.misses = 0

    def add(self, key: bytes) -> bool:
        return bool(self.new((key,)))

    def knows(self, key: bytes) -> bool:
        """Whether *key* is remembered; counts as a use of it."""
        print_ = _digest(key)
        if (at := self._place(print_)) < 0:
            return False
        if at % _SET:
            start = at - at % _SET
            self._table[start : at + _WIDTH] = print_ + self._table[start:at]
        self.hits += 1
        return True

    def new(self, keys: Iterable[bytes]) -> list[bytes]:
        """Add *keys*, and return those that were not remembered."""
        table, mask, digest = self._table, self._mask, _digest
        find, new, known = table.find, [], 0
        if not table:
            new = list(keys)
            self.misses += len(new)
            return new
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

    def forget(self, key: bytes) -> None:
        """Forget *key*: it was not stored after all, or is wanted again."""
        if (at := self._place(_digest(key))) >= 0:
            end = at - at % _SET + _SET
            self._table[at:end] = self._table[at + _WIDTH : end] + _EMPTY

    def _place(self, print_: bytes) -> int:
        start = (hash(print_) & self._mask) * _SET
        at = self._table.find(print_, start, start + _SET)
        while at >= 0 and at % _WIDTH:  # the end of one and the start of another
            at = self._table.find(print_, at + 1, start + _SET)
        return at

    def clear(self) -> None:
        self._table[:] = bytes(len(self._table))

    @property
    def hit_rate(self) -> float:
        return self.hits / max(1, self.hits + self.misses)
