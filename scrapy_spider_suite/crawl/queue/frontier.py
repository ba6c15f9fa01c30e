"""The frontier of one process: the workbench in memory, the queues behind it on disk; commits.

Its caller fetches, resolves names and keeps the time. Changes are written in batches that leave
the store consistent wherever the process is killed (promise 2): a URL is done, failed or pending
again in one batch with all that came of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from scrapy_spider_suite.crawl.queue.admission import Admission, StoredPageLinks
from scrapy_spider_suite.crawl.queue.leases import Leases
from scrapy_spider_suite.crawl.queue.traps import Traps, TrapStats
from scrapy_spider_suite.frontier.entries import (
    BREADTH_FIRST,
    LONGEST,
    Entry,
    Flag,
    Order,
    host_key,
    order_key,
)
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.revisit_rules import RevisitPolicy
from scrapy_spider_suite.frontier.windows import HostWindow, Window
from scrapy_spider_suite.frontier.workbench import HostState, Workbench
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.host_queues import AddressClocks, WaitCounts
from scrapy_spider_suite.store.residency import HostHealth, PolicyUpdate, Residents, Rotation
from scrapy_spider_suite.store.revisit_plans import ROWS, RevisitPlan, RevisitPlans
from scrapy_spider_suite.store.rocks_store import Store
from scrapy_spider_suite.store.rows import HostRecord, UrlState, pack_row
from scrapy_spider_suite.store.seen_transfer import host_of_state_key
from scrapy_spider_suite.store.url_states import SchemeGuesses, UrlStates

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.queue.leases import Fetch
    from scrapy_spider_suite.store.rocks_store import RocksStore


BEFORE_NEW: Final = 1 << 29
"""The priority of a revisit. Its number is limited when it becomes pending; after that it does
not wait behind new URLs of its host."""

_DUE_PORTION: Final = 200  # due pages that are examined for hosts that have nothing else
_PER_HOST: Final = 16  # pages of a host without others that become pending at once
_PAGES = frozenset({Event.SUCCESS, Event.NOT_STORED, Event.NOT_PARSED, Event.CALLBACK_ERROR})
"""How visits end that have found a page."""


class RevisitPlanner:
    """Keeps the plans of *revisits* in step with the states of the URLs of a queue."""

    def __init__(self, frontier: Frontier, revisits: RevisitPlans) -> None:
        self.revisits = revisits
        self.renewed = 0
        self._frontier = frontier
        self._records = frontier.residents.records
        frontier.states.on_refused = self.missed

    def __len__(self) -> int:
        return len(self.revisits)

    def begin(self, fetch: Fetch) -> None:
        """Give *fetch* the plan of its page, unless an operator or a spider asked for it."""
        if not self.revisits.idle and not fetch.entry.flags & (Flag.DONT_FILTER | Flag.VOLATILE):
            fetch.plan = self.revisits.get(fetch.entry.identity)

    def concluded(self, fetch: Fetch, event: Event, wall: float) -> None:
        entry, found = fetch.entry, fetch.found
        if entry.volatile:
            return
        if found is None or event not in _PAGES:
            self.missed(entry.identity, wall)
            return
        self.revisits.visited(
            entry.identity, found.when, found.digest, found.validators,
            unchanged=found.unchanged, packed=fetch.packed, host=entry.host, row=pack_row(entry),
        )  # fmt: skip

    def missed(self, identity: bytes, wall: float) -> None:
        if not self.revisits.idle:
            self.revisits.missed(identity, wall)

    def forget(self, identity: bytes) -> None:
        if not self.revisits.idle:
            self.revisits.forget(identity)

    def withdraw(self, identity: bytes) -> None:
        if not self.revisits.idle:
            self.revisits.withdraw(identity)

    def renew_due(self, limit: int, now: float) -> int:
        wall = self._frontier.wall(now)
        return self._renew(self.revisits.pop_due(wall, limit) if limit else [], now)

    def renew_idle(self, limit: int, now: float, until: float | None = None) -> int:
        """As `renew_due`, of hosts that have nothing pending, also those due *until* (wall)."""
        here: dict[str, int] = {}

        def wanted(identity: bytes) -> bool:
            host = host_of_state_key(identity)
            if host not in here:
                here[host] = _PER_HOST if not self._records.get(host).pending else 0
            here[host] -= 1
            return here[host] >= 0

        until = self._frontier.wall(now) if until is None else until
        return self._renew(self.revisits.pop_due_of(until, wanted, limit, _DUE_PORTION), now)

    def _renew(self, due: list[tuple[bytes, RevisitPlan]], now: float) -> int:
        renewed = sum(self._requeue(identity, plan, now) for identity, plan in due)
        self.renewed += renewed
        return renewed

    def _requeue(self, identity: bytes, plan: RevisitPlan, now: float) -> bool:
        frontier = self._frontier
        data = frontier.store.state(identity)
        if data is None:  # nothing else knows of it
            self.revisits.forget(identity)
            return False
        state = UrlState.from_bytes(data)
        if state.state is State.PENDING:
            return False  # it is visited anyway
        entry = plan.entry()
        entry.priority = max(entry.priority, BEFORE_NEW)
        record = self._records.touch(entry.host)
        if record.dead:
            frontier.health.revive(entry.host, record)
        frontier.states.uncount(entry.host, record, state)
        frontier.states.add_pending(entry, record)
        frontier.residents.push(entry, record, now)
        return True


_PENDING: Final = State.PENDING
_FEW: Final = 50  # deferred fetches that may wait while others have a turn


class Commit:
    """Settles fetches, once nothing holds them (*held*: so many).

    *guesses*: seeds whose scheme was guessed. *listeners* are called with each fetch that is
    over, and its event, in the operation that says how its URL ended.
    """

    def __init__(self, frontier: Frontier) -> None:
        self.held = 0
        self.listeners: list[Callable[[Fetch, Event], None]] = []
        self.guesses = SchemeGuesses(frontier.store)
        self.planner = RevisitPlanner(
            frontier, RevisitPlans(frontier.store.kv(ROWS), RevisitPolicy())
        )
        self._frontier = frontier
        self._pages_before = frontier.counters.pages
        self._deferred: deque[Fetch] = deque()

    @property
    def fetched(self) -> int:
        """Pages that this process has done, also those that were handed over since."""
        return self._frontier.counters.pages - self._pages_before

    def defer(self, fetch: Fetch) -> None:
        """Nothing more will come of *fetch*: it is settled by the next `settle_deferred`."""
        fetch.settled = True
        self._deferred.append(fetch)

    def settle_deferred(self, now: float, most: int) -> bool:
        """Settle deferred fetches, with some *most* links, or all but a few; whether any wait."""
        fetches: list[Fetch] = []
        while self._deferred and (most > 0 or len(self._deferred) > _FEW):
            fetches.append(self._deferred.popleft())
            most -= len(fetches[-1].links) + len(fetches[-1].children) + 1
        self.settle(fetches, now)
        return bool(self._deferred)

    def settle(self, fetches: Iterable[Fetch], now: float) -> None:
        """Nothing more will come of *fetches*: commit each, or as soon as nothing holds it."""
        free: list[Fetch] = []
        kept: list[Fetch] = []
        for fetch in fetches:
            fetch.settled, fetch.kept = True, fetch.holds > 0
            (kept if fetch.kept else free).append(fetch)
        self.held += len(kept)
        self._frontier.admission.spill(kept, now)
        for fetch in kept:
            if fetch.kept:  # the items of another one may have let it go
                fetch.write_last_items()
        self._commit(free, now)
        self._frontier.admission.relieve()

    def unhold(self, fetches: Iterable[Fetch], now: float) -> None:
        """Something that each of *fetches* waited for is done."""
        free = []
        for fetch in fetches:
            fetch.holds -= 1
            if fetch.kept and fetch.holds:
                fetch.write_last_items()
            elif fetch.kept:
                fetch.kept = False
                free.append(fetch)
        self.held -= len(free)
        self._commit(free, now)

    @property
    def waits(self) -> bool:
        """Whether all fetches under way wait for what holds them."""
        held = self.held + sum(bool(fetch.holds) for fetch in self._deferred)
        return bool(held) and held == self._frontier.leases.out

    def release_holder(self, entry: Entry, now: float) -> None:
        """A volatile *entry* is over: the page that led to the entry need not wait for it."""
        if entry.holder is not None:
            holder, entry.holder = entry.holder, None
            self.unhold([holder], now)

    def put_back(self, fetch: Fetch, now: float) -> None:
        """The URL was not requested after all: it is pending as before, and its visit is over."""
        fetch.event = Event.INTERRUPTED
        fetch.children, fetch.links = [], []
        fetch.settled = True
        self._commit([fetch], now, asked=False)
        self._frontier.admission.relieve()
        self._frontier.leases.release(fetch, now)

    def _commit(self, fetches: list[Fetch], now: float, *, asked: bool = True) -> None:
        frontier, wall, fates = self._frontier, self._frontier.wall(now), []
        retry_times, given_up = frontier.policy.retry_times, frontier.health.given_up
        for fetch in fetches:
            state, event, tried = fetch.fate(retry_times)
            if state is _PENDING and fetch.entry.host in given_up:
                state, event = State.FAILED, given_up[fetch.entry.host]
            if wrong := self.guesses.is_wrong(fetch.entry, event):
                state = State.FAILED
            fates.append((fetch, state, event, tried, wrong))
        # The links come first: there may be so many that a batch is written in between.
        frontier.admission.spill([each[0] for each in fates if each[1] is not _PENDING], now)
        states, residents = frontier.states, frontier.residents
        for fetch, state, event, tried, wrong in fates:
            entry = fetch.entry
            frontier.leases.unlease(entry)
            record = residents.records.touch(entry.host)
            record.attempts += tried
            entry.attempts += tried
            if state is not _PENDING:
                self._conclude(fetch, record, event, now)
            else:
                if tried:
                    states.requeue(entry, event, fetch.status, wall)
                elif asked:
                    states.note_pending(entry, event, fetch.status, wall)
                residents.push(entry, record, now)
            if wrong:
                frontier.admission.schedule([self.guesses.other_scheme(entry)], now)
                self.guesses.settle(entry)
            for listener in self.listeners:
                listener(fetch, event)

    def _conclude(self, fetch: Fetch, record: HostRecord, event: Event, now: float) -> None:
        frontier, entry, wall = self._frontier, fetch.entry, self._frontier.wall(now)
        states = frontier.states
        states.remove(entry, record)
        states.conclude(entry, record, event, fetch.status, wall)
        if entry.flags & Flag.SPECULATIVE:
            frontier.traps.miner.concluded(entry, event)
        if not self.planner.revisits.idle:
            self.planner.concluded(fetch, event, wall)
        frontier.stored_links.concluded(fetch, event)
        frontier.traps.concluded(entry, event)
        if fetch.states:
            states.write_states(fetch.states)
        self.release_holder(entry, now)


FIRST = 1 << 30  # the priority of URLs that an operator puts before all others of their host
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
    fetched: int = 0  # pages done by this process


class QueueOptions(NamedTuple):
    """*cache*: bytes for the fingerprints seen last. *sift*: links go through a sieve."""

    order: Order = BREADTH_FIRST
    window: Window | None = None
    cache: int = 0
    sift: bool = False


class Frontier:
    """Admits URLs, leases them visit by visit, and commits how they end.

    *capacity*: hosts in memory. *waits*: hosts that wait, by reason. ``now``: monotonic seconds.
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
        # The clocks of addresses are not stored, those of hosts are incomplete after a kill.
        floor, resumed = now if unclean else None, unclean or self.counters.has_urls
        clocks = AddressClocks(bench, policy, now if resumed else None)
        window = None if options.window is None else HostWindow(options.window, bench)
        self.residents = residents = Residents(
            bench, store, policy, capacity, floor, clocks, window,
            by_head=options.order is not BREADTH_FIRST,
        )  # fmt: skip
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
        return now + self.residents.records.wall_offset

    def flush(self) -> None:
        """Make all changes durable. Raises `StoreWriteError`; nothing is lost then."""
        if self.store.backlog:
            for save in self._before_flush:
                save()
            self.counters.save(self.store)
            self.store.flush()

    def open(self, now: float) -> None:
        """Take over from an earlier run: its resident hosts are due, its clocks go on."""
        self.residents.open(self.wall(now))
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
        """Place *host* at *address* ("": a proxy, a slot), paced by *pacing_key*, *until* then."""
        host.connect_to = address
        host.resolved_until = until
        if address and "%" not in address:  # written with its next commit
            host.record.address, host.record.resolved_until = address, self.wall(until)
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
        for key, host in self.workbench.hosts.items():
            self.store.put_record(key, host.record)
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
            unextracted=len(self.stored_links.waiting), fetched=self.commit.fetched,
        )  # fmt: skip


class UrlEdits:
    """An operator's changes of known URLs; each method leaves the store consistent."""

    def __init__(self, frontier: Frontier, store: RocksStore) -> None:
        self._store = store
        self._frontier = frontier
        self._residents = frontier.residents
        self._records = frontier.residents.records
        self._states = frontier.states

    def hosts(self, after: str, limit: int) -> list[tuple[str, HostRecord]]:
        begin = host_key(after) + b"\0" if after else b""
        return list(islice(self._store.records(begin), limit))

    def urls(self, host: str, after: bytes, limit: int) -> list[tuple[bytes, UrlState]]:
        """Up to *limit* URLs of *host* with rows, beyond *after*: rest of the key, and state."""
        rows = islice(self._store.states(host_key(host), after), limit)
        return [(name, UrlState.from_bytes(data)) for name, data in rows]

    # Pending again

    def requeue(self, entry: Entry, state: UrlState, now: float) -> bool:
        """Make *entry*, which is done or failed, pending; False: its domain has too many hosts."""
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
        entry.priority = max(entry.priority, FIRST)
        self._states.move(entry, record)
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
        self._store.put_state(key, None)
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
