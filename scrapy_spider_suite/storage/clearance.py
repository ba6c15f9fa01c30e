"""Which visits may go ahead: who is refused, and how much may still be asked of a host."""

from __future__ import annotations

import math
from heapq import heappush

from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.workbench import HostState, Visit, Workbench
from scrapy_spider_suite.storage.health import Health
from scrapy_spider_suite.storage.records import HostRecord
from scrapy_spider_suite.storage.residents import Residents
from scrapy_spider_suite.storage.revising import Reviser


class Clearance:
    """Applies the policy's rules and page budgets, and remembers the dead."""

    def __init__(
        self, policy: Policy, workbench: Workbench, residents: Residents, reviser: Reviser,
        health: Health,
    ) -> None:  # fmt: skip
        self._policy = policy
        self._workbench = workbench
        self._residents = residents
        self._reviser = reviser
        self._health = health

    def may_leave(self, visit: Visit, now: float, wall: float) -> bool:
        """Whether a visit may go ahead; if not, it is over, and its host is dealt with."""
        host = visit.host
        if self._reviser.holds_back(visit, now, wall):
            return False
        refusal = self.refusal(host.key, host.record, host.connect_to)
        full = self.pages_left(host) <= 0
        stale = bool(host.connect_to) and host.resolved_until <= now
        if not (refusal or full or stale):
            return True
        self._workbench.cancel(visit)
        if refusal:
            self._health.give_up(host.key, refusal, now, wall)
        elif full:
            # Its last pages are on their way: they decide whether any are left.
            self._workbench.postpone(host, now + 1.0, "page budget")
        else:
            self._residents.want_address(host)
        return False

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
        return budget - int(host.record.done) - self._residents.fronts.leased(host.key)

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
