"""Limits of a job, queues for the wire, observers of fetches, addresses of answers."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from scrapy_spider_suite.crawl.context import Crawl, fetch_observers
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.crawl.requests import VIA, StoppedError, hostname
from scrapy_spider_suite.exceptions import (
    HostWaitsTooLong,
    PrivateAddressRefused,
    UnwantedMediaType,
)
from scrapy_spider_suite.fetch.exchange import TRUNCATED, Exchange, pop_exchange
from scrapy_spider_suite.fetch.http_messages import ADDRESS, MEDIA_TYPES, TRUNCATE
from scrapy_spider_suite.fetch.resolver import suite_resolver
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import BandwidthLimit
from scrapy_spider_suite.frontier.workbench import FOREVER, AddressState, HostState, Visit
from scrapy_spider_suite.runtime.text import field_text

logger = logging.getLogger(__name__)

CAP_UNITS = {"max_pages": "pages", "max_bytes": "bytes received", "max_time": "seconds of crawling"}
"""The settings of a job's caps, which are finish reasons too, and what each counts."""


class Caps:
    """The caps of a job, and its bandwidth; settings are read each time."""

    def __init__(self, crawl: Crawl) -> None:
        self._crawl = crawl
        self._bandwidth = BandwidthLimit()

    def reached(self) -> str | None:
        frontier, settings = self._crawl.frontier, self._crawl.settings
        counters = frontier.counters
        # A page that waits for what led from it to be done would wait for ever.
        counts = (counters.done + frontier.commit.held, counters.bytes, counters.seconds)
        for reason, count in zip(CAP_UNITS, counts, strict=True):
            cap = getattr(settings, reason)
            if cap and count >= cap:
                return reason
        return None

    def pause(self, now: float) -> float:
        """Seconds for which no page is to be asked for; FOREVER once a cap is reached."""
        settings = self._crawl.settings
        capped = settings.max_pages or settings.max_bytes or settings.max_time
        if not capped and not settings.max_bandwidth:
            return 0.0
        if self.reached() is not None:
            return FOREVER
        self._bandwidth.rate = settings.max_bandwidth
        return self._bandwidth.wait(now)

    def book(self, fetch: Fetch, now: float) -> None:
        fetch.booked = self._bandwidth.book(now)

    def settle(self, fetch: Fetch) -> None:
        if fetch.booked:
            self._bandwidth.settle(fetch.booked, fetch.received, self._crawl.now())
            fetch.booked, fetch.received = 0.0, 0

    @contextmanager
    def bounded(self, request: Request, fetch: Fetch | None) -> Iterator[None]:
        """Tell the download handler how much of a page is wanted; meta of *request* wins."""
        settings, meta = self._crawl.settings, request.meta
        mine: dict[str, object] = {}
        if fetch is not None and settings.body_max and TRUNCATE not in meta:
            mine[TRUNCATE] = settings.body_max
        if fetch is not None and settings.media_types and self._crawl.settings.broad:
            mine |= {} if MEDIA_TYPES in meta else {MEDIA_TYPES: settings.media_types}
        meta.update(mine)
        try:
            yield
        finally:
            for key in mine:
                meta.pop(key, None)

    def received(self, exchange: Exchange, fetch: Fetch | None) -> None:
        """Count the bytes of a transfer, of a failed one too.

        For handlers that do not tell, the body alone counts.
        """
        size = exchange.size or len(exchange.body)
        self._crawl.frontier.counters.bytes += size
        if fetch is None:
            self._bandwidth.charge(size, self._crawl.now())
            return
        fetch.received += size
        if TRUNCATED in exchange.flags:
            self._crawl.crawler.stats.inc_value("suite/response/truncated")


