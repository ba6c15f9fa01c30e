"""Which URL is which: bytes for tries, and 64-bit ids.

A URL's id is its host's slot (16 bits) and 48 bits of a hash of the whole URL. So an id needs no
place of its own on disk, it never changes however often segments are rebuilt, and the URLs of a
host, and the hosts of a slot, lie together in the order of ids. The hash is seeded by each store:
nobody can choose URLs whose ids collide. Should two collide all the same, the later one gets the
next free id and is a *twin*, which the manifest lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import xxhash

SLOT_SHIFT: Final = 48
LOW: Final = (1 << SLOT_SHIFT) - 1
END: Final = 1 << 64
"""Above every id."""

TWIN_BITS: Final = 16
"""Twins differ in these lowest bits, within which no range of ids is cut."""

MAX_KEY: Final = 65_535
"""Bytes of a URL that can be stored; more than 30 times what a crawl follows."""

_REMEMBERED: Final = 20_000
"""Hosts of which something is remembered; some 3 MB."""

T = TypeVar("T")

digest = xxhash.xxh3_64_intdigest
"""The hash whose lowest bits are those of an id, with the seed of the store."""


def encode(url: str) -> bytes:
    """The bytes of *url*. Lone surrogates have bytes too, so every str is told from every other."""
    return url.encode("utf-8", "surrogatepass")


def decode(key: bytes) -> str:
    """The URL that `encode` made *key* of."""
    return key.decode("utf-8", "surrogatepass")


def host_of_key(key: bytes) -> bytes:
    """The host of a URL in bytes, as `urls.normalize.host_of` has it; empty if there is none."""
    parts = key.split(b"/", 3)
    if len(parts) < 3:
        return b""
    authority = parts[2]
    if b":" in authority and not authority.endswith(b"]"):
        return authority.rpartition(b":")[0]
    return authority


def _ends_host(prefix: bytes) -> bool:
    """Whether *prefix* ends in the colon before a port."""
    authority = prefix.partition(b"://")[2]
    return authority.endswith(b":") and (b"[" not in authority or b"]" in authority)


class Identity:
    """What gives URLs their ids, for the life of a store.

    *seed* is the store's own. *mask* says which of the 48 bits are used; tests take few.
    """

    __slots__ = ("has", "mask", "of", "seed")

    def __init__(self, seed: int, mask: int = LOW) -> None:
        self.seed = seed
        self.mask = mask
        self.of = _giver(seed, mask)
        """The id that a key has unless it is a twin; never 0."""
        self.has = _judge(seed, self.of)
        """Whether a key has an id: like `of`, quicker if it has and its host is met seldom."""

    @staticmethod
    def span(prefix: bytes) -> tuple[int, int]:
        """The lowest id, and the id after the highest, that URLs with *prefix* can have.

        With a whole host in it, to the slash or colon behind, that is the host's slot, else
        everything.
        """
        if prefix.count(b"/") < 3 and not _ends_host(prefix):
            return 0, END
        low = digest(host_of_key(prefix)) >> 48 << 48
        return low, low + (1 << SLOT_SHIFT)


def _giver(seed: int, mask: int) -> Callable[[bytes], int]:
    """What gives ids; names of a function cost less than attributes do."""
    slots: dict[bytes, int] = {}
    known, hash_of = slots.get, digest

    def of(key: bytes) -> int:
        # As far as the first slash after "http:/", "https:/": the host, with its slash.
        slot = known(key[: key.find(b"/", 8) + 1])
        if slot is None:
            slot = _slot(key, slots)
        return slot | hash_of(key, seed) & mask or 1

    return of


def _judge(seed: int, of: Callable[[bytes], int]) -> Callable[[bytes, int], bool]:
    """What tells whether a key has an id."""
    hash_of, low, shift = digest, LOW, SLOT_SHIFT

    def has(key: bytes, ident: int) -> bool:
        if not (hash_of(key, seed) ^ ident) & low and ident:
            parts = key.split(b"/", 3)
            if len(parts) > 2 and b":" not in (host := parts[2]):
                return not (hash_of(host) ^ ident) >> shift
        return of(key) == ident

    return has


def _slot(key: bytes, slots: dict[bytes, int]) -> int:
    """The slot of *key*, in its place; put into *slots*, if it is plain which URLs have it."""
    slot = digest(host_of_key(key)) >> SLOT_SHIFT << SLOT_SHIFT
    remember(slots, key, slot)
    return slot


def remember(what: dict[bytes, T], key: bytes, value: T) -> None:
    """Put *value* where it is found by as much of *key* as says its host, unless that is not plain:
    what precedes the first slash from the ninth byte on, and the slash."""
    if key.startswith((b"http://", b"https://")) and (end := key.find(b"/", 8) + 1):
        if len(what) >= _REMEMBERED:
            what.clear()
        what[key[:end]] = value
