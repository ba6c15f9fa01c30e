"""What the scheduler and the gate of one crawl share: the frontier, its clock, and who is out.

Either of them works without the other; whoever comes first makes it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy import Request, signals

from scrapy_spider_suite.cluster.ledger.ledger_client import make_shared_limits
from scrapy_spider_suite.crawl.crawl_policy import TWINS_TABLE as TWINS
from scrapy_spider_suite.crawl.crawl_policy import (
    Ordering,
    get_policy_file,
    make_normalizer,
    make_order,
    make_window,
    register_normalizer,
)
from scrapy_spider_suite.crawl.filters import get_filters
from scrapy_spider_suite.crawl.gate import Caps
from scrapy_spider_suite.crawl.links import SitemapLinks
from scrapy_spider_suite.crawl.preparation import TrustedPrivateHosts
from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.crawl.queue.leases import Lease
from scrapy_spider_suite.crawl.requests import Translator
from scrapy_spider_suite.crawl.revisits import Revisits
from scrapy_spider_suite.crawl.sinks.duplicate_pages import DuplicatePages
from scrapy_spider_suite.crawl.visits import DeadHosts, Visits
from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.fetch.resolver import suite_resolver
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.runtime.files import TemporaryFolder
from scrapy_spider_suite.settings.suite import SuiteSettings, suite_settings
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.interface import MemoryStore, Store
from scrapy_spider_suite.store.job_directory import Job, close_job, job_of
from scrapy_spider_suite.store.request_codec import RequestCodec
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.seen_index import ARCHIVE_FOLDER as ARCHIVE
from scrapy_spider_suite.store.seen_index import DROPPED, Archive, SieveIndex
from scrapy_spider_suite.store.seen_index import SIEVE_FOLDER as SIEVE

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_spider_suite.cluster.agent import Agent
    from scrapy_spider_suite.crawl.gate import WireQueue
    from scrapy_spider_suite.crawl.sinks.link_counts import LinkCounts

logger = logging.getLogger(__name__)

_DISK = 0.25
"""Seconds between two looks at whether the disk has room again."""
_HOST_BYTES = 6144
"""Memory that one resident host costs: 5,200 with a front of eight (``benchmarks/frontier.py``)."""

STARTING: ContextVar[bool] = ContextVar("STARTING", default=False)
"""Whether what runs is the spider's ``start()``: its downloads are the operator's own."""

_crawls: WeakKeyDictionary[Crawler, Crawl] = WeakKeyDictionary()


def get_crawl(crawler: Crawler) -> Crawl:
    """The crawl of *crawler*, made when first asked for. Raises the `SuiteError`s."""
    crawl = _crawls.get(crawler)
    if crawl is None:
        crawl = _crawls[crawler] = Crawl(crawler)
    return crawl


def has_crawl(crawler: Crawler) -> bool:
    """Whether the crawl of *crawler* was made, and has not been let go."""
    return crawler in _crawls


class Crawl:
    """The frontier of one crawl, and the leases that are out.

    *leases* maps the requests that are under way to their leases, *parents* the requests that a
    page brought to the lease of that page.
    """

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.settings: SuiteSettings = suite_settings(crawler)
        self.broad = self.settings.profile == "broad"
        self.resolver = suite_resolver(crawler)
        self.policy_file = get_policy_file(crawler)
        self.filters = get_filters(crawler)
        domains = _domains_of(crawler.spider)
        self.filters.use_scope(domains)
        self.leases: dict[Request, Lease] = {}
        self.parents: WeakKeyDictionary[Request, Lease] = WeakKeyDictionary()
        self.dead_hosts = DeadHosts(self)
        self.caps = Caps(self)
        self.visits = Visits(self)
        self.stopping = False
        self.cut = False  # something was cut short by the stop
        self.volatile_start = False  # start() yielded what cannot be stored
        self.wake: Callable[[], None] = _nobody  # has the scheduler look again
        self.write: Callable[[], None] = self._flush  # makes durable what was said, if it can
        self.paused_for: Callable[[], list[str] | None] = _nobody  # why nothing is sent, if so
        self.schedules = False  # the suite's scheduler hands out the requests
        self.outside = 0  # fetches without a visit
        self.waiting_outside = 0  # those of them that wait for their host
        self.reader: asyncio.Task[object] | None = None  # runs the spider's start() at present
        self.start_waits = False  # start() asked for more room, and was told to wait
        self.at_end: Callable[[str], None] = _nobody_asks
        self._folder: TemporaryFolder | None = None
        self.job: Job | None = job_of(crawler)
        self.store = self._store()
        twins = self.store.kv(TWINS)
        self.normalizer = make_normalizer(self.settings, twins, crawler.stats, domains)
        register_normalizer(crawler, self.normalizer)
        self.sitemaps = SitemapLinks(self)
        self.translator = self._translator()
        self.trusted = TrustedPrivateHosts(self.resolver, self.store.kv("trusted"))
        self.unread: set[str] = set()  # lists of seeds that are to be read again
        self.awaits_seeds = False  # others may push some
        self.pushed = False  # what is made a request of at this moment came from others
        self.agency = self._make_agency()
        self.ordering = Ordering(make_order(self.settings, crawler.stats))
        self.frontier = self._open_frontier()
        self.wire: WireQueue | None = None  # where requests wait that have no visit
        self.sharing = make_shared_limits(self, self.settings)
        self.revisits = Revisits(self)
        self.duplicates = DuplicatePages(self)
        self.counting: LinkCounts | None = None
        self.policy_file.address_of = self._address_of
        # Connected after the extensions, so called after them; the scheduler is closed before.
        crawler.signals.connect(self.let_go, signals.spider_closed, weak=False)

    def _make_agency(self) -> Agent | None:
        if not self.settings.cluster:
            return None
        from scrapy_spider_suite.cluster.agent import (
            make_agent as agency_of,  # few have other agents
        )

        return agency_of(self)

    def _open_frontier(self) -> Frontier:
        job, now = self.job, self.now()
        frontier = Frontier(
            self.store,
            self.policy_file.policy,
            now=now,
            wall=time.time(),
            capacity=self.capacity,
            counters=None if job is None or not job.resumed else Counters.load(self.store),
            unclean=job is not None and job.unclean,
            order=self.ordering,
            window=make_window(self.settings, self.store),
            cache=self.settings.seen_cache if self.store.durable else 0,
            sift=self.settings.seen_store == "sieve",
            routing=None if self.agency is None else self.agency.routing,
        )
        if not self.broad:
            # Its seeds are requests of its own.
            frontier.guesses.entry_of = self._seed_of_the_spider
        if job is not None:
            frontier.open(now)
        return frontier

    def _address_of(self, host: str) -> str:
        """Where a host in memory lives; "" for others."""
        resident = self.frontier.workbench.hosts.get(host)
        return "" if resident is None else resident.connect_to

    def _seed_of_the_spider(self, url: str) -> Entry:
        return self.translator.entry(Request(url, meta={"is_start_request": True}))

    def holds_start(self) -> bool:
        """Whether ``start()``, which asks before it yields more, is to wait.

        Scrapy's scheduler is empty whenever its engine has room; this one may hold requests that
        wait for their hosts, of which a ``start()`` without end would heap up ever more.
        """
        if self.reader is None or asyncio.current_task() is not self.reader:
            return False  # the engine asks, not start()
        self.start_waits = self.frontier.pending >= self.settings.project.most_requests
        return self.start_waits

    @property
    def follows(self) -> bool:
        """Whether links are followed in bulk: their pages have no callback of their own."""
        return self.settings.follow or issubclass(self.crawler.spidercls, BroadSpider)

    @property
    def stays_open(self) -> bool:
        """Whether the crawl goes on when nothing is left to do, since more may come."""
        return self.settings.when_done == "wait" or self.revisits.goes_on or self.awaits_seeds

    @property
    def capacity(self) -> int:
        """How many hosts may be in memory."""
        return max(1_000, self.settings.memory // _HOST_BYTES)

    def renew_codec(self) -> None:
        """Let requests hold what ``SUITE_STORABLE`` says now."""
        self.translator = self._translator()

    def _translator(self) -> Translator:
        return Translator(
            self.crawler, self._codec(), broad=self.broad, normal=self.normalizer,
            read_sitemap=self.sitemaps.read, note_sitemap=self.sitemaps.redirected,
            other=lambda entry: "" if self.agency is None else self.agency.routing.other(entry),
        )  # fmt: skip

    @staticmethod
    def now() -> float:
        """The clock of the crawl: monotonic seconds."""
        return time.monotonic()

    def _store(self) -> Store:
        if self.job is not None:
            return self.job.store
        if not self.broad:
            return MemoryStore()
        # Memory stays bounded without a job directory, too: the disk holds what waits.
        self._folder = TemporaryFolder()
        store = RocksStore(self._folder.path / "store", memory=self.settings.memory)
        _open_seen(store, self._folder.path, self.settings)
        return store

    def open_seen(self, settings: SuiteSettings) -> None:
        """Have beside the database what SUITE_SEEN_STORE of *settings* asks for.

        Raises `JobError`s.
        """
        if self.job is not None:
            self.job.open_seen(settings)
        elif self._folder is not None and isinstance(self.store, RocksStore):
            _open_seen(self.store, self._folder.path, settings)

    def _codec(self) -> RequestCodec | None:
        spider = self.crawler.spider
        if not self.store.durable or spider is None:
            return None
        modules = self.crawler.settings.getlist("SPIDER_MODULES")
        return RequestCodec.from_spider(spider, modules, self.settings.storable)

    async def written(self) -> None:
        """Have what was said made durable; wait while that cannot be done."""
        self.write()
        self.wake()
        while self.store.dirty and not self.stopping:
            await asyncio.sleep(_DISK)

    def _flush(self) -> None:
        self.frontier.flush()

    def close(self) -> None:
        """Write everything. Nothing more is fetched."""
        try:
            self.frontier.close(self.now())
        except StoreWriteError as error:
            logger.error("%s: what is not written yet is fetched again by the next run", error)

    @property
    def temporary(self) -> Path | None:
        """The folder that is used without a job directory; None where none is needed."""
        return None if self._folder is None else self._folder.path

    def let_go(self, reason: str = "") -> None:
        """Give the job directory back: the extensions have written to it for the last time."""
        if _crawls.pop(self.crawler, None) is None:
            return
        self.trusted.stop()
        self.at_end(reason)
        self.frontier.cache.close()
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


def _open_seen(store: RocksStore, folder: Path, settings: SuiteSettings) -> None:
    """Archive or sieve of a crawl without a job."""
    if settings.seen_store == "trie" and store.archive is None:
        store.archive = Archive(folder / ARCHIVE)
    elif settings.seen_store == "sieve" and store.sieve is None:
        bits, capacity = int(settings.sieve_bits), settings.sieve_waiting
        store.sieve = SieveIndex(folder / SIEVE, store.kv(DROPPED), bits=bits, capacity=capacity)


def _domains_of(spider: Any) -> Any:
    """The ``allowed_domains`` of *spider*, which several read."""
    domains = getattr(spider, "allowed_domains", None)
    if isinstance(domains, Iterator):  # as in scrapy-redis's examples: there one reads them, once
        domains = spider.allowed_domains = list(domains)
    return domains


def _nobody() -> None:
    """There is no scheduler of the suite to wake, or to be paused."""


def _nobody_asks(reason: str) -> None:
    """There is no scheduler of the suite, and so nobody who watches over the crawl."""
