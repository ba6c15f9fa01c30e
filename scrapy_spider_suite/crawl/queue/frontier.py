"""The frontier of one process: the workbench in memory, the queues behind it on disk.

Its caller fetches, resolves names and keeps the time. Changes are written in batches that leave
the store consistent wherever the process is killed (promise 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from scrapy_spider_suite.crawl.queue.admission import Admission, StoredPageLinks
from scrapy_spider_suite.crawl.queue.commit import Commit
from scrapy_spider_suite.crawl.queue.leases import Leases
from scrapy_spider_suite.crawl.queue.traps import Traps, TrapStats
from scrapy_spider_suite.frontier.entries import (
    BREADTH_FIRST,
    LONGEST,
    Entry,
    Order,
    host_key,
    order_key,
)
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.windows import HostWindow, Window
from scrapy_spider_suite.frontier.workbench import HostState, Workbench
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.host_queues import WaitCounts
from scrapy_spider_suite.store.interface import Store
from scrapy_spider_suite.store.residency import HostHealth, PolicyUpdate, Residents, Rotation
from scrapy_spider_suite.store.rows import HostRecord, UrlState
from scrapy_spider_suite.store.url_states import UrlStates

if TYPE_CHECKING:
    from scrapy_spider_suite.store.rocks_store import RocksStore

FIRST = 1 << 30
"""The priority of URLs that an operator puts before all others of their host."""
BEHIND_FIRST = order_key(FIRST, 0)[:4] + b"\xff" * LONGEST
"""Lies behind all order keys of that priority, and before all others."""


@dataclass(frozen=True, slots=True)
class FrontierStatistics:
    pending: int
    leased: int
    hosts: int
    addresses: int
    unresolved: int
    abandoning: int
    in_sieve: int = 0
    unextracted: int = 0
    fetched: int = 0
    """Pages done by this process."""


class QueueOptions(NamedTuple):
    """How a queue is ordered, and how it remembers URLs.

    *cache* is the memory, in bytes, for fingerprints of URLs that were seen last. With *sift*,
    links of pages go through the sieve of the store, if the store has one.
    """

    order: Order = BREADTH_FIRST
    window: Window | None = None
    cache: int = 0
    sift: bool = False


class Frontier:
    """Admits URLs, leases them visit by visit, and commits how they end.

    *capacity* is the number of hosts in memory; a window needs a durable store for the others.
    Times ``now`` are monotonic seconds.

    Attributes:
        waits: counts the hosts that wait, by reason.
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
        self.residents = residents = Residents(bench, store, policy, capacity, floor, window)
        self.wall_offset = wall - now
        self.policy_update = PolicyUpdate(residents)
        self.rotation = Rotation(residents, self.policy_update)
        self.states = UrlStates(store, self.counters, options.order, options.cache)
        self.states.use_sieve(active=options.sift)
        self.health = HostHealth(
            residents, self.states, lambda entry, now: self.commit.release_holder(entry, now)
        )
        known, stats = self.states.known, TrapStats(store)
        self.traps = Traps(store, policy, stats, known, met=self.counters.traps)
        self.waits = WaitCounts(bench, residents.waiting.counts, residents.held_back)
        self.admission = Admission(self)
        self.stored_links = StoredPageLinks(self)
        self.leases = Leases(self)
        self.commit = Commit(self)
        self._before_flush: list[Callable[[], None]] = [
            self.stored_links.save, self.commit.planner.revisits.save,
            residents.waiting.counts.save,
        ]  # fmt: skip

    @property
    def wall_offset(self) -> float:
        """Wall time minus ``now``; the caller keeps it up to date."""
        return self.residents.records.wall_offset

    @wall_offset.setter
    def wall_offset(self, seconds: float) -> None:
        self.residents.records.wall_offset = seconds

    def wall(self, now: float) -> float:
        """Seconds since the epoch at the monotonic time *now*."""
        return now + self.residents.records.wall_offset

    def flush(self) -> None:
        """Make all changes durable. Raises `StoreWriteError`; nothing is lost then."""
        if self.store.dirty:
            for save in self._before_flush:
                save()
            self.counters.save(self.store)
            self.store.flush()

    def open(self, now: float) -> None:
        """Take over from an earlier run: its resident hosts are due, its clocks go on."""
        self.residents.open(now, self.wall(now))
        self.rotation.admit(now)

    def unresolved_hosts(self, now: float, limit: int) -> Iterator[HostState]:
        """Take up to *limit* hosts whose names are to be resolved now, first come first served."""
        unresolved = self.residents.unresolved
        for host in unresolved.due(now, limit):
            if self.policy_update.is_excluded(host, now):
                unresolved.defer(host)
            else:
                yield host

    def set_address(
        self, host: HostState, address: str, pacing_key: str, until: float, now: float
    ) -> None:
        """Place *host* at *address*, paced under *pacing_key*, until *until*.

        An empty *address*: only the clock of the host counts (a proxy, or a spider's slot).
        """
        host.connect_to = address
        host.resolved_until = until
        pacing_key = pacing_key or f"@{host.key}"
        self.workbench.place(host, self.residents.clocks.state(pacing_key, address, now))
        self.policy_update.is_excluded(host, now)

    def tick(self, now: float) -> None:
        """Once a second or so: admit, evict, drop, and make everything durable."""
        if self.health.given_up:
            self.health.step(now)
        self.rotation.tick(now)
        self.traps.stats.save()
        self.flush()

    def close(self) -> None:
        """Write the clocks and records that are newer in memory. Leased URLs stay pending."""
        self.residents.close(self.wall_offset)
        self.traps.stats.save()
        self.flush()

    @property
    def pending(self) -> int:
        return self.counters.pending + self.states.volatile

    def statistics(self) -> FrontierStatistics:
        return FrontierStatistics(
            pending=self.pending, leased=self.leases.out, in_sieve=self.states.in_sieve,
            hosts=len(self.workbench.hosts), addresses=len(self.workbench.addresses),
            unresolved=len(self.residents.unresolved), abandoning=len(self.health.given_up),
            unextracted=len(self.stored_links.waiting), fetched=self.states.fetched,
        )  # fmt: skip


