"""What the stages of a queue share: store, policy, hosts in memory and states of URLs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from scrapy_spider_suite.crawl.queue.traps import Traps, TrapStats, UrlMiner
from scrapy_spider_suite.frontier.entries import BREADTH_FIRST, Entry, Order
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.windows import HostWindow, Window
from scrapy_spider_suite.frontier.workbench import Workbench
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.interface import Store
from scrapy_spider_suite.store.residency import HostHealth, Residents
from scrapy_spider_suite.store.rotation import PolicyUpdate, Rotation
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.store.url_states import UrlStates

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.queue.leases import Lease


class QueueOptions(NamedTuple):
    """How a queue is ordered, and how it remembers URLs.

    *cache* is the memory, in bytes, for fingerprints of URLs that were seen last. With *sift*,
    links of pages go through the sieve of the store, if the store has one.
    """

    order: Order = BREADTH_FIRST
    window: Window | None = None
    cache: int = 0
    sift: bool = False


class QueueParts:
    """The shared parts. Times ``now`` are monotonic seconds.

    Attributes:
        before_flush: are called before each batch is written.
        unhold: tells a lease that an entry that held it is over; `Commit` sets it.
        wall_offset: wall time minus ``now``; the caller keeps it up to date.
    """

    def __init__(
        self, store: Store, policy: Policy, *, now: float, wall: float, capacity: int,
        counters: Counters | None = None, unclean: bool = False,
        options: QueueOptions = QueueOptions(),  # noqa: B008  immutable
    ) -> None:  # fmt: skip
        self.store = store
        self.policy = policy
        self.counters = counters or Counters()
        self.workbench = bench = Workbench()
        # After an unclean end every host counts as fetched at this moment.
        floor = now if unclean else None
        window = None if options.window is None else HostWindow(options.window, bench)
        self.residents = Residents(bench, store, policy, capacity, floor, window)
        self.wall_offset = wall - now
        self.policy_update = PolicyUpdate(self.residents)
        self.rotation = Rotation(self.residents, self.policy_update)
        self.states = UrlStates(store, self.counters, options.order, options.cache)
        self.states.use_sieve(active=options.sift)
        self.health = HostHealth(self.residents, self.states, self.release_holder)
        self.trap_stats = TrapStats(store)
        known = self.states.known
        self.traps = Traps(store, policy, self.trap_stats, known, met=self.counters.traps)
        self.miner = UrlMiner(self.trap_stats, known)
        self.unhold: Callable[[Lease, float], None]
        self.before_flush: list[Callable[[], None]] = [self.residents.waiting.counts.save]

    @property
    def wall_offset(self) -> float:
        """Wall time minus ``now``."""
        return self.residents.records.wall_offset

    @wall_offset.setter
    def wall_offset(self, seconds: float) -> None:
        self.residents.records.wall_offset = seconds

    def wall(self, now: float) -> float:
        """Seconds since the epoch at the monotonic time *now*."""
        return now + self.residents.records.wall_offset

    def refusal(self, host: str, record: HostRecord, address: str = "") -> Event | None:
        """Why no URL of *host* is to be fetched any more; None if URLs may be fetched."""
        if record.dead:
            return Event(record.dead)
        policy, domains = self.policy, self.states.domains
        budget = policy.max_pages(host, address)
        if budget and record.done >= budget:
            return Event.BUDGET
        if policy.domain_max_pages and domains.get(host).pages >= policy.domain_max_pages:
            return Event.DOMAIN_BUDGET
        hosts = 0 if record.counted else policy.domain_max_hosts
        return Event.DOMAIN_HOSTS if hosts and domains.get(host).hosts >= hosts else None

    def release_holder(self, entry: Entry, now: float) -> None:
        """A volatile *entry* is over: the page that led to the entry need not wait for it."""
        if entry.holder is not None:
            holder, entry.holder = entry.holder, None
            self.unhold(holder, now)

    def flush(self) -> None:
        """Make all changes durable. Raises `StoreWriteError`; nothing is lost then."""
        if self.store.dirty:
            for save in self.before_flush:
                save()
            self.counters.save(self.store)
            self.store.flush()
