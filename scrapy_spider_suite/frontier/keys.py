"""Keys: what hosts and URLs are known by, in memory and on disk."""

from __future__ import annotations

from typing import Final

import xxhash

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
