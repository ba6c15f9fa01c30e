"""Which visits may go ahead: who is refused, and how much may still be asked of a host."""

from __future__ import annotations

import math
from heapq import heappush

from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.workbench import HostState, Visit, Workbench
from scrapy_spider_suite.store.residency import Health, Residents
from scrapy_spider_suite.store.rotation import Reviser
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.store.url_states import Ledger


class Clearance:
    """Applies the policy's rules and page budgets, and remembers the dead."""

    def __init__(
        self, policy: Policy, workbench: Workbench, residents: Residents, ledger: Ledger,
        reviser: Reviser, health: Health,
    ) -> None:  # fmt: skip
        self._policy = policy
        self._workbench = workbench
        self._residents = residents
        self._ledger = ledger
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
        if full:
            self._fail_what_holds_up(visit, now, wall)
        self._workbench.cancel(visit)
        if refusal:
            self._health.give_up(host.key, refusal, now, wall)
        elif full:
            # Its last pages are on their way: they decide whether any are left.
            self._workbench.postpone(host, now + 1.0, "page budget")
        else:
            self._residents.unresolved.want(host)
        return False

    def _fail_what_holds_up(self, visit: Visit, now: float, wall: float) -> None:
        """Fail those URLs of *visit* whose pages are done but for them: else each waits for the
        other, the page for them, and they for it to succeed or to fail."""
        for entry in list(visit.entries):
            if entry.holder is not None and entry.holder.settled:
                visit.entries.remove(entry)
                own = self._left_of_host(visit.host) <= 0
                event = Event.BUDGET if own else Event.DOMAIN_BUDGET
                self._health.fail(entry, event, now, wall)
        self._residents.records.save()

    def refusal(self, host: str, record: HostRecord, address: str = "") -> Event | None:
        """Why no URL of *host* is to be fetched any more; None if it may be."""
        if record.dead:
            return Event(record.dead)
        policy, domains = self._policy, self._ledger.domains
        budget = policy.max_pages(host, address)
        if budget and record.done >= budget:
            return Event.BUDGET
        if policy.domain_max_pages and domains.of(host).pages >= policy.domain_max_pages:
            return Event.DOMAIN_BUDGET
        hosts = 0 if record.counted else policy.domain_max_hosts
        return Event.DOMAIN_HOSTS if hosts and domains.of(host).hosts >= hosts else None

    # What is out may all succeed

    def pages_left(self, host: HostState) -> float:
        """How many more pages of *host* may be leased, for its own sake and for its domain's."""
        domains, left = self._ledger.domains, self._left_of_host(host)
        if self._policy.domain_max_pages:
            done = domains.of(host.key).pages + domains.leased(host.key)
            left = min(left, self._policy.domain_max_pages - done)
        return left

    def _left_of_host(self, host: HostState) -> float:
        budget = self._policy.max_pages(host.key, host.connect_to)
        if not budget:
            return math.inf
        return budget - int(host.record.done) - self._residents.fronts.leased(host.key)

    def left_of_job(self, leased: int) -> float:
        """How many more pages the job may have while *leased* are out."""
        budget = self._policy.job_max_pages
        return budget - self._ledger.counters.done - leased if budget else math.inf

    def cut_short(self, visit: Visit, leased: int) -> None:
        """Put back the end of a burst that would go beyond a budget while *leased* are out."""
        if len(visit.entries) > 1:
            left = min(self.pages_left(visit.host), self.left_of_job(leased))
            if left < len(visit.entries):
                put_back(visit, int(left))


def put_back(visit: Visit, keep: int = 0) -> None:
    """Return all but the first *keep* entries of a visit that has not begun to the front."""
    for entry in visit.entries[keep:]:
        heappush(visit.host.front, (entry.key, entry))
    del visit.entries[keep:]
