"""Plans of revisits in the frontier: made with a page's commit, and pending again when due."""

from __future__ import annotations

from typing import Final, NamedTuple

from scrapy_spider_suite.frontier.entries import Flag
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.frontier.revisit_rules import Validators
from scrapy_spider_suite.storage.leases import Lease
from scrapy_spider_suite.store.interface import Store
from scrapy_spider_suite.store.residency import Health, Residents
from scrapy_spider_suite.store.revisit_plans import Plan, Revisits, row_of
from scrapy_spider_suite.store.rows import UrlState
from scrapy_spider_suite.store.seen_transfer import pacing_of
from scrapy_spider_suite.store.url_states import Ledger

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


class Found(NamedTuple):
    """What a visit has found: *digest* is of the body; *unchanged*: the server said so (304).

    *when* in seconds, wall.
    """

    when: float
    digest: bytes
    validators: Validators
    unchanged: bool = False


class Planner:
    """Keeps the plans of *revisits* in step with what becomes of the URLs of a frontier.

    Times as in `Frontier`: *now* monotonic, *wall* since the epoch.
    """

    def __init__(
        self, revisits: Revisits, store: Store, residents: Residents, ledger: Ledger,
        health: Health,
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
            host = pacing_of(identity)
            if host not in here:
                here[host] = _OF_A_HOST if not self._records.of(host).pending else 0
            here[host] -= 1
            return here[host] >= 0

        until = wall if until is None else until
        return self._renew(self.revisits.take_wanted(until, wanted, limit, _LOOKED_AT), now, wall)

    def _renew(self, due: list[tuple[bytes, Plan]], now: float, wall: float) -> int:
        taken = sum(self._again(identity, plan, now, wall) for identity, plan in due)
        self._records.save()
        self.taken += taken
        return taken

    def _again(self, identity: bytes, plan: Plan, now: float, wall: float) -> bool:
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