class UrlEdits:
    """An operator's changes of known URLs: pending again, failed, or forgotten.

    Each method changes one URL or host, and leaves *store*, that of *frontier*, consistent.
    """

    def __init__(self, frontier: Frontier, store: RocksStore) -> None:
        self._store = store
        self._frontier = frontier
        self._residents = frontier.residents
        self._records = frontier.residents.records
        self._states = frontier.states

    def hosts(self, after: str, limit: int) -> list[tuple[str, HostRecord]]:
        """Up to *limit* hosts beyond *after*; the records are not to be changed."""
        return list(islice(self._store.records(after), limit))

    def urls(self, host: str, after: bytes, limit: int) -> list[tuple[bytes, UrlState]]:
        """Up to *limit* URLs of *host* with rows, beyond *after*: rest of the key, and state."""
        rows = islice(self._store.states(host_key(host), after), limit)
        return [(name, UrlState.from_bytes(data)) for name, data in rows]

    # Pending again

    def requeue(self, entry: Entry, state: UrlState, now: float) -> bool:
        """Make *entry*, which is done or failed as *state* says, pending.

        False if its registered domain may have no more hosts.
        """
        record = self._records.touch(entry.host)
        if self._frontier.admission.refusal(entry.host, record) is Event.DOMAIN_HOSTS:
            return False
        self._states.uncount(entry.host, record, state)
        self._states.add_pending(entry, record)
        self._residents.push(entry, record, now)
        self._frontier.commit.planner.withdraw(entry.identity)
        return True

    def revive_host(self, host: str) -> bool:
        return self._frontier.health.revive(host, self._records.touch(host))

    def put_first(self, entry: Entry, now: float) -> bool:
        """Put a queued *entry* before all others of its host; False if the entry is leased."""
        residents = self._residents
        if residents.fronts.is_leased(entry):
            return False
        record = self._records.touch(entry.host)
        self._remove_from_front(entry)
        self._states.put_first(entry, record, FIRST)
        residents.push(entry, record, now)
        return True

    # No longer pending

    def pending(self, host: str, after: bytes, limit: int) -> list[Entry]:
        return self._store.rows(host, after, limit)

    def fail(self, entry: Entry, event: Event, now: float) -> bool:
        if not self.remove(entry):
            return False
        record = self._records.touch(entry.host)
        self._states.refuse(entry, record, event, self._frontier.wall(now))
        return True

    def remove(self, entry: Entry) -> bool:
        """Remove a queued *entry* from its queue, not its state; False if the entry is leased."""
        residents = self._residents
        if residents.fronts.is_leased(entry):
            return False
        record = self._records.touch(entry.host)
        self._states.remove(entry, record)
        host = self._remove_from_front(entry)
        if host is not None:
            if host.more and not host.front:
                residents.fronts.refill(host)
            self._frontier.workbench.offer(host)
        if not record.pending:
            residents.retire(entry.host)
        return True

    def _remove_from_front(self, entry: Entry) -> HostState | None:
        host = self._frontier.workbench.hosts.get(entry.host)
        if host is not None:
            self._residents.fronts.remove(host, entry)
        return host

    # Forgotten

    def forget(self, entry: Entry) -> bool:
        if not self.remove(entry):
            return False
        self._forget_state(entry.identity)
        return True

    def forget_state(self, host: str, name: bytes, state: UrlState) -> None:
        """Forget the URL *name* of *host* (see `urls`), which is done or failed."""
        record = self._records.touch(host)
        self._states.uncount(host, record, state)
        self._forget_state(host_key(host) + name)

    def _forget_state(self, key: bytes) -> None:
        self._store.delete_state(key)
        self._states.forget(key)
        self._frontier.commit.planner.forget(key)

    def forget_host(self, host: str, now: float) -> bool:
        """Forget a *host* without URLs; False while anything of it is queued or leased."""
        residents, states = self._residents, self._states
        resident = self._frontier.workbench.hosts.get(host)
        if residents.fronts.leased(host) or (resident is not None and not resident.idle()):
            return False
        record = self._records.touch(host)
        if record.pending:
            return False
        for _, entry in () if resident is None else resident.front:
            # Only what cannot be stored is left: the page that waits for it waits no longer.
            states.remove(entry, record)
            self._frontier.commit.release_holder(entry, now)
        counters = states.counters
        counters.done -= record.done  # a page that was fetched twice was counted twice
        if self._store.sieve is not None and record.done:  # no row said that it is done
            left = counters.events.get(Event.SUCCESS, 0) - record.done
            counters.events[Event.SUCCESS] = max(0, left)
        counters.failed -= record.failed
        states.domains.count(host, hosts=-record.counted, pages=-record.done)
        self._frontier.health.cancel_giving_up(host)
        residents.forget(host)
        self._store.delete_record(host)
        return True
