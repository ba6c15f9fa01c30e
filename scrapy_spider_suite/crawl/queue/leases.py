"""URLs below a blocked prefix: put aside at the end of their host's queue, where they wait.

The others of the host go on. When only such are left, the host itself waits; whenever the rules
have changed, each of them is looked at once more, in turn. Nothing has to be found and moved when
a block is lifted, however many there are.

Which visits may go ahead: who is refused, and how much may still be asked of a host.

What this agent may not fetch: what another agent holds, or is about to.

Who owns a URL is a question of tables, and where it is sent of `routing`. Only the holder of a unit
fetches; while a unit goes from one agent to another it is held back on both sides, and nothing else
is: everyone may store what comes for it.

A leased URL: handed out, and not yet done.

URLs that waited for what has turned out to be a trap, or not to be there.

Nothing is fetched when their turn has come: what lies in a trap fails, and of what nobody linked to
nothing is remembered, so that a link can still bring it.

How URLs are handed out, visit by visit, and how a visit ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from scrapy_spider_suite.crawl.queue.traps import Traps, UrlMiner
from scrapy_spider_suite.frontier.entries import LAST, Entry, Flag, sequence_of
from scrapy_spider_suite.frontier.outcomes import OUTCOMES, Event, Retry, State
from scrapy_spider_suite.frontier.permits import VisitPermits
from scrapy_spider_suite.frontier.policy import Exclusion, Policy
from scrapy_spider_suite.frontier.revisit_rules import Validators
from scrapy_spider_suite.frontier.workbench import HostState, Visit, Workbench
from scrapy_spider_suite.store.host_queues import QueueFronts
from scrapy_spider_suite.store.interface import Store
from scrapy_spider_suite.store.residency import HostHealth, IsForeign, Residents
from scrapy_spider_suite.store.rotation import PolicyUpdate, Rotation
from scrapy_spider_suite.store.rows import HostRecord
from scrapy_spider_suite.store.unread_pages import PageDemand
from scrapy_spider_suite.store.url_states import UrlStates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy_spider_suite.analysis.duplicates import Likeness
    from scrapy_spider_suite.analysis.link_stats import PageFacts
    from scrapy_spider_suite.packs import Capture
    from scrapy_spider_suite.packs.item_file import ItemBuffer
    from scrapy_spider_suite.packs.stored_pages import StoredPage
    from scrapy_spider_suite.store.revisit_plans import PackedBody, RevisitPlan
    from scrapy_spider_suite.urls.extract import Edge


class BlockedUrlCheck:
    """Sorts out of visits what may not be fetched although its host may be visited."""

    def __init__(
        self, policy: Policy, workbench: Workbench, residents: Residents, ledger: UrlStates
    ) -> None:
        self._policy = policy
        self._workbench = workbench
        self._residents = residents
        self._records = residents.records
        self._ledger = ledger
        # For each host of a blocked prefix: from which sequence number on all that was put aside
        # has been looked at under this revision.
        self._passes: dict[str, int] = {}
        self._revision = -1

    def sort_out(self, visit: Visit, now: float, wall: float) -> bool:
        """Take out of *visit* what is barred; False if nothing is left, and it is over."""
        if self._revision != self._policy.revision:
            self._revision = self._policy.revision
            self._passes.clear()
        if not self._policy.blocks:
            return True
        barred: list[tuple[Entry, Exclusion]] = []
        for entry in list(visit.entries):
            bar = self._policy.bar_of_url(entry.url, visit.host.key, wall)
            if bar is not None:
                visit.entries.remove(entry)
                barred.append((entry, bar))
        if not barred:
            return True
        all_barred = None
        for entry, bar in barred:
            if self._seen(entry):
                heappush(visit.host.front, (entry.key, entry))
                all_barred = bar
            else:
                self._put_aside(entry, now, wall)
        if visit.entries:
            return True
        self._end(visit, all_barred, now, wall)
        return False

    def _seen(self, entry: Entry) -> bool:
        """Whether all that was put aside of a host, from *entry* on, is known to be barred."""
        since = self._passes.setdefault(entry.host, self._ledger.counters.sequence)
        return entry.key.startswith(LAST) and sequence_of(entry.key) > since

    def _put_aside(self, entry: Entry, now: float, wall: float) -> None:
        record = self._records.touch(entry.host)
        self._ledger.put_last(entry)
        self._residents.push(entry, record, now, wall)
        self._records.save()

    def _end(self, visit: Visit, bar: Exclusion | None, now: float, wall: float) -> None:
        host, fronts = visit.host, self._residents.fronts
        if host.more and not host.front:
            fronts.refill(host)
        self._workbench.cancel(visit)
        if bar is not None:
            self._workbench.set_bar(host, bar, now + (bar.until - wall))


class BudgetCheck:
    """Applies the policy's rules and page budgets, and remembers the dead."""

    def __init__(
        self, policy: Policy, workbench: Workbench, residents: Residents, ledger: UrlStates,
        reviser: PolicyUpdate, health: HostHealth,
    ) -> None:  # fmt: skip
        self._policy = policy
        self._workbench = workbench
        self._residents = residents
        self._ledger = ledger
        self._reviser = reviser
        self._health = health

    def may_leave(self, visit: Visit, now: float, wall: float) -> bool:
        """Whether a visit may go ahead; if not, it is over, and its host is dealt with."""
        host = visit.host
        if self._reviser.holds_back(visit, now, wall):
            return False
        refusal = self.refusal(host.key, host.record, host.connect_to)
        full = self.pages_left(host) <= 0
        stale = bool(host.connect_to) and host.resolved_until <= now
        if not (refusal or full or stale):
            return True
        if full:
            self._fail_what_holds_up(visit, now, wall)
        self._workbench.cancel(visit)
        if refusal:
            self._health.give_up(host.key, refusal, now, wall)
        elif full:
            # Its last pages are on their way: they decide whether any are left.
            self._workbench.postpone(host, now + 1.0, "page budget")
        else:
            self._residents.unresolved.want(host)
        return False

    def _fail_what_holds_up(self, visit: Visit, now: float, wall: float) -> None:
        """Fail those URLs of *visit* whose pages are done but for them: else each waits for the
        other, the page for them, and they for it to succeed or to fail."""
        for entry in list(visit.entries):
            if entry.holder is not None and entry.holder.settled:
                visit.entries.remove(entry)
                own = self._left_of_host(visit.host) <= 0
                event = Event.BUDGET if own else Event.DOMAIN_BUDGET
                self._health.fail(entry, event, now, wall)
        self._residents.records.save()

    def refusal(self, host: str, record: HostRecord, address: str = "") -> Event | None:
        """Why no URL of *host* is to be fetched any more; None if it may be."""
        if record.dead:
            return Event(record.dead)
        policy, domains = self._policy, self._ledger.domains
        budget = policy.max_pages(host, address)
        if budget and record.done >= budget:
            return Event.BUDGET
        if policy.domain_max_pages and domains.of(host).pages >= policy.domain_max_pages:
            return Event.DOMAIN_BUDGET
        hosts = 0 if record.counted else policy.domain_max_hosts
        return Event.DOMAIN_HOSTS if hosts and domains.of(host).hosts >= hosts else None

    # What is out may all succeed

    def pages_left(self, host: HostState) -> float:
        """How many more pages of *host* may be leased, for its own sake and for its domain's."""
        domains, left = self._ledger.domains, self._left_of_host(host)
        if self._policy.domain_max_pages:
            done = domains.of(host.key).pages + domains.leased(host.key)
            left = min(left, self._policy.domain_max_pages - done)
        return left

    def _left_of_host(self, host: HostState) -> float:
        budget = self._policy.max_pages(host.key, host.connect_to)
        if not budget:
            return math.inf
        return budget - int(host.record.done) - self._residents.fronts.leased(host.key)

    def left_of_job(self, leased: int) -> float:
        """How many more pages the job may have while *leased* are out."""
        budget = self._policy.job_max_pages
        return budget - self._ledger.counters.done - leased if budget else math.inf

    def cut_short(self, visit: Visit, leased: int) -> None:
        """Put back the end of a burst that would go beyond a budget while *leased* are out."""
        if len(visit.entries) > 1:
            left = min(self.pages_left(visit.host), self.left_of_job(leased))
            if left < len(visit.entries):
                put_back(visit, int(left))


