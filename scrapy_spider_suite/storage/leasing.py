"""How URLs are handed out, visit by visit, and how a visit ends."""

from __future__ import annotations

from heapq import heappop
from typing import Final

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.permits import Permits
from scrapy_spider_suite.frontier.workbench import HostState, Visit, Workbench
from scrapy_spider_suite.storage.aside import Aside
from scrapy_spider_suite.storage.clearance import Clearance
from scrapy_spider_suite.storage.holding import Holding
from scrapy_spider_suite.storage.leases import Lease
from scrapy_spider_suite.storage.trapped import Trapped
from scrapy_spider_suite.store.host_queues import Fronts
from scrapy_spider_suite.store.residency import Health
from scrapy_spider_suite.store.rotation import Rotation
from scrapy_spider_suite.store.unread_pages import Demand
from scrapy_spider_suite.store.url_states import Ledger

_REFUSALS: Final = 200
"""Hosts that are found to have to wait, or given up, before anyone else has a turn again."""


class Leasing:
    """Leases what the workbench says, as far as budgets, blocks and traps let it go ahead.

    Attributes:
        out: how many URLs are leased.
    """

    def __init__(
        self, workbench: Workbench, fronts: Fronts, rotation: Rotation, ledger: Ledger,
        health: Health, clearance: Clearance, aside: Aside, trapped: Trapped, demand: Demand,
        holding: Holding, permits: Permits,
    ) -> None:  # fmt: skip
        self.out = 0
        self._workbench = workbench
        self._fronts = fronts
        self._rotation = rotation
        self._ledger = ledger
        self._health = health
        self._clearance = clearance
        self._aside = aside
        self._trapped = trapped
        self._demand = demand
        self._holding = holding
        self._permits = permits

    def acquire(self, now: float, wall: float) -> list[Lease]:
        """The leases of the next visit, or none before its time."""
        for _ in range(_REFUSALS):
            visit = self._permits.acquire(now)
            if visit is None:
                break
            if not (
                self._holding.sort_out(visit)
                and self._clearance.may_leave(visit, now, wall)
                and self._aside.sort_out(visit, now, wall)
                and self._trapped.sort_out(visit, now, wall)
                and self._permits.sort_out(visit, now)
            ):
                self._permits.stays(visit)
                continue  # it has been dealt with
            self._clearance.cut_short(visit, self.out)
            leases = [self._lease(entry, visit) for entry in visit.entries]
            self._rotation.hold(visit.host)
            if visit.host.free():
                self._refill(visit.host)
            self._demand.met(visit.host.key)
            return leases
        return []

    def take(self, key: str) -> Lease | None:
        """The lease of a URL of a resident host, without a visit."""
        host = self._workbench.hosts.get(key)
        if host is None or not host.front:
            return None
        lease = self._lease(heappop(host.front)[1], None)
        self._refill(host)
        return lease

    def _lease(self, entry: Entry, visit: Visit | None) -> Lease:
        self._fronts.lease(entry)
        self._ledger.domains.lease(entry.host)
        self.out += 1
        return Lease(entry, visit)

    def _refill(self, host: HostState) -> None:
        if host.more and not host.front:
            self._fronts.refill(host)
            self._workbench.offer(host)

    def over(self, entry: Entry) -> None:
        """*entry* is no longer out."""
        self._fronts.unlease(entry)
        self._ledger.domains.unlease(entry.host)
        self.out -= 1

    def release(
        self, lease: Lease, now: float, wall: float, retry_after: float | None,
        heard: Event | None,
    ) -> None:  # fmt: skip
        """The visit of *lease*, if it has one, is over."""
        visit = lease.visit
        if visit is None:
            return
        lease.visit = None
        event = heard or lease.event
        self._health.judge(visit.host, event, now, wall, retry_after)
        self._workbench.release(visit)
        visited = event is not Event.INTERRUPTED
        self._rotation.settle_down(visit.host, now, wall, visited=visited)
