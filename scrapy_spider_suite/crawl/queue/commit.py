"""Plans of revisits in the frontier: made with a page's commit, and pending again when due.

The commit of a URL: done, failed or pending again, in one batch with all that came of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from scrapy_spider_suite.crawl.queue.admission import Admission, StoredPageLinks
from scrapy_spider_suite.crawl.queue.leases import Lease, Leases
from scrapy_spider_suite.crawl.queue.traps import Traps, UrlMiner
from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store.interface import Store
from scrapy_spider_suite.store.residency import HostHealth, Residents
from scrapy_spider_suite.store.revisit_plans import RevisitPlan, RevisitPlans, row_of
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.store.seen_transfer import host_of_state_key
from scrapy_spider_suite.store.url_states import SchemeGuesses, UrlStates

BEFORE_NEW: Final = 1 << 29
"""The priority of a revisit: how many there are is decided when they become pending, and then
they are not to wait behind all that is new of their host."""

_LOOKED_AT: Final = 200
"""Pages that are due of which is seen whether their hosts have nothing else."""
_OF_A_HOST: Final = 16
"""Pages of a host without others that become pending at once."""
_PAGES = frozenset({
    Event.SUCCESS, Event.NOT_STORED, Event.NOT_PARSED, Event.CALLBACK_ERROR,
})  # fmt: skip
"""How visits end that have found a page."""
# Plain integers: operators of flags are Python code.
_DONT_FILTER, _VOLATILE = int(Flag.DONT_FILTER), int(Flag.VOLATILE)


class RevisitPlanner:
    """Keeps the plans of *revisits* in step with what becomes of the URLs of a frontier.

    Times as in `Frontier`: *now* monotonic, *wall* since the epoch.
    """

    def __init__(
        self, revisits: RevisitPlans, store: Store, residents: Residents, ledger: UrlStates,
        health: HostHealth,
    ) -> None:  # fmt: skip
        self.revisits = revisits
        self.taken = 0
        """How many pages were made pending, in this run."""
        self._store = store
        self._residents = residents
        self._records = residents.records
        self._ledger = ledger
        self._health = health

    def __len__(self) -> int:
        """How many pages have a plan."""
        return len(self.revisits)

    def begin(self, lease: Lease) -> None:
        """*lease* goes out: give it the plan of its page, if it is a revisit.

        What was asked for by an operator or a spider is none: it is fetched as if for the first
        time.
        """
        if not self.revisits.idle and not lease.entry.flags & (_DONT_FILTER | _VOLATILE):
            lease.plan = self.revisits.get(lease.entry.identity)

    def concluded(self, lease: Lease, event: Event, wall: float) -> None:
        """The URL of *lease* is done, or has failed, in the batch that says so."""
        entry, found = lease.entry, lease.found
        if self.revisits.idle or entry.volatile:
            return
        if found is None or event not in _PAGES:
            self.missed(entry.identity, wall)
            return
        self.revisits.visited(
            entry.identity, found.when, found.digest, found.validators,
            unchanged=found.unchanged, packed=lease.packed, host=entry.host, row=row_of(entry),
        )  # fmt: skip

    def missed(self, identity: bytes, wall: float) -> None:
        """No page was found; that says something of pages only that were there once."""
        if not self.revisits.idle:
            self.revisits.missed(identity, wall)

    def forget(self, identity: bytes) -> None:
        """The job is to know nothing of a URL."""
        if not self.revisits.idle:
            self.revisits.forget(identity)

    def withdraw(self, identity: bytes) -> None:
        """A URL was made pending by somebody else."""
        if not self.revisits.idle:
            self.revisits.withdraw(identity)

    def take(self, limit: int, now: float, wall: float) -> int:
        """Make up to *limit* pages that are due pending; return how many."""
        return self._renew(self.revisits.take(wall, limit) if limit else [], now, wall)

    def take_idle(self, limit: int, now: float, wall: float, until: float | None = None) -> int:
        """As `take`, of the next pages those of hosts that have nothing pending.

        *until* (wall), if it is given: they are due by then, and come early.
        """
        here: dict[str, int] = {}

        def wanted(identity: bytes) -> bool:
            host = host_of_state_key(identity)
            if host not in here:
                here[host] = _OF_A_HOST if not self._records.of(host).pending else 0
            here[host] -= 1
            return here[host] >= 0

        until = wall if until is None else until
        return self._renew(self.revisits.take_wanted(until, wanted, limit, _LOOKED_AT), now, wall)

    def _renew(self, due: list[tuple[bytes, RevisitPlan]], now: float, wall: float) -> int:
        taken = sum(self._again(identity, plan, now, wall) for identity, plan in due)
        self._records.save()
        self.taken += taken
        return taken

    def _again(self, identity: bytes, plan: RevisitPlan, now: float, wall: float) -> bool:
        data = self._store.state(identity)
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
            self._health.revive(entry.host, record)
        self._ledger.take_back(entry.host, record, state)
        self._ledger.take(entry, record)
        self._residents.push(entry, record, now, wall)
        return True

    def save(self) -> None:
        """Put what is counted into the store's next batch."""
        self.revisits.save()


