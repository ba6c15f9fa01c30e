"""Keys: what hosts and URLs are known by, in memory and on disk.

What waits in a host's queue: one URL, with what is known of it.

Orders: which URL of a host comes next, decided by nothing but how its key is formed.

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
from enum import IntFlag
from typing import Any, Final, Protocol

import xxhash
from msgspec import Struct

UNITS: Final = 1 << 16
"""Slots, and units of assignment and hand-over, of which the slots are one kind."""


def slot_of(host: str) -> int:
    """The slot of *host*, 0 to 65,535: the top 16 bits of xxh3(host)."""
    return xxhash.xxh3_64_intdigest(host.encode()) >> 48


def host_key(host: str) -> bytes:
    """The key of a host's row, and the prefix of its queue and its URLs: slot, host, NUL."""
    name = host.encode()
    return xxhash.xxh3_64_digest(name)[:2] + name + b"\0"


def state_key(host: str, url: str) -> bytes:
    """What deduplication knows a bulk link or a plain GET by: its host's key and normal form."""
    return host_key(host) + url.encode()


class Flag(IntFlag):
    """Properties of an entry, kept with it on disk."""

    NONE = 0
    USER = 1
    """A ``Request`` that a spider made: callbacks, meta and retries are Scrapy's."""
    START = 2
    """It came out of ``start()``."""
    DONT_FILTER = 4
    """It was to be fetched whether seen or not: a spider said so, or an operator asked for it."""
    VOLATILE = 8
    """It cannot be stored: it lives in memory and keeps its parent un-done."""
    PROXIED = 32
    """It goes through a proxy: no name is resolved for it, no address is promised."""
    NO_ROBOTS = 64
    """Its ``dont_obey_robotstxt`` is set."""
    SELF_REDIRECT = 16
    """A page that redirected to itself, fetched once more with its host's cookies."""
    SPECULATIVE = 128
    """Nobody linked to it: it was mined from another URL, and may not exist."""


# Plain integers: operators of flags are Python code.
_VOLATILE = int(Flag.VOLATILE)


class Entry(Struct, eq=False, gc=False):
    """One URL (or stored request) in the queue of one host.

    There are hundreds of thousands in memory: the garbage collector, which would stop the crawl
    to walk over them, does not know them. What holds entries lets go of them in the end.

    *host* is the pacing key: the hostname, or the ``download_slot`` that a spider chose.
    *stored_key* is what deduplication knows it by; most follow from host and URL (empty: their
    `state_key`), and are not worth their memory.
    *hops_outside* is how many links in a row have led out of the scope.
    *referrer_policy* is the number of the Referrer-Policy of the page *referrer*, 0 if that sent
    none (see `crawl.referers`).
    *payload* is ``None`` for a plain GET that the frontier made, the request itself in memory,
    or the encoded request on disk.
    *key* orders the entries of a host: four bytes of inverted priority, at the end six bytes of
    sequence, and between them what the order of the job adds (see `orders`).
    *holder* is the lease that cannot be committed before this entry is (volatile entries only).
    *seed_note* is the tag of a seed and whether its scheme was guessed, until that is stored.
    """

    host: str
    url: str
    stored_key: bytes = b""
    priority: int = 0
    depth: int = 0
    hops: int = 0
    hops_outside: int = 0
    referrer_policy: int = 0
    flags: int = 0
    attempts: int = 0
    referrer: str = ""
    payload: Any = None
    key: bytes = b""
    holder: Any = None
    seed_note: str = ""

    @property
    def identity(self) -> bytes:
        """The state key."""
        return self.stored_key or state_key(self.host, self.url)

    @property
    def volatile(self) -> bool:
        """Whether it cannot be stored."""
        return self.flags & _VOLATILE != 0

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
    """Ten bytes that sort by falling *priority*, then by rising *sequence*.

    Priorities beyond 31 bits are clamped. Raises `OverflowError` after 2**48 entries.
    """
    inverted = 0x80000000 - max(-0x7FFFFFFF, min(0x7FFFFFFF, priority))
    return inverted.to_bytes(4, "big") + sequence.to_bytes(6, "big")


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

    With *alternating* (T16) a window goes over the leaves: what is found behind it waits until it
    comes back, from right to left, and so on. That is a number for each sweep, before paths that
    are mirrored in every other sweep: then the right-most leaf sorts first, and still before its
    parent.
    """

    def __init__(self, *, alternating: bool = False) -> None:
        self._to_and_fro = alternating

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
