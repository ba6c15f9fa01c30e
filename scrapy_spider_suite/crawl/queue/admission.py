"""Failed is not seen: a link to a URL that failed long ago may have it tried once more.

Off unless the policy says after how long, and for which reasons; but what failed in a trap that
turned out to be none gets it at once. Whoever wants them tried without a link that leads there asks
for it (`scrapy frontier retry`).

Links that are read later than their pages were fetched: what that is to the frontier (E4).

How URLs come into the frontier: looked up one by one, or, the links of pages, by the sieve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Final, Protocol

from scrapy_spider_suite.cluster.routing import OwnerRouter
from scrapy_spider_suite.crawl.queue.leases import Lease
from scrapy_spider_suite.crawl.queue.traps import Traps
from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store import url_states
from scrapy_spider_suite.store.host_queues import HostRecords
from scrapy_spider_suite.store.interface import Store
from scrapy_spider_suite.store.residency import HostHealth, Residents
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import HostRecord, UrlState
from scrapy_spider_suite.store.seen_transfer import LinkOrigin, host_of_state_key, keys_of, url_of
from scrapy_spider_suite.store.unread_pages import PageDemand, UnreadPage, UnreadPages
from scrapy_spider_suite.store.url_states import UrlStates
from scrapy_spider_suite.urls.normalize import host_of


class RetryFailed:
    """Asks of known URLs whether they failed long enough ago. Times are wall times."""

    def __init__(
        self, store: Store, policy: Policy, records: HostRecords, ledger: UrlStates,
        health: HostHealth, refusal: Callable[[str, HostRecord], Event | None], traps: Traps,
    ) -> None:  # fmt: skip
        self.given = 0
        """How many URLs were made pending so."""
        self._store = store
        self._policy = policy
        self._records = records
        self._ledger = ledger
        self._health = health
        self._refusal = refusal
        self._traps = traps

    def due(self, identity: bytes, wall: float) -> UrlState | None:
        """The state of a URL that failed and may be tried again; None for any other."""
        after = self._policy.retry_failed_after
        if not after:
            return None
        state = self._failed(identity)
        if state is None or wall - state.when < after:
            return None
        return state if state.event in self._policy.retry_failed else None

    def freed(self, identity: bytes, url: str, host: str) -> UrlState | None:
        """The state of the normal *url* if it failed in a trap, and lies in none any more."""
        if not self._traps.frees(url, host):
            return None
        state = self._failed(identity)
        return state if state is not None and state.event is Event.TRAP else None

    def _failed(self, identity: bytes) -> UrlState | None:
        data = self._store.state(identity)
        state = None if data is None else UrlState.from_bytes(data)
        return state if state is not None and state.state is State.FAILED else None

    def give(self, entry: Entry, wall: float) -> bool:
        """Let *entry*, which is known, be new again; False if it is not due.

        With a URL that failed because its host was given up, the host is given another chance.
        """
        state = self.due(entry.identity, wall)
        state = state or self.freed(entry.identity, entry.url, entry.host)
        if state is None:
            return False
        record = self._records.touch(entry.host)
        if record.dead == state.event == Event.HOST_DEAD:
            self._health.revive(entry.host, record)
        if self._refusal(entry.host, record) is not None:
            return False
        self._ledger.take_back(entry.host, record, state)
        self.given += 1
        return True


class PageCounter(Protocol):
    """What is told of each URL that is over, in the operation that says so."""

    def concluded(self, lease: Lease, event: Event) -> None:
        """The URL of *lease* is done, or has failed."""

    def save(self) -> None:
        """Put what was counted into the store's next batch."""


