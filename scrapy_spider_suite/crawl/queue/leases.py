"""How URLs are leased, visit by visit; the checks that a visit passes; how a visit ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from scrapy_spider_suite.frontier.entries import LAST, Entry, Flag, sequence_of
from scrapy_spider_suite.frontier.outcomes import Event, Retry, State
from scrapy_spider_suite.frontier.permits import VisitPermits
from scrapy_spider_suite.frontier.policy import Exclusion
from scrapy_spider_suite.frontier.revisit_rules import Validators
from scrapy_spider_suite.frontier.workbench import FOREVER, HostState, Visit
from scrapy_spider_suite.store.residency import IsForeign, Residents

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy import Request

    from scrapy_spider_suite.analysis.duplicates import Likeness
    from scrapy_spider_suite.analysis.link_stats import PageFacts
    from scrapy_spider_suite.crawl.queue.frontier import Frontier
    from scrapy_spider_suite.fetch.exchange import Exchange
    from scrapy_spider_suite.packs import Capture
    from scrapy_spider_suite.packs.item_file import ItemBuffer
    from scrapy_spider_suite.packs.stored_pages import StoredPage
    from scrapy_spider_suite.store.revisit_plans import PackedBody, RevisitPlan
    from scrapy_spider_suite.urls.extract import Edge


class BlockedUrlCheck:
    """Puts URLs below blocked prefixes at the end of their host's queue.

    When only such URLs are left, the host waits; after a change of the rules each is examined once
    more. So nothing has to be moved when a block is lifted.
    """

    def __init__(self, frontier: Frontier) -> None:
        self._frontier = frontier
        self._policy = frontier.policy
        # For each host of a blocked prefix: from which sequence number on all URLs that were put
        # last have been examined under this revision.
        self.passes: dict[str, int] = {}
        self._revision = -1

    def check(self, visit: Visit, now: float) -> bool:
        if self._revision != self._policy.revision:
            self._revision = self._policy.revision
            self.passes.clear()
        if not self._policy.blocks:
            return True
        wall = self._frontier.wall(now)
        excluded: list[tuple[Entry, Exclusion]] = []
        for entry in list(visit.entries):
            exclusion = self._policy.exclusion_of_url(entry.url, visit.host.key, wall)
            if exclusion is not None:
                visit.entries.remove(entry)
                excluded.append((entry, exclusion))
        if not excluded:
            return True
        all_excluded, residents = None, self._frontier.residents
        for entry, exclusion in excluded:
            since = self.passes.setdefault(entry.host, self._frontier.counters.sequence)
            if entry.key.startswith(LAST) and sequence_of(entry.key) > since:
                heappush(visit.host.front, (entry.key, entry))
                all_excluded = exclusion
            else:
                record = residents.records.touch(entry.host)
                self._frontier.states.move(entry, record, last=True)
                residents.push(entry, record, now)
        if visit.entries:
            return True
        refill(residents, visit.host)
        self._frontier.workbench.cancel(visit)
        if all_excluded is not None:
            until = now + (all_excluded.until - wall)
            self._frontier.workbench.set_exclusion(visit.host, all_excluded, until)
        return False


def refill(residents: Residents, host: HostState) -> None:
    if host.more and not host.front:
        residents.fronts.refill(host)


class BudgetCheck:
    """Keeps visits within page budgets, and away from hosts that were given up."""

    def __init__(self, frontier: Frontier) -> None:
        self._frontier = frontier
        self._policy = frontier.policy

    def check(self, visit: Visit, now: float) -> bool:
        host, frontier, policy = visit.host, self._frontier, self._policy
        limited = (
            policy.host_max_pages or policy.domain_max_pages or policy.domain_max_hosts
            or policy.overrides.lines
        )  # fmt: skip
        if not limited and not host.record.dead and (
            not host.connect_to or host.resolved_until > now
        ):
            return True
        refusal = frontier.admission.refusal(host.key, host.record, host.connect_to)
        full = self._left_of_domain(host) <= 0
        stale = bool(host.connect_to) and host.resolved_until <= now
        if not (refusal or full or stale):
            return True
        if full:
            self._fail_held(visit, now)
        frontier.workbench.cancel(visit)
        if refusal:
            frontier.health.give_up(host.key, refusal, now)
        elif full:
            # Its last pages are on their way: they decide whether any are left.
            frontier.workbench.postpone(host, now + 1.0, "page budget")
        else:
            frontier.residents.unresolved.add(host)
        return False

    def _fail_held(self, visit: Visit, now: float) -> None:
        # Their pages wait for these URLs alone: else page and URL would wait for each other.
        for entry in list(visit.entries):
            if entry.holder is not None and entry.holder.settled:
                visit.entries.remove(entry)
                own = self._left_of_host(visit.host) <= 0
                event = Event.BUDGET if own else Event.DOMAIN_BUDGET
                self._frontier.health.fail(entry, event, now)

    def _left_of_domain(self, host: HostState) -> float:
        domains, left = self._frontier.states.domains, self._left_of_host(host)
        if self._policy.domain_max_pages:
            done = domains.get(host.key).pages + domains.leased(host.key)
            left = min(left, self._policy.domain_max_pages - done)
        return left

    def _left_of_host(self, host: HostState) -> float:
        budget = self._policy.max_pages(host.key, host.connect_to)
        if not budget:
            return math.inf
        fronts = self._frontier.residents.fronts
        return budget - int(host.record.done) - fronts.leased(host.key)

    def left_of_job(self, leased: int) -> float:
        """How many more pages the job may have while *leased* URLs are out."""
        budget = self._policy.job_max_pages
        return budget - self._frontier.counters.done - leased if budget else math.inf

    def shorten(self, visit: Visit, leased: int) -> None:
        """Return the end of a burst that exceeds a budget, while *leased* URLs are out."""
        left = min(self._left_of_domain(visit.host), self.left_of_job(leased))
        if left < len(visit.entries):
            for entry in visit.entries[int(left) :]:
                heappush(visit.host.front, (entry.key, entry))
            del visit.entries[int(left) :]


_MOST: Final = 10_000  # entries in memory that are held back
_PORTION: Final = 1_500  # hosts, or entries, that are examined again in one turn: some milliseconds


class ForeignUrlCheck:
    """Holds back URLs that another agent holds, or is about to hold.

    While a unit moves, both sides hold it back; everyone may store URLs for it. Of a host of which
    all is held back, the host leaves its address and makes room. Of other hosts entries are held
    back: they count as leased, so no refill reads them again. Nothing of it is written.
    """

    def __init__(self, residents: Residents) -> None:
        self._workbench = residents.workbench
        self._residents = residents
        self.is_foreign: IsForeign | None = None
        self._by_host = True
        self._hosts: set[str] = set()
        self._entries: dict[str, dict[bytes, Entry]] = {}
        self._count = 0
        self._steps: Iterator[None] | None = None

    def set_rule(self, is_foreign: IsForeign | None, *, by_host: bool = True) -> None:
        """Hold back what *is_foreign* from now on, whole hosts with *by_host*.

        What is free by now is released in portions by `step`, while this is `busy`.
        """
        self.is_foreign, self._by_host = is_foreign, by_host
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
        hosts, foreign = self._workbench.hosts, self.is_foreign if self._by_host else None
        for key in list(self._hosts):
            host = hosts.get(key)
            if host is None or foreign is None or not foreign(key, ""):
                self._hosts.discard(key)
                if host is not None:
                    self._residents.unresolved.add(host)
            yield
        for entry in [entry for held in self._entries.values() for entry in held.values()]:
            if not self.holds_back(entry) and self.counts_as_leased(entry):
                self.release(entry)
                host = hosts.get(entry.host)
                if host is not None:  # otherwise its rows are read again when it comes
                    self._residents.fronts.push(host, entry)
                    self._workbench.offer(host)
            yield

    def __bool__(self) -> bool:
        return bool(self._hosts or self._entries)

    def check(self, visit: Visit, now: float) -> bool:
        if self.is_foreign is None:
            return True
        if self._by_host:
            return not self.is_foreign(visit.host.key, "") or self._hold_host(visit)
        held = [entry for entry in visit.entries if not entry.volatile and self.holds_back(entry)]
        if held and self._count >= _MOST:
            return self._hold_host(visit)
        self._count += len(held)
        for entry in held:
            visit.entries.remove(entry)
            self._residents.fronts.lease(entry)
            self._entries.setdefault(entry.host, {})[entry.key] = entry
        if visit.entries:
            return True
        refill(self._residents, visit.host)
        self._workbench.cancel(visit)
        return False

    def _hold_host(self, visit: Visit) -> bool:
        self._workbench.cancel(visit)
        self._workbench.displace(visit.host)
        self._hosts.add(visit.host.key)
        return False

    def holds_back(self, entry: Entry) -> bool:
        foreign = self.is_foreign
        return foreign is not None and foreign(entry.host, entry.url)

    def counts_as_leased(self, entry: Entry) -> bool:
        return entry.key in self._entries.get(entry.host, {})

    def release(self, entry: Entry) -> None:
        held = self._entries.get(entry.host, {})
        if held.pop(entry.key, None) is not None:
            self._residents.fronts.unlease(entry)
            self._count -= 1
        if not held:
            self._entries.pop(entry.host, None)




_OF_PAGES = (Event.PIPELINE_ERROR, Event.CALLBACK_ERROR, Event.NOT_PARSED, Event.NOT_STORED)
"""Faults of a page that arrived; the first that holds counts."""


class Fetch(Struct, eq=False):
    """One URL on its way through fetching, callbacks and pipelines.

    It is done in one commit with *children* (a spider's entries) and *links* (bulk links). *states*
    are those of volatile entries that the page led to. While *holds* is above 0, something is not
    durable yet.
    """

    entry: Entry
    visit: Visit | None
    children: list[Entry] = []
    links: list[str] = []
    referrer_policy: int = 0
    request: Request | None = None  # for whoever works with Scrapy's
    aside: bool = False  # no row of the frontier: robots.txt, media
    early: Exchange | None = None  # that came before its turn, as the visit was pipelined
    refusal: Exception | None = None  # by a check before its turn
    exchange: Exchange | None = None  # with the server, as it was on the wire
    page: Exchange | None = None  # the same, its content codings undone
    captures: list[Capture] = []  # answers that are to be packed
    outlinks: Sequence[Edge] = ()  # of the last of them
    wanted: bool = False  # whether there was an item of the page itself
    items: ItemBuffer | None = None  # that are to be written
    last: Callable[[Fetch, ItemBuffer], None] | None = None  # writes them, last of all
    unread: Exchange | None = None  # its page, if the links of that are read later
    items_refused: bool = False  # by SUITE_STORE_FILTER
    stored: StoredPage | None = None  # and where it is packed
    facts: PageFacts | None = None  # what is to be counted of it
    plan: RevisitPlan | None = None  # of a page that is visited again
    asked: bool = False  # only for the page if it has changed
    found: PageVersion | None = None  # what the visit found, where pages have plans
    likeness: Likeness | None = None  # to pages that were there before
    packed: PackedBody | None = None  # where its body is packed
    event: Event = Event.IGNORED
    faults: set[Event] = set()
    heard: Event | None = None  # what came of the wire, if it was used
    retry_after: float | None = None  # seconds that the host asked for
    status: int = 0
    booked: float = 0.0  # bytes that the bandwidth expects of it
    received: int = 0  # bytes that came
    holds: int = 0
    held_since: float | None = None
    settled: bool = False  # nothing more will come of it
    kept: bool = False  # settled, and waits for what holds it
    states: list[tuple[bytes, bytes]] = []

    def verdict(self) -> Event:
        """How the fetch ended: an interruption goes before faults of callbacks and pipelines."""
        if self.faults:
            for event in (Event.INTERRUPTED, Event.DISK_FULL):
                if event in self.faults:
                    return event
            for event in _OF_PAGES if self.event is Event.SUCCESS else ():
                if event in self.faults:
                    return event
        if self.event is Event.CLIENT_ERROR and self.entry.flags & Flag.SPECULATIVE:
            return Event.NOT_THERE
        return self.event

    def fate(self, retry_times: int) -> tuple[State, Event, bool]:
        """The next state of its URL, the reason, and whether this counts as an attempt."""
        event = self.verdict()
        outcome = event.outcome
        tried = outcome.retry is not Retry.HOST
        ours = not self.entry.flags & Flag.USER
        return outcome.after(self.entry.attempts + tried, retry_times, ours=ours), event, tried

    def write_last_items(self) -> None:
        """Have its items written if only they hold the fetch."""
        last, items = self.last, self.items
        if self.holds == 1 and last is not None and items is not None:
            self.last = self.items = None
            last(self, items)

    def take_children(self) -> list[Entry]:
        """Remove and return its children so far: a spider's own requests first."""
        children, self.children = self.children, []
        return sorted(children, key=lambda entry: not entry.flags & Flag.USER)


_AT_ONCE = 500  # URLs of a host that are failed before anyone else has a turn again


class TrapCheck:
    """Fails URLs that lie in a trap; forgets mined URLs that are given up."""

    def __init__(self, frontier: Frontier) -> None:
        self._frontier = frontier

    def check(self, visit: Visit, now: float) -> bool:
        """Whether anything is left. If not, the trapped beginning of the queue fails, too."""
        failing = []
        for entry in visit.entries:
            if (event := self._event(entry)) is not None:
                failing.append((entry, event))
        if not failing:
            return True
        for entry, event in failing:
            visit.entries.remove(entry)
            self._fail(entry, event, now)
        if not visit.entries:
            self._fail_front(visit.host, now)
        if visit.entries:
            return True
        visit.clocks = (max(visit.clocks[0], now), *visit.clocks[1:])
        self._frontier.workbench.cancel(visit)
        return False

    def _fail_front(self, host: HostState, now: float) -> None:
        for _ in range(_AT_ONCE):
            refill(self._frontier.residents, host)
            event = self._event(host.front[0][1]) if host.front else None
            if event is None:
                return
            self._fail(heappop(host.front)[1], event, now)
        refill(self._frontier.residents, host)

    def _fail(self, entry: Entry, event: Event, now: float) -> None:
        frontier = self._frontier
        if event is not Event.NOT_THERE:
            frontier.health.fail(entry, event, now)
            return
        frontier.states.remove(entry, frontier.residents.records.touch(entry.host))
        frontier.states.cache.forget(entry.identity)
        frontier.store.put_state(entry.identity, None)

    def _event(self, entry: Entry) -> Event | None:
        if entry.flags & Flag.SPECULATIVE and self._frontier.traps.miner.gave_up(entry):
            queue = self._frontier.states.sieve_queue
            if queue is None or not queue.index.has(entry.identity):
                return Event.NOT_THERE
        return Event.TRAP if self._frontier.traps.contains(entry) else None


_REFUSALS: Final = 200
"""Hosts that have to wait, or are given up, before anyone else has a turn again."""


class Leases:
    """Leases the URLs of visits that pass all checks; *out*: so many.

    *foreign*: what another agent holds. *blocked*: what lies below blocked prefixes. *permits*:
    visits that wait for leave, where hosts and addresses are shared.
    """

    def __init__(self, frontier: Frontier) -> None:
        self.out = 0
        self.foreign = ForeignUrlCheck(frontier.residents)
        self.permits = VisitPermits(frontier.workbench)
        self._budget = BudgetCheck(frontier)
        self.blocked = BlockedUrlCheck(frontier)
        self._traps = TrapCheck(frontier)
        self._frontier = frontier
        self._policy = frontier.policy
        self._fronts = frontier.residents.fronts
        self._domains = frontier.states.domains

    @property
    def full(self) -> bool:
        return self._budget.left_of_job(self.out) <= 0

    def wait(self, now: float) -> float | None:
        """Seconds until a visit is possible; None if nothing resident is queued, or may go."""
        return None if self.full else self.permits.wait(now)

    def next_visit_in(self, now: float) -> float | None:
        """Seconds until any host may be visited; None if nothing is queued, infinite if all wait
        for a rule.
        """
        waits = [self.permits.wait(now), self._frontier.rotation.next_due_in(now)]
        known = [wait for wait in waits if wait is not None]
        return min(known, default=FOREVER if self._frontier.pending else None)

    def acquire(self, now: float, host: str = "") -> list[Fetch]:
        """Fetch the URLs of the next visit, be it of any *host*, or none before its time."""
        if self._policy.job_max_pages and self.full:
            return []
        for _ in range(_REFUSALS):
            visit = self.permits.acquire(now, host)
            if visit is None:
                break
            if self._check(visit, now):
                return self._lease_all(visit)
            self.permits.cancel(visit)
        return []

    def _check(self, visit: Visit, now: float) -> bool:
        # Each check that is on removes from the visit what may not go out; false: nothing is left,
        # and the visit is over.
        foreign, policy = self.foreign, self._policy
        return (
            (foreign.is_foreign is None or foreign.check(visit, now))
            and self._frontier.policy_update.check(visit, now)
            and self._budget.check(visit, now)
            and (not (policy.blocks or self.blocked.passes) or self.blocked.check(visit, now))
            and self._traps.check(visit, now)
            and (self.permits.source is None or self.permits.check(visit, now))
        )

    def _lease_all(self, visit: Visit) -> list[Fetch]:
        host, residents = visit.host, self._frontier.residents
        if len(visit.entries) > 1:
            self._budget.shorten(visit, self.out)
        fetches = [self._lease(entry, visit) for entry in visit.entries]
        host.held = residents.window is not None
        if host.more and not host.front and host.free():
            self._refill(host)
        if self._frontier.stored_links.waiting.count:
            self._frontier.stored_links.demand.host_shrank(host.key)
        return fetches

    def lease_unvisited(self, key: str) -> Fetch | None:
        """Fetch a URL of a resident host without a visit: it is to fail."""
        host = self._frontier.workbench.hosts.get(key)
        if host is None or not host.front:
            return None
        fetch = self._lease(heappop(host.front)[1], None)
        self._refill(host)
        return fetch

    def _lease(self, entry: Entry, visit: Visit | None) -> Fetch:
        self._fronts.lease(entry)
        self._domains.lease(entry.host)
        self.out += 1
        return Fetch(entry, visit)

    def _refill(self, host: HostState) -> None:
        if host.more and not host.front:
            self._fronts.refill(host)
            self._frontier.workbench.offer(host)

    def unlease(self, entry: Entry) -> None:
        self._fronts.unlease(entry)
        self._domains.unlease(entry.host)
        self.out -= 1

    def release(
        self, fetch: Fetch, now: float, retry_after: float | None = None,
        heard: Event | None = None,
    ) -> None:  # fmt: skip
        """The visit of *fetch* is over; *heard*: what happened on the wire, if not its event."""
        visit = fetch.visit
        if visit is None:
            return
        fetch.visit = None
        event = heard or fetch.event
        self._frontier.health.judge(visit.host, event, now, retry_after)
        self._frontier.workbench.release(visit)
        self._frontier.rotation.after_visit(visit.host, now, visited=event is not Event.INTERRUPTED)


class PageVersion(NamedTuple):
    """What a visit found at *when* (wall): *digest* of the body; *unchanged*: a 304."""

    when: float
    digest: bytes
    validators: Validators
    unchanged: bool = False
