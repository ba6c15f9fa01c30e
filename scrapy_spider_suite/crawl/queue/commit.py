"""The commit of a URL: done, failed or pending again, in one batch with all that came of it.

Plans of revisits: made with a page's commit; the page becomes pending again when it is due.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.frontier.revisit_rules import RevisitPolicy
from scrapy_spider_suite.store.revisit_plans import ROWS, RevisitPlan, RevisitPlans
from scrapy_spider_suite.store.rows import UrlState, pack_row
from scrapy_spider_suite.store.seen_transfer import host_of_state_key
from scrapy_spider_suite.store.url_states import SchemeGuesses

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.queue.frontier import Frontier
    from scrapy_spider_suite.crawl.queue.leases import Lease

BEFORE_NEW: Final = 1 << 29
"""The priority of a revisit. Its number is limited when it becomes pending; after that it does
not wait behind new URLs of its host."""

_DUE_PORTION: Final = 200
"""Due pages that are examined for hosts that have nothing else."""
_PER_HOST: Final = 16
"""Pages of a host without others that become pending at once."""
_PAGES = frozenset({
    Event.SUCCESS, Event.NOT_STORED, Event.NOT_PARSED, Event.CALLBACK_ERROR,
})  # fmt: skip
"""How visits end that have found a page."""
# Plain integers: operators of flags are Python code.
_DONT_FILTER, _VOLATILE = int(Flag.DONT_FILTER), int(Flag.VOLATILE)
_SPECULATIVE = int(Flag.SPECULATIVE)


class RevisitPlanner:
    """Keeps the plans of *revisits* in step with the states of the URLs of a queue.

    Attributes:
        renewed: pages that this process made pending again.
    """

    def __init__(self, frontier: Frontier, revisits: RevisitPlans) -> None:
        self.revisits = revisits
        self.renewed = 0
        self._frontier = frontier
        self._records = frontier.residents.records
        frontier.states.on_refused = self.missed

    def __len__(self) -> int:
        return len(self.revisits)

    def begin(self, lease: Lease) -> None:
        """Give *lease*, which goes out, the plan of its page, if it is a revisit.

        A URL that an operator or a spider asked for is fetched as if for the first time.
        """
        if not self.revisits.idle and not lease.entry.flags & (_DONT_FILTER | _VOLATILE):
            lease.plan = self.revisits.get(lease.entry.identity)

    def concluded(self, lease: Lease, event: Event, wall: float) -> None:
        entry, found = lease.entry, lease.found
        if self.revisits.idle or entry.volatile:
            return
        if found is None or event not in _PAGES:
            self.missed(entry.identity, wall)
            return
        self.revisits.visited(
            entry.identity, found.when, found.digest, found.validators,
            unchanged=found.unchanged, packed=lease.packed, host=entry.host, row=pack_row(entry),
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
        """Make up to *limit* pages that are due pending; return how many."""
        wall = self._frontier.wall(now)
        return self._renew(self.revisits.pop_due(wall, limit) if limit else [], now)

    def renew_idle(self, limit: int, now: float, until: float | None = None) -> int:
        """As `renew_due`, but only pages of hosts that have nothing pending.

        With *until* (wall), also pages that are due by then.
        """
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


class Commit:
    """Settles leases, once nothing holds them.

    Attributes:
        guesses: the seeds whose scheme was guessed.
        held: leases that are settled, and that something still holds.
        planner: plans the revisits of pages.
        listeners: are called with each lease that is over, and its event, in the operation that
            says how its URL ended, or that its URL is pending again.
    """

    def __init__(self, frontier: Frontier) -> None:
        self.held = 0
        self.listeners: list[Callable[[Lease, Event], None]] = []
        self.guesses = SchemeGuesses(frontier.store)
        self.planner = RevisitPlanner(
            frontier, RevisitPlans(frontier.store.kv(ROWS), RevisitPolicy())
        )
        self._frontier = frontier

    def settle(self, lease: Lease, now: float) -> None:
        """Nothing more will come of *lease*: commit it, or as soon as nothing holds it."""
        lease.settled = True
        self.held += bool(lease.holds)
        if lease.holds:
            self._frontier.admission.spill(lease, now)
            lease.write_last_items()
        else:
            self._commit(lease, now)
        self._frontier.admission.relieve()

    def unhold(self, lease: Lease, now: float) -> None:
        lease.holds -= 1
        if not lease.settled:
            return
        if lease.holds:
            lease.write_last_items()
        else:
            self.held -= 1
            self._commit(lease, now)

    def release_holder(self, entry: Entry, now: float) -> None:
        """A volatile *entry* is over: the page that led to the entry need not wait for it."""
        if entry.holder is not None:
            holder, entry.holder = entry.holder, None
            self.unhold(holder, now)

    def put_back(self, lease: Lease, now: float) -> None:
        """The URL was not requested after all: it is pending as before, and its visit is over."""
        lease.event = Event.INTERRUPTED
        lease.children, lease.links = [], []
        lease.settled = True
        self._commit(lease, now, asked=False)
        self._frontier.admission.relieve()
        self._frontier.leases.release(lease, now)

    def _commit(self, lease: Lease, now: float, *, asked: bool = True) -> None:
        frontier, entry = self._frontier, lease.entry
        states, records, wall = frontier.states, frontier.residents.records, frontier.wall(now)
        state, event, tried = lease.fate(frontier.policy.retry_times)
        given_up = frontier.health.given_up.get(entry.host)
        if state is State.PENDING and given_up is not None:
            state, event = State.FAILED, given_up
        wrong = self.guesses.is_wrong(entry, event)
        if wrong:
            state = State.FAILED
        if state is not State.PENDING:
            # The links come first: there may be so many that a batch is written in between.
            frontier.admission.spill(lease, now)
        frontier.leases.unlease(entry)
        record = records.touch(entry.host)
        record.attempts += tried
        entry.attempts += tried
        if state is State.PENDING:
            if tried:
                states.requeue(entry, event, lease.status, wall)
            elif asked:
                states.note_pending(entry, event, lease.status, wall)
            frontier.residents.push(entry, record, now)
        else:
            states.remove(entry, record)
            states.conclude(entry, record, event, lease.status, wall)
            states.fetched += state is State.DONE
            if entry.flags & _SPECULATIVE:
                frontier.traps.miner.concluded(entry, event)
            self.planner.concluded(lease, event, wall)
            frontier.stored_links.concluded(lease, event)
            frontier.traps.concluded(entry, event)
            if lease.states:
                states.write_states(lease.states)
            if wrong:
                frontier.admission.schedule([self.guesses.other_scheme(entry)], now)
                self.guesses.settle(entry)
            if entry.holder is not None:
                self.release_holder(entry, now)
        for listener in self.listeners:
            listener(lease, event)
