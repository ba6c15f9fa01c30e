"""Orders: which URL of a host comes next, decided by nothing but how its key is formed.

A key begins with four bytes of inverted priority and ends with six bytes of sequence, which no
other entry has; what stands between is the order's. `breadth-first` adds nothing, so its keys are
those of every earlier release. The others add a byte that puts what was tried in vain behind what
was not, and then:

- `bottom-up` (Tarantula, §5.1): two bytes for the sweep of a leaf window, the path, and a byte
  above all others. So a URL comes after all that begin with it: `/video/clips/`, `/video/`, `/`;
- `best-first`: eight bytes that sort by falling score.

No key is longer than `LONGEST`, since a host's record holds one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from scrapy_spider_suite.frontier.entries import Entry, order_key

PATH_MAX = 120
"""Bytes of a path in a key; URLs that agree on so many come as they were found."""
LONGEST = 4 + 1 + 2 + PATH_MAX + 1 + 6
Score = Callable[[Entry], float]

_ABOVE = b"\xff"
_FRESH, _TRIED = b"\0", b"\1"
_TO_AND = 5  # where the sweep stands in a key, behind the priority and that byte
_PATH = _TO_AND + 2
_SWEEPS = 0xFFFF
_MIRROR = bytes(255 - byte for byte in range(256))
_DOUBLE, _BITS = struct.Struct(">d"), struct.Struct(">Q")
_SIGN, _ALL = 1 << 63, (1 << 64) - 1


class Order(Protocol):
    """Gives entries their keys."""

    def key(self, entry: Entry, sequence: int, head: bytes, *, tried: bool = False) -> bytes:
        """The key of *entry*; if it was *tried*, it comes behind the others of its priority.

        *head* is a lower bound of the keys of its host that are left. Raises `OverflowError` after
        2**48 entries.
        """


class BreadthFirst:
    """In the order in which they were found (U4), whether tried or not."""

    def key(self, entry: Entry, sequence: int, head: bytes, *, tried: bool = False) -> bytes:
        """See `Order`."""
        return order_key(entry.priority, sequence)


class BottomUp:
    """From the leaves of a host's tree of paths to its root, from left to right (T13).

    With *to_and_fro* (T16) a window goes over the leaves: what is found behind it waits until it
    comes back, from right to left, and so on. That is a number for each sweep, before paths that
    are mirrored in every other sweep: then the right-most leaf sorts first, and still before its
    parent.
    """

    def __init__(self, *, to_and_fro: bool = False) -> None:
        self._to_and_fro = to_and_fro

    def key(self, entry: Entry, sequence: int, head: bytes, *, tried: bool = False) -> bytes:
        """See `Order`."""
        key = order_key(entry.priority, sequence)
        begin, end = key[:4], key[4:]
        if tried:
            return begin + _TRIED + end
        begin += _FRESH
        if not self._to_and_fro or head[:_TO_AND] != begin or len(head) < _PATH:
            return begin + _leaf(entry.url, 0) + end
        sweep = int.from_bytes(head[_TO_AND:_PATH], "big")
        found = begin + _leaf(entry.url, sweep) + end
        if found <= head and sweep < _SWEEPS:
            return begin + _leaf(entry.url, sweep + 1) + end
        return found


class BestFirst:
    """By falling *score*, those of one score as they were found. A score that is no finite number
    counts as 0.0, as does one above 1e308."""

    def __init__(self, score: Score) -> None:
        self._score = score

    def key(self, entry: Entry, sequence: int, head: bytes, *, tried: bool = False) -> bytes:
        """See `Order`."""
        key = order_key(entry.priority, sequence)
        if tried:
            return key[:4] + _TRIED + key[4:]
        return key[:4] + _FRESH + _falling(self._score(entry)) + key[4:]


BREADTH_FIRST = BreadthFirst()


def _leaf(url: str, sweep: int) -> bytes:
    """Sweep and path: of a path that is cut short the byte above all others is cut off, too."""
    start = url.find("/", 8)
    path = url[max(0, start) :].encode()
    path = path + _ABOVE if len(path) <= PATH_MAX else path[:PATH_MAX]
    if sweep & 1:
        end = _ABOVE if path[-1:] == _ABOVE else b""
        path = path[: len(path) - len(end)].translate(_MIRROR) + end
    return sweep.to_bytes(2, "big") + path


def _falling(score: float) -> bytes:
    """Eight bytes that sort as the negative of *score* does (the usual trick with IEEE 754)."""
    if not -1e308 <= score <= 1e308:  # nor is a NaN
        score = 0.0
    (bits,) = _BITS.unpack(_DOUBLE.pack(score + 0.0))  # -0.0 becomes 0.0
    rising = bits ^ (_ALL if bits & _SIGN else _SIGN)
    return _BITS.pack(rising ^ _ALL)
