"""The downloader: the only way to the wire.

A request with a visit comes from the frontier at its time. One without (robots.txt, media) waits
here for the clocks of its host and address, never for a visit, and is active only while its bytes
flow. So a fetch nested in a visit cannot deadlock, and slow images leave CONCURRENT_REQUESTS free.

With another scheduler no request has a visit: each is active from beginning to end, as in Scrapy.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from scrapy import Request, Spider, signals
from scrapy.core.downloader import Downloader, Slot
from scrapy.crawler import Crawler
from scrapy.exceptions import CannotResolveHostError
from scrapy.http import Response
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.httpobj import urlparse_cached
from twisted.internet.defer import Deferred, inlineCallbacks

from scrapy_spider_suite.crawl.assembly import CrawlParts, open_crawl
from scrapy_spider_suite.crawl.context import STARTING, Crawl
from scrapy_spider_suite.crawl.empty_runs import OtherSchedulerRun
from scrapy_spider_suite.crawl.gate import AddressComparison, end_exchange
from scrapy_spider_suite.crawl.preparation import warn_of_private_address
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.crawl.requests import (
    GATE_SLOT,
    StoppedError,
    chosen_slot,
    event_of_error,
    hostname,
    mark_errback,
    pacing_key,
)
from scrapy_spider_suite.errors import PrivateAddressError, ResolveError
from scrapy_spider_suite.exceptions import PrivateAddressRefused
from scrapy_spider_suite.fetch.address_rules import pacing_key as address_key
from scrapy_spider_suite.fetch.exchange import Exchange
from scrapy_spider_suite.fetch.http_messages import ADDRESS, DEPARTURE, KEEP_ALIVE
from scrapy_spider_suite.frontier.outcomes import event_of_status
from scrapy_spider_suite.frontier.workbench import AddressState, HostState, departure
from scrapy_spider_suite.operate.supervision import CommandExit
from scrapy_spider_suite.settings.suite import suite_settings

logger = logging.getLogger(__name__)

T = TypeVar("T")

_WIRED = frozenset({"http", "https"})


class PoliteDownloader(Downloader):
    """Scrapy's downloader with the frontier's clocks; a slot's delay is the least of its host."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._parts: CrawlParts | None = None
        self._cuttable: set[asyncio.Future[Any]] = set()
        self._entered: set[Request] = set()  # reached the downloader; sent nowhere so far
        self._autothrottle = crawler.settings.getbool("AUTOTHROTTLE_ENABLED")
        # Of many hosts the slots are more than half of what the garbage collector walks over, and
        # they say nothing that a new one would not, unless somebody changes their delays.
        self._forgets_slots = not self._autothrottle and suite_settings(crawler).profile == "broad"
        self._comparing = AddressComparison(crawler)

    @property
    def parts(self) -> CrawlParts:
        if self._parts is None:
            self._parts = parts = open_crawl(self.crawler)
            if parts.crawl.engine is None:
                leave = CommandExit(parts.crawl).leave
                run = OtherSchedulerRun(parts.crawl, parts.trusted, leave)
                parts.visits.unscheduled = run
        return self._parts

    @property
    def crawl(self) -> Crawl:
        return self.parts.crawl

    def needs_backout(self) -> bool:
        """See Scrapy; true for ``start()`` also when enough requests wait.

        Scrapy's scheduler is empty whenever its engine has room; ours holds requests that wait for
        their hosts: an endless ``start()`` would fill it without a bound.
        """
        if 0 < self.total_concurrency <= len(self.active) + self.crawl.flying:  # 0: no limit
            return True
        crawl, seeds = self.crawl, self.crawl.seeds
        if seeds.start is None or asyncio.current_task() is not seeds.start:
            return False  # the engine asks, not start()
        seeds.start_waits = crawl.frontier.pending >= crawl.settings.project.most_requests
        return seeds.start_waits

    @inlineCallbacks
    def fetch(
        self, request: Request, spider: Spider | None = None
    ) -> Generator[Deferred[Any], Any, Request | Response]:
        """See Scrapy's downloader. Releases the visit of *request* in any case.

        A Deferred: a turn of the loop later, places would go to new requests before the scraper
        knows of this response.
        """
        crawl = self.crawl
        fetch = crawl.fetches.get(request)
        if fetch is not None or crawl.engine is None:
            self.active.add(request)
        if fetch is None:
            self.parts.visits.begin_outside(request, by_start=STARTING.get())
        result: Request | Response | None = None
        error: BaseException | None = None
        try:
            result = yield deferred_from_coro(
                self.middleware.download_async(self._enqueue_request, request)
            )
            if fetch is not None:
                self.parts.redirects.refuse_redirect(request, fetch, result)
                self.parts.revisits.answered(request, fetch, result)
                if isinstance(result, Response) and self.parts.duplicates.compare(
                    fetch, Exchange.of_handler(result.url, request.method, result)
                ):
                    yield deferred_from_coro(self.parts.duplicates.look_up(fetch))
            return result
        except BaseException as raised:
            error = raised
            warn_of_private_address(request, raised)
            raise
        finally:
            self.active.discard(request)
            if fetch is not None:
                if error is not None:
                    mark_errback(request, fetch)
                self.parts.visits.fetched(fetch, result, error)
            else:
                self.parts.visits.end_outside(request, result, error)
            if self.parts.loop is not None:
                self.parts.loop.schedule()  # there is a place again

    async def _enqueue_request(self, request: Request) -> Response:
        send = self._send if urlparse_cached(request).scheme in _WIRED else self._read
        if chosen_slot(request) is None:
            request.meta[self.DOWNLOAD_SLOT] = request.meta[GATE_SLOT] = pacing_key(request)
        key, slot = self._get_slot(request)
        slot.active.add(request)
        self._entered.add(request)
        slot.lastseen = time.monotonic()  # or Scrapy forgets it, and what AutoThrottle found
        self.signals.send_catch_log(
            signal=signals.request_reached_downloader, request=request, spider=self.crawler.spider
        )
        fetch = self.crawl.fetches.get(request)
        try:
            response = await send(request, slot)
        except Exception as error:
            if fetch is not None:
                self.parts.visits.heard(fetch, event_of_error(error))
            raise
        else:
            if fetch is not None:
                self.parts.visits.heard(fetch, event_of_status(response.status), response)
            return response
        finally:
            slot.active.remove(request)
            if request in self._entered:
                self._entered.discard(request)
                self.signals.send_catch_log(
                    signal=signals.request_left_downloader, request=request,
                    spider=self.crawler.spider,
                )  # fmt: skip
            if self._forgets_slots and not slot.active:
                self.slots.pop(key, None)

    async def _download(self, slot: Slot, request: Request) -> Response:
        self._entered.discard(request)
        return await super()._download(slot, request)

    async def _read(self, request: Request, slot: Slot) -> Response:
        # No wire (file:, data:), or another one (ftp:, s3:).
        with self._active(request):
            return await self._download(slot, request)

    @contextmanager
    def _active(self, request: Request) -> Iterator[None]:
        waited = request not in self.active
        self.active.add(request)
        try:
            yield
        finally:
            if waited:
                self.active.discard(request)

    async def _send(self, request: Request, slot: Slot) -> Response:
        crawl = self.crawl
        fetch = crawl.fetches.get(request)
        if fetch is not None:
            self.parts.visits.dead_hosts.refuse(fetch)
            await self.parts.revisits.prepare(fetch)

        def may() -> None:
            url, address = request.url, request.meta.get(ADDRESS, "")
            crawl.policy_file.refuse_excluded(hostname(request), url, address)

        if fetch is not None and fetch.visit is not None:
            host, address = fetch.visit.host, fetch.visit.address
            if host.connect_to and host.key == hostname(request):
                request.meta[ADDRESS] = host.connect_to
            elif not request.meta.get("proxy"):
                await self._resolve(request)
            if not fetch.visit.wired and fetch.visit.pause_to_begin(crawl.now()):
                await self._wait(request, self.parts.wire.queue_to_begin(fetch.visit, may))
            shared = crawl.rates is not None and crawl.rates.pause(host, address) > 0
            if shared or not fetch.visit.undisturbed():
                await self._wait(request, self.parts.wire.queue_again(host, address, may))
            return await self._transfer(request, slot, host, address, fetch)
        self.parts.visits.outside_waiting += 1
        try:
            # Before anyone is asked where it lives.
            crawl.policy_file.refuse_excluded(hostname(request), request.url)
            host, address = await self._book(request)
            await self.parts.wire.queue(host, address, may)
        finally:
            self.parts.visits.outside_waiting -= 1
        return await self._transfer(request, slot, host, address, None)

    async def _book(self, request: Request) -> tuple[HostState, AddressState]:
        frontier, now = self.crawl.frontier, self.crawl.now()
        numeric = "" if request.meta.get("proxy") else await self._resolve(request)
        key = pacing_key(request)
        host = frontier.residents.visitor(key, now)
        group = address_key(numeric) if numeric else f"@{key}"
        return host, frontier.residents.clocks.state(group, numeric, now)

    async def _resolve(self, request: Request) -> str:
        """Set the request's address. Raises `CannotResolveHostError`, `PrivateAddressRefused`."""
        try:
            found = await self._until_cut(self.parts.trusted.resolver.resolve(hostname(request)))
        except ResolveError as error:
            raise CannotResolveHostError(str(error)) from error
        except PrivateAddressError as error:
            raise PrivateAddressRefused(str(error)) from error
        request.meta[ADDRESS] = found.addresses[0]
        return found.addresses[0]

    async def _wait(self, request: Request, waiting: Coroutine[Any, Any, None]) -> None:
        # In a visit, without a place among the active requests.
        self.active.discard(request)
        try:
            await waiting
        finally:
            self.active.add(request)

    def wake(self, *keys: str) -> None:
        self.parts.wire.wake(*keys)

    async def _transfer(
        self, request: Request, slot: Slot, host: HostState, address: AddressState,
        fetch: Fetch | None,
    ) -> Response:  # fmt: skip
        crawl = self.crawl
        if crawl.stopping:
            raise StoppedError("the crawl is being stopped")
        numeric = request.meta.get(ADDRESS, "")
        crawl.policy_file.refuse_excluded(hostname(request), request.url, numeric)
        if crawl.agent is not None:
            delay = max(host.gap(), address.delay)
            crawl.agent.refuse_fetch(hostname(request), request.url, fetch, delay)
        if fetch is not None:
            crawl.filters.refuse_fetch(request.url, fetch.entry, numeric)
        visit = None if fetch is None else fetch.visit
        workbench, sharing = crawl.frontier.workbench, crawl.rates
        taken = () if sharing is None else sharing.begin(host, address)
        workbench.begin(host, address, crawl.now(), visit=visit is not None)
        if visit is not None:
            visit.wired = True
        request.meta[KEEP_ALIVE] = max(host.gap(), address.delay)
        leaves = departure(host, address, partial(self.wake, host.key, address.key))
        if leaves is not None:
            request.meta[DEPARTURE] = leaves
        response, failure = None, None
        caps, began = self.parts.visits.caps, time.time()
        try:
            conditional = self.parts.revisits.conditional(request, fetch)
            with self._active(request), caps.bounded(request, fetch), conditional:
                transfer = self._until_cut(self._download(slot, request))
                answer = await (transfer if sharing is None else sharing.bounded(transfer))
                self._comparing.check(request, request.meta.get(ADDRESS), answer)
                response = answer
            if visit is None:
                self.parts.visits.heard_outside(host, response)
            return response
        except BaseException as error:
            failure = error
            if visit is None and isinstance(error, Exception):
                self.parts.visits.failed_outside(host, error)
            raise
        finally:
            exchange = end_exchange(crawl, request, fetch, response, failure, began)
            if leaves is not None:
                leaves.release()
                request.meta.pop(DEPARTURE, None)
            caps.received(exchange, fetch)
            if self._autothrottle:
                # Never below what was promised.
                host.delay = max(slot.delay, crawl.frontier.policy.for_host(host.key).delay)
            workbench.end(host, address, crawl.now(), visit=visit is not None)
            if sharing is not None:
                sharing.end(taken, host, address)
            self.parts.wire.wake(host.key, address.key)

    async def _until_cut(self, work: Coroutine[Any, Any, T]) -> T:
        """Await *work*. Raises `StoppedError` after `cut_short`."""
        task = asyncio.ensure_future(work)
        self._cuttable.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if not self.crawl.stopping:
                raise
            raise StoppedError("the crawl was stopped during the transfer") from None
        finally:
            self._cuttable.discard(task)

    def _process_queue(self, slot: Slot) -> None:
        """Do nothing: slots neither queue nor delay here."""

    def cut_short(self) -> None:
        """End all look-ups and transfers: the time of the stop is over."""
        for task in self._cuttable:
            task.cancel()
