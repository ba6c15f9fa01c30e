"""Keys of URLs as bytes, and their 64-bit ids.

An id is the host's slot (16 bits) and 48 bits of a seeded hash of the URL. If two collide, the
later URL is a *twin*: it gets the next free id, and the catalogue lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

SLOT_SHIFT: Final = 48
LOW: Final = (1 << SLOT_SHIFT) - 1
END: Final = 1 << 64  # above every id

TWIN_BITS: Final = 16  # twins differ in these lowest bits, within which no range of ids is cut

MAX_KEY: Final = 65_535
"""Bytes of a URL that can be stored; more than 30 times what a crawl follows."""

_REMEMBERED: Final = 20_000  # hosts with a remembered slot; some 3 MB

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
    """The ids of a store's URLs, for its life. *twins* are the URLs with ids of their own.

    *hash_id* gives the id of a key that is no twin, never 0.
    """

    __slots__ = ("hash_id", "seed", "twins")

    def __init__(self, seed: int, twins: Mapping[str, int] | None = None) -> None:
        self.seed = seed
        self.twins = {bytes.fromhex(key): ident for key, ident in (twins or {}).items()}
        self.hash_id = _make_hash_id(seed)

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


def _make_hash_id(seed: int) -> Callable[[bytes], int]:
    slots: dict[bytes, int] = {}
    known, hash_of, low = slots.get, digest, LOW

    def hash_id(key: bytes) -> int:
        # As far as the first slash after "http:/", "https:/": the host, with its slash.
        slot = known(start := key[: key.find(b"/", 8) + 1])
        if slot is None:
            slot = hash_of(host_bytes(key)) >> SLOT_SHIFT << SLOT_SHIFT
            # Of other URLs the beginning does not tell the host.
            if start.startswith((b"http://", b"https://")):
                if len(slots) >= _REMEMBERED:
                    slots.clear()
                slots[start] = slot
        return slot | hash_of(key, seed) & low or 1

    return hash_id


Ids = NDArray[np.uint64]
Handles = NDArray[np.int64]
FreshTable = dict[int, int]  # from ids to handles, in the order of the handles

BYTES_A_ROW: Final = 144  # memory of an id and its handle in a `FreshTable`
