"""The fetch loop: rows of the frontier are fetched by callbacks, without a request of Scrapy's.

The stages of a fetch: acquire, prepare, check, fetch, read links, store, commit. Each feature adds
a callable to the stages that it needs, when the crawl is opened. What a project's own components
are to see takes the way through Scrapy's engine: `reasons_for_engine` decides that for a crawl, and
a row with a request of its own always goes there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any, Final

from scrapy import Request, signals
from scrapy.exceptions import DownloadFailedError, DownloadTimeoutError, IgnoreRequest
from scrapy.utils.log import failure_to_exc_info, logformatter_adapter
from scrapy.utils.python import global_object_name
from twisted.python.failure import Failure

from scrapy_spider_suite.crawl.loop_exchange import LoopExchange, Pipeline, Pipelines
from scrapy_spider_suite.crawl.page_callbacks import PageCallbacks
from scrapy_spider_suite.crawl.requests import StoppedError, event_of_error
from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.exceptions import NotModified, UnwantedMediaType
from scrapy_spider_suite.fetch.connections import ConnectionKey, connect, crawler_pool
from scrapy_spider_suite.fetch.exchange import BodyLimits
from scrapy_spider_suite.frontier.entries import Flag
from scrapy_spider_suite.frontier.outcomes import Event, event_of_status
from scrapy_spider_suite.frontier.request_limit import RequestLimit
from scrapy_spider_suite.frontier.workbench import departure
from scrapy_spider_suite.signals import settings_changed
from scrapy_spider_suite.store.rocks_store import DamageGuard

if TYPE_CHECKING:
    from scrapy.core.engine import ExecutionEngine

    from scrapy_spider_suite.crawl.assembly import CrawlParts
    from scrapy_spider_suite.crawl.context import Engine
    from scrapy_spider_suite.crawl.loop_plan import LoopPlan
    from scrapy_spider_suite.crawl.queue.leases import Fetch
    from scrapy_spider_suite.crawl.visits import RequestSource
    from scrapy_spider_suite.fetch.connections import Connection
    from scrapy_spider_suite.fetch.exchange import Exchange
    from scrapy_spider_suite.frontier.workbench import Visit
    from scrapy_spider_suite.settings.suite import SuiteSettings

logger = logging.getLogger(__name__)

_TURN: Final = 0.0015
"""Seconds for which answers are taken, or rows begun, before anyone else has a turn again."""
_TICK: Final = 0.25
"""Seconds between two looks for fetches that take too long."""
_ENGINE_LOG = logging.getLogger("scrapy.core.engine")
_SCRAPER_LOG = logging.getLogger("scrapy.core.scraper")
_HTTPERROR_LOG = logging.getLogger("scrapy.spidermiddlewares.httperror")


class FetchLoop:
    """Fetches rows without a request of their own; the `RequestSource` says which and when.

    Invariant: a fetch is in *flying* from the moment it has a place of CONCURRENT_REQUESTS until
    its answer, or its error, is taken; after that only callbacks and sinks hold it.
    """

    def __init__(
        self, parts: CrawlParts, engine: Engine, scrapy_engine: ExecutionEngine,
        source: RequestSource, plan: LoopPlan,
    ) -> None:  # fmt: skip
        self._crawl = crawl = parts.crawl
        self._guard = DamageGuard(crawl.store)
        self._parts = parts
        self._engine = engine
        self._scrapy_engine = scrapy_engine
        self._source = source
        self._outside = parts.outside
        self._acquire_next: Callable[[], Fetch | None] = source.acquire
        if parts.outside is not None:
            self._acquire_next = partial(parts.outside.acquire, source)
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self._pool = crawler_pool(crawl.crawler)
        self._spider: Any = crawl.crawler.spider
        self._counts = crawl.counts
        self._visits = parts.visits
        self._callbacks = PageCallbacks(crawl, scrapy_engine, self._scraped, seen=plan.sees_output)
        self._pipelines = Pipelines(crawl.frontier, plan, self._pool.counts)
        self._plans = crawl.frontier.commit.planner.revisits
        self._workbench = crawl.frontier.workbench
        self._observers = crawl.observers
        self._aside: deque[Fetch] = deque()
        self.flying: set[LoopExchange] = set()
        self._ended: deque[LoopExchange] = deque()  # of these, those that are over
        self._begun = 0  # fetches that are not settled
        self._placed: set[Fetch] = set()  # that have a place, without a transfer
        self._tasks: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._limit: RequestLimit | None = None
        self._changed(crawl.settings)
        self._adjust_requests(crawl.settings)
        crawl.crawler.signals.connect(self._changed, settings_changed)
        self._timer = self._loop.call_later(_TICK, self._tick)
        self._ticks = 0

    def _changed(self, new: SuiteSettings) -> None:
        plan = self._plan
        self._timeout = plan.download_timeout or new.project.download_timeout
        if self._outside is not None:
            self._outside.timeout = self._timeout
        self._most = new.project.most_requests
        limit = self._limit
        if limit is not None and new.project.concurrent_requests not in (0, limit.most):
            limit.set_most(new.project.concurrent_requests)
        self._limits = BodyLimits(
            plan.maxsize, plan.warnsize, new.body_max or None, plan.fail_on_dataloss,
            tuple(new.media_types),
        )  # fmt: skip

    def _adjust_requests(self, settings: SuiteSettings) -> None:
        most = settings.project.concurrent_requests
        if settings.adjust_requests and most and self._outside is None:
            self._limit = RequestLimit(most, monotonic(), thread_time())
            self._observers.append(self._note_for_limit)

    def _note_for_limit(self, fetch: Fetch) -> None:
        exchange, limit, visit = fetch.exchange, self._limit, fetch.visit
        if exchange is None or limit is None or visit is None:
            return
        if exchange.error is None:
            limit.note_answer(exchange.seconds)
        elif visit.host.record.done and not isinstance(exchange.error, StoppedError):
            limit.note_loss()

    def _update_limit(self, limit: RequestLimit) -> None:
        if limit.update(monotonic(), thread_time()):
            self._crawl.crawler.stats.set_value("suite/requests/limit", limit.limit)
            if limit.reason:
                logger.info(
                    "Fewer requests at a time, %d of %d: %s (SUITE_ADJUST_REQUESTS)",
                    limit.limit, limit.most, limit.reason,
                )  # fmt: skip

    def stop(self) -> None:
        self._timer.cancel()

    # Acquire

    def schedule(self) -> None:
        """Look for fetches in the next turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def acquire_for_engine(self) -> Fetch | None:
        """Return the next fetch that is left to the engine."""
        if not self._aside:
            self._acquire()  # now: a row that comes later in this turn must not go first
        return self._aside.popleft() if self._aside else None

    def put_back_aside(self) -> None:
        while self._aside:
            self._crawl.frontier.commit.put_back(self._aside.popleft(), self._crawl.now())

    def _pump(self) -> None:
        self._scheduled = False
        with self._guard:
            self._acquire()
            if not self._begun and not self._crawl.frontier.pending:
                self._engine.wake_engine()  # it may be idle now

    def _acquire(self) -> None:
        crawl, engine, scrapy_engine = self._crawl, self._engine, self._scrapy_engine
        slot = scrapy_engine.scraper.slot
        if engine.closing or crawl.stopping or engine.paused or slot is None:
            return
        flying, aside, active = self.flying, self._aside, scrapy_engine.downloader.active
        acquire, most = self._acquire_next, self._most
        if self._limit is not None:
            most = self._limit.limit
        until = monotonic() + _TURN
        while monotonic() < until:
            taken = len(flying) + len(self._placed) + len(aside) + len(active)
            if taken >= most or slot.needs_backout():
                return
            fetch = acquire()
            if fetch is None:
                break
            visit, entry = fetch.visit, fetch.entry
            if (
                visit is None or entry.payload is not None or entry.flags & Flag.USER
                or not visit.host.connect_to or not entry.url.startswith("http")
            ):  # fmt: skip
                self._leave_to_engine(fetch)
            else:
                self._begin(fetch, visit)
        else:
            self.schedule()  # others have a turn first: a host may have many rows to be refused

    def _leave_to_engine(self, fetch: Fetch) -> None:
        self._aside.append(fetch)
        self._engine.wake_engine()

    # Check

    def _begin(self, fetch: Fetch, visit: Visit) -> None:
        refusal = fetch.refusal
        server = visit.host.connect_to  # may be another one, or none, after a wait
        try:
            for check in self._plan.checks if refusal is None else ():
                if check(fetch, server):
                    self._leave_to_engine(fetch)  # robots.txt is to be fetched first
                    return
        except JobDamagedError:
            raise
        except Exception as error:  # the project's own parser of robots.txt, among others
            refusal = error
        self._begun += 1
        if self._begun == 1:
            self._engine.hold_open()
        self._counts["scheduler/dequeued"] += 1
        self._counts["scheduler/dequeued/disk"] += 1
        if refusal is not None:
            self._count_exception(refusal)
            self._fail(fetch, refusal)
        elif fetch.plan is not None and fetch.plan.packed is not None:
            self._placed.add(fetch)
            self._run(self._prepare_and_send(fetch, visit, server), fetch)
        elif self._has_to_wait(visit):
            self._run(self._wait_and_send(fetch, visit, server), fetch)
        else:
            self._send(fetch, visit, server)

    def _has_to_wait(self, visit: Visit) -> bool:
        if not visit.undisturbed():
            return True
        if not visit.wired and visit.pause_to_begin(self._crawl.now()):
            return True
        rates = self._crawl.rates
        return rates is not None and rates.pause(visit.host, visit.address) > 0

    async def _prepare_and_send(self, fetch: Fetch, visit: Visit, server: str) -> None:
        await self._parts.revisits.prepare(fetch)
        self._placed.discard(fetch)
        await self._wait_and_send(fetch, visit, server)

    async def _wait_and_send(self, fetch: Fetch, visit: Visit, server: str) -> None:
        crawl, wire = self._crawl, self._parts.wire
        host, address = visit.host, visit.address

        def may() -> None:
            crawl.policy_file.refuse_excluded(host.key, fetch.entry.url, server)

        if not visit.wired and visit.pause_to_begin(crawl.now()):
            await wire.queue_to_begin(visit, may)
        if self._has_to_wait(visit):
            await wire.queue_again(host, address, may)
        self._send(fetch, visit, server)

    # Fetch

    def _send(self, fetch: Fetch, visit: Visit, server: str) -> None:
        crawl, plan = self._crawl, self._plan
        host, address = visit.host, visit.address
        self._counts["downloader/request_count"] += 1
        self._counts["downloader/request_method_count/GET"] += 1
        try:
            if crawl.stopping:
                raise StoppedError("the crawl is being stopped")
            for check in plan.last_checks:
                check(fetch, server)
            origin, message = plan.request(fetch)
            rest = None if self._outside else self._visits.bursts.get(fetch)
            others = rest and self._pipelines.others(fetch, rest, origin, server, self._limits)
        except JobDamagedError:
            raise
        except Exception as error:  # whatever it is: nothing was sent
            self._refuse(fetch, error)
            return
        now = crawl.now()
        early = fetch.early
        if isinstance(early, LoopExchange):
            flight, fetch.early = early, None
        elif others:
            flight = Pipeline(
                fetch, visit, message, self._limits, self._over, others, self._timeout
            )
        else:
            flight = LoopExchange(fetch, visit, message, self._limits, self._over)
        if crawl.rates is not None:
            flight.grants = crawl.rates.begin(host, address)
        self._workbench.begin(host, address, now, visit=True)
        visit.wired = True
        flight.deadline = now + self._timeout
        if crawl.rates is not None:
            flight.expires = now + crawl.rates.longest
        self.flying.add(flight)
        crawl.flying = len(self.flying)
        self._counts["downloader/request_bytes"] += len(message)
        if plan.announces:
            self._announce(signals.request_reached_downloader, fetch)
        if flight.over:
            self._over(flight)
            return
        flight.leaves = departure(
            host, address, partial(self._parts.wire.wake, host.key, address.key)
        )
        if flight.leaves is not None:
            flight.leaves.hold()
        if self._outside is not None:
            self._outside.offer(flight)
            return
        key = ConnectionKey(server, origin.scheme, origin.host, origin.port, plan.bind)
        connection = None if others else self._pool.checkout(key)
        if connection is None:
            self._run(self._open_and_send(flight, key), None)
        else:
            self._send_on(flight, connection)

    def _send_on(self, flight: LoopExchange, connection: Connection) -> None:
        flight.connection = connection
        connection.send(flight.request + flight.following, flight)
        if flight.leaves is not None:
            flight.leaves.gone(monotonic())  # after the bytes: what held them up delays no less

    async def _open_and_send(self, flight: LoopExchange, key: ConnectionKey) -> None:
        flight.fresh = True
        tls = self._plan.tls if key.scheme == "https" else None
        try:
            async with asyncio.timeout(flight.deadline - self._crawl.now()) as timeout:
                flight.deadline = float("inf")  # a wait for a slot does not count
                connection = await connect(self._pool, key, tls, timeout)
                flight.deadline = timeout.when() or flight.deadline
        except TimeoutError:
            flight.fail(self._timed_out(flight))
        except asyncio.CancelledError:
            flight.fail(StoppedError("the crawl was stopped during the transfer"))
        except Exception as error:  # of the connection, whatever it is
            flight.fail(error)
        else:
            if flight.over:
                connection.close()
            else:
                self._send_on(flight, connection)

    def _timed_out(self, flight: LoopExchange) -> DownloadTimeoutError:
        return DownloadTimeoutError(
            f"Getting {flight.url} took longer than {self._timeout} seconds."
        )

    def _run(self, coroutine: Coroutine[Any, Any, None], fetch: Fetch | None) -> None:
        # A coroutine without a *fetch* handles its own errors.
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ran, fetch))

    def _ran(self, fetch: Fetch | None, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if fetch is not None:
            self._placed.discard(fetch)
        error: BaseException | None = None
        if task.cancelled():  # maybe before it began
            error = StoppedError("the crawl was stopped before the transfer")
        else:
            error = task.exception()
        with self._guard:
            if isinstance(error, JobDamagedError):
                raise error
            if isinstance(error, Exception) and fetch is not None:
                self._refuse(fetch, error)
            elif isinstance(error, Exception):
                logger.error("A fetch of the loop has failed: report this", exc_info=error)

    def _refuse(self, fetch: Fetch, error: BaseException) -> None:
        self._count_exception(error)
        self._visits.heard(fetch, event_of_error(error))
        self._fail(fetch, error)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_TICK, self._tick)
        if getattr(self._crawl.store, "damage", ""):
            self._abandon()
        now = self._loop.time()
        for flight in [each for each in self.flying if each.expires <= now]:
            flight.fail(DownloadTimeoutError("cut off: the ledger lets others go there then"))
        for flight in [each for each in self.flying if each.deadline <= now]:
            flight.fail(self._timed_out(flight))
        self._ticks += 1
        if self._ticks % 4 == 0:
            self._plan.listen(self._scrapy_engine)
            if self._limit is not None:
                self._update_limit(self._limit)

    def _abandon(self) -> None:
        # What is known of the fetches under way cannot be stored: the next run fetches them again.
        for task in self._tasks:
            task.cancel()
        for flight in self.flying:
            flight.over = True
            if flight.connection is not None:
                flight.connection.close()
        self.flying.clear()
        self._ended.clear()
        self._crawl.flying = 0
        if self._begun:
            self._begun = 0
            self._engine.let_close()

    def cut_short(self) -> None:
        """End all transfers: the time of the stop is over."""
        for task in self._tasks:
            task.cancel()
        for flight in list(self.flying):
            flight.fail(StoppedError("the crawl was stopped during the transfer"))

    # The answer

    def _over(self, flight: LoopExchange) -> None:
        self._ended.append(flight)
        if len(self._ended) == 1:
            self._loop.call_soon(self._take_answers)

    def _take_answers(self) -> None:
        ended, until = self._ended, monotonic() + _TURN
        try:
            while ended and monotonic() < until:
                self._take(ended.popleft())
        finally:
            if ended:
                self._loop.call_soon(self._take_answers)

    def _take(self, flight: LoopExchange) -> None:
        fetch = flight.fetch
        try:
            self._take_answer(flight)
        except JobDamagedError as error:
            self._guard.note(error)
        except (Exception, asyncio.CancelledError) as error:  # a fetch that stays keeps it open
            logger.exception("What came of %s cannot be used", fetch.entry.url)
            with self._guard:
                if not fetch.settled:
                    self._fail(fetch, error)

    def _take_answer(self, flight: LoopExchange) -> None:
        fetch, visit, connection = flight.fetch, flight.visit, flight.connection
        host, address = visit.host, visit.address
        if connection is not None:
            flight.note_connection(connection)
            connection.listener = None
            again = isinstance(flight, Pipeline) and self._pipelines.broke(flight, connection)
            idle = 0.0
            if flight.error is None:
                idle = flight.idle_seconds(max(host.gap(), address.delay))
            if idle > 0:
                self._pool.keep_idle(connection, idle)
            else:
                connection.close()
            untouched = not flight.fresh and not flight.reader.touched
            if again or (untouched and isinstance(flight.error, DownloadFailedError)):
                if again:
                    flight.deadline = self._crawl.now() + self._timeout
                    self._visits.caps.received(flight, fetch)
                self._resend(flight, connection)
                return
        self._end_transfer(flight)
        flight.fetch = flight.visit = flight.connection = None  # type: ignore[assignment]
        flight.address = flight.address or host.connect_to
        fetch.exchange = flight
        for observer in self._observers:
            observer(fetch)
        error = flight.error
        if error is None:
            self._answered(fetch, flight)
        else:
            self._refuse(fetch, error)
            flight.error = None  # its traceback leads back to here

    def _end_transfer(self, flight: LoopExchange) -> None:
        crawl, host, address = self._crawl, flight.visit.host, flight.visit.address
        self.flying.discard(flight)
        crawl.flying = len(self.flying)
        if flight.leaves is not None:
            flight.leaves.release()
        self._visits.caps.received(flight, flight.fetch)
        self._workbench.end(host, address, crawl.now(), visit=True)
        if crawl.rates is not None:
            crawl.rates.end(flight.grants, host, address)
        self._parts.wire.wake(host.key, address.key)
        if self._plan.announces:
            self._announce(signals.request_left_downloader, flight.fetch)
        self.schedule()

    def _resend(self, flight: LoopExchange, connection: Connection) -> None:
        # The server closed the connection just as it was taken; or it has read the request, so to
        # it this is another one: the delay of the host comes first.
        self._pool.counts["retried"] += 1
        fetch, visit = flight.fetch, flight.visit
        again = LoopExchange(fetch, visit, flight.request, self._limits, self._over)
        again.grants, again.leaves = flight.grants, flight.leaves
        wait = max(visit.host.gap(), visit.address.delay)
        again.began, again.deadline = flight.began, flight.deadline + wait
        again.expires = flight.expires
        self.flying.discard(flight)
        self.flying.add(again)
        self._loop.call_later(wait, self._open_again, again, connection.key)

    def _open_again(self, flight: LoopExchange, key: ConnectionKey) -> None:
        if not flight.over:
            self._run(self._open_and_send(flight, key), None)

    def _answered(self, fetch: Fetch, exchange: Exchange) -> None:
        plan, status, fields = self._plan, exchange.status, exchange.fields
        if exchange.unwanted:
            fetch.heard = Event.MEDIA_TYPE
            self._count_exception(UnwantedMediaType(exchange.response))
            self._end(fetch, Event.MEDIA_TYPE, status)
            return
        fetch.heard = event = event_of_status(status)
        location = fields.get(b"Location")
        target = location[-1] if location else None
        retry_after = fields.get(b"Retry-After")
        self._visits.note_answer(
            fetch, exchange.url, status, retry_after[-1] if retry_after else None, target
        )
        self._counts["downloader/response_count"] += 1
        self._counts[f"downloader/response_status_count/{status}"] += 1
        self._counts["downloader/response_bytes"] += exchange.size
        page, leads_elsewhere = exchange, False
        try:
            if plan.cookies is not None and b"Set-Cookie" in fields:
                plan.cookies.process_response(Request(exchange.url), exchange.make_response())
            if b"Content-Encoding" in fields and plan.decoder is not None:
                page = self._decoded(exchange)
            if target is not None:
                leads_elsewhere = self._parts.redirects.follow(fetch, exchange.url, status, target)
            revisited = not leads_elsewhere and not self._plans.idle
            if revisited and self._parts.revisits.note_page(fetch, page):
                raise NotModified(f"{exchange.url} has not changed", page.response)
        except JobDamagedError:
            raise
        except Exception as error:  # of a body that is not what it says, among others
            self._fail(fetch, error)
            return
        if leads_elsewhere:
            self._end(fetch, Event.REPLACED, 0)
            return
        fetch.page = page
        if self._crawl.settings.compare_pages and self._parts.duplicates.compare(fetch, page):
            self._placed.add(fetch)
            self._run(self._look_up_and_take(fetch, page, event), fetch)
        else:
            self._take_page(fetch, page, event)

    async def _look_up_and_take(self, fetch: Fetch, page: Exchange, event: Event) -> None:
        await self._parts.duplicates.look_up(fetch)
        self._placed.discard(fetch)
        self._take_page(fetch, page, event)

    def _decoded(self, exchange: Exchange) -> Exchange:
        # Raises IgnoreRequest (too large), and what Scrapy lets through of a broken body.
        before = exchange.make_response()
        after = self._plan.decoder.process_response(_ANY_REQUEST, before)
        if after.headers.get(b"Content-Encoding"):
            return exchange
        return exchange.of_body(after.body)

    # Read links

    def _take_page(self, fetch: Fetch, page: Exchange, event: Event) -> None:
        self._visits.answered(fetch, event, page.status)
        if self._plan.announces:
            self._announce_response(fetch, page)
        else:
            self._counts["response_received_count"] += 1
            for count_page in self._plan.page_counters:
                count_page(None, None, self._spider)
            if self._plan.logs_pages:
                self._log_crawled(fetch, page)
        if not 200 <= page.status < 300:
            self._ignore_page(page)
            self._settle(fetch)
            return
        try:
            parsed = self._parts.pages.run(fetch, page)
        except JobDamagedError:
            raise
        except Exception:  # the project's own code
            self._log_spider_error(fetch, page)
            fetch.faults.add(Event.CALLBACK_ERROR)
            parsed = False
        if parsed and self._plan.has_callback:
            self._callbacks.call(fetch, page.response)
        else:
            self._settle(fetch)

    def _scraped(self, fetch: Fetch) -> None:
        with self._guard:
            self._settle(fetch)
        self.schedule()

    def _ignore_page(self, page: Exchange) -> None:
        # As Scrapy's HttpErrorMiddleware.
        self._counts["httperror/response_ignored_count"] += 1
        self._counts[f"httperror/response_ignored_status_count/{page.status}"] += 1
        _HTTPERROR_LOG.info(
            "Ignoring response <%d %s>: HTTP status code is not handled or not allowed",
            page.status, page.url, extra={"spider": self._spider},
        )  # fmt: skip

    # Store and commit

    def _end(self, fetch: Fetch, event: Event, status: int) -> None:
        self._visits.answered(fetch, event, status)
        self._settle(fetch)

    def _fail(self, fetch: Fetch, error: BaseException) -> None:
        self._visits.failed(fetch, error)
        self._log_failure(fetch, error)
        self._settle(fetch)

    def _settle(self, fetch: Fetch) -> None:
        self._engine.settle(fetch)
        if fetch.request is not None:
            self._crawl.fetches.pop(fetch.request, None)
        if self._begun:
            self._begun -= 1
            if not self._begun:
                self._engine.let_close()

    # What Scrapy would say

    def _announce(self, signal: object, fetch: Fetch) -> None:
        crawler = self._crawl.crawler
        crawler.signals.send_catch_log(
            signal=signal, request=self._crawl.request_of(fetch), spider=crawler.spider
        )

    def _announce_response(self, fetch: Fetch, page: Exchange) -> None:
        crawler, request = self._crawl.crawler, self._crawl.request_of(fetch)
        response = page.response
        response.request = request
        for signal in (signals.response_downloaded, signals.response_received):
            crawler.signals.send_catch_log(
                signal=signal, response=response, request=request, spider=crawler.spider
            )

    def _log_crawled(self, fetch: Fetch, page: Exchange) -> None:
        spider, request = self._spider, self._crawl.request_of(fetch)
        words = self._scrapy_engine.logformatter.crawled(request, page.response, spider)
        if words is not None:
            _ENGINE_LOG.log(*logformatter_adapter(words), extra={"spider": spider})

    def _log_failure(self, fetch: Fetch, error: BaseException) -> None:
        if isinstance(error, IgnoreRequest):
            return
        try:
            self._log_download_error(fetch, error)
        except Exception:  # the project's own formatter
            logger.exception("The failure of %s cannot be logged", fetch.entry.url)

    def _log_download_error(self, fetch: Fetch, error: BaseException) -> None:
        spider, failure = self._spider, _failure(error)
        words = self._scrapy_engine.logformatter.download_error(
            failure, self._crawl.request_of(fetch), spider
        )
        if words is None:
            return
        _SCRAPER_LOG.log(
            *logformatter_adapter(words), extra={"spider": spider},
            exc_info=failure_to_exc_info(failure),
        )  # fmt: skip

    def _log_spider_error(self, fetch: Fetch, page: Exchange) -> None:
        self._scrapy_engine.scraper.handle_spider_error(
            _failure(), self._crawl.request_of(fetch), page.response
        )

    def _count_exception(self, error: BaseException) -> None:
        self._counts["downloader/exception_count"] += 1
        self._counts[f"downloader/exception_type_count/{global_object_name(type(error))}"] += 1


def _failure(error: BaseException | None = None) -> Any:
    return Failure(error)  # type: ignore[no-untyped-call]


_ANY_REQUEST: Final = Request("http://any.invalid/")