class WireQueue:
    """Requests that wait for the wire to a host: first come first served, before new visits."""

    def __init__(self, crawl: Crawl) -> None:
        self._crawl = crawl
        self._locks: dict[str, asyncio.Lock] = {}
        # Who waits for a host or an address, by its key, first come first.
        self._moves: dict[str, dict[asyncio.Future[None], None]] = {}

    async def queue(self, host: HostState, address: AddressState, may: Callable[[], None]) -> None:
        """Wait without a visit. Raises `StoppedError`, `HostWaitsTooLong`, the errors of *may*."""
        workbench = self._crawl.frontier.workbench
        lock = self._locks.setdefault(host.key, asyncio.Lock())
        host.waiting += 1
        address.booked += 1
        longest = self._crawl.settings.max_wait or FOREVER
        try:
            async with lock:
                await self._wait(host, address, may, longest)
        finally:
            host.waiting -= 1
            address.booked -= 1
            if not host.waiting:
                self._locks.pop(host.key, None)
            workbench.offer(host)

    async def queue_again(
        self, host: HostState, address: AddressState, may: Callable[[], None]
    ) -> None:
        """Wait in a visit, since another fetch has used the wire; the address is free meanwhile.

        Raises `StoppedError` and the errors of *may*.
        """
        address.out -= 1
        address.booked += 1
        self._crawl.frontier.workbench.offer_address(address)
        self._crawl.wake()
        try:
            await self._wait(host, address, may, FOREVER)
        finally:
            address.booked -= 1
            address.out += 1
            address.intrusions += 1  # a visit that left for it meanwhile must look again

    async def queue_to_begin(self, visit: Visit, may: Callable[[], None]) -> None:
        """Wait in a visit, since a delayed visit has begun just now.

        Raises `StoppedError` and the errors of *may*.
        """
        crawl = self._crawl
        while pause := visit.pause_to_begin(crawl.now()):
            if crawl.stopping:
                raise StoppedError("the crawl is being stopped")
            may()
            await self._until_moved(pause, visit.host.key, visit.address.key)

    async def _wait(
        self, host: HostState, address: AddressState, may: Callable[[], None], longest: float
    ) -> None:
        crawl = self._crawl
        workbench = crawl.frontier.workbench
        while True:
            if crawl.stopping:
                raise StoppedError("the crawl is being stopped")
            may()
            now = crawl.now()
            pause = workbench.pause_needed(host, address, now)
            leave = not pause and crawl.rates is not None
            if crawl.rates is not None and leave:
                pause = crawl.rates.pause(host, address)
            if not pause:
                return
            if longest < pause < FOREVER:
                raise HostWaitsTooLong(
                    f"{host.key} has to wait {pause:.0f} s ({host.why or 'its delay'}), longer "
                    "than SUITE_MAX_WAIT"
                )
            # Only the address is in the way: nobody new may slip in before us there.
            alone = host.wire < host.concurrency and host.next_fetch <= now and not leave
            address.waiting += alone
            try:
                await self._until_moved(pause, host.key, address.key)
            finally:
                address.waiting -= alone
                if alone:
                    # Whoever waited may have given up: others may go there again.
                    workbench.offer_address(address)
                    crawl.wake()

    async def _until_moved(self, seconds: float, *keys: str) -> None:
        loop = asyncio.get_running_loop()
        moved: asyncio.Future[None] = loop.create_future()
        both = set(keys)  # an address as a host's name: its key is the host's too
        for key in both:
            self._moves.setdefault(key, {})[moved] = None
        timer = None if seconds == FOREVER else loop.call_later(seconds, _finish, moved)
        try:
            await moved
        finally:
            for key in both:
                moves = self._moves[key]
                del moves[moved]
                if not moves:
                    del self._moves[key]
            if timer is not None:
                timer.cancel()

    def wake(self, *keys: str) -> None:
        """Let requests look again that wait for one of *keys*; without keys all of them."""
        for key in keys or tuple(self._moves):
            for moved in self._moves.get(key, ()):
                _finish(moved)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def add_fetch_observer(crawler: Crawler, observer: Callable[[Fetch], None]) -> None:
    """Call *observer*, which must not raise, after every exchange of *crawler*, with its fetch.

    robots.txt, media, redirects and retries are fetches, too. An exchange has a status or an error.
    """
    fetch_observers(crawler).append(observer)


def end_exchange(
    crawl: Crawl, request: Request, fetch: Fetch | None, response: Response | None,
    error: BaseException | None, began: float,
) -> Exchange:  # fmt: skip
    """Tell the observers how *request*, sent *began* (seconds since the epoch), ended."""
    exchange = pop_exchange(request)
    if exchange is None:
        answer = error.response if isinstance(error, UnwantedMediaType) else response
        exchange = Exchange.of_handler(request.url, request.method, answer)
    if error is not None and not exchange.unwanted:
        exchange.error, exchange.status = error, 0
    exchange.began, exchange.seconds = began, max(0.0, time.time() - began)
    exchange.address = exchange.address or request.meta.get(ADDRESS, "")
    if crawl.observers:
        fetch = fetch or Fetch(_entry_aside(request), None, aside=True)
        fetch.exchange = exchange
        for observer in crawl.observers:
            observer(fetch)
    return exchange


def _entry_aside(request: Request) -> Entry:
    # Nothing here depends on what a project puts into its meta.
    depth = request.meta.get("depth")
    via = request.meta.get(VIA) or field_text(request.headers, "Referer")
    return Entry(
        hostname(request), request.url, referrer=str(via),
        depth=depth if isinstance(depth, int) else -1,
    )  # fmt: skip


class AddressComparison:
    """Compares the addresses of answers with those that were looked up.

    Download handlers other than the suite's may look a name up again, and find another address (DNS
    rebinding).
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._said = False

    def check(self, request: Request, wanted: str | None, response: Response) -> None:
        """Count *response* if it came from another address than *wanted*.

        Raises `PrivateAddressRefused` if its host may not be there.
        """
        actual = response.ip_address
        if not wanted or actual is None or ipaddress.ip_address(wanted) == actual:
            return
        if request.meta.get("proxy"):  # the address is the proxy's; an attempt before had none
            return
        self._crawler.stats.inc_value("suite/address/mismatch")
        if not self._said:
            self._said = True
            logger.warning(
                "%s was to be fetched from %s and came from %s: the download handler does not "
                "connect where it is told to, so the delays of addresses may not hold (further "
                "ones are only counted: suite/address/mismatch)", request, wanted, actual,
            )  # fmt: skip
        host = hostname(request)
        why = suite_resolver(self._crawler).policy.why_refused(str(actual), host)
        if why is not None:
            raise PrivateAddressRefused(f"{host}: {why}", answered=True)
