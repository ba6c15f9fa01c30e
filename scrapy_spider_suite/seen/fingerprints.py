"""Fingerprints of what was seen: of fixed width, and with the slot of the host first.

What is remembered goes by a *key*: bytes that begin with a slot, such as the identity of a URL
(`frontier.keys.state_key`). Its fingerprint is the slot, 2 bytes, and the first bytes of the key's
xxh3_128. So all of one host lies together, and a range of slots can be handed over.

Two keys are taken for one if their slots and all other bits agree. With *n* keys known in the
largest slot, a new one is taken for known with a probability of at most ``n / 2**(bits - 16)``.
xxh3 is no cryptographic hash: who can have chosen URLs crawled can make two of their own host
collide, and hides one of them, but none of another host.
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from scrapy_spider_suite.seen.identity import encode, host_of_key

SLOTS = 1 << 16
WIDTHS = {64: 8, 128: 16}
"""Bytes of a fingerprint, by its bits."""

_digest = xxhash.xxh3_128_digest


def key_of(item: str | bytes) -> bytes:
    """The key of *item*: bytes are one already, that of a URL is its `state_key`."""
    if isinstance(item, bytes):
        return item
    url = encode(item)
    host = host_of_key(url)
    return xxhash.xxh3_64_digest(host)[:2] + host + b"\0" + url


def fingerprint(key: bytes, width: int) -> bytes:
    """The fingerprint of *key*, of 8 or 16 bytes."""
    return (key[:2] if len(key) > 1 else key.ljust(2, b"\0")) + _digest(key)[: width - 2]


def fingerprints(items: Iterable[str | bytes], width: int) -> bytes:
    """The fingerprints of *items*, one after the other."""
    return b"".join([fingerprint(key_of(item), width) for item in items])


def false_positive_bound(largest: int, bits: int) -> float:
    """The greatest probability with which a new key is taken for a known one.

    *largest* is how many keys are known in the slot that has most of them.
    """
    return min(1.0, float(largest) / 2.0 ** (bits - 16))
