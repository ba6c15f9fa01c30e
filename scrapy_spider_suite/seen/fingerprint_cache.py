"""The fingerprint cache: keys met lately, in a fixed amount of memory (BUbiNG §4).

A table of sets of eight tags in the order of use. A key's digest of 128 bits chooses the set, and
gives the tag, 64 of its bits. A set is 64 bytes, in which ``find`` looks at the speed of C. A key
that was not seen is taken for a known one once in 2**61 times.
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

WAYS = 8  # tags of a set
_WIDTH = 8
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
        start, at, tag = self._find(key)
        if at < 0:
            return False
        if at != start:
            self._table[start : at + _WIDTH] = tag + self._table[start:at]
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
        for key in keys:  # `_find`, for each link of a page: a call would cost as much again
            tag = (print_ := digest(key))[:_WIDTH]
            start = (hash(print_) & mask) * _SET
            at = find(tag, start, start + _SET)
            while (at - start) % _WIDTH and at >= 0:  # the end of one and the start of another
                at = find(tag, at + 1, start + _SET)
            if at == start:
                known += 1
                continue
            if at < 0:
                new.append(key)
                at = start + _SET - _WIDTH
            else:
                known += 1
            table[start : at + _WIDTH] = tag + table[start:at]
        self.hits += known
        self.misses += len(new)
        return new

    def forget(self, key: bytes) -> None:
        """Forget *key*: it was not stored after all, or is wanted again."""
        start, at, _ = self._find(key)
        if at >= 0:
            end = start + _SET
            self._table[at:end] = self._table[at + _WIDTH : end] + _EMPTY

    def _find(self, key: bytes) -> tuple[int, int, bytes]:
        # Where the set of *key* begins, where its tag is, or -1, and the tag.
        tag = (print_ := _digest(key))[:_WIDTH]
        start = (hash(print_) & self._mask) * _SET
        at = self._table.find(tag, start, start + _SET)
        while at >= 0 and at % _WIDTH:  # the end of one and the start of another
            at = self._table.find(tag, at + 1, start + _SET)
        return start, at, tag

    def clear(self) -> None:
        self._table[:] = bytes(len(self._table))

    @property
    def hit_rate(self) -> float:
        return self.hits / max(1, self.hits + self.misses)
