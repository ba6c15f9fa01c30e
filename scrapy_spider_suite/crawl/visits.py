"""Visits to hosts, as the crawl sees them: handed out, answered and over; and requests without one.

What a request ended with says two things: what becomes of its URL, and what becomes of its host.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.http import Response

from scrapy_spider_suite.crawl.events import event_of_error, event_of_result
from scrapy_spider_suite.crawl.requests import hostname
from scrapy_spider_suite.crawl.spelling import note_redirect
from scrapy_spider_suite.exceptions import (
    HostBarred,
    NotModified,
    RobotsUnavailable,
    UnwantedMediaType,
)
from scrapy_spider_suite.frontier.outcomes import OUTCOMES, Event, Health
from scrapy_spider_suite.frontier.politeness import parse_retry_after
from scrapy_spider_suite.frontier.workbench import HostState
from scrapy_spider_suite.storage.leases import Lease

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.core import CrawlCore
    from scrapy_spider_suite.crawl.unscheduled import Unscheduled

logger = logging.getLogger(__name__)

_BARRED = 60.0
"""Seconds for which a host waits of which only some requests are barred."""
_NOTED_MAX = 1_000
"""Hosts of either kind that are kept in mind."""


class Visits:
    """Those of one crawl.

    Attributes:
        bursts: for a lease that is out, the others of its visit, which follow it.
        ready: leases whose visit goes on at once.
        unscheduled: is told of each request of another scheduler; None with the suite's.
    """

    def __init__(self, core: CrawlCore) -> None:
        self.bursts: dict[Lease, list[Lease]] = {}
        self.ready: list[Lease] = []
        self.unscheduled: Unscheduled | None = None
        self._core = core
        self._refusing: set[str] = set()  # hosts that refused a connection without a visit
        self._told: set[str] = set()  # hosts whose waiting was explained

    def hand_out(self, leases: list[Lease]) -> Lease:
        """Begin a visit: its first lease now, the others one after the other."""
        first, *rest = leases
        if rest:
            self.bursts[first] = rest
        return first

    def heard(self, lease: Lease, event: Event, response: Response | None = None) -> None:
        """The host of *lease* has answered, or failed to: *event* is what that says of it.

        What a middleware makes of it (a retry, a redirect) changes nothing for the host.
        """
        lease.heard = event
        lease.retry_after = None if response is None else _retry_after(response)
        twins = self._core.normalizer.twins
        if response is not None and twins is not None:
            note_redirect(twins, response)

    def fetched(
        self, lease: Lease, result: Request | Response | None, error: BaseException | None
    ) -> None:
        """The downloader is done with the request of *lease*: its host is free again."""
        core = self._core
        now = core.now()
        core.caps.settle(lease)
        if error is not None:
            lease.event = event_of_error(error)
            if isinstance(error, UnwantedMediaType | NotModified):
                lease.status = error.response.status
            if isinstance(error, RobotsUnavailable) and lease.visit is not None:
                self._no_robots(lease, lease.visit.host, error.retry_at)
            elif isinstance(error, HostBarred) and lease.visit is not None:
                self._barred(lease.visit.host, error)
        elif result is not None:
            lease.event = event_of_result(result)
            if isinstance(result, Response):
                lease.status = result.status
            elif isinstance(result, Request):
                core.parents[result] = lease
        if core.stopping and lease.event in (Event.TOO_LARGE, Event.DOWNLOAD_ERROR):
            lease.event = Event.INTERRUPTED
        self.release(lease, now)

    def _no_robots(self, lease: Lease, host: HostState, retry_at: float) -> None:
        core = self._core
        if core.dead_hosts.hopeless(host):
            lease.event = Event.HOST_DEAD
            core.dead_hosts.warn(host, "gives no robots.txt")
        else:
            until = retry_at - core.frontier.wall_offset
            core.frontier.residents.postpone(host, until, "robots.txt unavailable")

    def _barred(self, host: HostState, error: HostBarred) -> None:
        """Keep a host waiting of which a request was refused: its turn must not come at once."""
        frontier, now = self._core.frontier, self._core.now()
        if not frontier.reviser.barred(host, now, now + frontier.wall_offset):
            # The rule is for another host that shares its slot, or for some of its URLs.
            until = min(error.until - frontier.wall_offset, now + _BARRED)
            frontier.residents.postpone(host, until, str(error))

    def release(self, lease: Lease, now: float) -> None:
        """The visit of *lease* is over, unless its burst has more."""
        core = self._core
        heard = lease.heard or Event.IGNORED
        rest = self.bursts.pop(lease, None)
        if rest and OUTCOMES[heard].health in (Health.WELL, Health.NONE):
            self.ready.append(self.hand_out(rest))
            lease.visit = None
            return
        for other in rest or ():
            other.visit = None
            core.frontier.put_back(other, now)
        visit = lease.visit
        if visit is not None and not visit.wired:
            core.frontier.workbench.refund(visit)
            if core.sharing is not None:
                core.sharing.drop(visit.host, visit.address)
        core.frontier.release(lease, now, lease.retry_after, heard)
        if visit is not None:
            core.dead_hosts.heard(visit.host, heard)
            if core.sharing is not None:
                core.sharing.heard(visit.host, OUTCOMES[heard].health)
            self._say_why(visit.host)

    def put_back_what_was_not_begun(self) -> None:
        """The crawl stops: nothing follows what is out."""
        for lease in (*self.ready, *(x for rest in self.bursts.values() for x in rest)):
            lease.visit = None
            self._core.frontier.put_back(lease, self._core.now())
        self.ready.clear()
        self.bursts.clear()

    # Requests without a visit

    def begin_outside(self, request: Request, *, by_start: bool) -> None:
        """*request*, without a visit, has come to the downloader; ``start()`` itself may ask."""
        core = self._core
        core.outside += 1
        if by_start and not core.broad:
            core.trusted.add(hostname(request))
        if self.unscheduled is not None:
            self.unscheduled.begin(request)

    def end_outside(
        self, request: Request, result: Request | Response | None, error: BaseException | None
    ) -> None:
        """The downloader is done with *request*, which had no visit."""
        self._core.outside -= 1
        if self.unscheduled is not None:
            self.unscheduled.end(request, result, error)

    def heard_outside(self, host: HostState, response: Response) -> None:
        """*host* has answered a request without a visit: it may ask for a pause.

        The pause does not grow: an item waits for its images, and its crawl for the item.
        """
        core = self._core
        if OUTCOMES[event_of_result(response)].health is Health.OVERLOADED:
            wait, why = _retry_after(response), "Retry-After"
            if wait is None:
                wait, why = core.settings.backoff_base, f"status {response.status}"
            core.frontier.residents.postpone(host, core.now() + wait, why)
            if core.sharing is not None:
                core.sharing.heard(host, Health.OVERLOADED)

    def failed_outside(self, host: HostState, error: Exception) -> None:
        """A request to *host* without a visit has failed: `silent` may want to know how."""
        if event_of_error(error) is Event.REFUSED:
            if len(self._refusing) >= _NOTED_MAX:
                self._refusing.clear()
            self._refusing.add(host.key)

    def silent(self, host: HostState) -> Event:
        """*host* did not answer when asked for its robots.txt; return how."""
        refused = host.key in self._refusing
        self._refusing.discard(host.key)
        event = Event.REFUSED if refused else Event.CONNECTION_LOST
        self._core.frontier.silent(host, self._core.now(), event)
        self._say_why(host)
        return event

    def _say_why(self, host: HostState) -> None:
        """Tell whoever looks on why *host* has to wait, the first time.

        The spider profile only: of the hosts of a broad crawl always some must wait.
        """
        core = self._core
        wait = host.next_fetch - core.now()
        if core.broad or not host.why or wait <= host.gap() or host.key in self._told:
            return
        if len(self._told) < _NOTED_MAX:
            self._told.add(host.key)
            logger.info(
                "%s has to wait %.3g s: %s (if it has to wait again, that is not logged)",
                host.key, wait, host.why,
            )  # fmt: skip


def _retry_after(response: Response) -> float | None:
    if response.status not in (429, 503):
        return None
    value = response.headers.get("Retry-After")
    return None if value is None else parse_retry_after(value.decode("latin-1"), time.time())
