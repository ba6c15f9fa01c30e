"""URLs that waited for what has turned out to be a trap, or not to be there.

Nothing is fetched when their turn has come: what lies in a trap fails, and of what nobody linked to
nothing is remembered, so that a link can still bring it.
"""

from __future__ import annotations

from heapq import heappop

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.workbench import HostState, Visit, Workbench
from scrapy_spider_suite.storage.mining import Miner
from scrapy_spider_suite.storage.traps import Traps
from scrapy_spider_suite.store.interface import Store
from scrapy_spider_suite.store.residency import Health, Residents
from scrapy_spider_suite.store.url_states import Ledger

_AT_ONCE = 500
"""URLs of a host that are failed before anyone else has a turn again."""


class Trapped:
    """Sorts out of visits what lies in a trap."""

    def __init__(
        self, traps: Traps, miner: Miner, workbench: Workbench, residents: Residents,
        health: Health, ledger: Ledger, store: Store,
    ) -> None:  # fmt: skip
        self._traps = traps
        self._miner = miner
        self._workbench = workbench
        self._records = residents.records
        self._fronts = residents.fronts
        self._health = health
        self._ledger = ledger
        self._store = store

    def sort_out(self, visit: Visit, now: float, wall: float) -> bool:
        """Fail what of *visit* is not worth it; False if nothing is left, and it is over.

        Then what follows in its queue fails with it, as far as it is not worth it either, and its
        host comes after all that have waited until *now*.
        """
        failing = [(entry, event) for entry in visit.entries if (event := self._event(entry))]
        if not failing:
            return True
        for entry, event in failing:
            visit.entries.remove(entry)
            self._end(entry, event, now, wall)
        if not visit.entries:
            self._clear(visit.host, now, wall)
        self._records.save()
        if visit.entries:
            return True
        visit.clocks = (max(visit.clocks[0], now), *visit.clocks[1:])
        self._workbench.cancel(visit)
        return False

    def _clear(self, host: HostState, now: float, wall: float) -> None:
        """Fail the beginning of a host's queue, as far as it is not worth it."""
        for _ in range(_AT_ONCE):
            if host.more and not host.front:
                self._fronts.refill(host)
            event = self._event(host.front[0][1]) if host.front else None
            if event is None:
                return
            self._end(heappop(host.front)[1], event, now, wall)
        if host.more and not host.front:
            self._fronts.refill(host)

    def _end(self, entry: Entry, event: Event, now: float, wall: float) -> None:
        if event is not Event.NOT_THERE:
            self._health.fail(entry, event, now, wall)
            return
        self._ledger.remove(entry, self._records.touch(entry.host))
        self._ledger.cache.forget(entry.identity)
        self._store.delete_state(entry.identity)

    def _in_sieve(self, entry: Entry) -> bool:
        """Whether a link has led to *entry* since, which no other would bring again."""
        sifter = self._ledger.sifter
        return sifter is not None and sifter.knows(entry.identity)

    def _event(self, entry: Entry) -> Event | None:
        if self._miner.gave_up(entry) and not self._in_sieve(entry):
            return Event.NOT_THERE
        return Event.TRAP if self._traps.holds(entry) else None
