"""How URLs come into the queue: looked up one by one, or, links of pages, through the sieve.

Also: known URLs that get a second try, and links that are read later than their page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.frontier.entries import Entry, Flag, host_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.runtime.event_loop import portions
from scrapy_spider_suite.store import url_states
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import HostRecord, UrlState, row_packer
from scrapy_spider_suite.store.seen_transfer import (
    LinkOrigin,
    entry_of,
    host_of_state_key,
    keys_of,
    url_of,
)
from scrapy_spider_suite.store.unread_pages import PageDemand, UnreadPage, UnreadPages
from scrapy_spider_suite.urls.normalize import host_of

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.queue.frontier import Frontier
    from scrapy_spider_suite.crawl.queue.leases import Fetch


class Router(Protocol):
    """Sends URLs that other agents own to them."""

    def keeps(self, entry: Entry, *, given: bool = False, anyway: bool = False) -> bool:
        """Whether *entry* stays here; if not, it is on its way to its owner.

        *given*: the entry came of no page, but of what this agent was given. *anyway*: send it
        although it was sent before.
        """

    def owns(self, entry: Entry) -> bool: ...

    def own_links(self, pages: Iterable[PageLinks], *, anyway: bool = False) -> list[PageLinks]:
        """The links of *pages* that stay here; the others are on their way."""


class RetryFailed:
    """A link to a URL that failed long ago may have it tried again (SUITE_RETRY_FAILED_AFTER).

    A URL that failed in a trap which turned out to be none is tried at once. Times are wall times.
    *retried*: URLs that were made pending so.
    """

    def __init__(self, frontier: Frontier) -> None:
        self.retried = 0
        self._frontier = frontier

    @property
    def by_age(self) -> bool:
        """Whether age alone makes a failed URL due, so that no cache may decide."""
        return bool(self._frontier.policy.retry_failed_after)

    def due(self, identity: bytes, wall: float) -> UrlState | None:
        policy = self._frontier.policy
        after = policy.retry_failed_after
        if not after:
            return None
        state = self._failed(identity)
        if state is None or wall - state.when < after:
            return None
        return state if state.event in policy.retry_failed else None

    def released(self, identity: bytes, url: str, host: str) -> UrlState | None:
        """The state of a URL that failed in a trap which turned out to be none."""
        traps = self._frontier.traps
        if host not in traps.reopened or traps.closed(url, host) is not None:
            return None
        state = self._failed(identity)
        return state if state is not None and state.event is Event.TRAP else None

    def _failed(self, identity: bytes) -> UrlState | None:
        data = self._frontier.store.state(identity)
        state = None if data is None else UrlState.from_bytes(data)
        return state if state is not None and state.state is State.FAILED else None

    def retry(self, entry: Entry, wall: float) -> bool:
        """Make the known *entry* new again; False if it is not due. Revives its host, if needed."""
        state = self.due(entry.identity, wall)
        state = state or self.released(entry.identity, entry.url, entry.host)
        if state is None:
            return False
        frontier = self._frontier
        record = frontier.residents.records.touch(entry.host)
        if record.dead == state.event == Event.HOST_DEAD:
            frontier.health.revive(entry.host, record)
        if frontier.admission.refusal(entry.host, record) is not None:
            return False
        frontier.states.uncount(entry.host, record, state)
        self.retried += 1
        return True


class PageCounter(Protocol):
    def concluded(self, fetch: Fetch, event: Event) -> None: ...
    def save(self) -> None: ...


class StoredPageLinks:
    """Keeps the pages whose links are to be read (*waiting*), and admits their links.

    *demand* chooses among these pages. *counting* counts each page: a stored one when its links are
    read, any other page at once.
    """

    def __init__(self, frontier: Frontier) -> None:
        self.counting: PageCounter | None = None
        self._frontier = frontier
        self.waiting = UnreadPages(frontier.store, frontier.counters)
        self.demand = PageDemand(self.waiting, frontier.residents.records.left)

    def concluded(self, fetch: Fetch, event: Event) -> None:
        if fetch.stored is None and self.counting is None and not self.waiting.count:
            return
        # Without a location it could not be written, and its host was given up.
        if fetch.stored is not None and fetch.stored.location is not None:
            self.waiting.add(fetch.entry, fetch.stored.to_bytes())
        elif self.counting is not None:
            self.counting.concluded(fetch, event)
        self.demand.host_shrank(fetch.entry.host)

    def finish(self, page: UnreadPage, fetch: Fetch, now: float) -> bool:
        """Admit the links of *fetch*, made for *page*; False if the page was dropped."""
        here, admission = page in self.waiting, self._frontier.admission
        if here:
            children = (each.host for each in fetch.children)
            self.demand.reading(page, chain(map(host_of, fetch.links), children))
            # The links come first: there may be so many that a batch is written in between.
            admission.spill([fetch], now)
            if self.counting is not None:
                self.counting.concluded(fetch, Event.SUCCESS)
            self.waiting.remove(page)
        self.demand.finish(page)
        admission.relieve()
        return here

    def give_up(
        self, page: UnreadPage, event: Event, wall: float, fetch: Fetch | None = None
    ) -> bool:
        """The links of *page* cannot be read: its URL ends with *event*.

        With a *fetch* the page is counted. False if the page was dropped meanwhile.
        """
        here, frontier = self.waiting.remove(page), self._frontier
        if here and fetch is not None and self.counting is not None:
            self.counting.concluded(fetch, event)
        self.demand.finish(page)
        data = frontier.store.state(page.entry.identity) if here else None
        if data is not None:
            state, entry = UrlState.from_bytes(data), page.entry
            if state.state is State.DONE and state.event is not event:
                record = frontier.residents.records.touch(entry.host)
                frontier.states.uncount(entry.host, record, state)
                frontier.states.conclude(entry, record, event, state.status, wall)
        return here

    def save(self) -> None:
        if self.counting is not None:
            self.counting.save()


_SPILL: Final = 1_000  # children of an unfinished page in memory; beyond it they are stored early
_BACKLOG: Final = 4_000  # operations that may wait for the next batch
_BATCH: Final = 1_000  # entries that are looked up together; of links up to twice as many
_NO_PREFIX: Final = b"\0\0\0"  # no host has such a key, whatever its slot
_UNLIKE_LINKS = Flag.DONT_FILTER | Flag.VOLATILE
"""Flags of entries that neither cache nor row decides about."""


class HostTerms(NamedTuple):
    """What holds for all new URLs of a host in a batch; *refusal*: why none is taken.

    *plain*: links need no entry. From *counts_from* pending URLs on they are counted in folders.
    """

    record: HostRecord
    refusal: Event | None
    plain: bool
    counts_from: float


class AdmissionBatch:
    """Makes those of some URLs pending that are new; decides once what depends on their hosts.

    *found* holds a state, or None, for each URL that may be new; all others are known.
    """

    def __init__(self, frontier: Frontier, found: dict[bytes, bytes | None], now: float) -> None:
        self._frontier = frontier
        self._found = found
        self._now = now
        self._wall = frontier.wall(now)
        self._hosts: dict[bytes, HostTerms] = {}
        by_age = frontier.admission.retry_failed.by_age
        self._retries = by_age or bool(frontier.traps.reopened)

    def add_entries(self, entries: list[Entry]) -> int:
        """Return how many were new."""
        new, found, states = 0, self._found, self._frontier.states
        counters = states.counters
        for entry in entries:
            unknown = found.pop(entry.identity, b"") is None
            if entry.flags & _UNLIKE_LINKS:
                unknown = bool(entry.flags & Flag.DONT_FILTER) or not states.known(entry.identity)
            counters.found += unknown
            if unknown or self._retry(entry):
                new += self._add(entry, self._terms(host_key(entry.host)))
            else:
                self._note_known(entry.url)
                self._frontier.commit.release_holder(entry, self._now)
            if entry.seed_note:  # of a seed that is known already, too
                url_states.write_seed_note(self._frontier.store, entry)
                entry.seed_note = ""
        return new

    def add_links(self, keys: list[bytes], origin: LinkOrigin) -> int:
        """Add the links with these state keys; return how many were new.

        An entry is made of a link only where it belongs into a front in memory, or is unusual.
        """
        found, states, residents = self._found, self._frontier.states, self._frontier.residents
        if not keys:
            return 0
        traps, permuted = self._frontier.traps, bool(self._frontier.policy.traps.permuted)
        pack = row_packer(entry_of(_NO_PREFIX, origin))
        new, unknown, prefix, host = 0, 0, _NO_PREFIX, ""
        for key in keys:
            if found.pop(key, b"") is None:
                unknown += 1
            elif not (self._retries and self._retry(entry_of(key, origin))):
                self._note_known(url_of(key))
                continue
            else:
                prefix = _NO_PREFIX  # its host may have been revived
            if not key.startswith(prefix):
                prefix = key[: key.index(b"\0", 2) + 1]
                host, terms = prefix[2:-1].decode(), self._terms(prefix)
            record = terms.record
            if not terms.plain:
                new += self._add(entry_of(key, origin), terms)
                continue
            new += 1
            if record.entered is None:
                record.entered = origin.depth
            if permuted and b"&" in key:
                traps.note_known(url_of(key))
            priority = origin.priority
            if record.pending >= terms.counts_from:
                priority -= traps.count_in_folders(url_of(key), host)
            row = pack(key[len(prefix) :], priority)
            order = states.add_link(key, prefix, record, row, priority)
            front = residents.host_for(host, order, record, self._now)
            if front is not None:
                entry = entry_of(key, origin)
                entry.key, entry.priority = order, priority
                residents.push_front(front, entry)
        states.counters.found += unknown
        return new

    def _add(self, entry: Entry, terms: HostTerms) -> bool:
        frontier, record, refusal = self._frontier, terms.record, terms.refusal
        router = frontier.admission.router
        if entry.volatile and router is not None and not router.owns(entry):
            refusal = Event.ELSEWHERE
        if refusal is not None:
            frontier.states.conclude(entry, record, refusal, 0, self._wall)
            frontier.commit.release_holder(entry, self._now)
            return False
        if record.entered is None:
            record.entered = entry.depth
        frontier.traps.admit(entry, record)
        frontier.states.add_pending(entry, record)
        frontier.residents.push(entry, record, self._now)
        return True

    def _terms(self, prefix: bytes) -> HostTerms:
        terms = self._hosts.get(prefix)
        if terms is None:
            frontier, host = self._frontier, prefix[2:-1].decode()
            record = frontier.residents.records.touch(host)
            refusal, traps = frontier.admission.refusal(host, record), frontier.traps
            plain = refusal is None and frontier.states.breadth_first and traps.admits_links(host)
            counts_from = traps.counts_from(host, record) if plain else math.inf
            terms = self._hosts[prefix] = HostTerms(record, refusal, plain, counts_from)
        return terms

    def _retry(self, entry: Entry) -> bool:
        if not self._retries or not self._frontier.admission.retry_failed.retry(entry, self._wall):
            return False
        self._hosts.clear()  # its host may have been revived
        return True

    def _note_known(self, url: str) -> None:
        self._frontier.counters.filtered += 1
        self._frontier.traps.note_known(url)


PageLinks = tuple[LinkOrigin, list[bytes]]
"""What the links of a page have in common, and their state keys."""


class Admission:
    """Makes new URLs pending; *router*: sends URLs to other agents, None without any."""

    def __init__(self, frontier: Frontier) -> None:
        self.router: Router | None = None
        self.retry_failed = RetryFailed(frontier)
        self._frontier = frontier
        self._store = frontier.store
        self._states = frontier.states

    def schedule(
        self, entries: Iterable[Entry], now: float, *, given: bool = False, came: bool = False
    ) -> int:
        """Make *entries* pending unless they are known; return how many were new.

        Not counted: links for the sieve, URLs of other agents. *given*: to every agent. *came*:
        from another agent.
        """
        if self.router is not None:
            anyway = came or self.retry_failed.by_age
            entries = filter(partial(self.router.keeps, given=given, anyway=anyway), entries)
        new = 0
        for origin, group in groupby(entries, self._sieve_origin):
            if origin is not None:
                self._offer(origin, [entry.identity for entry in group])
                continue
            while batch := list(islice(group, _BATCH)):
                plain = (entry.identity for entry in batch if not entry.flags & _UNLIKE_LINKS)
                found = self._states.find(plain)
                new += AdmissionBatch(self._frontier, found, now).add_entries(batch)
                self.relieve()
        return new

    def add_links(self, pages: list[PageLinks], now: float, *, came: bool = False) -> int:
        """`schedule` for the links of some pages."""
        anyway, queue = self.retry_failed.by_age, self._states.sieve_queue
        if (router := self.router) is not None:
            pages = router.own_links(pages, anyway=anyway or came)
        if queue is not None and queue.active:
            for origin, keys in pages:
                self._offer(origin, keys)
            return 0
        new, parts = 0, [
            (origin, keys[start : start + _BATCH])
            for origin, keys in pages for start in range(0, len(keys), _BATCH)
        ]  # fmt: skip
        for portion in portions(parts, lambda part: len(part[1]), _BATCH):
            found = self._states.find(chain.from_iterable([keys for _, keys in portion]))
            batch = AdmissionBatch(self._frontier, found, now)
            for origin, keys in portion:
                if not (anyway or self._frontier.traps.reopened):
                    # Of links that were met a moment ago nothing more is asked.
                    met, keys = len(keys), [key for key in keys if key in found]
                    self._states.counters.filtered += met - len(keys)
                new += batch.add_links(keys, origin)
            self.relieve()
        return new

    def _sieve_origin(self, entry: Entry) -> LinkOrigin | None:
        """What the sieve keeps of *entry*; None if it is looked up at once: more than a link, or
        the target of a redirect.
        """
        queue = self._states.sieve_queue
        if queue is None or not queue.active:
            return None
        more = entry.flags or entry.hops or entry.attempts or entry.payload is not None
        if more or not entry.referrer:
            return None
        return LinkOrigin(
            entry.depth, entry.referrer, entry.priority, entry.hops_outside, entry.referrer_policy
        )

    def _offer(self, origin: LinkOrigin, keys: list[bytes]) -> None:
        queue = self._states.sieve_queue
        if queue is None:
            return
        if released := self._released(keys):
            queue.offer(origin, list(released), anyway=True)
            keys = [key for key in keys if key not in released]
        queue.offer(origin, keys, anyway=self.retry_failed.by_age)

    def _released(self, keys: list[bytes]) -> dict[bytes, None]:
        # The cache knows these links, and they are wanted all the same.
        if not self._frontier.traps.reopened:
            return {}
        found = self.retry_failed.released
        return dict.fromkeys(key for key in keys if found(key, url_of(key), host_of_state_key(key)))

    def refusal(self, host: str, record: HostRecord, address: str = "") -> Event | None:
        """Why no URL of *host* is to be fetched any more; None if URLs may be fetched."""
        if record.dead:
            return Event(record.dead)
        policy, domains = self._frontier.policy, self._states.domains
        budget = policy.max_pages(host, address)
        if budget and record.done >= budget:
            return Event.BUDGET
        if policy.domain_max_pages and domains.get(host).pages >= policy.domain_max_pages:
            return Event.DOMAIN_BUDGET
        hosts = 0 if record.counted else policy.domain_max_hosts
        return Event.DOMAIN_HOSTS if hosts and domains.get(host).hosts >= hosts else None

    def sift(self, now: float) -> Iterator[None]:
        """Make pending what a flush of the sieve found new, some links with each step."""
        queue, store = self._states.sieve_queue, self._store
        if queue is None or not isinstance(store, RocksStore):
            return

        def add(origin: LinkOrigin, keys: list[bytes], new: list[bytes]) -> None:
            found = dict(zip(new, store.find_states(new, sieved=False), strict=True))
            AdmissionBatch(self._frontier, found, now).add_links(keys, origin)

        for _ in queue.hand_out(add):
            self.relieve()
            yield

    def adopt(
        self, fetch: Fetch | None, entries: list[Entry], now: float, *, given: bool = False
    ) -> None:
        """Admit *entries*, the children of *fetch*, with the commit of its page; without a fetch or
        a durable store at once.
        """
        if fetch is None or not self._store.durable:
            self.schedule(entries, now, given=given and fetch is None)
            return
        # Of a volatile page nothing is stored: its children hold the page on disk that led there.
        holder = fetch.entry.holder if fetch.entry.volatile else fetch
        for entry in entries:
            if entry.volatile:
                entry.holder = holder
                if holder is not None:
                    holder.holds += 1
                self.schedule([entry], now)
            else:
                fetch.children.append(entry)
        fetch.held_since = fetch.held_since or now
        if len(fetch.children) + len(fetch.links) > _SPILL:
            self.spill([fetch], now)

    def spill(self, fetches: Iterable[Fetch], now: float) -> None:
        """Store the children of pages; an unfinished page may have too many, or wait too long.

        Links come last: of a request with a callback and a link to the same page the request is
        kept.
        """
        pages, links = [], list[str]()
        for fetch in fetches:
            fetch.held_since = None
            if fetch.children:
                self.schedule(fetch.take_children(), now)
            if fetch.links:
                page, policy = fetch.entry, fetch.referrer_policy
                origin = LinkOrigin(page.depth + 1, page.url, referrer_policy=policy)
                pages.append((origin, len(fetch.links)))
                links += fetch.links
                fetch.links = []
        if pages:
            keys = iter(keys_of(links))
            self.add_links([(origin, list(islice(keys, count))) for origin, count in pages], now)

    def relieve(self) -> None:
        """Write a batch that has grown large.

        Only where an operation ends (see `PendingWrites`).
        """
        if self._store.backlog > _BACKLOG:
            # The caller's next flush meets the same fault, and deals with it.
            with suppress(StoreWriteError):
                self._frontier.flush()
