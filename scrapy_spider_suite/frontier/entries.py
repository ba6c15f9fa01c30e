"""What waits in a host's queue: one URL, with what is known of it."""

from __future__ import annotations

from enum import IntFlag
from typing import Any

from msgspec import Struct

from scrapy_spider_suite.frontier.keys import state_key


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
    *own_identity* is what deduplication knows it by; most follow from host and URL (empty: their
    `state_key`), and are not worth their memory.
    *beyond* is how many links in a row have led out of the scope.
    *referrer_policy* is the number of the Referrer-Policy of the page *referrer*, 0 if that sent
    none (see `crawl.referers`).
    *payload* is ``None`` for a plain GET that the frontier made, the request itself in memory,
    or the encoded request on disk.
    *key* orders the entries of a host: four bytes of inverted priority, at the end six bytes of
    sequence, and between them what the order of the job adds (see `orders`).
    *holder* is the lease that cannot be committed before this entry is (volatile entries only).
    *mark* is what is known of a seed besides, until that is written down (see `storage.seeds`).
    """

    host: str
    url: str
    own_identity: bytes = b""
    priority: int = 0
    depth: int = 0
    hops: int = 0
    beyond: int = 0
    referrer_policy: int = 0
    flags: int = 0
    attempts: int = 0
    referrer: str = ""
    payload: Any = None
    key: bytes = b""
    holder: Any = None
    mark: str = ""

    @property
    def identity(self) -> bytes:
        """The state key."""
        return self.own_identity or state_key(self.host, self.url)

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
