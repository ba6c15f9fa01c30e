"""One URL in a host's queue, its keys, and the orders of a queue.

An order key begins with four bytes of inverted priority and ends with six bytes of sequence. What
stands between them is the order's; no key is longer than `LONGEST`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Protocol

import xxhash
from msgspec import Struct

UNITS: Final = 1 << 16  # slots; also the number of units of assignment and hand-over


def slot_of(host: str) -> int:
    """The slot of *host*, 0 to 65,535: the top 16 bits of xxh3(host)."""
    return xxhash.xxh3_64_intdigest(host.encode()) >> 48


@lru_cache(1 << 14)  # a page's own host is asked for again and again
def host_key(host: str) -> bytes:
    """The key of a host's row, and the prefix of its queue and URLs: slot, host, NUL."""
    name = host.encode()
    return xxhash.xxh3_64_digest(name)[:2] + name + b"\0"


def state_key(host: str, url: str) -> bytes:
    """The deduplication key of a link or plain GET: its host's key and normal form."""
    return host_key(host) + url.encode()


class Flag:
    """Properties of an entry, kept with it on disk: bits of an integer."""

    USER: Final = 1  # a ``Request`` that a spider made: callbacks, meta and retries are Scrapy's
    START: Final = 2  # it came out of ``start()``
    DONT_FILTER: Final = 4  # fetch it whether seen or not: a spider or an operator asked for it
    VOLATILE: Final = 8  # it cannot be stored: it lives in memory and keeps its parent un-done
    PROXIED: Final = 32
    """It goes through a proxy: no name is resolved for it, no address is promised."""
    NO_ROBOTS: Final = 64  # its ``dont_obey_robotstxt`` is set
    SELF_REDIRECT: Final = 16
    """A page that redirected to itself, fetched once more with its host's cookies."""
    SPECULATIVE: Final = 128
    """Nobody linked to it: it was mined from another URL, and may not exist."""


class Entry(Struct, eq=False, gc=False):
    """One URL (or stored request) in the queue of one host.

    The garbage collector does not know entries: there are hundreds of thousands in memory.
    """

    host: str  # the pacing key: the hostname, or the ``download_slot`` that a spider chose
    url: str
    stored_key: bytes = b""  # for deduplication, if it does not follow from host and URL
    priority: int = 0
    depth: int = 0
    hops: int = 0
    hops_outside: int = 0  # how many links in a row have led out of the scope
    referrer_policy: int = 0  # the number of the Referrer-Policy of the *referrer*, 0 for none
    flags: int = 0
    attempts: int = 0
    referrer: str = ""
    payload: Any = None  # None for a plain GET, else the request, encoded where it is stored
    key: bytes = b""  # orders the entries of a host
    holder: Any = None  # the lease that is not committed before this (volatile entries only)
    seed_note: str = ""  # tag of a seed, and whether its scheme was guessed, until stored

    @property
    def identity(self) -> bytes:
        return self.stored_key or state_key(self.host, self.url)

    @property
    def volatile(self) -> bool:
        return self.flags & Flag.VOLATILE != 0

    def __repr__(self) -> str:
        return f"<Entry {self.url} priority={self.priority} depth={self.depth}>"


LAST = b"\xff\xff\xff\xff"
"""How the order keys begin of what comes after everything else of its host."""


def last_key(sequence: int) -> bytes:
    """The order key of what comes last, whatever its priority."""
    return LAST + sequence.to_bytes(6, "big")


def sequence_of(key: bytes) -> int:
    """The sequence number in an order key of any order."""
    return int.from_bytes(key[-6:], "big")


def order_key(priority: int, sequence: int) -> bytes:
    """Ten bytes that sort by falling *priority* (31 bits), then *sequence* (below 2**48)."""
    inverted = 0x80000000
    if priority:  # of most there is none, and every link has a key
        inverted -= max(-0x7FFFFFFF, min(0x7FFFFFFF, priority))
    return inverted.to_bytes(4, "big") + sequence.to_bytes(6, "big")


PATH_MAX = 120  # bytes of a path in a key
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
    def key(self, entry: Entry, sequence: int, head: bytes, *, tried: bool = False) -> bytes:
        """The key of *entry*, behind the others if *tried*; *head*: the least key of its host."""


class BreadthFirst:
    """In the order in which they were found, whether tried or not."""

    def key(self, entry: Entry, sequence: int, head: bytes, *, tried: bool = False) -> bytes:
        return order_key(entry.priority, sequence)


class BottomUp:
    """From the leaves of a host's tree of paths to its root, from left to right.

    With *alternating*, to and fro: keys hold the number of the sweep, then the path, mirrored in
    every other sweep.
    """

    def __init__(self, *, alternating: bool = False) -> None:
        self._to_and_fro = alternating

    def key(self, entry: Entry, sequence: int, head: bytes, *, tried: bool = False) -> bytes:
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
    """By falling *score*, then as found. A score that is not finite, or above 1e308, counts as 0.0.
    """

    def __init__(self, score: Score) -> None:
        self._score = score

    def key(self, entry: Entry, sequence: int, head: bytes, *, tried: bool = False) -> bytes:
        key = order_key(entry.priority, sequence)
        if tried:
            return key[:4] + _TRIED + key[4:]
        score = self._score(entry)
        if not -1e308 <= score <= 1e308:  # nor is a NaN
            score = 0.0
        (bits,) = _BITS.unpack(_DOUBLE.pack(score + 0.0))  # -0.0 becomes 0.0
        falling = bits if bits & _SIGN else bits ^ _SIGN ^ _ALL
        return key[:4] + _FRESH + _BITS.pack(falling) + key[4:]


BREADTH_FIRST = BreadthFirst()


def _leaf(url: str, sweep: int) -> bytes:
    """Sweep and path; a path that is cut short loses the byte above all others, too."""
    start = url.find("/", 8)
    path = url[max(0, start) :].encode()
    path = path + _ABOVE if len(path) <= PATH_MAX else path[:PATH_MAX]
    if sweep & 1:
        end = _ABOVE if path[-1:] == _ABOVE else b""
        path = path[: len(path) - len(end)].translate(_MIRROR) + end
    return sweep.to_bytes(2, "big") + path
