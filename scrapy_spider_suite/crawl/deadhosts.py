"""Hosts that never answer, in the spider profile: what waits for them ends in its errback soon.

Plain Scrapy tries every request RETRY_TIMES + 1 times. Here they are tried one after the other,
with a growing back-off between them, which would take a hundred of them days. So once a host has
failed more often than that, and never answered, nobody is sent there before the back-off is over:
what waits, and what comes meanwhile, fails at the gate. Then one request is tried again.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from scrapy_spider_suite.exceptions import HostUnreachable
from scrapy_spider_suite.frontier.outcomes import OUTCOMES, Event, Health
from scrapy_spider_suite.frontier.workbench import HostState
from scrapy_spider_suite.storage.leases import Lease
from scrapy_spider_suite.wording import counted

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.core import CrawlCore

logger = logging.getLogger(__name__)

_LEAST = 3
"""Failures in a row that condemn a host, where RETRY_TIMES is less."""
_MOST = 10_000
"""Hosts of either kind that are kept in mind."""


class DeadHosts:
    """One per crawl; the gate asks it of each request, the scheduler for those that are to fail."""

    def __init__(self, core: CrawlCore) -> None:
        self._core = core
        self._until: dict[str, float] = {}  # when each is tried again, on the crawl's clock
        self._answered: set[str] = set()
        self._doomed: set[Lease] = set()
        self._told: set[str] = set()  # hosts of which was said that their requests fail
        self._began = time.time()

    def hopeless(self, host: HostState) -> bool:
        """Whether *host* has failed as often as a project's own RetryMiddleware would allow.

        The spider profile only, where the frontier gives no host up: its requests have errbacks.
        """
        core = self._core
        return not core.broad and host.record.failures > core.settings.project.retry_times

    def without_robots(self, host: HostState, asked: float) -> bool:
        """Whether the requests of *host*, whose robots.txt was not answered at *asked*, may fail.

        What an earlier run found may be over: robots.txt is asked for once more then. *asked* is
        in seconds since the epoch.
        """
        return asked >= self._began and self.hopeless(host)

    def warn(self, host: HostState, what: str) -> None:
        """Say that requests of *host* fail without being sent, for *what* it does; once each."""
        if host.key in self._told:
            return
        if len(self._told) >= _MOST:
            self._told.clear()
        self._told.add(host.key)
        logger.warning(
            "%s %s (%s in a row): what waits for it fails unsent, as host_dead",
            host.key, what, counted(host.record.failures, "failure"),
        )  # fmt: skip

    def heard(self, host: HostState, event: Event) -> None:
        """A visit to *host* has ended with *event*, and its back-off has been decided on."""
        health = OUTCOMES[event].health
        if health is Health.UNREACHABLE and (host.key in self._until or self._never_answers(host)):
            self.warn(host, f"has never answered, last {event.value}")
            if len(self._until) >= _MOST:
                self._until.clear()
            self._until[host.key] = host.next_fetch
        elif health in (Health.WELL, Health.OVERLOADED):
            self._until.pop(host.key, None)
            if len(self._answered) >= _MOST:
                self._answered.clear()
            self._answered.add(host.key)

    def _never_answers(self, host: HostState) -> bool:
        record = host.record
        enough = record.failures >= _LEAST and self.hopeless(host)
        # An earlier run may know: what was answered was an attempt that did not fail (that of now
        # is not counted yet).
        return enough and host.key not in self._answered and record.attempts < record.failures

    def next_lease(self, now: float) -> Lease | None:
        """A URL of a host that is not visited for now, to be failed by `refuse`."""
        for key, until in self._until.items():
            lease = self._core.frontier.take(key) if now < until else None
            if lease is not None:
                self._doomed.add(lease)
                return lease
        return None

    def refuse(self, lease: Lease) -> None:
        """Raise `HostUnreachable` if *lease* is of `next_lease`."""
        if lease in self._doomed:
            self._doomed.remove(lease)
            raise HostUnreachable(f"{lease.entry.host} has not answered any request")
