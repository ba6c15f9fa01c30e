"""The commit of a URL: done, failed or pending again, in one batch with all that came of it."""

from __future__ import annotations

from collections.abc import Callable

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.storage.extraction import Extraction
from scrapy_spider_suite.storage.leases import Lease
from scrapy_spider_suite.storage.leasing import Leasing
from scrapy_spider_suite.storage.mining import Miner
from scrapy_spider_suite.storage.planning import Planner
from scrapy_spider_suite.storage.scheduling import Scheduling
from scrapy_spider_suite.storage.traps import Traps
from scrapy_spider_suite.store.residency import Health, Residents
from scrapy_spider_suite.store.url_states import Guesses, Ledger


class Committing:
    """Settles leases, once nothing holds them. *let_go* is told of each entry that is over.

    Attributes:
        held: leases of which nothing more will come, but that something holds.
        told: are called with each lease that is over, in the operation that says how its URL
            ended, or that it is pending again.
    """

    def __init__(
        self, policy: Policy, residents: Residents, ledger: Ledger, health: Health,
        leasing: Leasing, scheduling: Scheduling, extraction: Extraction, planner: Planner,
        traps: Traps, miner: Miner, guesses: Guesses, let_go: Callable[[Entry, float], None],
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
