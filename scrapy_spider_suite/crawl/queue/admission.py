"""How URLs come into the queue: looked up one by one, or, links of pages, through the sieve.

Also: known URLs that get a second try, and links that are read later than their page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final, Protocol

from scrapy_spider_suite.errors import StoreWriteError
from scrapy_spider_suite.frontier.entries import Entry, Flag
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.store import url_states
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import HostRecord, UrlState
from scrapy_spider_suite.store.seen_transfer import LinkOrigin, host_of_state_key, keys_of, url_of
from scrapy_spider_suite.store.unread_pages import PageDemand, UnreadPage, UnreadPages
from scrapy_spider_suite.urls.normalize import host_of

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.queue.frontier import Frontier
    from scrapy_spider_suite.crawl.queue.leases import Lease


class Router(Protocol):
    """Sends URLs that other agents own to them."""

    def keeps(self, entry: Entry, *, given: bool = False, anyway: bool = False) -> bool:
        """Whether *entry* stays here; if not, it is on its way to its owner.

        *given*: the entry came of no page, but of what this agent was given. *anyway*: send it
        although it was sent before.
        """

    def owns(self, entry: Entry) -> bool: ...

    def own_links(self, way: LinkOrigin, keys: list[bytes], *, anyway: bool = False) -> list[bytes]:
        """The state keys of links that stay here; the others are on their way."""


class RetryFailed:
    """A link to a URL that failed long ago may have it tried again (SUITE_RETRY_FAILED_AFTER).

    A URL that failed in a trap which turned out to be none is tried at once. Times are wall times.

    Attributes:
        retried: URLs that were made pending so.
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
    def concluded(self, lease: Lease, event: Event) -> None: ...
    def save(self) -> None: ...


class StoredPageLinks:
    """Keeps the pages whose links are to be read, and admits their links.

    Attributes:
        waiting: those pages.
        demand: chooses among them.
        counting: counts each page; a page whose links come later when they are read.
    """

    def __init__(self, frontier: Frontier) -> None:
        self.counting: PageCounter | None = None
        self._frontier = frontier
        self.waiting = UnreadPages(frontier.store, frontier.counters)
        self.demand = PageDemand(self.waiting, frontier.residents.records.left)

    def concluded(self, lease: Lease, event: Event) -> None:
        place = b""
        if lease.stored is not None:
            with suppress(ValueError):  # it could not be written, and its host was given up
                place = lease.stored.to_bytes()
        if place:
            self.waiting.add(lease.entry, place)
        elif self.counting is not None:
            self.counting.concluded(lease, event)
        self.demand.host_shrank(lease.entry.host)

    def finish(self, page: UnreadPage, lease: Lease, now: float) -> bool:
        """Admit the links of *lease*, made for *page*; False if the page was dropped."""
        here, admission = page in self.waiting, self._frontier.admission
        if here:
            children = (each.host for each in lease.children)
            self.demand.reading(page, chain(map(host_of, lease.links), children))
            # The links come first: there may be so many that a batch is written in between.
            admission.spill(lease, now)
            if self.counting is not None:
                self.counting.concluded(lease, Event.SUCCESS)
            self.waiting.remove(page)
        self.demand.finish(page)
        admission.relieve()
        return here

    def give_up(
        self, page: UnreadPage, event: Event, wall: float, lease: Lease | None = None
    ) -> bool:
        """The links of *page* cannot be read: its URL ends with *event*.

        With a *lease* the page is counted. False if the page was dropped meanwhile.
        """
        here, frontier = self.waiting.remove(page), self._frontier
        if here and lease is not None and self.counting is not None:
            self.counting.concluded(lease, event)
        self.demand.finish(page)
        data = frontier.store.state(page.entry.identity) if here else None
        if data is not None:
            state, entry = UrlState.from_bytes(data), page.entry
            if state.state is State.DONE and state.event is not event:
                record = frontier.residents.records.touch(entry.host)
                frontier.states.uncount(entry.host, record, state)
                frontier.states.conclude(entry, record, event, state.status, wall)
                frontier.residents.records.save()
        return here

    def save(self) -> None:
        if self.counting is not None:
            self.counting.save()


_SPILL: Final = 1_000
"""Children of an unfinished page in memory; beyond it they are stored early."""
_BACKLOG: Final = 10_000
"""Operations that may wait for the next batch."""
# A plain integer: operators of flags are Python code.
_DONT_FILTER = int(Flag.DONT_FILTER)


