"""What an operator makes of URLs that the job knows: pending again, failed, or forgotten.

Each method is one step, for one URL or host, that leaves the store true; a caller with many of
them lets the crawl have its turn, and a batch be written, between two.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from scrapy_spider_suite.frontier.entries import LONGEST, Entry, host_key, order_key
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.workbench import HostState, Workbench
from scrapy_spider_suite.store.residency import Health, Residents
from scrapy_spider_suite.store.rows import HostRecord, UrlState
from scrapy_spider_suite.store.url_states import Ledger

if TYPE_CHECKING:
    from scrapy_spider_suite.store.rocks_store import RocksStore

FIRST = 1 << 30
"""The priority of what an operator wants before all else of its host."""
BEHIND_FIRST = order_key(FIRST, 0)[:4] + b"\xff" * LONGEST
"""Lies behind all order keys of that priority, and before all others."""


class Rework:
    """Works on the store and on what is in memory of it. Times as in `Frontier`."""

    def __init__(
        self, store: RocksStore, workbench: Workbench, residents: Residents, ledger: Ledger,
        health: Health, let_go: Callable[[Entry, float], None],
        refusal: Callable[[str, HostRecord], Event | None],
    ) -> None:  # fmt: skip
        self._store = store
        self._workbench = workbench
        self._residents = residents
        self._records = residents.records
        self._ledger = ledger
        self._health = health
        self._let_go = let_go
        self._refusal = refusal

    # Looking

    def hosts(self, after: str, limit: int) -> list[tuple[str, HostRecord]]:
        """Up to *limit* hosts beyond *after*, as they are now; do not change the records."""
        return list(islice(self._store.records(after), limit))

    def urls(self, host: str, after: bytes, limit: int) -> list[tuple[bytes, UrlState]]:
        """Up to *limit* URLs of *host* beyond *after*: what follows the host's key, and states.

        Those that have rows; `bring_back` gives all of them theirs.
        """
        rows = islice(self._store.states(host_key(host), after), limit)
        return [(name, UrlState.from_bytes(data)) for name, data in rows]

    def leased(self, host: str) -> int:
        """How many URLs of *host* are out."""
        return self._residents.fronts.leased(host)

    # Pending again

    def again(self, entry: Entry, state: UrlState, now: float, wall: float) -> bool:
        """Make *entry*, which was done or failed as *state* says, pending.

        False if its host would be one more than its registered domain may have.
        """
        record = self._records.touch(entry.host)
        if self._refusal(entry.host, record) is Event.DOMAIN_HOSTS:
            return False
        self._ledger.take_back(entry.host, record, state)
        self._ledger.take(entry, record)
        self._residents.push(entry, record, now, wall)
        self._records.save()
        if self._ledger.planner is not None:
            self._ledger.planner.withdraw(entry.identity)
        return True

    def forgive(self, host: str) -> bool:
        """Forget that *host* was given up; whether it was."""
        dead = self._health.revive(host, self._records.touch(host))
        self._records.save()
        return dead

    def put_first(self, entry: Entry, now: float, wall: float) -> bool:
        """Let a queued *entry* come before everything else of its host; False if it is out now."""
        residents = self._residents
        if residents.fronts.is_leased(entry):
            return False
        record = self._records.touch(entry.host)
        self._take_from_front(entry)
        self._ledger.put_first(entry, record, FIRST)
        residents.push(entry, record, now, wall)
        self._records.save()
        return True

    # No longer pending

    def pending(self, host: str, after: bytes, limit: int) -> list[Entry]:
        """Up to *limit* queued URLs of *host* whose order keys lie beyond *after*."""
        return self._store.rows(host, after, limit)

    def fail(self, entry: Entry, event: Event, wall: float) -> bool:
        """Take a queued *entry* out, failed because of *event*; False if it is out now."""
        if not self.take_out(entry):
            return False
        record = self._records.touch(entry.host)
        self._ledger.refuse(entry, record, event, wall)
        self._records.save()
        return True

    def take_out(self, entry: Entry) -> bool:
        """Take a queued *entry* out of its queue, and leave its state; False if it is out now."""
        residents = self._residents
        if residents.fronts.is_leased(entry):
            return False
        record = self._records.touch(entry.host)
        self._ledger.remove(entry, record)
        host = self._take_from_front(entry)
        if host is not None:
            if host.more and not host.front:
                residents.fronts.refill(host)
            self._workbench.offer(host)
        if not record.pending:
            residents.retire(entry.host)
        self._records.save()
        return True

    def _take_from_front(self, entry: Entry) -> HostState | None:
        """Let a host in memory know nothing of *entry*; the host, if it is one."""
        host = self._workbench.hosts.get(entry.host)
        if host is not None:
            self._residents.fronts.take_out(host, entry)
        return host

    # Forgotten

    def forget(self, entry: Entry) -> bool:
        """Take a queued *entry* out as if it had never been found; False if it is out now."""
        if not self.take_out(entry):
            return False
        self._forget_state(entry.identity)
        return True

    def forget_state(self, host: str, name: bytes, state: UrlState) -> None:
        """Forget the URL *name* of *host* (see `urls`), which is done or failed."""
        record = self._records.touch(host)
        self._ledger.take_back(host, record, state)
        self._forget_state(host_key(host) + name)
        self._records.save()

    def _forget_state(self, key: bytes) -> None:
        self._store.delete_state(key)
        self._ledger.forget(key)
        if self._ledger.planner is not None:
            self._ledger.planner.forget(key)

    def forget_host(self, host: str, now: float) -> bool:
        """Forget a *host* without URLs; False while anything of it is queued, out or under way."""
        resident = self._workbench.hosts.get(host)
        if self.leased(host) or (resident is not None and not resident.idle()):
            return False
        record = self._records.touch(host)
        if record.pending:
            return False
        for _, entry in () if resident is None else resident.front:
            # Only what cannot be stored is left: whoever waits for it waits no longer.
            self._ledger.remove(entry, record)
            self._let_go(entry, now)
        counters = self._ledger.counters
        counters.done -= record.done  # what was fetched twice was counted twice
        if self._store.sieve is not None and record.done:  # it had no row that said so
            left = counters.events.get(Event.SUCCESS, 0) - record.done
            counters.events[Event.SUCCESS] = max(0, left)
        counters.failed -= record.failed
        self._ledger.domains.count(host, hosts=-record.counted, pages=-record.done)
        self._health.forgive(host)
        self._residents.forget(host)
        self._store.delete_record(host)
        return True