def put_back(visit: Visit, keep: int = 0) -> None:
    """Return all but the first *keep* entries of a visit that has not begun to the front."""
    for entry in visit.entries[keep:]:
        heappush(visit.host.front, (entry.key, entry))
    del visit.entries[keep:]


_MOST: Final = 10_000
"""Entries in memory that are held back."""
_PORTION: Final = 1_500
"""Hosts, or entries, that are looked at again in one turn: some milliseconds."""


class ForeignUrlCheck:
    """Sorts out of visits what is held back. To begin with nothing is.

    A host of which all is held back is taken off its address, and so gets no visit; it makes room
    for others that are due, and waits on disk then until it is free (`Freed`). Of other hosts
    entries are held back: they count as out, so that their rows stay where they are and no refill
    brings them again; once there are too many of them a host with one more gets no visit either.
    Nothing is written of it, so a kill leaves what there was.
    """

    def __init__(self, workbench: Workbench, residents: Residents) -> None:
        self._workbench = workbench
        self._residents = residents
        self._fronts = residents.fronts
        self._elsewhere: IsForeign | None = None
        self._by_host = True
        self._hosts: set[str] = set()
        self._entries: dict[str, dict[bytes, Entry]] = {}
        self._count = 0
        self._again: Iterator[None] | None = None

    def change(self, elsewhere: IsForeign | None, *, by_host: bool = True) -> None:
        """Hold back what is *elsewhere* from now on, and nothing else; with *by_host* whole hosts.

        What was held back before and is free by now is looked for in portions: the first of them
        at once, the others with `go_on`, while it is `at_work`.
        """
        self._elsewhere, self._by_host = elsewhere, by_host
        self._residents.hold_back(elsewhere if by_host else None)
        self._again = self._look_again()
        self.go_on()

    @property
    def at_work(self) -> bool:
        """Whether more is to be looked at again."""
        return self._again is not None

    def go_on(self) -> None:
        """Look at a portion of what was held back before."""
        if self._again is not None and sum(1 for _ in islice(self._again, _PORTION)) < _PORTION:
            self._again = None

    def _look_again(self) -> Iterator[None]:
        for key in list(self._hosts):
            self._free_host(key)
            yield
        for key, held in list(self._entries.items()):
            yield from self._free_entries(key, list(held.values()))

    def _free_host(self, key: str) -> None:
        """Have a host that may be visited by now placed again; the others need no look."""
        host, elsewhere = self._workbench.hosts.get(key), self._elsewhere if self._by_host else None
        if host is not None and elsewhere is not None and elsewhere(key, ""):
            return
        self._hosts.discard(key)
        if host is not None:
            self._residents.unresolved.want(host)

    def _free_entries(self, key: str, held: list[Entry]) -> Iterator[None]:
        for entry in held:
            if not self.holds_back(entry) and self.counts_as_out(entry):
                self.let_go(entry)
                host = self._workbench.hosts.get(key)
                if host is not None:  # otherwise its rows are read again when it comes
                    self._fronts.push(host, entry)
                    self._workbench.offer(host)
            yield

    def __bool__(self) -> bool:
        """Whether anything in memory is held back at present."""
        return bool(self._hosts or self._entries)

    def sort_out(self, visit: Visit) -> bool:
        """Take out of *visit* what is held back; False if nothing is left, and it is over."""
        if self._elsewhere is None:
            return True
        host = visit.host
        if not self._by_host:
            return self._sort_entries(visit, host)
        if not self._elsewhere(host.key, ""):
            return True
        self._hold_all(visit, host)
        return False

    def _hold_all(self, visit: Visit, host: HostState) -> None:
        self._workbench.cancel(visit)
        self._workbench.displace(host)
        self._hosts.add(host.key)

    def _sort_entries(self, visit: Visit, host: HostState) -> bool:
        held = [
            entry for entry in visit.entries if not entry.volatile and self.holds_back(entry)
        ]  # fmt: skip
        if held and self._count >= _MOST:
            self._hold_all(visit, host)
            return False
        self._count += len(held)
        for entry in held:
            visit.entries.remove(entry)
            self._fronts.lease(entry)
            self._entries.setdefault(host.key, {})[entry.key] = entry
        if visit.entries:
            return True
        if host.more and not host.front:
            self._fronts.refill(host)
        self._workbench.cancel(visit)
        return False

    def holds_back(self, entry: Entry) -> bool:
        """Whether *entry* may not be fetched here."""
        elsewhere = self._elsewhere
        return elsewhere is not None and elsewhere(entry.host, entry.url)

    def counts_as_out(self, entry: Entry) -> bool:
        """Whether *entry* is one of those that count as out and are not."""
        return entry.key in self._entries.get(entry.host, {})

    def let_go(self, entry: Entry) -> None:
        """Let *entry* count as out no more: it is about to go."""
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
"""What may become of a page that came as it should; the first that holds counts."""


