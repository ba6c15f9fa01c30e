"""What all parts of one crawl share: settings, job, store, frontier, clock, engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from scrapy import Request, signals

from scrapy_spider_suite.crawl.crawl_policy import (
    TWINS_TABLE,
    get_policy_file,
    make_normalizer,
    make_order,
    make_window,
)
from scrapy_spider_suite.crawl.filters import get_filters
from scrapy_spider_suite.crawl.queue.frontier import Frontier, QueueOptions
from scrapy_spider_suite.crawl.queue.leases import Lease
from scrapy_spider_suite.crawl.requests import Translator
from scrapy_spider_suite.crawl.robots import RobotsService
from scrapy_spider_suite.errors import CodecError, StoreWriteError
from scrapy_spider_suite.fetch.exchange import Exchange
from scrapy_spider_suite.fetch.resolver import suite_resolver
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import Health
from scrapy_spider_suite.frontier.workbench import AddressState, HostState
from scrapy_spider_suite.runtime.files import TemporaryFolder
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.interface import MemoryStore, Store
from scrapy_spider_suite.store.job_directory import Job, close_job, job_of
from scrapy_spider_suite.store.request_codec import RequestCodec
from scrapy_spider_suite.store.rocks_store import RocksStore, open_seen
from scrapy_spider_suite.urls.normalizer import Normalizer

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DISK_RETRY = 0.25
"""Seconds between two attempts to write."""
_HOST_BYTES = 6144
"""Memory of one resident host; a front of eight takes 5,200 (``benchmarks/frontier.py``)."""

STARTING: ContextVar[bool] = ContextVar("STARTING", default=False)
"""Whether the running code is the spider's ``start()``: its downloads are the operator's own."""


class Gate(Protocol):
    def wake(self, *keys: str) -> None:
        """Let requests that wait for hosts or addresses with these *keys* look again.

        Without keys: all of them.
        """

    def cut_short(self) -> None: ...


class Engine(Protocol):
    """The suite's scheduler: it stands for Scrapy's engine."""

    crawl: Crawl

    @property
    def closing(self) -> bool: ...

    @property
    def starting(self) -> bool:
        """Whether ``start()`` or a list of seeds has more to come."""

    @property
    def paused(self) -> bool: ...
    @property
    def pauses(self) -> list[str]: ...
    @property
    def under_way(self) -> Collection[object]: ...

    @property
    def gate(self) -> Gate | None:
        """None if the project has a downloader of its own."""

    def pause(self, why: str) -> None:
        """Send nothing until `unpause` was called for every reason *why*."""

    def unpause(self, why: str) -> None: ...
    def stop(self, reason: str) -> None: ...

    def abandon(self) -> None:
        """The crawl was refused while it was opened: `close` does nothing."""

    def wake(self) -> None: ...

    def flush(self) -> None:
        """Write all changes, or pause the crawl until that is possible."""

    def flush_soon(self) -> None: ...

    def pause_until_writable(self, why: str) -> None:
        """Pause, since nothing can be written because of *why*, until writing works again."""

    def has_work(self) -> bool: ...

    def hold_open(self) -> None:
        """Let the crawl not close before `let_close`: fetches are under way beside the engine."""

    def let_close(self) -> None: ...
    def wake_engine(self) -> None: ...

    def settle(self, lease: Lease) -> None:
        """Nothing more will come of *lease*: store and commit it."""

    def enqueue_entry(self, entry: Entry, lease: Lease | None) -> bool:
        """Make *entry*, which came from the page of *lease*, pending; False: a duplicate."""


class RateGate(Protocol):
    """Permission for fetches on hosts and addresses that several processes share."""

    @property
    def away(self) -> bool:
        """Whether nobody can give permission for now."""

    def pause(self, host: HostState, address: AddressState) -> float:
        """Seconds until a fetch may begin; 0.0: now."""

    def drop(self, host: HostState, address: AddressState) -> None: ...

    def begin(self, host: HostState, address: AddressState) -> Any:
        """A fetch begins; returns the argument of `end`."""

    def end(self, taken: Any, host: HostState, address: AddressState) -> None: ...

    @property
    def longest(self) -> float:
        """Seconds after which the permission for a fetch runs out."""

    async def bounded(self, transfer: Coroutine[Any, Any, T]) -> T:
        """Await *transfer*; cut it off when its permission runs out."""

    def heard(self, host: HostState, health: Health) -> None: ...
    def publish(self) -> None: ...


class ClusterMember(Protocol):
    """This process as one agent of several.

    Attributes:
        only_waiting: nothing is left here but hosts that wait longer than SUITE_MAX_WAIT.
    """

    only_waiting: bool

    @property
    def crawl_name(self) -> str: ...

    def drain(self) -> None: ...
    @property
    def ended(self) -> bool: ...
    def may_fetch(self) -> bool: ...
    def outbox_has_room(self) -> bool: ...

    def refuse_fetch(self, host: str, url: str, lease: Lease | None, delay: float) -> None:
        """Raise `HostExcluded` if this agent may not send a request for *url* now."""

    def over(self, reason: str) -> None:
        """End this agent for *reason*; "": the whole crawl is over."""

    def publish(self) -> None: ...


class ReadCounter(Protocol):
    def read(self, lease: Lease, page: Exchange, links: Sequence[str]) -> None: ...

    def recall(self, lease: Lease, page: Exchange, size: int, *, again: bool) -> None:
        """Count *page*, of *size* bytes, which was stored and is read now."""


class OutsideFetches:
    def __init__(self) -> None:
        self.count = self.waiting = 0


class SeedSources:
    """Where seeds come from.

    Attributes:
        start: the task that reads the spider's ``start()`` at present.
        start_waits: ``start()`` asked for more room, and was told to wait.
        volatile: ``start()`` yielded a request that cannot be stored.
        unread: lists of seeds that are to be read again.
        awaited: other processes may push seeds.
        pushed: the request that is made at this moment was pushed by another process.
    """

    def __init__(self) -> None:
        self.start: asyncio.Task[object] | None = None
        self.start_waits = self.volatile = self.awaited = self.pushed = False
        self.unread: set[str] = set()


_crawls: WeakKeyDictionary[Crawler, Crawl] = WeakKeyDictionary()


def get_crawl(crawler: Crawler) -> Crawl:
    """The crawl of *crawler*, made at the first call. Raises the `SuiteError`s."""
    crawl = _crawls.get(crawler)
    if crawl is None:
        crawl = _crawls[crawler] = Crawl(crawler)
    return crawl


def has_crawl(crawler: Crawler) -> bool:
    """Whether the crawl of *crawler* was made and is not closed."""
    return crawler in _crawls


def get_normalizer(crawler: Crawler | None) -> Normalizer:
    """The normaliser of *crawler*'s crawl; the plain one without a crawl."""
    crawl = None if crawler is None else _crawls.get(crawler)
    return Normalizer() if crawl is None else crawl.normalizer