class Commit:
    """Settles leases, once nothing holds them. *let_go* is told of each entry that is over.

    Attributes:
        held: leases of which nothing more will come, but that something holds.
        told: are called with each lease that is over, in the operation that says how its URL
            ended, or that it is pending again.
    """

    def __init__(
        self, policy: Policy, residents: Residents, ledger: UrlStates, health: HostHealth,
        leasing: Leases, scheduling: Admission, extraction: StoredPageLinks,
        planner: RevisitPlanner, traps: Traps, miner: UrlMiner, guesses: SchemeGuesses,
        let_go: Callable[[Entry, float], None],
    ) -> None:  # fmt: skip
        self.held = 0
        self.told: list[Callable[[Lease, Event], None]] = []
        self._policy = policy
        self._residents = residents
        self._records = residents.records
        self._ledger = ledger
        self._health = health
        self._leasing = leasing
        self._scheduling = scheduling
        self._extraction = extraction
        self._planner = planner
        self._traps = traps
        self._miner = miner
        self._guesses = guesses
        self._let_go = let_go

    def settle(self, lease: Lease, now: float, wall: float) -> None:
        """Nothing more will come of *lease*: commit it, or as soon as nothing holds it."""
        lease.settled = True
        self.held += bool(lease.holds)
        if lease.holds:
            self._scheduling.spill(lease, now, wall)
            lease.near_the_end()
        else:
            self._commit(lease, now, wall)
        self._scheduling.relieve()

    def unhold(self, lease: Lease, now: float, wall: float) -> None:
        """One thing that held *lease* is durable."""
        lease.holds -= 1
        if not lease.settled:
            return
        if lease.holds:
            lease.near_the_end()
        else:
            self.held -= 1
            self._commit(lease, now, wall)

    def put_back(self, lease: Lease, now: float, wall: float) -> None:
        """The URL was not asked for after all: pending as it was, nothing counted."""
        lease.event = Event.INTERRUPTED
        lease.children, lease.links = [], []
        lease.settled = True
        self._commit(lease, now, wall, asked=False)
        self._scheduling.relieve()

    def _commit(self, lease: Lease, now: float, wall: float, *, asked: bool = True) -> None:
        entry = lease.entry
        state, event, tried = lease.fate(self._policy.retry_times)
        given_up = self._health.given_up(entry.host)
        if state is State.PENDING and given_up is not None:
            state, event = State.FAILED, given_up
        wrong = self._guesses.wrong(entry, event)
        if wrong:
            state = State.FAILED
        if state is not State.PENDING:
            # First what it brought: there may be so much of it that a batch is written in between.
            self._scheduling.spill(lease, now, wall)
        self._leasing.over(entry)
        record = self._records.touch(entry.host)
        record.attempts += tried
        entry.attempts += tried
        if state is State.PENDING:
            if tried:
                self._ledger.again(entry, event, lease.status, wall)
            elif asked:
                self._ledger.note(entry, event, lease.status, wall)
            self._residents.push(entry, record, now, wall)
        else:
            self._ledger.remove(entry, record)
            self._ledger.conclude(entry, record, event, lease.status, wall)
            self._ledger.fetched += state is State.DONE
            self._miner.concluded(entry, event)
            self._planner.concluded(lease, event, wall)
            self._extraction.concluded(lease, event)
            self._traps.concluded(entry, event)
            self._ledger.write_states(lease.states)
            if wrong:
                self._scheduling.schedule([self._guesses.other(entry)], now, wall)
                self._guesses.over(entry)
        self._records.save()
        if state is not State.PENDING:
            self._let_go(entry, now)
        for told in self.told:
            told(lease, event)
