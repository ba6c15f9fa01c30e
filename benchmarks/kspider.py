"""KSpider's store of URLs (§2.3), written for `seen.py` to be measured against.

An AVL tree in which a node holds a reference to another node, how many first characters it shares
with that one's URL, and the rest. The reference is the node on the way down from the root that
shares the most; ids count from 0 as URLs come, so that rotations change no reference.
"""

from __future__ import annotations

from array import array
from itertools import takewhile

FIELDS = 13
"""Bytes of a node beside its tail: reference, left and right of 4 bytes each, prefix of 1."""
LONGEST_PREFIX = 255
_NONE = -1


class AvlStore:
    """URLs as bytes; `add` returns the id of a new one, None for one that was there."""

    def __init__(self) -> None:
        self._refs = array("i")
        self._prefixes = array("B")
        self._tails: list[bytes] = []
        self._left = array("i")
        self._right = array("i")
        self._heights = array("b")
        self._root = _NONE

    def __len__(self) -> int:
        return len(self._tails)

    @property
    def size(self) -> int:
        """Bytes, as KSpider would have laid them out in C++ (heights left out)."""
        return FIELDS * len(self) + sum(map(len, self._tails))

    def node(self, ident: int) -> tuple[int, int, bytes]:
        """Reference, common prefix and tail; the reference of the root means nothing."""
        return self._refs[ident], self._prefixes[ident], self._tails[ident]

    def get(self, ident: int) -> bytes:
        """The URL of an id: its tail, and before it what the references lead to."""
        parts = [self._tails[ident]]
        length = self._prefixes[ident]
        while length:
            ident = self._refs[ident]
            own = self._prefixes[ident]
            if length > own:
                parts.append(self._tails[ident][: length - own])
                length = own
        return b"".join(reversed(parts))

    def __contains__(self, url: bytes) -> bool:
        at = self._root
        while at != _NONE:
            held = self.get(at)
            if url == held:
                return True
            at = self._left[at] if url < held else self._right[at]
        return False

    def add(self, url: bytes) -> int | None:
        """Add *url*, unless it is there."""
        path: list[int] = []
        at, ref, longest = self._root, 0, 0
        while at != _NONE:
            held = self.get(at)
            if url == held:
                return None
            common = shared(url, held)
            if common > longest:
                ref, longest = at, common
            path.append(at)
            at = self._left[at] if url < held else self._right[at]
        ident = len(self._tails)
        self._refs.append(ref)
        self._prefixes.append(longest)
        self._tails.append(url[longest:])
        self._left.append(_NONE)
        self._right.append(_NONE)
        self._heights.append(1)
        self._insert(ident, url, path)
        return ident

    def _insert(self, ident: int, url: bytes, path: list[int]) -> None:
        if not path:
            self._root = ident
            return
        side = self._left if url < self.get(path[-1]) else self._right
        side[path[-1]] = ident
        while path:
            at = path.pop()
            top = self._balanced(at)
            if not path:
                self._root = top
            elif self._left[path[-1]] == at:
                self._left[path[-1]] = top
            else:
                self._right[path[-1]] = top

    def _height(self, at: int) -> int:
        return 0 if at == _NONE else self._heights[at]

    def _measure(self, at: int) -> int:
        """Set the height of *at*; by how much its left side is higher."""
        left, right = self._height(self._left[at]), self._height(self._right[at])
        self._heights[at] = max(left, right) + 1
        return left - right

    def _balanced(self, at: int) -> int:
        """Balance the tree below *at*; its new top."""
        lean = self._measure(at)
        if lean > 1:
            if self._measure(self._left[at]) < 0:
                self._left[at] = self._rotated(self._left[at], self._right, self._left)
            return self._rotated(at, self._left, self._right)
        if lean < -1:
            if self._measure(self._right[at]) > 0:
                self._right[at] = self._rotated(self._right[at], self._left, self._right)
            return self._rotated(at, self._right, self._left)
        return at

    def _rotated(self, at: int, near: array[int], far: array[int]) -> int:
        top = near[at]
        near[at], far[top] = far[top], at
        self._measure(at)
        self._measure(top)
        return top


def shared(one: bytes, other: bytes) -> int:
    """How many first bytes are the same, at most what a node has room for."""
    limit = min(len(one), len(other), LONGEST_PREFIX)
    low, high = 0, limit
    if one[:limit] == other[:limit]:
        return limit
    while high - low > 8:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    pairs = zip(one[low:high], other[low:high], strict=True)
    return low + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
