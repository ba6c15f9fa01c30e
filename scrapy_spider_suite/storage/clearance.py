"""Who is refused, and how much may still be asked of a host."""

from __future__ import annotations

import math
from heapq import heappush

from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.workbench import HostState, Visit
from scrapy_spider_suite.storage.fronts import Fronts
from scrapy_spider_suite.storage.records import HostRecord


class Clearance:
    """Applies the policy's page budgets, and remembers the dead."""

    def __init__(self, policy: Policy, fronts: Fronts) -> None:
        self._policy = policy
        self._fronts = fronts

    def refusal(self, host: str, record: HostRecord, address: str = "") -> Event | None:
        """Why no URL of *host* is to be fetched any more; None if it may be."""
        if record.dead:
            return Event(record.dead)
        budget = self._policy.max_pages(host, address)
        return Event.BUDGET if budget and record.done >= budget else None

    def pages_left(self, host: HostState) -> float:
        """How many more pages of *host* may be leased: those that are out may all succeed."""
        budget = self._policy.max_pages(host.key, host.connect_to)
        if not budget:
            return math.inf
        return budget - int(host.record.done) - self._fronts.leased(host.key)

    def cut_short(self, visit: Visit) -> None:
        """Put back the end of a burst that would go beyond the budget of its host."""
        if len(visit.entries) > 1:
            left = self.pages_left(visit.host)
            if left < len(visit.entries):
                put_back(visit, int(left))


def put_back(visit: Visit, keep: int = 0) -> None:
    """Return all but the first *keep* entries of a visit that has not begun to the front."""
    for entry in visit.entries[keep:]:
        heappush(visit.host.front, (entry.key, entry))
    del visit.entries[keep:]
