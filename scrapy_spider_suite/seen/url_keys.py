"""Keys of URLs as bytes, their 64-bit ids, and the table of fresh ids in memory.

An id is the host's slot (16 bits) and 48 bits of a seeded hash of the URL. If two collide, the
later URL is a *twin*: it gets the next free id, and the catalogue lists it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

SLOT_SHIFT: Final = 48
LOW: Final = (1 << SLOT_SHIFT) - 1
END: Final = 1 << 64  # above every id

TWIN_BITS: Final = 16  # twins differ in these lowest bits, within which no range of ids is cut

MAX_KEY: Final = 65_535
"""Bytes of a URL that can be stored; more than 30 times what a crawl follows."""

_REMEMBERED: Final = 20_000  # hosts with a remembered slot or range; some 3 MB

T = TypeVar("T")

digest = xxhash.xxh3_64_intdigest
"""The hash whose lowest bits are those of an id, with the seed of the store."""


def encode(url: str) -> bytes:
    """The bytes of *url*, lone surrogates included: every str differs from every other."""
    return url.encode("utf-8", "surrogatepass")


def decode(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")


def host_bytes(key: bytes) -> bytes:
    """`urls.normalize.host_of` for bytes; empty if there is no host."""
    parts = key.split(b"/", 3)
    if len(parts) < 3:
        return b""
    authority = parts[2]
    if b":" in authority and not authority.endswith(b"]"):
        return authority.rpartition(b":")[0]
    return authority


class UrlIds:
    """The ids of a store's URLs, for its life. *seed* is its own; *mask* has the used bits of 48.

    *twins* are the URLs with ids of their own. *hash_id* gives the id of a key that is no twin,
    never 0.
    """

    __slots__ = ("hash_id", "mask", "seed", "twins")

    def __init__(
        self, seed: int, mask: int = LOW, twins: Mapping[str, int] | None = None
    ) -> None:
        self.seed = seed
        self.mask = mask
        self.twins = {bytes.fromhex(key): ident for key, ident in (twins or {}).items()}
        self.hash_id = _make_hash_id(seed, mask)

    def id_of(self, key: bytes) -> int:
        return self.twins.get(key) or self.hash_id(key)

    @staticmethod
    def span(prefix: bytes) -> tuple[int, int]:
        """The lowest id, and the id after the highest, of URLs with *prefix*.

        These are the ids of one slot if *prefix* ends its host with a slash or colon; else all ids.
        """
        authority = prefix.partition(b"://")[2]
        in_brackets = b"[" in authority and b"]" not in authority
        if prefix.count(b"/") < 3 and (in_brackets or not authority.endswith(b":")):
            return 0, END
        low = digest(host_bytes(prefix)) >> 48 << 48
        return low, low + (1 << SLOT_SHIFT)


def _make_hash_id(seed: int, mask: int) -> Callable[[bytes], int]:
    slots: dict[bytes, int] = {}
    known, hash_of = slots.get, digest

    def hash_id(key: bytes) -> int:
        # As far as the first slash after "http:/", "https:/": the host, with its slash.
        slot = known(key[: key.find(b"/", 8) + 1])
        if slot is None:
            slot = hash_of(host_bytes(key)) >> SLOT_SHIFT << SLOT_SHIFT
            remember_host(slots, key, slot)
        return slot | hash_of(key, seed) & mask or 1

    return hash_id


def remember_host(values: dict[bytes, T], key: bytes, value: T) -> None:
    """Store *value* under the beginning of *key* up to the slash after its host.

    Only for http and https URLs: of others the beginning does not tell the host.
    """
    if key.startswith((b"http://", b"https://")) and (end := key.find(b"/", 8) + 1):
        if len(values) >= _REMEMBERED:
            values.clear()
        values[key[:end]] = value


Ids = NDArray[np.uint64]
Handles = NDArray[np.int64]
_Part = tuple["array[int]", "array[int]", int]

PARTS: Final = 16
_PART_SHIFT: Final = 24
_SMALLEST: Final = 8

BYTES_A_ROW: Final = 32  # memory of an id and its handle, on average over the growth of a table


class FreshTable:
    """A map from ids (1 to 2**64 - 1) to handles (0 to 2**63 - 1) that only grows.

    Open addressing in sixteen parts: 16 to 48 bytes a URL, and no step of growing takes long.
    """

    __slots__ = ("_counts", "_parts", "count", "oldest")

    def __init__(self) -> None:
        nothing = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self._parts = [_filled(*nothing) for _ in range(PARTS)]
        self._counts = [0] * PARTS
        self.count = 0
        self.oldest = -1  # the lowest handle; -1 if there is none

    @classmethod
    def from_rows(cls, ids: Ids, handles: Handles) -> FreshTable:
        """A table of these rows; of an id that comes twice the last handle holds."""
        table = cls()
        if not len(ids):
            return table
        ids, first = np.unique(ids[::-1], return_index=True)
        handles = handles[::-1][first]
        part = (ids >> np.uint64(_PART_SHIFT)).astype(np.int64) & (PARTS - 1)
        for number in range(PARTS):
            mine = part == number
            table._parts[number] = _filled(ids[mine], handles[mine])
            table._counts[number] = int(mine.sum())
        table.count = len(ids)
        table.oldest = int(handles.min())
        return table

    def find(self, ident: int) -> int:
        keys, handles, mask = self._parts[ident >> _PART_SHIFT & (PARTS - 1)]
        at = ident & mask
        while held := keys[at]:
            if held == ident:
                return handles[at]
            at = at + 1 & mask
        return -1

    def has_hash(self, hash_: int) -> bool:
        keys, _, mask = self._parts[hash_ >> _PART_SHIFT & (PARTS - 1)]
        at = hash_ & mask
        while held := keys[at]:
            if not (held ^ hash_) & LOW:
                return True
            at = at + 1 & mask
        return False

    def put(self, ident: int, handle: int) -> None:
        """Add *ident*, which is new, with a *handle* above all others."""
        number = ident >> _PART_SHIFT & (PARTS - 1)
        keys, handles, mask = self._parts[number]
        at = ident & mask
        while keys[at]:
            at = at + 1 & mask
        keys[at] = ident
        handles[at] = handle
        if self.oldest < 0:
            self.oldest = handle
        self.count += 1
        self._counts[number] += 1
        if self._counts[number] * 3 > mask * 2:
            self._parts[number] = _filled(*_rows(self._parts[number]), size=(mask + 1) * 2)

    def pieces(self) -> Iterator[tuple[Ids, Handles]]:
        """All ids and their handles in sixteen pieces; nothing may be put in between."""
        return map(_rows, self._parts)

    def ids(self) -> Ids:
        return np.concatenate([ids for ids, _ in self.pieces()])


def _rows(part: _Part) -> tuple[Ids, Handles]:
    keys = np.frombuffer(part[0], np.uint64)
    there = keys != 0
    return keys[there], np.frombuffer(part[1], np.int64)[there]


def _filled(ids: Ids, handles: Handles, size: int = _SMALLEST) -> _Part:
    while len(ids) * 3 > (size - 1) * 2:
        size *= 2
    keys, places = array("Q", bytes(8 * size)), array("q", bytes(8 * size))
    held, found = np.frombuffer(keys, np.uint64), np.frombuffer(places, np.int64)
    at = (ids & np.uint64(size - 1)).astype(np.int64)
    # All of them try their place at once; who finds it taken, or loses it, tries the next one.
    while len(ids):
        free = held[at] == 0
        held[at[free]] = ids[free]
        won = held[at] == ids
        found[at[won]] = handles[won]
        lost = ~won
        ids, handles, at = ids[lost], handles[lost], at[lost] + 1 & size - 1
    return keys, places, size - 1
