"""URLs below a blocked prefix: put aside at the end of their host's queue, where they wait.

The others of the host go on. When only such are left, the host itself waits; whenever the rules
have changed, each of them is looked at once more, in turn. Nothing has to be found and moved when
a block is lifted, however many there are.
"""

from __future__ import annotations

from heapq import heappush

from scrapy_spider_suite.frontier.entries import LAST, Entry, sequence_of
from scrapy_spider_suite.frontier.policy import Bar, Policy
from scrapy_spider_suite.frontier.workbench import Visit, Workbench
from scrapy_spider_suite.store.residency import Residents
from scrapy_spider_suite.store.url_states import Ledger


class Aside:
    """Sorts out of visits what may not be fetched although its host may be visited."""

    def __init__(
        self, policy: Policy, workbench: Workbench, residents: Residents, ledger: Ledger
    ) -> None:
        self._policy = policy
        self._workbench = workbench
        self._residents = residents
        self._records = residents.records
        self._ledger = ledger
        # For each host of a blocked prefix: from which sequence number on all that was put aside
        # has been looked at under this revision.
        self._passes: dict[str, int] = {}
        self._revision = -1

    def sort_out(self, visit: Visit, now: float, wall: float) -> bool:
        """Take out of *visit* what is barred; False if nothing is left, and it is over."""
        if self._revision != self._policy.revision:
            self._revision = self._policy.revision
            self._passes.clear()
        if not self._policy.blocks:
            return True
        barred: list[tuple[Entry, Bar]] = []
        for entry in list(visit.entries):
            bar = self._policy.bar_of_url(entry.url, visit.host.key, wall)
            if bar is not None:
                visit.entries.remove(entry)
                barred.append((entry, bar))
        if not barred:
            return True
        all_barred = None
        for entry, bar in barred:
            if self._seen(entry):
                heappush(visit.host.front, (entry.key, entry))
                all_barred = bar
            else:
                self._put_aside(entry, now, wall)
        if visit.entries:
            return True
        self._end(visit, all_barred, now, wall)
        return False

    def _seen(self, entry: Entry) -> bool:
        """Whether all that was put aside of a host, from *entry* on, is known to be barred."""
        since = self._passes.setdefault(entry.host, self._ledger.counters.sequence)
        return entry.key.startswith(LAST) and sequence_of(entry.key) > since

    def _put_aside(self, entry: Entry, now: float, wall: float) -> None:
        record = self._records.touch(entry.host)
        self._ledger.put_last(entry)
        self._residents.push(entry, record, now, wall)
        self._records.save()

    def _end(self, visit: Visit, bar: Bar | None, now: float, wall: float) -> None:
        host, fronts = visit.host, self._residents.fronts
        if host.more and not host.front:
            fronts.refill(host)
        self._workbench.cancel(visit)
        if bar is not None:
            self._workbench.set_bar(host, bar, now + (bar.until - wall))