class StoredPageLinks:
    """Keeps the pages whose links are to be read, and takes what they lead to.

    Attributes:
        waiting: those pages.
        demand: chooses among them.
        counting: hears of each page, of those whose links come later when they are read.
    """

    def __init__(
        self, store: Store, records: HostRecords, ledger: UrlStates, scheduling: Admission
    ) -> None:
        self.counting: PageCounter | None = None
        self._store = store
        self._records = records
        self._ledger = ledger
        self._scheduling = scheduling
        self.waiting = UnreadPages(store, ledger.counters)
        self.demand = PageDemand(self.waiting, records.left)

    def concluded(self, lease: Lease, event: Event) -> None:
        """The URL of *lease* is over, in the batch that says so; its links may come later."""
        place = b""
        if lease.stored is not None:
            with suppress(ValueError):  # it could not be written, and its host was given up
                place = lease.stored.to_bytes()
        if place:
            self.waiting.add(lease.entry, place)
        elif self.counting is not None:
            self.counting.concluded(lease, event)
        self.demand.met(lease.entry.host)

    def read(self, page: UnreadPage, lease: Lease, now: float, wall: float) -> bool:
        """What *lease*, made for *page*, has brought becomes pending, and the page is extracted.

        False, and nothing is taken, if the page was dropped meanwhile.
        """
        here = page in self.waiting
        if here:
            self.demand.reading(page, lease)
            # First what it leads to: there may be so much of it that a batch is written in between.
            self._scheduling.spill(lease, now, wall)
            if self.counting is not None:
                self.counting.concluded(lease, Event.SUCCESS)
            self.waiting.remove(page)
        self.demand.over(page)
        self._scheduling.relieve()
        return here

    def give_up(
        self, page: UnreadPage, event: Event, wall: float, lease: Lease | None = None
    ) -> bool:
        """The links of *page* cannot be had, because of *event*, which is its last word now.

        With a *lease*, made for it, the page is counted, as it is when links are read at once.
        False, and nothing changes, if it was dropped meanwhile.
        """
        here = self.waiting.remove(page)
        if here and lease is not None and self.counting is not None:
            self.counting.concluded(lease, event)
        self.demand.over(page)
        data = self._store.state(page.entry.identity) if here else None
        if data is not None:
            state, entry = UrlState.from_bytes(data), page.entry
            if state.state is State.DONE and state.event is not event:
                record = self._records.touch(entry.host)
                self._ledger.take_back(entry.host, record, state)
                self._ledger.conclude(entry, record, event, state.status, wall)
                self._records.save()
        return here


_SPILL: Final = 1_000
"""Children of an unfinished page that are held in memory; beyond it they are stored early."""
_BACKLOG: Final = 10_000
"""Operations that may wait for the next batch before it is written ahead of its time."""
# A plain integer: operators of flags are Python code.
_DONT_FILTER = int(Flag.DONT_FILTER)


