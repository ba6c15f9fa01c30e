"""What is known of hosts as far as traps and mining go: in memory while it is used, else on disk.

A row is written once a second for whoever has changed, not with each page: after a kill a trap
may have to be found again, nothing else.
"""

from __future__ import annotations

import logging

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.store.interface import Store
from scrapy_spider_suite.urls.traps import Ground, Limits, Refusal, Trap

logger = logging.getLogger(__name__)

FAMILY = "traps"
_MOST = 2_000
"""Grounds in memory, 100 KiB each at the very most; when there are more, all are read again."""
_CACHE = 50_000
"""Hosts of which it is remembered that nothing is known."""


class Grounds:
    """The ground of each host of a job."""

    def __init__(self, store: Store) -> None:
        self._kv = store.kv(FAMILY)
        self._known: dict[str, Ground] = {}
        self._unknown: set[str] = set()
        self._touched: set[str] = set()

    def get(self, host: str) -> Ground | None:
        """The ground of *host*; None if nothing is known of it. Raises `JobDamagedError`."""
        found = self._known.get(host)
        if found is not None or host in self._unknown:
            return found
        row = self._kv.get(host.encode())
        if row is not None:
            return self._keep(host, unpack(host, row))
        if len(self._unknown) >= _CACHE:
            self._unknown.clear()
        self._unknown.add(host)
        return None

    def learn(self, host: str) -> Ground:
        """The ground of *host*, about to be changed. Raises `JobDamagedError`."""
        ground = self.get(host)
        # One of which nothing is left is false, and is the one that is remembered all the same.
        return self.change(host, Ground() if ground is None else ground)

    def change(self, host: str, ground: Ground) -> Ground:
        """*ground* is that of *host*, and changed."""
        if host not in self._known:
            self._unknown.discard(host)
            self._keep(host, ground)
        self._touched.add(host)
        return ground

    def report(self, host: str, found: Refusal | None, limits: Limits) -> None:
        """Log that *found*, if anything, is a trap on *host* from now on: once a host and kind."""
        if found is None or [*self.learn(host).closed.values()].count(found.trap) > 1:
            return
        if found.trap is Trap.NUMBERS and not limits.numbers:
            logger.info(
                "%s: %s; further URLs like these come last (SUITE_TRAP_SAME, SUITE_TRAP_NUMBERS)",
                host, found,
            )  # fmt: skip
        else:
            logger.info(
                "%s: %s; further URLs like these are given up (SUITE_TRAP_%s); `scrapy frontier "
                "retry %s --reason trap` brings back those that were queued",
                host, found, found.trap.name, host,
            )  # fmt: skip

    def _keep(self, host: str, ground: Ground) -> Ground:
        if len(self._known) >= _MOST:
            self.save()
            self._known.clear()
        self._known[host] = ground
        return ground

    def save(self) -> None:
        """Put what has changed into the store's next batch."""
        for host in self._touched:
            ground = self._known[host]
            if len(ground):
                self._kv.put(host.encode(), pack(ground))
            else:
                self._kv.delete(host.encode())
        self._touched.clear()

    def forget(self, host: str) -> None:
        """*host* is dropped from the job."""
        self._known.pop(host, None)
        self._touched.discard(host)
        self._unknown.discard(host)
        self._kv.delete(host.encode())
        for key, _ in self._kv.items(page_rows(host)):
            self._kv.delete(key)


def page_rows(host: str) -> bytes:
    """What begins the keys of the rows of *host* that say which URL stands for a page."""
    return host.encode() + b"\0"


def pack(ground: Ground) -> bytes:
    """The stored form of *ground*, some 20 bytes a space; the second field is of earlier releases.
    """
    closed = {key: trap.value for key, trap in ground.closed.items()}
    packed: bytes = msgpack.packb([ground.counts, {}, closed, ground.mined])
    return packed


def unpack(host: str, row: bytes) -> Ground:
    """What `pack` packed for *host*. Raises `JobDamagedError` for anything else."""
    ground = Ground()
    try:
        counts, _, closed, mined = msgpack.unpackb(row, strict_map_key=False)
        ground.counts = {
            kind: {int(key): int(count) for key, count in each.items()}
            for kind, each in counts.items()
            if isinstance(kind, str)  # older rows do not say of what kind they are: counted anew
        }
        ground.closed = {int(key): Trap(name) for key, name in closed.items()}
        ground.mined = int(mined)
    except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise JobDamagedError(f"what is known of traps at {host} is no row ({error})") from error
    return ground
