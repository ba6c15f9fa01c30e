"""A policy that changes while hosts and addresses are in memory, and hosts wait on disk for it.

Nothing is walked at once. Whoever's turn it is, is brought up to date before it goes; the others
follow in portions (`Reviser.go_on`), so that a shorter delay or a block that was lifted reaches
those, too, whose turn would come late or never.
"""

from __future__ import annotations

import math

from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.politeness import Pace
from scrapy_spider_suite.frontier.workbench import AddressState, HostState, Visit, Workbench
from scrapy_spider_suite.storage.residents import Residents
from scrapy_spider_suite.storage.waiting import BARRED

_PORTION = 1_000
"""Hosts and addresses in memory that are revised at a time (some 10 µs each)."""
_ON_DISK = 200
"""Hosts on disk that are looked at at a time (some 20 µs each)."""


class Reviser:
    """Keeps what was derived from *policy* in step with it."""

    def __init__(self, policy: Policy, workbench: Workbench, residents: Residents) -> None:
        self._policy = policy
        self._workbench = workbench
        self._residents = residents
        self._revision = policy.revision
        self._hosts: list[HostState] = []
        self._addresses: list[AddressState] = []
        # Where to go on; an earlier run may have had other rules.
        self._on_disk: tuple[float, str] | None = (BARRED, "")

    @property
    def busy(self) -> bool:
        """Whether `go_on` has anything to do."""
        behind = self._revision != self._policy.revision
        return behind or bool(self._hosts or self._addresses) or self._on_disk is not None

    def go_on(self, now: float, wall: float) -> None:
        """Revise the next portion."""
        if self._revision != self._policy.revision:
            self._revision = self._policy.revision
            self._hosts = list(self._workbench.hosts.values())
            self._addresses = list(self._workbench.addresses.values())
            self._on_disk = (BARRED, "")
        left = _PORTION
        while self._addresses and left:
            left -= 1
            self.revise_address(self._addresses.pop(), now)
        while self._hosts and left:
            left -= 1
            host = self._hosts.pop()
            if self._workbench.hosts.get(host.key) is host:
                self.revise(host, now)
                self.barred(host, now, wall)
        self._residents.records.save()
        if self._on_disk is not None and left:
            self._on_disk = self._residents.look_at_barred(*self._on_disk, _ON_DISK, wall)

    def holds_back(self, visit: Visit, now: float, wall: float) -> bool:
        """Take a visit back whose host is barred, or was to go by the pace of an older policy."""
        host, address = visit.host, visit.address
        revision = self._policy.revision
        behind = host.revision != revision or address.revision != revision
        if not behind and not self.barred(host, now, wall):
            return False
        self._workbench.cancel(visit)
        if behind:  # it goes at once if the new pace allows it
            self.revise(host, now)
            self.revise_address(address, now)
        return True

    def revise(self, host: HostState, now: float) -> None:
        """Let a resident *host* go by the pace that the policy has for it."""
        if host.revision == self._policy.revision:
            return
        host.revision = self._policy.revision
        pace = self._policy.of_host(host.key)
        if self._policy.start_delay:  # something measures its delay, never below the policy's
            pace = Pace(max(pace.delay, host.delay), pace.concurrency, pace.burst)
        host.crawl_delay = self._residents.crawl_delay(host)
        concurrency = 1 if host.crawl_delay else pace.concurrency
        before = host.next_fetch
        self._workbench.set_pace(host, Pace(pace.delay, concurrency, pace.burst), now)
        if host.next_fetch != before:
            self._residents.records.touch(host.key)

    def revise_address(self, address: AddressState, now: float) -> None:
        """Let an *address* go by the pace that the policy has for it."""
        if address.revision != self._policy.revision:
            address.revision = self._policy.revision
            if address.numeric:
                pace = self._policy.of_address(address.numeric)
                self._workbench.set_address_pace(address, pace, now)

    def out_of_phase(self, host: HostState, now: float, wall: float) -> bool:
        """Whether *host* waits for a phase that is far off, also if that was not noticed yet."""
        return self._residents.far(host.key, wall) and self.barred(host, now, wall)

    def barred(self, host: HostState, now: float, wall: float) -> bool:
        """Whether *host* may not be visited now, by rules for it or for its address."""
        bar = self._policy.bar_of_visit(host.key, host.connect_to, wall)
        if bar != host.bar:
            until = -math.inf if bar is None else now + (bar.until - wall)
            self._workbench.set_bar(host, bar, until)
            # Whoever looks at the job sees why.
            self._residents.records.touch(host.key)
            self._residents.records.save()
        return bar is not None
