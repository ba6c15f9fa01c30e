"""How much of a host's queue is in memory: its front, and what of it is leased.

Invariant: of a resident host's rows on disk, those up to its cursor are in its front or
leased; those beyond it are on disk only, and then `more` is true.
"""

from __future__ import annotations

from collections.abc import Set
from heapq import heapify, heappop, heappush, nsmallest

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.workbench import HostState
from scrapy_spider_suite.storage.records import HostRecord
from scrapy_spider_suite.storage.store import Store

_FRONT = 8
"""Entries of one host in memory; a front grows to twice as many before it is cut."""
_NONE: Set[bytes] = frozenset()


class Fronts:
    """Moves entries between the fronts of hosts and their rows in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._leased: dict[str, set[bytes]] = {}

    # Leases: their rows stay in the store, and a refill must not bring them again

    def lease(self, entry: Entry) -> None:
        """*entry* is out."""
        self._leased.setdefault(entry.host, set()).add(entry.key)

    def unlease(self, entry: Entry) -> None:
        """*entry* is no longer out."""
        keys = self._leased.get(entry.host)
        if keys is not None:
            keys.discard(entry.key)
            if not keys:
                del self._leased[entry.host]

    def leased(self, key: str) -> int:
        """How many URLs of a host are out."""
        return len(self._leased.get(key, _NONE))

    def hosts_leased(self) -> list[str]:
        """The hosts of which anything is out."""
        return list(self._leased)

    def is_leased(self, entry: Entry) -> bool:
        """Whether *entry* is out."""
        return entry.key in self._leased.get(entry.host, _NONE)

    # Fronts

    def push(self, host: HostState, entry: Entry) -> bool:
        """Put a pending *entry* into the front if it belongs there; False: it waits on disk."""
        if host.more and entry.key > host.cursor and not entry.volatile:
            return False  # its turn comes with a refill
        heappush(host.front, (entry.key, entry))
        if self._store.durable and len(host.front) > 2 * _FRONT:
            self._cut(host)
        return True

    def take_out(self, host: HostState, entry: Entry) -> None:
        """Let the front of a resident host know nothing of *entry*."""
        host.front[:] = [item for item in host.front if item[0] != entry.key]
        heapify(host.front)

    def _cut(self, host: HostState) -> None:
        """Leave the end of a front that has grown too long to the disk."""
        keep = nsmallest(_FRONT, host.front)
        cursor = keep[-1][0]
        volatile = [item for item in host.front if item[0] > cursor and item[1].volatile]
        if len(keep) + len(volatile) < len(host.front):
            host.front[:] = keep + volatile
            heapify(host.front)
            host.cursor, host.more = cursor, True

    def refill(self, host: HostState) -> None:
        """Read the next rows of a host's queue into its front."""
        leased = self._leased.get(host.key, _NONE)
        while host.more:
            rows = self._store.rows(host.key, host.cursor, _FRONT)
            host.more = len(rows) == _FRONT
            if rows:
                host.cursor = rows[-1].key
            for entry in rows:
                if entry.key not in leased:
                    heappush(host.front, (entry.key, entry))
            if host.front:
                return

    def set_head(self, host: HostState) -> None:
        """Note below which key nothing is left: refills start there after a restart."""
        least = min(self._leased.get(host.key, _NONE), default=None)
        if host.front and (least is None or host.front[0][0] < least):
            least = host.front[0][0]
        host.record.head = host.cursor if least is None else before(least)

    # Emptying a queue

    def drain(self, host: HostState, limit: int) -> list[Entry]:
        """Take some *limit* pending entries out of the queue of a resident host.

        None are left when none are returned (leased ones apart).
        """
        if host.front:
            return [heappop(host.front)[1] for _ in range(min(limit, len(host.front)))]
        if not host.more:
            return []
        leased = self._leased.get(host.key, _NONE)
        rows = self._store.rows(host.key, host.cursor, limit + len(leased))
        host.more = len(rows) == limit + len(leased)
        if rows:
            host.cursor = rows[-1].key
        return [entry for entry in rows if entry.key not in leased]

    def drain_disk(self, key: str, record: HostRecord, limit: int) -> list[Entry]:
        """`drain` for a host that is not in memory."""
        leased = self._leased.get(key, _NONE)
        rows = self._store.rows(key, record.head, limit + len(leased))
        if rows:
            record.head = before(min(leased)) if leased else rows[-1].key
        return [entry for entry in rows if entry.key not in leased]


def before(key: bytes) -> bytes:
    """The greatest order key below *key*."""
    return (int.from_bytes(key, "big") - 1).to_bytes(len(key), "big")
