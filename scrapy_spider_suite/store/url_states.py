"""Which URL is pending, done or failed; notes on seeds and sitemaps."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from scrapy_spider_suite.frontier.entries import (
    BREADTH_FIRST,
    Entry,
    Flag,
    Order,
    last_key,
    order_key,
)
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.seen.fingerprint_cache import FingerprintCache
from scrapy_spider_suite.store.counters import Counters, DomainCounts
from scrapy_spider_suite.store.rocks_store import RocksStore, Store
from scrapy_spider_suite.store.rows import PENDING, HostRecord, UrlState, pack_state
from scrapy_spider_suite.store.seen_transfer import SieveQueue
from scrapy_spider_suite.urls.normalize import host_of, normalize

_FAMILY = "seeds"
_GUESSED = "?"


@dataclass(frozen=True, slots=True)
class SeedRow:
    url: str
    tag: str
    state: UrlState | None


def note_seed(store: Store, entry: Entry) -> None:
    kv = store.kv(_FAMILY)
    if kv.get(entry.identity) is None:
        kv.put(entry.identity, _row(entry.url, ""))


def make_seed_note(tag: str, *, guessed: bool) -> str:
    """The mark of an entry whose seed has a *tag*, or whose scheme was *guessed*."""
    return f"{tag}\n{_GUESSED if guessed else ''}".rstrip("\n")


def is_seed_note(text: str) -> bool:
    tag, guessed = _parts(text)
    return text == make_seed_note(tag, guessed=guessed)


def write_seed_note(store: Store, entry: Entry) -> None:
    """Write the note of *entry* in the next batch; the first tag stays."""
    kv = store.kv(_FAMILY)
    _, tag, guessed = _read(kv.get(entry.identity) or b"")
    new, guessed_now = _parts(entry.seed_note)
    mark = make_seed_note(tag or new, guessed=guessed or guessed_now)
    kv.put(entry.identity, _row(entry.url, mark))


def seed_tag(store: Store, identity: bytes) -> str | None:
    """The tag of a seed, "" without one; None for a URL that is no seed."""
    value = store.kv(_FAMILY).get(identity)
    return None if value is None else _read(value)[1]


def seeds(store: Store) -> Iterator[SeedRow]:
    for identity, value in store.kv(_FAMILY).items():
        url, tag, _ = _read(value)
        state = store.state(identity)
        yield SeedRow(url, tag, None if state is None else UrlState.from_bytes(state))


def _row(url: str, mark: str) -> bytes:
    return (f"{url}\n{mark}" if mark else url).encode()


def _read(value: bytes) -> tuple[str, str, bool]:
    url, _, mark = value.decode("utf-8", "replace").partition("\n")
    return url, *_parts(mark)


def _parts(mark: str) -> tuple[str, bool]:
    tag, _, guess = mark.partition("\n")
    return tag, guess == _GUESSED


NO_ANSWER = frozenset({Event.REFUSED, Event.TIMEOUT, Event.CONNECTION_LOST})


class SchemeGuesses:
    """Finds seeds whose scheme was guessed wrong. `entry_of` makes the entry of a seed."""

    def __init__(self, store: Store) -> None:
        self.entry_of: Callable[[str], Entry] = lambda url: Entry(
            host_of(url), url, flags=Flag.START
        )
        self._store = store

    def is_wrong(self, entry: Entry, event: Event) -> bool:
        """Whether *event* shows that https was the wrong guess for *entry*."""
        if event not in NO_ANSWER or not entry.url.startswith("https:"):
            return False
        return _read(self._store.kv(_FAMILY).get(entry.identity) or b"")[2]

    def other_scheme(self, entry: Entry) -> Entry:
        """The same page by http, with the tag of *entry*."""
        url = f"http:{entry.url.removeprefix('https:')}"
        other = self.entry_of(normalize(url) or url)  # without its port, if that is 80
        other.seed_note = make_seed_note(seed_tag(self._store, entry.identity) or "", guessed=False)
        return other

    def settle(self, entry: Entry) -> None:
        """The other scheme was scheduled: nothing of *entry* is guessed now."""
        kv = self._store.kv(_FAMILY)
        url, tag, _ = _read(kv.get(entry.identity) or b"")
        kv.put(entry.identity, _row(url, make_seed_note(tag, guessed=False)))


EndListener = Callable[[bytes, Event | None, int, float], None]
"""Hears how a URL ended: key, event (None: it was forgotten), status, wall time."""


class UrlStates:
    """Writes rows and states of entries into the store's next batch, and counts them.

    States of volatile entries are written with the page that led there. An earlier *done* would
    hide their children after a kill. Times are wall times.
    """

    def __init__(
        self, store: Store, counters: Counters, order: Order = BREADTH_FIRST, cache: int = 0
    ) -> None:
        self.counters = counters
        self.cache = FingerprintCache(cache)
        self.domains = DomainCounts(store)
        self.volatile = 0  # volatile entries that are pending
        self.sieve_queue: SieveQueue | None = None
        self.on_refused: Callable[[bytes, float], None] | None = None
        self.on_ended: EndListener | None = None
        self.breadth_first = order is BREADTH_FIRST
        self._store = store
        self._order = order
        self._volatile_known: set[bytes] = set()

    def use_sieve(self, *, active: bool) -> None:
        """Send links through the store's sieve, if it has one, or no longer."""
        if self.sieve_queue is None:
            store = self._store
            if isinstance(store, RocksStore) and store.sieve is not None:
                self.sieve_queue = SieveQueue(
                    store, store.sieve, self.cache, self.counters, active=active
                )
        else:
            self.sieve_queue.active = active

    @property
    def in_sieve(self) -> int:
        return 0 if self.sieve_queue is None else self.sieve_queue.waiting

    def known(self, identity: bytes) -> bool:
        """Whether the URL with this state key was ever taken or refused."""
        if self.cache.knows(identity) or identity in self._volatile_known:
            return True
        if self._store.state(identity) is None:
            return False
        self.cache.add(identity)
        return True

    def find(self, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """The packed states (None: new) of the URLs that the cache did not know until now."""
        new = self.cache.new(keys)
        if not new:
            return {}
        found = dict(zip(new, self._store.find_states(new), strict=True))
        if self._volatile_known:
            return {key: found[key] for key in found if key not in self._volatile_known}
        return found

    def forget(self, identity: bytes) -> None:
        self.cache.forget(identity)
        self._volatile_known.discard(identity)
        if self.on_ended is not None:
            self.on_ended(identity, None, 0, 0.0)

    def add_pending(self, entry: Entry, record: HostRecord) -> None:
        if not record.counted:
            self._count_host(entry.host, record)
        if entry.volatile:
            self._volatile_known.add(entry.identity)
        else:
            self._store.put_state(entry.identity, PENDING)
            if entry.flags & Flag.START and self._store.durable:
                note_seed(self._store, entry)
        self._count_pending(entry, record)
        self._give_key(entry, record.head)

    def add_link(
        self, key: bytes, prefix: bytes, record: HostRecord, row: bytes, priority: int
    ) -> bytes:
        """`add_pending`, breadth first, for a link with these keys; returns its order key."""
        if not record.counted:
            self._count_host(prefix[2:-1].decode(), record)
        record.pending += 1
        counters = self.counters
        counters.pending += 1
        counters.sequence += 1
        order = order_key(priority, counters.sequence)
        self._store.put_link(key, prefix, order, row)
        return order

    def _count_host(self, host: str, record: HostRecord) -> None:
        record.counted = True
        self.domains.count(host, hosts=1)

    def requeue(self, entry: Entry, event: Event, status: int, wall: float) -> None:
        """Queue *entry*, tried once more in vain, behind its host's other URLs."""
        if not entry.volatile:
            self._store.delete_row(entry.host, entry.key)
        self.note_pending(entry, event, status, wall)
        self.counters.retried += 1
        self._give_key(entry, b"", tried=True)

    def note_pending(self, entry: Entry, event: Event, status: int, wall: float) -> None:
        self.counters.endings[event] += 1
        if not entry.volatile:
            state = _state_of(entry, State.PENDING, event, status, wall)
            self._store.put_state(entry.identity, state)

    def conclude(
        self, entry: Entry, record: HostRecord, event: Event, status: int, wall: float
    ) -> None:
        state = State.DONE if event.outcome.state is State.DONE else State.FAILED
        self._count_end(entry.host, record, state, event)
        self.counters.endings[event] += 1
        self.counters.failures += state is State.FAILED
        if self.on_ended is not None:
            self.on_ended(entry.identity, event, status, wall)
        last = _state_of(entry, state, event, status, wall)
        if not entry.volatile:
            self._end(entry.identity, last)
        elif entry.holder is not None:
            entry.holder.states.append((entry.identity, last))

    def _end(self, key: bytes, state: bytes) -> None:
        if self.sieve_queue is not None and self.sieve_queue.concluded(key, state):
            self._store.put_state(key, None)
        else:
            self._store.put_state(key, state)

    def count_done(self, host: str, record: HostRecord, number: int) -> None:
        record.done += number
        self.counters.done += number
        self.domains.count(host, pages=number)
        events = self.counters.events
        events[Event.SUCCESS] = events.get(Event.SUCCESS, 0) + number

    def refuse(self, entry: Entry, record: HostRecord, event: Event, wall: float) -> None:
        self.conclude(entry, record, event, 0, wall)
        if self.on_refused is not None:
            self.on_refused(entry.identity, wall)

    def uncount(self, host: str, record: HostRecord, state: UrlState) -> None:
        name = state.state.value
        if state.state is State.PENDING or state.event is None:
            return
        # A kill may leave too low a count; a negative one cannot be written.
        for counts in (record, self.counters):
            setattr(counts, name, max(0, getattr(counts, name) - 1))
        if state.state is State.DONE:
            self.domains.count(host, pages=-1)
        events = self.counters.events
        events[state.event] = events.get(state.event, 0) - 1
        if not events[state.event]:
            del events[state.event]

    def import_pending(
        self, entry: Entry, record: HostRecord, state: bytes, *, last: bool = False
    ) -> None:
        """Write another agent's pending *entry* with its packed *state*, behind what is there."""
        self._store.put_state(entry.identity, state)
        self._count_pending(entry, record)
        self._give_key(entry, record.head, tried=entry.attempts > 0, last=last)

    def import_state(self, key: bytes, host: str, record: HostRecord, state: UrlState) -> None:
        self._end(key, state.to_bytes())
        if state.event is not None:
            self._count_end(host, record, state.state, state.event)

    def remove(self, entry: Entry, record: HostRecord) -> None:
        if entry.volatile:
            self.volatile -= 1
            return
        record.pending -= 1
        self.counters.pending -= 1
        self._store.delete_row(entry.host, entry.key)

    def move(self, entry: Entry, record: HostRecord, *, last: bool = False) -> None:
        """Give a pending *entry* the place of its priority of now, or the *last* one."""
        if not entry.volatile:
            self._store.delete_row(entry.host, entry.key)
        self._give_key(entry, record.head, last=last)

    def write_states(self, states: list[tuple[bytes, bytes]]) -> None:
        """Write the last states of the volatile entries of a page that is done."""
        for identity, state in states:
            self._store.put_state(identity, state)
            self._volatile_known.discard(identity)

    def _give_key(
        self, entry: Entry, head: bytes, *, tried: bool = False, last: bool = False
    ) -> None:
        self.counters.sequence += 1
        number = self.counters.sequence
        entry.key = last_key(number) if last else self._order.key(entry, number, head, tried=tried)
        if not entry.volatile:
            self._store.put_row(entry)

    def _count_end(self, host: str, record: HostRecord, state: State, event: Event) -> None:
        if state is State.DONE:
            record.done += 1
            self.counters.done += 1
            self.domains.count(host, pages=1)
        else:
            record.failed += 1
            self.counters.failed += 1
        self.counters.events[event] = self.counters.events.get(event, 0) + 1

    def _count_pending(self, entry: Entry, record: HostRecord) -> None:
        if entry.volatile:
            self.volatile += 1
        else:
            record.pending += 1
            self.counters.pending += 1


def _state_of(entry: Entry, state: State, event: Event, status: int, wall: float) -> bytes:
    url = entry.url if entry.payload is not None else ""
    # The fetch log knows the referrer of an answered URL.
    via = entry.referrer if state is State.FAILED and not status else ""
    return pack_state(state, event, entry.attempts, status, int(wall), url, via, entry.depth)


_LASTMOD, _SITEMAPS, _COUNTS = "lastmod", "sitemaps", "sitemap_counts"
_NUMBER = struct.Struct(">I")


def note_lastmod(store: Store, identity: bytes, when: int) -> None:
    """Note in the next batch that a page changed at *when* (wall seconds, 1970 to 2105)."""
    store.kv(_LASTMOD).put(identity, _NUMBER.pack(when))


def lastmod(store: Store, identity: bytes) -> int | None:
    """When a page changed, by the last sitemap that said so; None if none did."""
    return _read_number(store.kv(_LASTMOD).get(identity))


def note_sitemap(store: Store, identity: bytes, voucher: str) -> None:
    store.kv(_SITEMAPS).put(identity, voucher.encode())


def voucher_of_sitemap(store: Store, identity: bytes) -> str | None:
    row = store.kv(_SITEMAPS).get(identity)
    return None if row is None else row.decode()


def voucher_count(store: Store, host: str) -> int:
    return _read_number(store.kv(_COUNTS).get(host.encode())) or 0


def write_voucher_count(store: Store, host: str, number: int) -> None:
    store.kv(_COUNTS).put(host.encode(), _NUMBER.pack(number))


def _read_number(row: bytes | None) -> int | None:
    return None if row is None or len(row) != _NUMBER.size else int(_NUMBER.unpack(row)[0])


def forget_url(store: Store, identity: bytes) -> None:
    store.kv(_LASTMOD).delete(identity)
    store.kv(_SITEMAPS).delete(identity)


def forget_host(store: Store, host: str) -> None:
    store.kv(_COUNTS).delete(host.encode())
