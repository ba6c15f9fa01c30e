"""What an operator makes of URLs that the job knows: pending again, failed, or forgotten.

Each method is one step, for one URL or host, that leaves the store true; a caller with many of
them lets the crawl have its turn, and a batch be written, between two.

What the frontier says of itself.

The frontier of one agent: the workbench in memory, the queues behind it on disk.

It takes ``now`` (monotonic seconds) and decides; its caller fetches, resolves names and keeps
the time. What it is told it writes to its store, in batches that leave the store true to
promise 2 wherever the process is killed: a URL becomes done only together with all that came
of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from scrapy_spider_suite.cluster.routing import OwnerRouter
from scrapy_spider_suite.crawl.queue.admission import Admission, RetryFailed, StoredPageLinks
from scrapy_spider_suite.crawl.queue.commit import Commit, RevisitPlanner
from scrapy_spider_suite.crawl.queue.leases import (
    BlockedUrlCheck,
    BudgetCheck,
    ForeignUrlCheck,
    Lease,
    Leases,
    TrapCheck,
)
from scrapy_spider_suite.crawl.queue.traps import Traps, TrapStats, UrlMiner
from scrapy_spider_suite.frontier.entries import (
    BREADTH_FIRST,
    LONGEST,
    Entry,
    Order,
    host_key,
    order_key,
)
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.permits import VisitPermits
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.revisit_rules import RevisitPolicy
from scrapy_spider_suite.frontier.windows import HostWindow, Window
from scrapy_spider_suite.frontier.workbench import FOREVER, AddressState, HostState, Workbench
from scrapy_spider_suite.store.counters import Counters
from scrapy_spider_suite.store.host_queues import WaitCounts
from scrapy_spider_suite.store.interface import Store
from scrapy_spider_suite.store.residency import HostHealth, Residents
from scrapy_spider_suite.store.revisit_plans import ROWS, RevisitPlans
from scrapy_spider_suite.store.rotation import PolicyUpdate, Rotation
from scrapy_spider_suite.store.rows import HostRecord, UrlState
from scrapy_spider_suite.store.seen_transfer import SieveQueue
from scrapy_spider_suite.store.unread_pages import UnreadPage
from scrapy_spider_suite.store.url_states import SchemeGuesses, UrlStates

if TYPE_CHECKING:
    from scrapy_spider_suite.store.rocks_store import RocksStore

FIRST = 1 << 30
"""The priority of what an operator wants before all else of its host."""
BEHIND_FIRST = order_key(FIRST, 0)[:4] + b"\xff" * LONGEST
"""Lies behind all order keys of that priority, and before all others."""


class UrlEdits:
    """Works on the store and on what is in memory of it. Times as in `Frontier`."""

    def __init__(
        self, store: RocksStore, workbench: Workbench, residents: Residents, ledger: UrlStates,
        health: HostHealth, let_go: Callable[[Entry, float], None],
        refusal: Callable[[str, HostRecord], Event | None],
    ) -> None:  # fmt: skip
        self._store = store
        self._workbench = workbench
        self._residents = residents
        self._records = residents.records
        self._ledger = ledger
        self._health = health
        self._let_go = let_go
        self._refusal = refusal

    # Looking

    def hosts(self, after: str, limit: int) -> list[tuple[str, HostRecord]]:
        """Up to *limit* hosts beyond *after*, as they are now; do not change the records."""
        return list(islice(self._store.records(after), limit))

    def urls(self, host: str, after: bytes, limit: int) -> list[tuple[bytes, UrlState]]:
        """Up to *limit* URLs of *host* beyond *after*: what follows the host's key, and states.

        Those that have rows; `bring_back` gives all of them theirs.
        """
        rows = islice(self._store.states(host_key(host), after), limit)
        return [(name, UrlState.from_bytes(data)) for name, data in rows]

    def leased(self, host: str) -> int:
        """How many URLs of *host* are out."""
        return self._residents.fronts.leased(host)

    # Pending again

    def again(self, entry: Entry, state: UrlState, now: float, wall: float) -> bool:
        """Make *entry*, which was done or failed as *state* says, pending.

        False if its host would be one more than its registered domain may have.
        """
        record = self._records.touch(entry.host)
        if self._refusal(entry.host, record) is Event.DOMAIN_HOSTS:
            return False
        self._ledger.take_back(entry.host, record, state)
        self._ledger.take(entry, record)
        self._residents.push(entry, record, now, wall)
        self._records.save()
        if self._ledger.planner is not None:
            self._ledger.planner.withdraw(entry.identity)
        return True

    def forgive(self, host: str) -> bool:
        """Forget that *host* was given up; whether it was."""
        dead = self._health.revive(host, self._records.touch(host))
        self._records.save()
        return dead

    def put_first(self, entry: Entry, now: float, wall: float) -> bool:
        """Let a queued *entry* come before everything else of its host; False if it is out now."""
        residents = self._residents
        if residents.fronts.is_leased(entry):
            return False
        record = self._records.touch(entry.host)
        self._take_from_front(entry)
        self._ledger.put_first(entry, record, FIRST)
        residents.push(entry, record, now, wall)
        self._records.save()
        return True

    # No longer pending

    def pending(self, host: str, after: bytes, limit: int) -> list[Entry]:
        """Up to *limit* queued URLs of *host* whose order keys lie beyond *after*."""
        return self._store.rows(host, after, limit)

    def fail(self, entry: Entry, event: Event, wall: float) -> bool:
        """Take a queued *entry* out, failed because of *event*; False if it is out now."""
        if not self.take_out(entry):
            return False
        record = self._records.touch(entry.host)
        self._ledger.refuse(entry, record, event, wall)
        self._records.save()
        return True

    def take_out(self, entry: Entry) -> bool:
        """Take a queued *entry* out of its queue, and leave its state; False if it is out now."""
        residents = self._residents
        if residents.fronts.is_leased(entry):
            return False
        record = self._records.touch(entry.host)
        self._ledger.remove(entry, record)
        host = self._take_from_front(entry)
        if host is not None:
            if host.more and not host.front:
                residents.fronts.refill(host)
            self._workbench.offer(host)
        if not record.pending:
            residents.retire(entry.host)
        self._records.save()
        return True

    def _take_from_front(self, entry: Entry) -> HostState | None:
        """Let a host in memory know nothing of *entry*; the host, if it is one."""
        host = self._workbench.hosts.get(entry.host)
        if host is not None:
            self._residents.fronts.take_out(host, entry)
        return host

    # Forgotten

    def forget(self, entry: Entry) -> bool:
        """Take a queued *entry* out as if it had never been found; False if it is out now."""
        if not self.take_out(entry):
            return False
        self._forget_state(entry.identity)
        return True

    def forget_state(self, host: str, name: bytes, state: UrlState) -> None:
        """Forget the URL *name* of *host* (see `urls`), which is done or failed."""
        record = self._records.touch(host)
        self._ledger.take_back(host, record, state)
        self._forget_state(host_key(host) + name)
        self._records.save()

    def _forget_state(self, key: bytes) -> None:
        self._store.delete_state(key)
        self._ledger.forget(key)
        if self._ledger.planner is not None:
            self._ledger.planner.forget(key)

    def forget_host(self, host: str, now: float) -> bool:
        """Forget a *host* without URLs; False while anything of it is queued, out or under way."""
        resident = self._workbench.hosts.get(host)
        if self.leased(host) or (resident is not None and not resident.idle()):
            return False
        record = self._records.touch(host)
        if record.pending:
            return False
        for _, entry in () if resident is None else resident.front:
            # Only what cannot be stored is left: whoever waits for it waits no longer.
            self._ledger.remove(entry, record)
            self._let_go(entry, now)
        counters = self._ledger.counters
        counters.done -= record.done  # what was fetched twice was counted twice
        if self._store.sieve is not None and record.done:  # it had no row that said so
            left = counters.events.get(Event.SUCCESS, 0) - record.done
            counters.events[Event.SUCCESS] = max(0, left)
        counters.failed -= record.failed
        self._ledger.domains.count(host, hosts=-record.counted, pages=-record.done)
        self._health.forgive(host)
        self._residents.forget(host)
        self._store.delete_record(host)
        return True


@dataclass(frozen=True, slots=True)
class FrontierStatistics:
    """A snapshot. All are counts."""

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


class Frontier:
    """Schedules, leases, releases and commits. See the module for what it promises.

    *capacity* is the number of hosts that may be resident; with a *window*, a durable store is
    needed to hold the others. With *sift*, links of pages go through the sieve of the store, if it
    has one. With *routing* it is the frontier of one agent among others. *wall_offset* (wall time
    minus ``now``) is kept up to date by the caller.

    Attributes:
        cache: what was seen a moment ago.
        commits: says of each URL how it ended.
        extraction: knows the pages whose links are to be read.
        holding: knows what may not be fetched, since another agent holds it.
        permits: has visits wait for leave, where hosts and addresses are shared.
        planner: keeps plans of pages that are to be visited again.
        use_sieve: has links go through the sieve from now on, or no longer.
        waits: counts the hosts that wait, by reason.
    """

    def __init__(
        self, store: Store, policy: Policy, *, now: float, wall: float, capacity: int,
        counters: Counters | None = None, unclean: bool = False, order: Order = BREADTH_FIRST,
        window: Window | None = None, cache: int = 0, sift: bool = False,
        routing: OwnerRouter | None = None,
    ) -> None:  # fmt: skip
        self.store = store
        self.policy = policy
        self.counters = counters or Counters()
        self.workbench = bench = Workbench()
        # After an unclean end every host counts as fetched at this moment.
        floor = now if unclean else None
        sliding = None if window is None else HostWindow(window, bench)
        self.residents = residents = Residents(bench, store, policy, capacity, floor, sliding)
        self.wall_offset = wall - now
        self.waits = WaitCounts(bench, residents.waiting.counts, residents.held_back)
        self.reviser = PolicyUpdate(policy, bench, residents)
        self.rotation = Rotation(residents, bench, self.reviser, sliding)
        self.ledger = ledger = UrlStates(store, self.counters, order, cache)
        self.cache = ledger.cache
        self.use_sieve = ledger.use_sieve
        self.use_sieve(active=sift)
        self.health = health = HostHealth(bench, residents, ledger, policy, self.let_go)
        revisits = RevisitPlans(store.kv(ROWS), RevisitPolicy())
        self.planner = ledger.planner = RevisitPlanner(revisits, store, residents, ledger, health)
        self._clearance = BudgetCheck(policy, bench, residents, ledger, self.reviser, health)
        refusal = self._clearance.refusal
        self.grounds = TrapStats(store)
        self.traps = Traps(store, policy, self.grounds, self.known, met=self.counters.traps)
        self.miner = UrlMiner(self.grounds, self.known)
        self.guesses = SchemeGuesses(store)
        self.chances = RetryFailed(
            store, policy, residents.records, ledger, health, refusal, self.traps
        )
        self._scheduling = Admission(
            store, policy, residents, ledger, self.traps, self.chances, routing,
            refusal, self.flush, self.let_go,
        )  # fmt: skip
        self.extraction = StoredPageLinks(store, residents.records, ledger, self._scheduling)
        self._leasing = self._make_leasing()
        self.commits = Commit(
            policy, residents, ledger, health, self._leasing, self._scheduling, self.extraction,
            self.planner, self.traps, self.miner, self.guesses, self.let_go,
        )  # fmt: skip

    def _make_leasing(self) -> Leases:
        aside = BlockedUrlCheck(self.policy, self.workbench, self.residents, self.ledger)
        trapped = TrapCheck(
            self.traps, self.miner, self.workbench, self.residents, self.health, self.ledger,
            self.store,
        )  # fmt: skip
        self.holding = ForeignUrlCheck(self.workbench, self.residents)
        self.permits = VisitPermits(self.workbench)
        return Leases(
            self.workbench, self.residents.fronts, self.rotation, self.ledger, self.health,
            self._clearance, aside, trapped, self.extraction.demand, self.holding,
            self.permits,
        )  # fmt: skip

    @property
    def wall_offset(self) -> float:
        """Wall time minus ``now``."""
        return self.residents.records.wall_offset

    @wall_offset.setter
    def wall_offset(self, seconds: float) -> None:
        self.residents.records.wall_offset = seconds

    def open(self, now: float) -> None:
        """Take over from an earlier run: its resident hosts are due, its clocks go on."""
        wall = now + self.wall_offset
        self.residents.open(now, wall)
        self.rotation.admit(now, wall)

    # Scheduling

    def known(self, identity: bytes) -> bool:
        """Whether the URL with this state key was ever scheduled."""
        return self.ledger.known(identity)

    def filters(self, entry: Entry, now: float) -> bool:
        """Whether *entry* is not to be scheduled, since it is known and gets no second chance."""
        return self._scheduling.filters(entry, now + self.wall_offset)

    def schedule(
        self, entries: Iterable[Entry], now: float, *, given: bool = False, came: bool = False
    ) -> int:
        """Make *entries* pending unless they are known; return how many were new.

        Links, where a sieve is used, wait for it, and are none of them. *given*: to every agent;
        *came*: from another agent.
        """
        wall = now + self.wall_offset
        return self._scheduling.schedule(entries, now, wall, given=given, came=came)

    def sift(self, now: float) -> Iterator[None]:
        """Make pending what a flush of the sieve has found new, some links with each step."""
        return self._scheduling.sift(now, now + self.wall_offset)

    def adopt(
        self, lease: Lease | None, entries: list[Entry], now: float, *, given: bool = False
    ) -> None:
        """Take *entries*, the children of *lease* if that is durable, else for themselves.

        Children become pending with their page's commit, so that a page that is fetched again after
        a crash does not bring them twice. *given* as in `schedule`; a child is not.
        """
        if lease is None or not self.store.durable:
            self.schedule(entries, now, given=given and lease is None)
        else:
            self._scheduling.adopt(lease, entries, now, now + self.wall_offset)

    def spill(self, lease: Lease, now: float) -> None:
        """Store the children of an unfinished page early: it has too many, or takes too long."""
        self._scheduling.spill(lease, now, now + self.wall_offset)

    # Leasing

    def acquire(self, now: float) -> list[Lease]:
        """Lease the URLs of the next visit, or none before its time."""
        return [] if self.full else self._leasing.acquire(now, now + self.wall_offset)

    def take(self, key: str) -> Lease | None:
        """Lease a URL of a resident host without a visit: it is to fail, and not to be fetched."""
        return self._leasing.take(key)

    def release(
        self, lease: Lease, now: float, retry_after: float | None = None,
        heard: Event | None = None,
    ) -> None:  # fmt: skip
        """The visit of *lease* is over: its host may be visited again, in time.

        *heard* is what happened on the wire, where that is not the event of *lease* itself.
        """
        self._leasing.release(lease, now, now + self.wall_offset, retry_after, heard)

    def put_back(self, lease: Lease, now: float) -> None:
        """The URL was not asked for after all: pending as it was, nothing counted."""
        self.commits.put_back(lease, now, now + self.wall_offset)
        self.release(lease, now)

    # Committing

    def settle(self, lease: Lease, now: float) -> None:
        """Nothing more will come of *lease*: commit it, or as soon as nothing holds it."""
        self.commits.settle(lease, now, now + self.wall_offset)

    def unhold(self, lease: Lease, now: float) -> None:
        """One thing that held *lease* is durable."""
        self.commits.unhold(lease, now, now + self.wall_offset)

    def let_go(self, entry: Entry, now: float) -> None:
        """A volatile *entry* is over: the page that led there need not wait for it."""
        if entry.holder is not None:
            holder, entry.holder = entry.holder, None
            self.unhold(holder, now)

    def extracted(self, page: UnreadPage, lease: Lease, now: float) -> bool:
        """What *lease*, made for *page*, has brought are its links; False if it was dropped."""
        return self.extraction.read(page, lease, now, now + self.wall_offset)

    # Names and addresses

    def wanting_address(self, now: float, limit: int) -> Iterator[HostState]:
        """Take up to *limit* hosts whose names are to be resolved now, first come first served."""
        for host in self.residents.unresolved.wanting(now, limit):
            if self.reviser.barred(host, now, now + self.wall_offset):
                self.residents.unresolved.put_aside(host)
            else:
                yield host

    def resolved(
        self, host: HostState, address: str, pacing_key: str, until: float, now: float
    ) -> None:
        """*host* lives at *address*, which is paced under *pacing_key*, until time *until*.

        An empty *address* means that it has none of its own (a proxy's business, or a
        slot that a spider named): only the host's own clock counts then.
        """
        host.connect_to = address
        host.resolved_until = until
        self.workbench.place(host, self.address_state(pacing_key or f"@{host.key}", address, now))
        self.reviser.barred(host, now, now + self.wall_offset)

    def address_state(self, pacing_key: str, address: str, now: float) -> AddressState:
        """The clock of the address paced under *pacing_key* (none of its own: "")."""
        return self.residents.clocks.state(pacing_key, address, now)

    def unresolved(self, host: HostState, event: Event, now: float) -> None:
        """*host* has no address: failed for good (no such host, private), or asked again later."""
        self.health.unresolved(host, event, now, now + self.wall_offset)

    def silent(self, host: HostState, now: float, event: Event = Event.CONNECTION_LOST) -> None:
        """*host* did not answer when asked for its robots.txt: back-off, in the end given up."""
        self.health.judge(host, event, now, now + self.wall_offset, None)

    def set_crawl_delay(self, host: HostState, seconds: float) -> None:
        """Robots.txt of *host* asks for *seconds* between fetches (0.0: it does not)."""
        host.record.crawl_delay = seconds
        self.residents.set_crawl_delay(host)
        self.workbench.offer(host)

    def rework(self, store: RocksStore) -> UrlEdits:
        """What an operator changes, on the *store* of this frontier."""
        return UrlEdits(
            store, self.workbench, self.residents, self.ledger, self.health, self.let_go,
            self._clearance.refusal,
        )  # fmt: skip

    # Keeping house

    def tick(self, now: float) -> None:
        """Once a second or so: admit, evict, drop, and make everything durable."""
        if self.health.giving_up:
            self.health.go_on(now, now + self.wall_offset)
        self.rotation.tick(now, now + self.wall_offset)
        self.grounds.save()
        self.flush()

    def flush(self) -> None:
        """Make all that was said durable. Raises `StoreWriteError`; nothing is lost then."""
        if self.store.dirty:
            if self.extraction.counting is not None:
                self.extraction.counting.save()
            self.planner.save()
            self.residents.waiting.counts.save()
            self.counters.save(self.store)
            self.store.flush()

    def close(self, now: float) -> None:
        """Write what memory knows better than the disk. Leased URLs stay pending."""
        self.residents.close(self.wall_offset)
        self.grounds.save()
        self.flush()

    # Looking

    def wait(self, now: float) -> float | None:
        """Seconds until a visit is possible; None if nothing resident is queued, or may go."""
        return None if self.full else self.permits.wait(now)

    def next_visit_in(self, now: float) -> float | None:
        """Seconds until anything at all may be visited, in memory or on disk; None: nothing is.

        Infinite where only hosts are left that wait for a rule to go.
        """
        waits = [self.permits.wait(now), self.rotation.next_due_in(now, now + self.wall_offset)]
        known = [wait for wait in waits if wait is not None]
        return min(known, default=FOREVER if self.pending else None)

    def ready_hosts(self, now: float) -> int:
        """How many resident hosts could be visited now, their addresses apart."""
        hosts = self.workbench.hosts.values()
        return sum(1 for host in hosts if host.front and host.free() and host.next_fetch <= now)

    @property
    def leased(self) -> int:
        """URLs that are leased."""
        return self._leasing.out

    @property
    def full(self) -> bool:
        """Whether the job has as many pages as it may have, or will if what is out succeeds."""
        return self._clearance.left_of_job(self._leasing.out) <= 0

    @property
    def pending(self) -> int:
        """URLs that are pending or leased."""
        return self.counters.pending + self.ledger.volatile

    @property
    def sifter(self) -> SieveQueue | None:
        """What asks the sieve; None if the job has none."""
        return self.ledger.sifter

    @property
    def in_sieve(self) -> int:
        """Links that wait for the sieve; when it knows them, those that are new are pending."""
        return 0 if self.sifter is None else self.sifter.waiting

    def statistics(self) -> FrontierStatistics:
        """See `FrontierStatistics`."""
        return FrontierStatistics(
            pending=self.pending, leased=self._leasing.out, in_sieve=self.in_sieve,
            hosts=len(self.workbench.hosts), addresses=len(self.workbench.addresses),
            unresolved=len(self.residents.unresolved), abandoning=self.health.giving_up,
            unextracted=len(self.extraction.waiting), fetched=self.ledger.fetched,
        )  # fmt: skip
