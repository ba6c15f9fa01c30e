"""Who may be visited how often: the general settings, and the exceptions from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from scrapy_spider_suite.frontier.overrides import Overrides
from scrapy_spider_suite.frontier.politeness import BackOff, Pace


@dataclass(frozen=True, slots=True)
class Policy:
    """The pace of hosts and addresses (seconds), and how much is asked of a host.

    *host_max_pages* 0 means no limit. *address* concurrency 0 means that addresses set none.
    *slots* are a project's own paces by pacing key (Scrapy's ``DOWNLOAD_SLOTS``). *start_delay* is
    the least delay that a host begins with, where something measures and changes it afterwards.
    """

    host: Pace = field(default_factory=lambda: Pace(4.0))
    address: Pace = field(default_factory=lambda: Pace(0.5))
    host_max_pages: int = 0
    retry_times: int = 5
    back_off: BackOff = field(default_factory=BackOff)
    overrides: Overrides = field(default_factory=Overrides)
    slots: dict[str, Pace] = field(default_factory=dict)
    start_delay: float = 0.0

    def of_host(self, host: str) -> Pace:
        """The pace of *host*: an override's fields, else the project's slot, else the general."""
        pace = self.slots.get(host, self.host)
        rule = self.overrides.for_host(host)
        if rule is None:
            return pace
        return Pace(
            pace.delay if rule.delay is None else rule.delay,
            rule.concurrency or pace.concurrency,
            rule.burst or pace.burst,
        )

    def of_address(self, address: str) -> Pace:
        """The pace of a numeric *address*."""
        rule = self.overrides.for_address(address)
        if rule is None:
            return self.address
        delay = self.address.delay if rule.delay is None else rule.delay
        # A delay between the end of one fetch and the start of the next means one at a time.
        concurrency = rule.concurrency or self.address.concurrency or int(delay > 0)
        return Pace(delay, concurrency)

    def max_pages(self, host: str) -> int:
        """The page budget of *host*; 0 for none."""
        rule = self.overrides.for_host(host)
        if rule is None or rule.max_pages is None:
            return self.host_max_pages
        return rule.max_pages