class Admission:
    """Makes pending what is new. *flush* writes a batch, *let_go* is told of what is over at once.
    """

    def __init__(
        self, store: Store, policy: Policy, residents: Residents, ledger: UrlStates, traps: Traps,
        chances: RetryFailed, routing: OwnerRouter | None,
        refusal: Callable[[str, HostRecord], Event | None],
        flush: Callable[[], None], let_go: Callable[[Entry, float], None],
    ) -> None:  # fmt: skip
        self._store = store
        self._policy = policy
        self._residents = residents
        self._records = residents.records
        self._ledger = ledger
        self._traps = traps
        self._chances = chances
        self._routing = routing
        self._refusal = refusal
        self._flush = flush
        self._let_go = let_go

    @property
    def _gives_chances(self) -> bool:
        """Whether a link to a URL that failed may give it another chance, so that no cache decides.
        """
        return bool(self._policy.retry_failed_after)

    def filters(self, entry: Entry, wall: float) -> bool:
        """Whether *entry* is not to be scheduled, since it is known and gets no second chance."""
        return self._ledger.known(entry.identity) and not self._chances.give(entry, wall)

    def schedule(
        self, entries: Iterable[Entry], now: float, wall: float, *, given: bool = False,
        came: bool = False,
    ) -> int:  # fmt: skip
        """Make *entries* pending unless they are known; return how many were new.

        Links that go to the sieve are none of them, and neither is what other agents are to have.
        *given* is for `Routing.keeps`; what *came* from another agent goes on although it was sent
        to somebody before.
        """
        if self._routing is not None:
            anyway = came or self._gives_chances
            keeps = partial(self._routing.keeps, given=given, anyway=anyway)
            entries = filter(keeps, entries)
        return self._look_up(entries, now, wall)

    def _look_up(self, entries: Iterable[Entry], now: float, wall: float) -> int:
        new = 0
        for way, group in groupby(entries, self._way):
            if way is not None:
                self._offer(way, [entry.identity for entry in group])
                continue
            for entry in group:
                new += self.one(entry, now, wall)
                self.relieve()
        self._records.save()
        return new

    def _way(self, entry: Entry) -> LinkOrigin | None:
        """What the sieve keeps of *entry*; None if it is looked up at once.

        That is all that is more than a link, and what a redirect leads to: it is to be fetched
        soon, its page is done with it, and there are few.
        """
        if self._ledger.sifter is None or not self._ledger.sifter.active:
            return None
        more = entry.flags or entry.hops or entry.attempts or entry.payload is not None
        if more or not entry.referrer:
            return None
        return LinkOrigin(
            entry.depth, entry.referrer, entry.priority, entry.beyond, entry.referrer_policy
        )

    def _offer(self, way: LinkOrigin, keys: list[bytes]) -> None:
        if self._ledger.sifter is None:
            return
        if freed := self._freed(keys):
            self._ledger.sifter.offer(way, list(freed), anyway=True)
            keys = [key for key in keys if key not in freed]
        self._ledger.sifter.offer(way, keys, anyway=self._gives_chances)

    def _freed(self, keys: list[bytes]) -> dict[bytes, None]:
        """Those of the state keys of links that failed in a trap that was none: the cache knows
        them, and they are wanted all the same."""
        if not self._traps.reopened:
            return {}
        freed = self._chances.freed
        return dict.fromkeys(key for key in keys if freed(key, url_of(key), host_of_state_key(key)))

    def one(self, entry: Entry, now: float, wall: float) -> bool:
        """`schedule`, of one that is looked up; its record is to be saved."""
        taken = False
        if not entry.flags & _DONT_FILTER and self.filters(entry, wall):
            self._ledger.counters.filtered += 1
            self._traps.was_known(entry.url)
        else:
            taken = self._take(entry, now, wall)
        if entry.mark:  # of one that is known already, too
            url_states.write_mark(self._store, entry)
            entry.mark = ""
        if not taken:
            self._let_go(entry, now)
        return taken

    def _take(self, entry: Entry, now: float, wall: float) -> bool:
        record = self._records.touch(entry.host)
        refusal = self._refusal(entry.host, record)
        if entry.volatile and self._routing is not None and not self._routing.owns(entry):
            refusal = Event.ELSEWHERE
        if refusal is None:
            if record.entered is None:
                record.entered = entry.depth
            self._traps.take(entry, record)
            self._ledger.take(entry, record)
            self._residents.push(entry, record, now, wall)
            return True
        self._ledger.conclude(entry, record, refusal, 0, wall)
        return False

    def sift(self, now: float, wall: float) -> Iterator[None]:
        """Make pending what a flush of the sieve has found new, some links with each step."""
        if self._ledger.sifter is None or not isinstance(self._store, RocksStore):
            return
        row = self._store.row

        def take(entry: Entry, new: bool) -> None:
            known = not new or row(entry.identity) is not None
            if known and not self._chances.give(entry, wall):
                self._ledger.counters.filtered += 1
                self._traps.was_known(entry.url)
            else:
                self._take(entry, now, wall)

        for _ in self._ledger.sifter.hand_out(take):
            self._records.save()
            self.relieve()
            yield

    def adopt(self, lease: Lease, entries: list[Entry], now: float, wall: float) -> None:
        """Take *entries*, the children of *lease*, with the commit of its page."""
        # Of a volatile page nothing is stored: what holds is the page on disk that led there.
        holder = lease.entry.holder if lease.entry.volatile else lease
        for entry in entries:
            if entry.volatile:
                entry.holder = holder
                if holder is not None:
                    holder.holds += 1
                self.schedule([entry], now, wall)
            else:
                lease.children.append(entry)
        lease.held_since = lease.held_since or now
        if len(lease.children) + len(lease.links) > _SPILL:
            self.spill(lease, now, wall)

    def spill(self, lease: Lease, now: float, wall: float) -> None:
        """Store the children of an unfinished page early: it has too many, or takes too long.

        Its links come last: of a request with a callback and a link to the same page the former
        is kept.
        """
        if lease.children:
            self.schedule(lease.take_children(), now, wall)
        if lease.links:
            page, policy = lease.entry, lease.referrer_policy
            way = LinkOrigin(page.depth + 1, page.url, referrer_policy=policy)
            self._take_links(way, lease.take_links(), now, wall)
        lease.held_since = None

    def _take_links(self, way: LinkOrigin, urls: list[str], now: float, wall: float) -> None:
        """Take the links of a page; of those that were met a moment ago nothing is made."""
        keys = keys_of(urls)
        if self._routing is not None:
            keys = self._routing.own_links(way, keys, anyway=self._gives_chances)
            urls = [url_of(key) for key in keys]
        if self._ledger.sifter is not None and self._ledger.sifter.active:
            self._offer(way, keys)
            return
        if not self._gives_chances:
            knows, freed = self._ledger.cache.knows, self._freed(keys)
            pairs = zip(urls, keys, strict=True)
            new = [url for url, key in pairs if key in freed or not knows(key)]
            self._ledger.counters.filtered += len(urls) - len(new)
            urls = new
        depth, referrer, policy = way.depth, way.referrer, way.referrer_policy
        entries = (
            Entry(host_of(url), url, depth=depth, referrer=referrer, referrer_policy=policy)
            for url in urls
        )
        self._look_up(entries, now, wall)

    def relieve(self) -> None:
        """Write a batch that has grown large; only where an operation ends (see `Unwritten`)."""
        if self._store.backlog > _BACKLOG:
            self._records.save()
            # The caller's next flush meets the same fault, and deals with it.
            with suppress(StoreWriteError):
                self._flush()