class Admission:
    """Makes new URLs pending.

    Attributes:
        router: sends URLs to other agents; None: there are no other agents.
        retry_failed: gives known URLs a second try.
    """

    def __init__(self, frontier: Frontier) -> None:
        self.router: Router | None = None
        self.retry_failed = RetryFailed(frontier)
        self._frontier = frontier
        self._store = frontier.store
        self._records = frontier.residents.records
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
        return self._look_up(entries, now)

    def _look_up(self, entries: Iterable[Entry], now: float) -> int:
        new = 0
        for origin, group in groupby(entries, self._sieve_origin):
            if origin is not None:
                self._offer(origin, [entry.identity for entry in group])
                continue
            for entry in group:
                new += self._admit_unless_known(entry, now)
                self.relieve()
        self._records.save()
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

    def _admit_unless_known(self, entry: Entry, now: float) -> bool:
        wall = self._frontier.wall(now)
        taken = False
        if (
            not entry.flags & _DONT_FILTER
            and self._states.known(entry.identity)
            and not self.retry_failed.retry(entry, wall)
        ):
            self._states.counters.filtered += 1
            self._frontier.traps.note_known(entry.url)
        else:
            taken = self._admit(entry, now, wall)
        if entry.seed_note:  # of a seed that is known already, too
            url_states.write_seed_note(self._store, entry)
            entry.seed_note = ""
        if not taken:
            self._frontier.commit.release_holder(entry, now)
        return taken

    def _admit(self, entry: Entry, now: float, wall: float) -> bool:
        record = self._records.touch(entry.host)
        refusal = self.refusal(entry.host, record)
        if entry.volatile and self.router is not None and not self.router.owns(entry):
            refusal = Event.ELSEWHERE
        if refusal is None:
            if record.entered is None:
                record.entered = entry.depth
            self._frontier.traps.admit(entry, record)
            self._states.add_pending(entry, record)
            self._frontier.residents.push(entry, record, now)
            return True
        self._states.conclude(entry, record, refusal, 0, wall)
        return False

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
        queue = self._states.sieve_queue
        if queue is None or not isinstance(self._store, RocksStore):
            return
        row, wall = self._store.row, self._frontier.wall(now)

        def admit(entry: Entry, new: bool) -> None:
            known = not new or row(entry.identity) is not None
            if known and not self.retry_failed.retry(entry, wall):
                self._states.counters.filtered += 1
                self._frontier.traps.note_known(entry.url)
            else:
                self._admit(entry, now, wall)

        for _ in queue.hand_out(admit):
            self._records.save()
            self.relieve()
            yield

    def adopt(
        self, lease: Lease | None, entries: list[Entry], now: float, *, given: bool = False
    ) -> None:
        """Admit *entries*, the children of *lease*, with the commit of its page; without a lease or
        a durable store at once.
        """
        if lease is None or not self._store.durable:
            self.schedule(entries, now, given=given and lease is None)
            return
        # Of a volatile page nothing is stored: its children hold the page on disk that led there.
        holder = lease.entry.holder if lease.entry.volatile else lease
        for entry in entries:
            if entry.volatile:
                entry.holder = holder
                if holder is not None:
                    holder.holds += 1
                self.schedule([entry], now)
            else:
                lease.children.append(entry)
        lease.held_since = lease.held_since or now
        if len(lease.children) + len(lease.links) > _SPILL:
            self.spill(lease, now)

    def spill(self, lease: Lease, now: float) -> None:
        """Store the children of a page, which may be unfinished: too many, or held too long.

        Links come last: of a request with a callback and a link to the same page the request is
        kept.
        """
        if lease.children:
            self.schedule(lease.take_children(), now)
        if lease.links:
            page, policy = lease.entry, lease.referrer_policy
            origin = LinkOrigin(page.depth + 1, page.url, referrer_policy=policy)
            links, lease.links = lease.links, []
            self._admit_links(origin, links, now)
        lease.held_since = None

    def _admit_links(self, origin: LinkOrigin, urls: list[str], now: float) -> None:
        # No entry is made of a link that was met a moment ago.
        states, keys, by_age = self._states, keys_of(urls), self.retry_failed.by_age
        if self.router is not None:
            keys = self.router.own_links(origin, keys, anyway=by_age)
            urls = [url_of(key) for key in keys]
        if states.sieve_queue is not None and states.sieve_queue.active:
            self._offer(origin, keys)
            return
        if not by_age:
            knows, released = states.cache.knows, self._released(keys)
            pairs = zip(urls, keys, strict=True)
            new = [url for url, key in pairs if key in released or not knows(key)]
            states.counters.filtered += len(urls) - len(new)
            urls = new
        depth, referrer, policy = origin.depth, origin.referrer, origin.referrer_policy
        entries = (
            Entry(host_of(url), url, depth=depth, referrer=referrer, referrer_policy=policy)
            for url in urls
        )
        self._look_up(entries, now)

    def relieve(self) -> None:
        """Write a batch that has grown large.

        Only where an operation ends (see `PendingWrites`).
        """
        if self._store.backlog > _BACKLOG:
            self._records.save()
            # The caller's next flush meets the same fault, and deals with it.
            with suppress(StoreWriteError):
                self._frontier.flush()
