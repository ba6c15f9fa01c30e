"""What all parts of one crawl share: settings, job, store, frontier, clock, engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from scrapy import Request, signals

from scrapy_spider_suite.crawl import crawl_policy
from scrapy_spider_suite.crawl.queue.frontier import Frontier, QueueOptions
from scrapy_spider_suite.crawl.queue.leases import Fetch
from scrapy_spider_suite.crawl.requests import Translator
from scrapy_spider_suite.errors import CodecError, StoreWriteError
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import Health
from scrapy_spider_suite.frontier.permits import PermitSource
from scrapy_spider_suite.frontier.workbench import AddressState, HostState
from scrapy_spider_suite.runtime.files import TemporaryFolder
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.store.job_directory import Job, close_job, job_of
from scrapy_spider_suite.store.request_codec import RequestCodec
from scrapy_spider_suite.store.rocks_store import RocksStore, Store, open_seen

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_spider_suite.crawl.assembly import CrawlParts
    from scrapy_spider_suite.crawl.robots import RobotsService
    from scrapy_spider_suite.crawl.sinks.link_counts import LinkCountSink

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DISK_RETRY = 0.25  # seconds between two attempts to write
_HOST_BYTES = 6144
"""Memory of one resident host; a front of eight takes 5,200 (benchmark ``frontier``)."""

STARTING: ContextVar[bool] = ContextVar("STARTING", default=False)
"""Whether the running code is the spider's ``start()``: its downloads are the operator's own."""


class Gate(Protocol):
    def wake(self, *keys: str) -> None: ...
    def cut_short(self) -> None: ...


class Engine(Protocol):
    crawl: Crawl

    @property
    def closing(self) -> bool: ...
    @property
    def starting(self) -> bool: ...
    @property
    def paused(self) -> bool: ...
    @property
    def pauses(self) -> list[str]: ...
    @property
    def gate(self) -> Gate | None: ...
    def pause(self, why: str) -> None: ...
    def unpause(self, why: str) -> None: ...
    def stop(self, reason: str) -> None: ...
    def abandon(self) -> None: ...
    def wake(self) -> None: ...
    def flush(self) -> None: ...
    def flush_soon(self) -> None: ...
    def has_work(self) -> bool: ...
    def hold_open(self) -> None: ...
    def let_close(self) -> None: ...
    def wake_engine(self) -> None: ...
    def settle(self, fetch: Fetch) -> None: ...
    def enqueue_entry(self, entry: Entry, fetch: Fetch | None) -> bool: ...


class RateGate(PermitSource, Protocol):
    def begin(self, host: HostState, address: AddressState) -> Any: ...
    def end(self, taken: Any, host: HostState, address: AddressState) -> None: ...
    @property
    def longest(self) -> float: ...
    async def bounded(self, transfer: Coroutine[Any, Any, T]) -> T: ...
    def heard(self, host: HostState, health: Health) -> None: ...
    def publish(self) -> None: ...


class ClusterMember(Protocol):
    only_waiting: bool  # for longer than SUITE_MAX_WAIT
    queued: int  # the part that it counts of URLs that no process has

    @property
    def crawl_name(self) -> str: ...
    def drain(self) -> None: ...
    @property
    def ended(self) -> bool: ...
    def may_fetch(self) -> bool: ...
    def outbox_has_room(self) -> bool: ...
    def refuse_fetch(self, host: str, url: str, fetch: Fetch | None, delay: float) -> None: ...
    def over(self, reason: str) -> None: ...
    def publish(self) -> None: ...


class SeedSources:
    def __init__(self) -> None:
        self.start: asyncio.Task[object] | None = None  # reads the spider's ``start()``
        self.start_waits = False  # ``start()`` asked for more room, and was told to wait
        self.volatile = False  # ``start()`` yielded a request that cannot be stored
        self.awaited = False  # other processes may push seeds
        self.elsewhere = False  # other processes have read all lists of seeds
        self.pushed = False  # the request made at this moment was pushed by another process
        self.unread: set[str] = set()  # lists of seeds that are to be read again


_CRAWL = "suite_crawl"
"""An attribute of the crawler, not a table by crawler: a crawl refers to its crawler, so a table
would keep both for ever."""


def fetch_observers(crawler: Crawler) -> list[Callable[[Fetch], None]]:
    """What is called after each fetch of *crawler*; an extension adds to it before the crawl."""
    observers: list[Callable[[Fetch], None]] = vars(crawler).setdefault("suite_observers", [])
    return observers


def get_crawl(crawler: Crawler) -> Crawl:
    """The crawl of *crawler*, made at the first call. Raises the `SuiteError`s."""
    crawl: Crawl | None = vars(crawler).get(_CRAWL)
    if crawl is None:
        crawl = vars(crawler)[_CRAWL] = Crawl(crawler)
    return crawl


def has_crawl(crawler: Crawler) -> bool:
    """Whether the crawl of *crawler* was made and is not closed."""
    return _CRAWL in vars(crawler)


def follows_links(crawler: Crawler) -> bool:
    """Whether links are followed in bulk: their pages have no callback of their own."""
    return suite_settings(crawler).follow or getattr(crawler.spidercls, "suite_follow", False)


class Crawl:
    """The frontier of one crawl, and the fetches that are out."""

    now = staticmethod(time.monotonic)  # the clock of the crawl

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.settings: SuiteSettings = suite_settings(crawler)
        self.policy_file = crawl_policy.PolicyFile(self.settings)
        self.filters = crawl_policy.CrawlFilters(self.settings, crawler.stats)
        domains = getattr(crawler.spider, "allowed_domains", None)
        if isinstance(domains, Iterator):  # as in scrapy-redis's examples: it is read only once
            domains = list(domains)
            vars(crawler.spider)["allowed_domains"] = domains
        self.filters.use_scope(domains)
        self.fetches: dict[Request, Fetch] = {}  # of the requests that are under way
        self.engine: Engine | None = None  # None with a scheduler that is not the suite's
        self.agent: ClusterMember | None = None  # None where one process crawls alone
        self.rates: RateGate | None = None  # None where nobody else fetches from the hosts
        self.robots: RobotsService | None = None  # None where robots.txt is not asked for
        self.counter: LinkCountSink | None = None
        self.observers = fetch_observers(crawler)
        self.flying = 0  # fetches of the loop that have a place of CONCURRENT_REQUESTS
        self.seeds = SeedSources()
        self.stopping = False
        self.parts: CrawlParts | None = None  # see `open_crawl`
        self.counts: defaultdict[str, int] = defaultdict(int)  # for the stats, of each page
        self.closers: list[Callable[[str], None]] = []
        self._folder: TemporaryFolder | None = None
        self.job: Job | None = job_of(crawler)
        self.store = self._open_store()
        twins = self.store.kv(crawl_policy.TWINS_TABLE)
        self.normalizer = crawl_policy.make_normalizer(
            self.settings, twins, domains, crawler.stats.inc_value
        )
        codec = None
        if self.store.durable and crawler.spider is not None:
            modules = crawler.settings.getlist("SPIDER_MODULES")
            codec = RequestCodec.from_spider(crawler.spider, modules, self.settings.storable)
        self.translator = Translator(
            crawler, codec, broad=self.settings.broad, normal=self.normalizer
        )
        self.frontier = self._open_frontier()
        # Connected after the extensions, so called after them; the scheduler is closed before.
        crawler.signals.connect(self.close_job, signals.spider_closed)

    def _open_frontier(self) -> Frontier:
        job, now = self.job, self.now()
        self.policy_file.address_of = self._address_of
        frontier = Frontier(
            self.store,
            self.policy_file.policy,
            now=now,
            wall=time.time(),
            capacity=max(1_000, self.settings.memory // _HOST_BYTES),
            counters=None if job is None or not job.resumed else Counters.load(self.store),
            unclean=job is not None and (job.unclean or job.emptied),
            options=QueueOptions(
                order=crawl_policy.make_order(self.settings, self.crawler.stats),
                window=crawl_policy.make_window(self.settings, self.store),
                cache=self.settings.seen_cache if self.store.durable else 0,
                sift=self.settings.seen_store == "sieve",
            ),
        )
        if not self.settings.broad:
            frontier.commit.guesses.entry_of = self._entry_of_start
        if job is not None:
            frontier.open(now)
        return frontier

    def _entry_of_start(self, url: str) -> Entry:
        """The entry of a request as `start()` makes it."""
        request = Request(url, meta={"is_start_request": True})
        return self.translator.entry(request, self.translator.identity(request))

    def _address_of(self, host: str) -> str:
        resident = self.frontier.workbench.hosts.get(host)
        return "" if resident is None else resident.connect_to

    def _open_store(self) -> Store:
        if self.job is not None:
            return self.job.store
        if not self.settings.broad:
            return MemoryStore()
        # Memory stays bounded without a job directory, too: the disk holds what waits.
        self._folder = TemporaryFolder()
        settings = self.settings
        store = RocksStore(self._folder.path / "store", memory=settings.memory)
        open_seen(
            store, self._folder.path, wanted=settings.seen_store, bits=int(settings.sieve_bits),
            capacity=settings.sieve_waiting,
        )  # fmt: skip
        return store

    @property
    def pending(self) -> int:
        """URLs to go, of which this process has some, or counts them for all."""
        return self.frontier.pending + (0 if self.agent is None else self.agent.queued)

    def wake(self) -> None:
        if self.engine is not None:
            self.engine.wake()

    def request_of(self, fetch: Fetch) -> Request:
        """The request of *fetch*, made at the first use, for whoever works with Scrapy's."""
        if fetch.request is None:
            try:
                fetch.request = self.translator.request(fetch.entry)
            except CodecError:  # it was good enough to be fetched
                fetch.request = Request(fetch.entry.url)
            self.fetches[fetch.request] = fetch
        return fetch.request

    def close_job(self, reason: str = "") -> None:
        """Close the job directory, after the extensions have written to it."""
        if vars(self.crawler).pop(_CRAWL, None) is None:
            return
        for closer in self.closers:
            closer(reason)
        for host in self.frontier.workbench.hosts.values():
            # See `Entry` and `HostState`: they lead back to all of this.
            host.front.clear()
            host.address = None
        self.policy_file.stop()
        self.filters.stop()
        with suppress(StoreWriteError):  # that has been said
            self.frontier.flush()
        with suppress(StoreWriteError):
            if self.job is not None:
                close_job(self.crawler)
            else:
                self.store.close()
        if self._folder is not None:
            self._folder.remove()


def revisits_pages(crawl: Crawl) -> bool:
    return crawl.settings.revisit != "off" and len(crawl.frontier.commit.planner) > 0


def stays_open(crawl: Crawl) -> bool:
    """Whether *crawl* goes on when nothing is left to do, since more may come."""
    return crawl.settings.when_done == "wait" or crawl.seeds.awaited or revisits_pages(crawl)


def write_changes(crawl: Crawl) -> None:
    """Make all changes of *crawl* durable, if that is possible now."""
    if crawl.engine is None:
        crawl.frontier.flush()
    else:
        crawl.engine.flush()


async def make_durable(crawl: Crawl) -> None:
    """Make all changes durable; wait while that is impossible."""
    write_changes(crawl)
    crawl.wake()
    while crawl.store.backlog and not crawl.stopping:
        await asyncio.sleep(_DISK_RETRY)