def _is_link(entry: Entry) -> bool:
    return not entry.flags & _USER


class Lease:
    """One URL on its way through fetching, callbacks and pipelines.

    It becomes done in one commit with everything that came of it: *children* (entries that a
    spider yielded) and *links* (normal forms of bulk links, whose depth is one more than the
    page's, and whose *referrer_policy* is what it sent). *states* are those of the volatile entries
    that it led to, by state key, to be written with its own. While *holds* is above 0, something
    that must be durable first is not yet.
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
        """How it ended: what stopped it goes before what its callbacks and pipelines did."""
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
        """What becomes of its URL, for which reason, and whether this counts as an attempt."""
        event = self.verdict()
        outcome = OUTCOMES[event]
        tried = outcome.retry is not Retry.HOST
        ours = not self.entry.flags & _USER
        return outcome.after(self.entry.attempts + tried, retry_times, ours=ours), event, tried

    def near_the_end(self) -> None:
        """Let its items be written if only they hold it."""
        last, items = self.last, self.items
        if self.holds == 1 and last is not None and items is not None:
            self.last = self.items = None
            last(self, items)

    def take_children(self) -> list[Entry]:
        """Take the entries that it has brought so far: a spider's own requests first."""
        children, self.children = self.children, []
        return sorted(children, key=_is_link)

    def take_links(self) -> list[str]:
        """Take the bulk links."""
        links, self.links = self.links, []
        return links


