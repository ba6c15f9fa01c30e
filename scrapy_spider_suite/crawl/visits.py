"""Visits to hosts: handed out, answered and over; requests without a visit; dead hosts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.http import Response
from twisted.internet.defer import inlineCallbacks

from scrapy_spider_suite import exceptions
from scrapy_spider_suite.crawl.gate import Caps
from scrapy_spider_suite.crawl.links import note_redirect
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.crawl.requests import (
    BEYOND,
    BULK,
    event_of_error,
    event_of_result,
    hostname,
)
from scrapy_spider_suite.errors import CodecError
from scrapy_spider_suite.fetch.exchange import Exchange, pop_exchange
from scrapy_spider_suite.frontier.outcomes import Event, Health, event_of_status, parse_retry_after
from scrapy_spider_suite.frontier.workbench import HostState
from scrapy_spider_suite.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Generator

    from scrapy.core.downloader import Downloader
    from twisted.internet.defer import Deferred

    from scrapy_spider_suite.crawl.assembly import CrawlParts
    from scrapy_spider_suite.crawl.context import Crawl, Engine
    from scrapy_spider_suite.crawl.empty_runs import OtherSchedulerRun
    from scrapy_spider_suite.crawl.fetch_loop import FetchLoop
    from scrapy_spider_suite.crawl.maintenance import Maintenance
    from scrapy_spider_suite.crawl.preparation import TrustedPrivateHosts
    from scrapy_spider_suite.crawl.requests import LinkRedirects

logger = logging.getLogger(__name__)

_LEAST = 3  # failures in a row that condemn a host, where RETRY_TIMES is less
_MOST = 10_000  # hosts of either kind that are kept in mind


class DeadHosts:
    """Hosts that never answer, in the spider profile: their requests fail unsent.

    Requests to one host are tried one after the other, with a growing back-off: a hundred of them
    would take days. A host is dead after more failures than RETRY_TIMES without an answer. During
    its back-off all its requests fail at the gate; then one request is tried again.
    """

    def __init__(self, crawl: Crawl) -> None:
        self._crawl = crawl
        self._until: dict[str, float] = {}  # when each is tried again, on the crawl's clock
        self._answered: set[str] = set()
        self._doomed: set[Fetch] = set()
        self._told: set[str] = set()  # hosts of which was said that their requests fail
        self._began = time.time()

    def hopeless(self, host: HostState) -> bool:
        crawl = self._crawl
        settings = crawl.settings
        return not settings.broad and host.record.failures > settings.project.retry_times

    def without_robots(self, host: HostState, asked: float) -> bool:
        """Whether requests of *host*, whose robots.txt failed at *asked* (wall), are to fail."""
        # After a restart robots.txt is asked for once more.
        return asked >= self._began and self.hopeless(host)

    def warn(self, host: HostState, what: str) -> None:
        """Warn, once for each host, that requests of *host* fail unsent, since it does *what*."""
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
        """Note the *event* of a visit to *host*, after its back-off was set."""
        health = event.outcome.health
        # An earlier run may know: an attempt that did not fail was answered. That of now is not
        # counted yet.
        record = host.record
        never = (
            record.failures >= _LEAST and self.hopeless(host) and host.key not in self._answered
            and record.attempts < record.failures
        )  # fmt: skip
        if health is Health.UNREACHABLE and (never or host.key in self._until):
            self.warn(host, f"has never answered, last {event.value}")
            if len(self._until) >= _MOST:
                self._until.clear()
            self._until[host.key] = host.next_fetch
        elif health in (Health.WELL, Health.OVERLOADED):
            self._until.pop(host.key, None)
            if len(self._answered) >= _MOST:
                self._answered.clear()
            self._answered.add(host.key)

    def acquire(self, now: float) -> Fetch | None:
        for key, until in self._until.items():
            fetch = self._crawl.frontier.leases.lease_unvisited(key) if now < until else None
            if fetch is not None:
                self._doomed.add(fetch)
                return fetch
        return None

    def refuse(self, fetch: Fetch) -> None:
        """Raise `HostUnreachable` if *fetch* is of `acquire`."""
        if fetch in self._doomed:
            self._doomed.remove(fetch)
            raise exceptions.HostUnreachable(f"{fetch.entry.host} has not answered any request")


class InProgress(set[Request]):
    def __init__(self, left: Callable[[Request], None]) -> None:
        super().__init__()
        self._left = left

    def remove(self, request: Request) -> None:
        super().remove(request)
        self._left(request)


_LONGEST = 60.0  # seconds after which the scheduler looks again at the latest
_LATE = 0.0005  # seconds by which it looks too late rather than too early


class RequestSource:
    """Makes the request of the next visit; wakes the engine when one is due later."""

    def __init__(self, parts: CrawlParts, engine: Engine, maintenance: Maintenance) -> None:
        self._crawl = parts.crawl
        self._engine = engine
        self._visits = parts.visits
        self._revisits = parts.revisits
        self._plans = parts.crawl.frontier.commit.planner.revisits
        self._preparation = parts.preparation
        self._maintenance = maintenance
        self._gated = engine.gate is not None and not parts.crawl.settings.broad
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.TimerHandle | None = None
        self.loop: FetchLoop | None = None

    def next(self) -> Request | None:
        crawl = self._crawl
        while not self._engine.closing and not crawl.stopping:
            # With a fetch loop, only what that leaves to the engine.
            fetch = self.acquire() if self.loop is None else self.loop.acquire_for_engine()
            if fetch is None:
                break
            try:
                request = crawl.translator.request(fetch.entry)
            except CodecError as error:
                logger.error("%s cannot be read back and is dropped: %s", fetch.entry.url, error)
                fetch.event = Event.DROPPED
                self._visits.caps.settle(fetch)
                crawl.frontier.commit.settle([fetch], crawl.now())
                self._visits.release(fetch, crawl.now())
                continue
            beyond = fetch.entry.hops_outside
            if (beyond or crawl.filters.opens_scope) and BULK in request.meta:
                # Scrapy's OffsiteMiddleware lets it pass.
                request.meta.update({BEYOND: beyond, "allow_offsite": True})
            crawl.fetches[request] = fetch
            place = "memory" if isinstance(fetch.entry.payload, Request) else "disk"
            stats = crawl.crawler.stats
            stats.inc_value("scheduler/dequeued")
            stats.inc_value(f"scheduler/dequeued/{place}")
            return request
        return None

    def acquire(self, host: str = "") -> Fetch | None:
        """Return the next fetch whose time has come, be it of any *host*; None: there is none."""
        agent = self._crawl.agent
        if agent is not None and not agent.may_fetch():
            return None
        fetch = self._next_ready(host)
        if fetch is not None:
            if not self._plans.idle:
                self._revisits.leased(fetch)
            if self._crawl.settings.max_bandwidth:
                self._visits.caps.book(fetch, self._crawl.now())
        return fetch

    def _next_ready(self, host: str) -> Fetch | None:
        crawl, visits = self._crawl, self._visits
        while True:
            if self._visits.ready:
                return self._visits.ready.pop()
            now = crawl.now()
            if self._gated and (fetch := visits.dead_hosts.acquire(now)):
                return fetch
            held = self._preparation.full or self._visits.caps.pause(now) > 0
            fetches = [] if held else crawl.frontier.leases.acquire(now, host)
            if not fetches and host:
                self._preparation.resolve()
                return None  # who asks for a host asks again soon
            if not fetches:
                if self._preparation.resolve():
                    continue
                self._set_alarm(now)
                self._maintenance.sift(starving=not held)
                return None
            if not self._preparation.robots_first(fetches):
                return self._visits.hand_out(fetches)

    def _set_alarm(self, now: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        # With no room for errands, the end of one is what has the engine ask again.
        wait = None if self._preparation.full else self._crawl.frontier.leases.wait(now)
        if wait is not None:
            wait = max(wait, self._visits.caps.pause(now))
            self._alarm = self._loop.call_later(min(wait, _LONGEST) + _LATE, self._engine.wake)

    def stop(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()


class ForeignDownloader:
    """Wraps ``fetch()`` of *downloader*: releases the visit of each request when it is done.

    For projects with a downloader of their own: the delays of hosts run from there. Redirects,
    retries and media have no visits.
    """

    def __init__(
        self, crawl: Crawl, visits: Visits, redirects: LinkRedirects, downloader: Downloader
    ) -> None:
        self._crawl = crawl
        self._visits = visits
        self._redirects = redirects
        self._fetch = downloader.fetch
        vars(downloader)["fetch"] = self.fetch

    @inlineCallbacks
    def fetch(
        self, request: Request, *spider: Spider
    ) -> Generator[Deferred[Any], Any, Request | Response]:
        fetch = self._crawl.fetches.get(request)
        result: Request | Response | None = None
        error: BaseException | None = None
        try:
            result = yield self._fetch(request, *spider)
            if fetch is not None:
                self._redirects.refuse_redirect(request, fetch, result)
            return result
        except BaseException as raised:
            error = raised
            raise
        finally:
            if fetch is not None:
                self._release(request, fetch, result, error)

    def _release(
        self, request: Request, fetch: Fetch, result: Request | Response | None,
        error: BaseException | None,
    ) -> None:  # fmt: skip
        crawl = self._crawl
        exchange = pop_exchange(request)
        if error is not None and not isinstance(error, exceptions.PageRedirected):
            self._visits.heard(fetch, event_of_error(error))
        elif isinstance(result, Response):
            self._visits.heard(fetch, event_of_status(result.status), result)
            exchange = exchange or Exchange.of_handler(request.url, request.method, result)
            self._visits.caps.received(exchange, fetch)
        visit, workbench, now = fetch.visit, crawl.frontier.workbench, crawl.now()
        wired = error is None or event_of_error(error).outcome.health is not Health.NONE
        if visit is not None and wired:
            visit.wired = True
            workbench.begin(visit.host, visit.address, now, visit=True)
            workbench.end(visit.host, visit.address, now, visit=True)
        self._visits.fetched(fetch, result, error)


_BARRED = 60.0  # seconds for which a host waits of which only some requests are barred
_NOTED_MAX = 1_000  # hosts of either kind that are kept in mind


class Visits:
    """The visits of one crawl.

    *bursts*: for a fetch that is out, the other fetches of its visit. *ready*: fetches whose visit
    goes on at once. *unscheduled* is told of each request of another scheduler. *outside*: requests
    without a visit at the downloader; *outside_waiting*: those that wait.
    """

    def __init__(self, crawl: Crawl, trusted: TrustedPrivateHosts) -> None:
        self.caps = Caps(crawl)
        self.dead_hosts = DeadHosts(crawl)
        self.bursts: dict[Fetch, list[Fetch]] = {}
        self.ready: list[Fetch] = []
        self.unscheduled: OtherSchedulerRun | None = None
        self.outside = self.outside_waiting = 0
        self._crawl = crawl
        self._broad = crawl.settings.broad
        self._trusted = trusted
        self._refusing: set[str] = set()  # hosts that refused a connection without a visit
        self._told: set[str] = set()  # hosts whose waiting was explained

    def hand_out(self, fetches: list[Fetch]) -> Fetch:
        first, *rest = fetches
        if rest:
            self.bursts[first] = rest
        return first

    def heard(self, fetch: Fetch, event: Event, response: Response | None = None) -> None:
        """Note *event*, the answer of the host of *fetch*, before any middleware sees it."""
        fetch.heard = event
        if response is not None:
            headers = response.headers
            self.note_answer(
                fetch, response.url, response.status, headers.get(b"Retry-After"),
                headers.get(b"Location"),
            )  # fmt: skip

    def note_answer(
        self, fetch: Fetch, url: str, status: int, retry_after: bytes | None,
        location: bytes | None,
    ) -> None:  # fmt: skip
        fetch.retry_after = _retry_after(status, retry_after)
        twins = self._crawl.normalizer.twins
        if twins is not None:
            note_redirect(twins, url, status, location)

    def fetched(
        self, fetch: Fetch, result: Request | Response | None, error: BaseException | None
    ) -> None:
        if error is not None:
            self.failed(fetch, error)
        elif result is not None:
            status = result.status if isinstance(result, Response) else 0
            if isinstance(result, Request):
                self._crawl.translator.parents[result] = fetch
            self.answered(fetch, event_of_result(result), status)

    def answered(self, fetch: Fetch, event: Event, status: int) -> None:
        """The visit of *fetch* is over with *event*; *status* 0: its URL led elsewhere."""
        if fetch.booked:
            self.caps.settle(fetch)
        fetch.event, fetch.status = event, status
        self.release(fetch, self._crawl.now())

    def failed(self, fetch: Fetch, error: BaseException) -> None:
        """The visit of *fetch* is over with *error*."""
        crawl, now = self._crawl, self._crawl.now()
        self.caps.settle(fetch)
        fetch.event = event_of_error(error)
        if isinstance(error, exceptions.UnwantedMediaType | exceptions.NotModified):
            fetch.status = error.response.status
        if isinstance(error, exceptions.RobotsUnavailable) and fetch.visit is not None:
            self._no_robots(fetch, fetch.visit.host, error.retry_at)
        elif isinstance(error, exceptions.HostExcluded) and fetch.visit is not None:
            frontier, host = crawl.frontier, fetch.visit.host
            if not frontier.policy_update.is_excluded(host, now):
                # The rule is for another host that shares its slot, or for some of its URLs.
                until = min(error.until - frontier.wall_offset, now + _BARRED)
                frontier.health.postpone(host, until, str(error))
        if crawl.stopping and fetch.event in (Event.TOO_LARGE, Event.DOWNLOAD_ERROR):
            fetch.event = Event.INTERRUPTED
        self.release(fetch, now)

    def _no_robots(self, fetch: Fetch, host: HostState, retry_at: float) -> None:
        crawl = self._crawl
        if self.dead_hosts.hopeless(host):
            fetch.event = Event.HOST_DEAD
            self.dead_hosts.warn(host, "gives no robots.txt")
        else:
            until = retry_at - crawl.frontier.wall_offset
            crawl.frontier.health.postpone(host, until, "robots.txt unavailable")

    def release(self, fetch: Fetch, now: float) -> None:
        crawl = self._crawl
        heard = fetch.heard or Event.IGNORED
        rest = self.bursts.pop(fetch, None) if self.bursts else None
        if rest and heard.outcome.health in (Health.WELL, Health.NONE):
            self.ready.append(self.hand_out(rest))
            fetch.visit = None
            return
        for other in rest or ():
            other.visit = None
            crawl.frontier.commit.put_back(other, now)
        visit = fetch.visit
        if visit is not None and not visit.wired:
            crawl.frontier.workbench.refund(visit)
            if crawl.rates is not None:
                crawl.rates.drop(visit.host, visit.address)
        crawl.frontier.leases.release(fetch, now, fetch.retry_after, heard)
        if visit is not None:
            if not self._broad:
                self.dead_hosts.heard(visit.host, heard)
                self._say_why(visit.host)
            if crawl.rates is not None:
                crawl.rates.heard(visit.host, heard.outcome.health)

    def put_back_waiting(self) -> None:
        for fetch in (*self.ready, *(x for rest in self.bursts.values() for x in rest)):
            fetch.visit = None
            self._crawl.frontier.commit.put_back(fetch, self._crawl.now())
        self.ready.clear()
        self.bursts.clear()

    def begin_outside(self, request: Request, *, by_start: bool) -> None:
        """*request*, without a visit, is at the downloader; *by_start*: of ``start()``."""
        self.outside += 1
        if by_start and not self._broad:
            self._trusted.add(hostname(request))
        if self.unscheduled is not None:
            self.unscheduled.begin(request)

    def end_outside(
        self, request: Request, result: Request | Response | None, error: BaseException | None
    ) -> None:
        self.outside -= 1
        if self.unscheduled is not None:
            self.unscheduled.end(request, result, error)

    def heard_outside(self, host: HostState, response: Response) -> None:
        """*host* has answered a request without a visit: pause it if it asks for that.

        The pause does not grow: an item waits for its images, and its crawl for the item.
        """
        crawl = self._crawl
        if event_of_result(response).outcome.health is Health.OVERLOADED:
            asked, why = response.headers.get(b"Retry-After"), "Retry-After"
            wait = _retry_after(response.status, asked)
            if wait is None:
                wait, why = crawl.settings.backoff_base, f"status {response.status}"
            crawl.frontier.health.postpone(host, crawl.now() + wait, why)
            if crawl.rates is not None:
                crawl.rates.heard(host, Health.OVERLOADED)

    def failed_outside(self, host: HostState, error: Exception) -> None:
        """A request to *host* without a visit has failed; `silent` needs the refused ones."""
        if event_of_error(error) is Event.REFUSED:
            if len(self._refusing) >= _NOTED_MAX:
                self._refusing.clear()
            self._refusing.add(host.key)

    def silent(self, host: HostState) -> Event:
        """*host* gave no answer to its robots.txt; return the event for that."""
        refused = host.key in self._refusing
        self._refusing.discard(host.key)
        event = Event.REFUSED if refused else Event.CONNECTION_LOST
        self._crawl.frontier.health.judge(host, event, self._crawl.now())
        self._say_why(host)
        return event

    def _say_why(self, host: HostState) -> None:
        crawl = self._crawl
        wait = host.next_fetch - crawl.now()
        if self._broad or not host.why or wait <= host.gap() or host.key in self._told:
            return
        if len(self._told) < _NOTED_MAX:
            self._told.add(host.key)
            logger.info(
                "%s has to wait %.3g s: %s (if it has to wait again, that is not logged)",
                host.key, wait, host.why,
            )  # fmt: skip


def _retry_after(status: int, value: bytes | None) -> float | None:
    if value is None or status not in (429, 503):
        return None
    return parse_retry_after(value.decode("latin-1"), time.time())