def follows_links(crawler: Crawler) -> bool:
    """Whether links are followed in bulk: their pages have no callback of their own."""
    return suite_settings(crawler).follow or getattr(crawler.spidercls, "suite_follow", False)


class Crawl:
    """The frontier of one crawl, and the leases that are out.

    Attributes:
        leases: of the requests that are under way.
        engine: None with a scheduler that is not the suite's.
        counts: numbers for the stats, by name, of what comes with each page.
        path: whether rows take the fetch loop, and if not, why.
        flying: fetches of the fetch loop that have a place of CONCURRENT_REQUESTS.
        agent: None where one process crawls alone.
        rates: None where no other process fetches from the same hosts.
        robots: None where robots.txt is not asked for.
    """

    now = staticmethod(time.monotonic)
    """The clock of the crawl."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.settings: SuiteSettings = suite_settings(crawler)
        self.resolver = suite_resolver(crawler)
        self.policy_file = get_policy_file(crawler)
        self.filters = get_filters(crawler)
        domains = getattr(crawler.spider, "allowed_domains", None)
        if isinstance(domains, Iterator):  # as in scrapy-redis's examples: it is read only once
            domains = list(domains)
            vars(crawler.spider)["allowed_domains"] = domains
        self.filters.use_scope(domains)
        self.leases: dict[Request, Lease] = {}
        self.engine: Engine | None = None
        self.agent: ClusterMember | None = None
        self.rates: RateGate | None = None
        self.robots: RobotsService | None = None
        self.counter: ReadCounter | None = None
        self.outside = OutsideFetches()
        self.flying = 0
        self.path = ""
        self.seeds = SeedSources()
        self.stopping = False
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.closers: list[Callable[[str], None]] = []
        self._folder: TemporaryFolder | None = None
        self.job: Job | None = job_of(crawler)
        self.store = self._open_store()
        twins = self.store.kv(TWINS_TABLE)
        self.normalizer = make_normalizer(self.settings, twins, crawler.stats, domains)
        codec = None
        if self.store.durable and crawler.spider is not None:
            modules = crawler.settings.getlist("SPIDER_MODULES")
            codec = RequestCodec.from_spider(crawler.spider, modules, self.settings.storable)
        self.translator = Translator(
            crawler, codec, broad=self.settings.broad, normal=self.normalizer
        )
        self.frontier = self._open_frontier()
        self.policy_file.address_of = self._address_of
        # Connected after the extensions, so called after them; the scheduler is closed before.
        crawler.signals.connect(self.close_job, signals.spider_closed, weak=False)

    def _open_frontier(self) -> Frontier:
        job, now = self.job, self.now()
        frontier = Frontier(
            self.store,
            self.policy_file.policy,
            now=now,
            wall=time.time(),
            capacity=max(1_000, self.settings.memory // _HOST_BYTES),
            counters=None if job is None or not job.resumed else Counters.load(self.store),
            unclean=job is not None and job.unclean,
            options=QueueOptions(
                order=make_order(self.settings, self.crawler.stats),
                window=make_window(self.settings, self.store),
                cache=self.settings.seen_cache if self.store.durable else 0,
                sift=self.settings.seen_store == "sieve",
            ),
        )
        if not self.settings.broad:
            # Its seeds are requests of its own.
            meta = {"is_start_request": True}
            frontier.commit.guesses.entry_of = lambda url: self.translator.entry(
                Request(url, meta=meta)
            )
        if job is not None:
            frontier.open(now)
        return frontier

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

    def publish_counts(self) -> None:
        """Add *counts* to the stats, as is done each second and at the end."""
        for name, number in self.counts.items():
            self.crawler.stats.inc_value(name, number)
        self.counts.clear()

    @property
    def temporary(self) -> Path | None:
        """The folder of a crawl without a job directory, if it needs one."""
        return None if self._folder is None else self._folder.path

    def wake(self) -> None:
        if self.engine is not None:
            self.engine.wake()

    def request_of(self, lease: Lease) -> Request:
        """The request of *lease*, made at the first use, for whoever works with Scrapy's."""
        if lease.request is None:
            try:
                lease.request = self.translator.request(lease.entry)
            except CodecError:  # it was good enough to be fetched
                lease.request = Request(lease.entry.url)
            self.leases[lease.request] = lease
        return lease.request

    def close_job(self, reason: str = "") -> None:
        """Close the job directory, after the extensions have written to it."""
        if _crawls.pop(self.crawler, None) is None:
            return
        for closer in self.closers:
            closer(reason)
        self.frontier.states.cache.close()
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
    """Whether pages will be due again."""
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
    while crawl.store.dirty and not crawl.stopping:
        await asyncio.sleep(_DISK_RETRY)