_AT_ONCE = 500
"""URLs of a host that are failed before anyone else has a turn again."""


class TrapCheck:
    """Sorts out of visits what lies in a trap."""

    def __init__(
        self, traps: Traps, miner: UrlMiner, workbench: Workbench, residents: Residents,
        health: HostHealth, ledger: UrlStates, store: Store,
    ) -> None:  # fmt: skip
        self._traps = traps
        self._miner = miner
        self._workbench = workbench
        self._records = residents.records
        self._fronts = residents.fronts
        self._health = health
        self._ledger = ledger
        self._store = store

    def sort_out(self, visit: Visit, now: float, wall: float) -> bool:
        """Fail what of *visit* is not worth it; False if nothing is left, and it is over.

        Then what follows in its queue fails with it, as far as it is not worth it either, and its
        host comes after all that have waited until *now*.
        """
        failing = [(entry, event) for entry in visit.entries if (event := self._event(entry))]
        if not failing:
            return True
        for entry, event in failing:
            visit.entries.remove(entry)
            self._end(entry, event, now, wall)
        if not visit.entries:
            self._clear(visit.host, now, wall)
        self._records.save()
        if visit.entries:
            return True
        visit.clocks = (max(visit.clocks[0], now), *visit.clocks[1:])
        self._workbench.cancel(visit)
        return False

    def _clear(self, host: HostState, now: float, wall: float) -> None:
        """Fail the beginning of a host's queue, as far as it is not worth it."""
        for _ in range(_AT_ONCE):
            if host.more and not host.front:
                self._fronts.refill(host)
            event = self._event(host.front[0][1]) if host.front else None
            if event is None:
                return
            self._end(heappop(host.front)[1], event, now, wall)
        if host.more and not host.front:
            self._fronts.refill(host)

    def _end(self, entry: Entry, event: Event, now: float, wall: float) -> None:
        if event is not Event.NOT_THERE:
            self._health.fail(entry, event, now, wall)
            return
        self._ledger.remove(entry, self._records.touch(entry.host))
        self._ledger.cache.forget(entry.identity)
        self._store.delete_state(entry.identity)

    def _in_sieve(self, entry: Entry) -> bool:
        """Whether a link has led to *entry* since, which no other would bring again."""
        sifter = self._ledger.sifter
        return sifter is not None and sifter.knows(entry.identity)

    def _event(self, entry: Entry) -> Event | None:
        if self._miner.gave_up(entry) and not self._in_sieve(entry):
            return Event.NOT_THERE
        return Event.TRAP if self._traps.holds(entry) else None


