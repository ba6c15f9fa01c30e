"""How URLs are leased, visit by visit; the checks that a visit passes; how a visit ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from scrapy_spider_suite.frontier.entries import LAST, Entry, Flag, sequence_of
from scrapy_spider_suite.frontier.outcomes import OUTCOMES, Event, Retry, State
from scrapy_spider_suite.frontier.permits import VisitPermits
from scrapy_spider_suite.frontier.policy import Exclusion
from scrapy_spider_suite.frontier.revisit_rules import Validators
from scrapy_spider_suite.frontier.workbench import HostState, Visit
from scrapy_spider_suite.store.residency import IsForeign, Residents

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy_spider_suite.analysis.duplicates import Likeness
    from scrapy_spider_suite.analysis.link_stats import PageFacts
    from scrapy_spider_suite.crawl.queue.parts import QueueParts
    from scrapy_spider_suite.packs import Capture
    from scrapy_spider_suite.packs.item_file import ItemBuffer
    from scrapy_spider_suite.packs.stored_pages import StoredPage
    from scrapy_spider_suite.store.revisit_plans import PackedBody, RevisitPlan
    from scrapy_spider_suite.store.unread_pages import PageDemand
    from scrapy_spider_suite.urls.extract import Edge


class VisitCheck(Protocol):
    def check(self, visit: Visit, now: float) -> bool:
        """Remove from *visit* what may not go out; False if nothing is left, and it is over."""
        ...


class BlockedUrlCheck:
    """Puts URLs below blocked prefixes at the end of their host's queue.

    When only such URLs are left, the host waits; after a change of the rules each is examined once
    more. So nothing has to be moved when a block is lifted.
    """

    def __init__(self, parts: QueueParts) -> None:
        self._parts = parts
        self._policy = parts.policy
        self._residents = parts.residents
        # For each host of a blocked prefix: from which sequence number on all URLs that were put
        # last have been examined under this revision.
        self._passes: dict[str, int] = {}
        self._revision = -1

    def check(self, visit: Visit, now: float) -> bool:
        if self._revision != self._policy.revision:
            self._revision = self._policy.revision
            self._passes.clear()
        if not self._policy.blocks:
            return True
        wall = self._parts.wall(now)
        excluded: list[tuple[Entry, Exclusion]] = []
        for entry in list(visit.entries):
            exclusion = self._policy.exclusion_of_url(entry.url, visit.host.key, wall)
            if exclusion is not None:
                visit.entries.remove(entry)
                excluded.append((entry, exclusion))
        if not excluded:
            return True
        all_excluded = None
        for entry, exclusion in excluded:
            if self._is_examined(entry):
                heappush(visit.host.front, (entry.key, entry))
                all_excluded = exclusion
            else:
                self._put_last(entry, now)
        if visit.entries:
            return True
        refill(self._residents, visit.host)
        self._parts.workbench.cancel(visit)
        if all_excluded is not None:
            until = now + (all_excluded.until - wall)
            self._parts.workbench.set_exclusion(visit.host, all_excluded, until)
        return False

    def _is_examined(self, entry: Entry) -> bool:
        """Whether all URLs of a host that were put last, from *entry* on, are known to be excluded.
        """
        since = self._passes.setdefault(entry.host, self._parts.counters.sequence)
        return entry.key.startswith(LAST) and sequence_of(entry.key) > since

    def _put_last(self, entry: Entry, now: float) -> None:
        record = self._residents.records.touch(entry.host)
        self._parts.states.put_last(entry)
        self._residents.push(entry, record, now)
        self._residents.records.save()


def refill(residents: Residents, host: HostState) -> None:
    if host.more and not host.front:
        residents.fronts.refill(host)


class BudgetCheck:
    """Keeps visits within page budgets, and away from hosts that were given up."""

    def __init__(self, parts: QueueParts) -> None:
        self._parts = parts
        self._policy = parts.policy
        self._fronts = parts.residents.fronts
        self._states = parts.states

    def check(self, visit: Visit, now: float) -> bool:
        host, parts = visit.host, self._parts
        refusal = parts.refusal(host.key, host.record, host.connect_to)
        full = self._left_of_domain(host) <= 0
        stale = bool(host.connect_to) and host.resolved_until <= now
        if not (refusal or full or stale):
            return True
        if full:
            self._fail_held(visit, now)
        parts.workbench.cancel(visit)
        if refusal:
            parts.health.give_up(host.key, refusal, now)
        elif full:
            # Its last pages are on their way: they decide whether any are left.
            parts.workbench.postpone(host, now + 1.0, "page budget")
        else:
            parts.residents.unresolved.add(host)
        return False

    def _fail_held(self, visit: Visit, now: float) -> None:
        """Fail the URLs of *visit* for which alone their pages wait: else page and URL wait for
        each other."""
        for entry in list(visit.entries):
            if entry.holder is not None and entry.holder.settled:
                visit.entries.remove(entry)
                own = self._left_of_host(visit.host) <= 0
                event = Event.BUDGET if own else Event.DOMAIN_BUDGET
                self._parts.health.fail(entry, event, now)
        self._parts.residents.records.save()

    # Every leased URL may succeed

    def _left_of_domain(self, host: HostState) -> float:
        domains, left = self._states.domains, self._left_of_host(host)
        if self._policy.domain_max_pages:
            done = domains.get(host.key).pages + domains.leased(host.key)
            left = min(left, self._policy.domain_max_pages - done)
        return left

    def _left_of_host(self, host: HostState) -> float:
        budget = self._policy.max_pages(host.key, host.connect_to)
        if not budget:
            return math.inf
        return budget - int(host.record.done) - self._fronts.leased(host.key)

    def left_of_job(self, leased: int) -> float:
        """How many more pages the job may have while *leased* URLs are out."""
        budget = self._policy.job_max_pages
        return budget - self._states.counters.done - leased if budget else math.inf

    def shorten(self, visit: Visit, leased: int) -> None:
        """Return the end of a burst that exceeds a budget, while *leased* URLs are out."""
        if len(visit.entries) > 1:
            left = min(self._left_of_domain(visit.host), self.left_of_job(leased))
            if left < len(visit.entries):
                return_entries(visit, int(left))


def return_entries(visit: Visit, keep: int = 0) -> None:
    """Return all but the first *keep* entries of a new visit to the front."""
    for entry in visit.entries[keep:]:
        heappush(visit.host.front, (entry.key, entry))
    del visit.entries[keep:]


_MOST: Final = 10_000
"""Entries in memory that are held back."""
_PORTION: Final = 1_500
"""Hosts, or entries, that are examined again in one turn: some milliseconds."""


class ForeignUrlCheck:
    """Holds back URLs that another agent holds, or is about to hold.

    While a unit moves, both sides hold it back; everyone may store URLs for it. Of a host of which
    all is held back, the host leaves its address and makes room. Of other hosts entries are held
    back: they count as leased, so no refill reads them again. Nothing of it is written.
    """

    def __init__(self, residents: Residents) -> None:
        self._workbench = residents.workbench
        self._residents = residents
        self._fronts = residents.fronts
        self._is_foreign: IsForeign | None = None
        self._by_host = True
        self._hosts: set[str] = set()
        self._entries: dict[str, dict[bytes, Entry]] = {}
        self._count = 0
        self._steps: Iterator[None] | None = None

    def set_rule(self, is_foreign: IsForeign | None, *, by_host: bool = True) -> None:
        """Hold back what *is_foreign* from now on, whole hosts with *by_host*.

        What is free by now is released in portions by `step`, while this is `busy`.
        """
        self._is_foreign, self._by_host = is_foreign, by_host
        self._residents.hold_back(is_foreign if by_host else None)
        self._steps = self._release_free()
        self.step()

    @property
    def busy(self) -> bool:
        return self._steps is not None

    def step(self) -> None:
        if self._steps is not None and sum(1 for _ in islice(self._steps, _PORTION)) < _PORTION:
            self._steps = None

    def _release_free(self) -> Iterator[None]:
        for key in list(self._hosts):
            self._release_host(key)
            yield
        for key, held in list(self._entries.items()):
            yield from self._release_entries(key, list(held.values()))

    def _release_host(self, key: str) -> None:
        host, foreign = self._workbench.hosts.get(key), self._is_foreign if self._by_host else None
        if host is not None and foreign is not None and foreign(key, ""):
            return
        self._hosts.discard(key)
        if host is not None:
            self._residents.unresolved.add(host)

    def _release_entries(self, key: str, held: list[Entry]) -> Iterator[None]:
        for entry in held:
            if not self.holds_back(entry) and self.counts_as_leased(entry):
                self.release(entry)
                host = self._workbench.hosts.get(key)
                if host is not None:  # otherwise its rows are read again when it comes
                    self._fronts.push(host, entry)
                    self._workbench.offer(host)
            yield

    def __bool__(self) -> bool:
        return bool(self._hosts or self._entries)

    def check(self, visit: Visit, now: float) -> bool:
        if self._is_foreign is None:
            return True
        host = visit.host
        if not self._by_host:
            return self._check_entries(visit, host)
        if not self._is_foreign(host.key, ""):
            return True
        self._hold_host(visit, host)
        return False

    def _hold_host(self, visit: Visit, host: HostState) -> None:
        self._workbench.cancel(visit)
        self._workbench.displace(host)
        self._hosts.add(host.key)

    def _check_entries(self, visit: Visit, host: HostState) -> bool:
        held = [
            entry for entry in visit.entries if not entry.volatile and self.holds_back(entry)
        ]  # fmt: skip
        if held and self._count >= _MOST:
            self._hold_host(visit, host)
            return False
        self._count += len(held)
        for entry in held:
            visit.entries.remove(entry)
            self._fronts.lease(entry)
            self._entries.setdefault(host.key, {})[entry.key] = entry
        if visit.entries:
            return True
        refill(self._residents, host)
        self._workbench.cancel(visit)
        return False

    def holds_back(self, entry: Entry) -> bool:
        foreign = self._is_foreign
        return foreign is not None and foreign(entry.host, entry.url)

    def counts_as_leased(self, entry: Entry) -> bool:
        return entry.key in self._entries.get(entry.host, {})

    def release(self, entry: Entry) -> None:
        held = self._entries.get(entry.host, {})
        if held.pop(entry.key, None) is not None:
            self._fronts.unlease(entry)
            self._count -= 1
        if not held:
            self._entries.pop(entry.host, None)


# Plain integers: operators of flags are Python code.
_USER, _SPECULATIVE = int(Flag.USER), int(Flag.SPECULATIVE)


_OF_PAGES = (
    Event.PIPELINE_ERROR, Event.CALLBACK_ERROR, Event.NOT_PARSED, Event.NOT_STORED,
)  # fmt: skip
"""Faults of a page that arrived; the first that holds counts."""


def _is_link(entry: Entry) -> bool:
    return not entry.flags & _USER


class Lease:
    """One URL on its way through fetching, callbacks and pipelines.

    It is done in one commit with *children* (a spider's entries) and *links* (bulk links). *states*
    are those of volatile entries that the page led to. While *holds* is above 0, something is not
    durable yet.
    """

    __slots__ = (
        "asked", "booked", "children", "entry", "event", "facts", "faults", "fetches", "found",
        "heard", "held_since", "holds", "items", "last", "likeness", "links", "outlinks", "packed",
        "plan", "received", "referrer_policy", "retry_after", "settled", "states", "status",
        "stored", "unread", "visit", "wanted",
    )  # fmt: skip

    def __init__(self, entry: Entry, visit: Visit | None) -> None:
        self.entry = entry
        self.visit = visit
        self.children: list[Entry] = []
        self.links: list[str] = []
        self.referrer_policy = 0
        self.fetches: list[Capture] = []  # answers that are to be packed
        self.outlinks: Sequence[Edge] = ()  # of the last of them
        self.wanted = False  # whether there was an item of the page itself
        self.items: ItemBuffer | None = None  # that are to be written
        self.last: Callable[[Lease, ItemBuffer], None] | None = None  # writes them, last of all
        self.unread: object = None  # its page, if the links of that are read later
        self.stored: StoredPage | None = None  # and where it is packed
        self.facts: PageFacts | None = None  # what is to be counted of it
        self.plan: RevisitPlan | None = None  # of a page that is visited again
        self.asked = False  # only for the page if it has changed
        self.found: PageVersion | None = None  # what the visit found, where pages have plans
        self.likeness: Likeness | None = None  # to pages that were there before
        self.packed: PackedBody | None = None  # where its body is packed
        self.event = Event.IGNORED
        self.faults: set[Event] = set()
        self.heard: Event | None = None  # what came of the wire, if it was used
        self.retry_after: float | None = None  # seconds that the host asked for
        self.status = 0
        self.booked = 0.0  # bytes that the bandwidth expects of it
        self.received = 0  # bytes that came
        self.holds = 0
        self.held_since: float | None = None
        self.settled = False
        self.states: list[tuple[bytes, bytes]] = []

    def verdict(self) -> Event:
        """How the lease ended: an interruption goes before faults of callbacks and pipelines."""
        for event in (Event.INTERRUPTED, Event.DISK_FULL):
            if event in self.faults:
                return event
        if self.event is Event.SUCCESS:
            for event in _OF_PAGES:
                if event in self.faults:
                    return event
        if self.event is Event.CLIENT_ERROR and self.entry.flags & _SPECULATIVE:
            return Event.NOT_THERE
        return self.event

    def fate(self, retry_times: int) -> tuple[State, Event, bool]:
        """The next state of its URL, the reason, and whether this counts as an attempt."""
        event = self.verdict()
        outcome = OUTCOMES[event]
        tried = outcome.retry is not Retry.HOST
        ours = not self.entry.flags & _USER
        return outcome.after(self.entry.attempts + tried, retry_times, ours=ours), event, tried

    def write_last_items(self) -> None:
        """Have its items written if only they hold the lease."""
        last, items = self.last, self.items
        if self.holds == 1 and last is not None and items is not None:
            self.last = self.items = None
            last(self, items)

    def take_children(self) -> list[Entry]:
        """Remove and return its children so far: a spider's own requests first."""
        children, self.children = self.children, []
        return sorted(children, key=_is_link)

    def take_links(self) -> list[str]:
        links, self.links = self.links, []
        return links


_AT_ONCE = 500
"""URLs of a host that are failed before anyone else has a turn again."""


class TrapCheck:
    """Fails URLs that lie in a trap; forgets mined URLs that are given up."""

    def __init__(self, parts: QueueParts) -> None:
        self._parts = parts
        self._residents = parts.residents
        self._states = parts.states

    def check(self, visit: Visit, now: float) -> bool:
        """See `VisitCheck`. If nothing is left, the trapped beginning of the queue fails, too."""
        failing = [(entry, event) for entry in visit.entries if (event := self._event(entry))]
        if not failing:
            return True
        for entry, event in failing:
            visit.entries.remove(entry)
            self._fail(entry, event, now)
        if not visit.entries:
            self._fail_front(visit.host, now)
        self._residents.records.save()
        if visit.entries:
            return True
        visit.clocks = (max(visit.clocks[0], now), *visit.clocks[1:])
        self._parts.workbench.cancel(visit)
        return False

    def _fail_front(self, host: HostState, now: float) -> None:
        for _ in range(_AT_ONCE):
            refill(self._residents, host)
            event = self._event(host.front[0][1]) if host.front else None
            if event is None:
                return
            self._fail(heappop(host.front)[1], event, now)
        refill(self._residents, host)

    def _fail(self, entry: Entry, event: Event, now: float) -> None:
        if event is not Event.NOT_THERE:
            self._parts.health.fail(entry, event, now)
            return
        self._states.remove(entry, self._residents.records.touch(entry.host))
        self._states.cache.forget(entry.identity)
        self._parts.store.delete_state(entry.identity)

    def _in_sieve(self, entry: Entry) -> bool:
        queue = self._states.sieve_queue
        return queue is not None and queue.knows(entry.identity)

    def _event(self, entry: Entry) -> Event | None:
        if self._parts.miner.gave_up(entry) and not self._in_sieve(entry):
            return Event.NOT_THERE
        return Event.TRAP if self._parts.traps.contains(entry) else None


_REFUSALS: Final = 200
"""Hosts that have to wait, or are given up, before anyone else has a turn again."""


class Leases:
    """Leases the URLs of visits that pass all checks.

    Attributes:
        checks: what a visit passes, in this order.
        foreign: what another agent holds.
        out: how many URLs are leased.
        permits: visits that wait for leave, where hosts and addresses are shared.
    """

    def __init__(self, parts: QueueParts, demand: PageDemand) -> None:
        self.out = 0
        self.foreign = ForeignUrlCheck(parts.residents)
        self.permits = VisitPermits(parts.workbench)
        self._budget = BudgetCheck(parts)
        self.checks: list[VisitCheck] = [
            self.foreign, parts.policy_update, self._budget, BlockedUrlCheck(parts),
            TrapCheck(parts), self.permits,
        ]  # fmt: skip
        self._parts = parts
        self._workbench = parts.workbench
        self._residents = parts.residents
        self._domains = parts.states.domains
        self._demand = demand

    @property
    def full(self) -> bool:
        return self._budget.left_of_job(self.out) <= 0

    def acquire(self, now: float) -> list[Lease]:
        """Lease the URLs of the next visit, or none before its time."""
        if self.full:
            return []
        for _ in range(_REFUSALS):
            visit = self.permits.acquire(now)
            if visit is None:
                break
            if not all(each.check(visit, now) for each in self.checks):
                self.permits.cancel(visit)
                continue  # it has been dealt with
            self._budget.shorten(visit, self.out)
            leases = [self._lease(entry, visit) for entry in visit.entries]
            self._parts.rotation.begin_visit(visit.host)
            if visit.host.free():
                self._refill(visit.host)
            self._demand.host_shrank(visit.host.key)
            return leases
        return []

    def lease_unvisited(self, key: str) -> Lease | None:
        """Lease a URL of a resident host without a visit: it is to fail."""
        host = self._workbench.hosts.get(key)
        if host is None or not host.front:
            return None
        lease = self._lease(heappop(host.front)[1], None)
        self._refill(host)
        return lease

    def _lease(self, entry: Entry, visit: Visit | None) -> Lease:
        self._residents.fronts.lease(entry)
        self._domains.lease(entry.host)
        self.out += 1
        return Lease(entry, visit)

    def _refill(self, host: HostState) -> None:
        if host.more and not host.front:
            self._residents.fronts.refill(host)
            self._workbench.offer(host)

    def unlease(self, entry: Entry) -> None:
        self._residents.fronts.unlease(entry)
        self._domains.unlease(entry.host)
        self.out -= 1

    def release(
        self, lease: Lease, now: float, retry_after: float | None = None,
        heard: Event | None = None,
    ) -> None:  # fmt: skip
        """The visit of *lease* is over; *heard*: what happened on the wire, if not its event."""
        visit = lease.visit
        if visit is None:
            return
        lease.visit = None
        event = heard or lease.event
        self._parts.health.judge(visit.host, event, now, retry_after)
        self._workbench.release(visit)
        self._parts.rotation.after_visit(visit.host, now, visited=event is not Event.INTERRUPTED)


class PageVersion(NamedTuple):
    """What a visit found at *when* (wall): *digest* of the body; *unchanged*: a 304."""

    when: float
    digest: bytes
    validators: Validators
    unchanged: bool = False