_REFUSALS: Final = 200
"""Hosts that are found to have to wait, or given up, before anyone else has a turn again."""


class Leases:
    """Leases what the workbench says, as far as budgets, blocks and traps let it go ahead.

    Attributes:
        out: how many URLs are leased.
    """

    def __init__(
        self, workbench: Workbench, fronts: QueueFronts, rotation: Rotation, ledger: UrlStates,
        health: HostHealth, clearance: BudgetCheck, aside: BlockedUrlCheck, trapped: TrapCheck,
        demand: PageDemand,
        holding: ForeignUrlCheck, permits: VisitPermits,
    ) -> None:  # fmt: skip
        self.out = 0
        self._workbench = workbench
        self._fronts = fronts
        self._rotation = rotation
        self._ledger = ledger
        self._health = health
        self._clearance = clearance
        self._aside = aside
        self._trapped = trapped
        self._demand = demand
        self._holding = holding
        self._permits = permits

    def acquire(self, now: float, wall: float) -> list[Lease]:
        """The leases of the next visit, or none before its time."""
        for _ in range(_REFUSALS):
            visit = self._permits.acquire(now)
            if visit is None:
                break
            if not (
                self._holding.sort_out(visit)
                and self._clearance.may_leave(visit, now, wall)
                and self._aside.sort_out(visit, now, wall)
                and self._trapped.sort_out(visit, now, wall)
                and self._permits.sort_out(visit, now)
            ):
                self._permits.stays(visit)
                continue  # it has been dealt with
            self._clearance.cut_short(visit, self.out)
            leases = [self._lease(entry, visit) for entry in visit.entries]
            self._rotation.hold(visit.host)
            if visit.host.free():
                self._refill(visit.host)
            self._demand.met(visit.host.key)
            return leases
        return []

    def take(self, key: str) -> Lease | None:
        """The lease of a URL of a resident host, without a visit."""
        host = self._workbench.hosts.get(key)
        if host is None or not host.front:
            return None
        lease = self._lease(heappop(host.front)[1], None)
        self._refill(host)
        return lease

    def _lease(self, entry: Entry, visit: Visit | None) -> Lease:
        self._fronts.lease(entry)
        self._ledger.domains.lease(entry.host)
        self.out += 1
        return Lease(entry, visit)

    def _refill(self, host: HostState) -> None:
        if host.more and not host.front:
            self._fronts.refill(host)
            self._workbench.offer(host)

    def over(self, entry: Entry) -> None:
        """*entry* is no longer out."""
        self._fronts.unlease(entry)
        self._ledger.domains.unlease(entry.host)
        self.out -= 1

    def release(
        self, lease: Lease, now: float, wall: float, retry_after: float | None,
        heard: Event | None,
    ) -> None:  # fmt: skip
        """The visit of *lease*, if it has one, is over."""
        visit = lease.visit
        if visit is None:
            return
        lease.visit = None
        event = heard or lease.event
        self._health.judge(visit.host, event, now, wall, retry_after)
        self._workbench.release(visit)
        visited = event is not Event.INTERRUPTED
        self._rotation.settle_down(visit.host, now, wall, visited=visited)


class PageVersion(NamedTuple):
    """What a visit has found: *digest* is of the body; *unchanged*: the server said so (304).

    *when* in seconds, wall.
    """

    when: float
    digest: bytes
    validators: Validators
    unchanged: bool = False
