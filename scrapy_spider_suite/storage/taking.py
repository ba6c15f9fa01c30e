"""The side of a hand-over that takes: what another agent has given, checked, then merged.

Whatever comes for the units meanwhile is stored as ever; `Holding` keeps it from being fetched
until all is here. So URLs may be known on both sides: the further state counts (done, failed,
pending), of two that are pending that of the giver, who knew it first; later clocks count.

Each portion is one batch with the place in the file that it ends at. So a kill in the middle leaves
half of it, known to be that, and merging goes on there; once it is done, merging does nothing.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack  # type: ignore[import-untyped]

from scrapy_spider_suite.errors import JobDamagedError, ParcelError
from scrapy_spider_suite.frontier.entries import sequence_of
from scrapy_spider_suite.frontier.keys import host_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.storage.archive import ARCHIVED
from scrapy_spider_suite.storage.clocks import LATEST, NEVER, wait_of
from scrapy_spider_suite.storage.families import BAD, part_of
from scrapy_spider_suite.storage.giving import NAME, ROWS
from scrapy_spider_suite.storage.grounds import unpack
from scrapy_spider_suite.storage.hands import Hands
from scrapy_spider_suite.storage.parcels import (
    CLOCK,
    DROPPED,
    HOST,
    KEPT,
    PRINTS,
    ROW,
    SIEVE,
    STATE,
    Item,
    Label,
    Reader,
)
from scrapy_spider_suite.storage.plans import Plan
from scrapy_spider_suite.storage.printed import Taken, refuse_sieve, weight
from scrapy_spider_suite.storage.records import HostRecord, UrlState, unpack_row
from scrapy_spider_suite.storage.settling import Clock, Steps
from scrapy_spider_suite.storage.strangers import unpack_strange
from scrapy_spider_suite.storage.units import Units, unpacked
from scrapy_spider_suite.storage.waiting import RESIDENT

_TAKEN, _TWICE = b"t", b"d"
_SEQUENCE: Final = struct.Struct(">Q")
_RANK: Final = {State.PENDING: 0, State.FAILED: 1, State.DONE: 2}
_END: Final = -1
_ATTEMPTS: Final = 1 << 31
"""Of a host, at most: those of two agents are added up in four bytes."""


def _check_record(record: HostRecord) -> None:
    """Raise `ValueError` for numbers that are beyond all that an agent writes."""
    sane = record.next_fetch <= NEVER and 0.0 <= record.crawl_delay < LATEST
    if not (sane and record.attempts <= _ATTEMPTS):
        raise ValueError("a host's row with numbers beyond all bounds")


class Place(NamedTuple):
    """How far a parcel is taken: the chunk to go on with, and how many of its items are."""

    at: int
    items: int


class Taking:
    """Takes the parcel at *path*, which *label* says is to come, into the frontier of *hands*.

    Attributes:
        counts: how many items of each kind were merged.
    """

    def __init__(
        self, hands: Hands, units: Units, clock: Clock, path: Path, label: Label
    ) -> None:  # fmt: skip
        refuse_sieve(hands, units)
        self._printed = Taken(hands, units, clock)
        self._hands = hands
        self._store = hands.store
        self._records = hands.residents.records
        self._units = units
        self._clock = clock
        self._path = path
        self._label = label
        self._kv = hands.store.kv(NAME)
        self.counts: Counter[int] = Counter()

    @property
    def done(self) -> bool:
        """Whether all of it is here, on disk: the giver may forget it."""
        place = self._place(0)
        return place.at == _END

    def take(self) -> Steps:
        """Check the file, all of it, then merge it. Raises `ParcelError`: nothing was changed."""
        if not self.done:
            with Reader(self._path) as reader:
                if self._kv.get(self._key) is None:
                    yield from self._check(reader)
                yield from self._merge(reader)
                yield from self._drop_twice()
                yield from self._printed.finish(reader)
            self._note(Place(_END, 0))
            self._hands.flush()

    # Where

    @property
    def _key(self) -> bytes:
        return _TAKEN + self._label.parcel.encode()

    def _place(self, first: int) -> Place:
        data = self._kv.get(self._key)
        try:
            return Place(first, 0) if data is None else Place(*map(int, msgpack.unpackb(data)))
        except (ValueError, TypeError) as error:
            raise JobDamagedError(f"how far a parcel is taken cannot be read ({error})") from error

    def _note(self, place: Place) -> None:
        self._kv.put(self._key, msgpack.packb(place))

    # Checking

    def _check(self, reader: Reader) -> Iterator[bool]:
        if reader.label != self._label or unpacked(self._label.units) != self._units.numbers:
            raise ParcelError(f"{self._path} is another parcel than was offered")
        for items, at in reader.chunks():
            for count, item in enumerate(items, 1):
                try:
                    self._check_item(*item)
                except BAD as error:
                    why = " ".join(str(error).split())[:200]
                    raise ParcelError(f"{self._path}, before byte {at}: {why}") from error
                if not count % ROWS:
                    yield False
            yield False

    def _check_item(self, kind: int, host: str, *rest: Any) -> None:
        """Raises one of `BAD` unless that is an item, of a host of the units."""
        if kind == CLOCK:
            (wall,) = rest
            if not (isinstance(host, str) and -LATEST < wall < 1e12):
                raise ValueError("no clock of an address")
            return
        if kind in (SIEVE, PRINTS) and host == "":
            self._printed.check(kind, host, rest)
            return
        if not isinstance(host, str) or "\0" in host or not self._units.has_host(host):
            raise ValueError(f"{str(host)[:100]!r} is no host of what was to be handed over")
        if kind == HOST:
            _check_record(HostRecord.from_bytes(*rest))
        elif kind == ROW:
            row, state, last = rest
            if UrlState.from_bytes(state).state is not State.PENDING or type(last) is not bool:
                raise ValueError("a URL that is not pending")
            self._check_url(host, unpack_strange(host, row).url)
        elif kind == STATE:
            name, state = rest
            known = UrlState.from_bytes(state)
            if known.state is State.PENDING or type(name) is not bytes or not name:
                raise ValueError("a URL that is neither done nor failed")
            self._check_url(host, known.url or name.decode("utf-8", "replace"), name)
        elif kind == KEPT:
            name, key, value = rest
            part = part_of(name, key, host)
            if part is None or type(value) is not bytes:
                raise ValueError(f"no row of {str(name)[:100]!r} that goes with {host!r}")
            part.merge(None, value)
        elif kind == DROPPED:
            self._printed.check(kind, host, rest)
        else:
            raise ValueError(f"no item has the number {kind!r}")

    def _check_url(self, host: str, url: str, name: bytes = b"") -> None:
        if not self._units.by_host and name[:1] != b"\xff" and not self._units.has(host, url):
            raise ValueError(f"{url[:200]!r} lies in no unit that was to be handed over")

    # Merging

    def _merge(self, reader: Reader) -> Iterator[bool]:
        place = self._place(reader.first)
        items, end = reader.chunk(place.at)
        while items:
            yield from self._printed.relieve()
            portion = items[place.items : place.items + ROWS]
            for item in portion:
                self._take(item)
                self.counts[item[0]] += weight(item, self._printed.width)
            self._records.save()
            place = Place(place.at, place.items + ROWS)
            if place.items >= len(items):
                place = Place(end, 0)
                items, end = reader.chunk(end)
            self._note(place)
            yield False

    def _take(self, item: Item) -> None:
        kind, host, *rest = item
        if kind == HOST:
            self._take_host(host, HostRecord.from_bytes(rest[0]))
        elif kind == ROW:
            self._take_row(host, *rest)
        elif kind == STATE:
            self._take_state(host, host_key(host) + rest[0], UrlState.from_bytes(rest[1]))
        elif kind == KEPT:
            self._take_kept(host, *rest)
        elif kind != CLOCK:
            self._printed.take(kind, host, *rest)
        else:
            now, wall = self._clock()
            self._hands.residents.clocks.not_before(host, now + min(rest[0] - wall, LATEST))

    def _take_host(self, host: str, theirs: HostRecord) -> None:
        now, wall = self._clock()
        record, hands = self._records.touch(host), self._hands
        record.failures = max(record.failures, theirs.failures)
        record.crawl_delay = theirs.crawl_delay or record.crawl_delay
        resident = hands.workbench.hosts.get(host)
        if resident is not None:
            hands.residents.set_crawl_delay(resident)
            wait = wait_of(theirs, resident.gap(), wall)
            hands.workbench.postpone(resident, now + wait, theirs.why)
        elif theirs.next_fetch > record.next_fetch:
            record.next_fetch, record.why = theirs.next_fetch, theirs.why
            if record.due is not None and record.due != RESIDENT:
                hands.residents.waiting.leave(host, record)
                hands.residents.waiting.add(host, record, wall)
        if theirs.counted and not record.counted:
            record.counted = True
            hands.ledger.domains.count(host, hosts=1)
        if self._units.by_host:
            record.attempts += theirs.attempts
            if theirs.dead and not record.dead:
                record.dead = theirs.dead
                hands.ledger.counters.dead_hosts += theirs.dead == Event.HOST_DEAD.value

    def _known(self, key: bytes) -> bytes | None:
        """What is known of a URL here, also by its fingerprint."""
        row = self._store.row(key)
        return ARCHIVED if row is None and self._printed.knows(key) else row

    def _take_row(self, host: str, row: bytes, packed: bytes, last: bool) -> None:
        entry = unpack_row(host, b"", row)
        mine = self._known(entry.identity)
        if mine is not None:
            if UrlState.from_bytes(mine).state is not State.PENDING:
                return
            self._twice(entry.identity)
        now, wall = self._clock()
        record = self._records.touch(host)
        self._hands.ledger.take_over(entry, record, packed, last=last)
        self._hands.residents.push(entry, record, now, wall)

    def _take_state(self, host: str, key: bytes, theirs: UrlState) -> None:
        record, data = self._records.touch(host), self._known(key)
        if data is not None:
            mine = UrlState.from_bytes(data)
            if _RANK[mine.state] >= _RANK[theirs.state]:
                return
            if mine.state is State.PENDING:
                self._twice(key)
            self._hands.ledger.take_back(host, record, mine)
        self._hands.ledger.take_over_state(key, host, record, theirs)

    def _take_kept(self, host: str, name: str, key: bytes, value: bytes) -> None:
        if name == "revisits" and key[:1] == b"p":
            data = self._store.row(key[1:])
            waits = data is None or UrlState.from_bytes(data).state is not State.PENDING
            self._hands.revisits.take_over(key[1:], Plan.from_bytes(value), waits=waits)
        elif name == "traps" and key == host.encode():
            if self._hands.grounds.get(host) is None:
                self._hands.grounds.change(host, unpack(host, value))
                self._hands.grounds.save()
        else:
            kv, part = self._store.kv(name), part_of(name, key, host)
            kept = None if part is None else part.merge(kv.get(key), value)
            if kept is not None:
                kv.put(key, kept)

    # What was pending here, too

    def _twice(self, key: bytes) -> None:
        """The row that a URL has in its queue here is to go, once all is merged."""
        self._kv.put(_TWICE + key, _SEQUENCE.pack(self._hands.ledger.counters.sequence))

    def _drop_twice(self) -> Iterator[bool]:
        while (first := next(self._kv.items(_TWICE), None)) is not None:
            prefix = first[0][: first[0].index(b"\0", len(_TWICE) + 2) + 1]
            yield from self._drop_of_host(prefix[len(_TWICE) + 2 : -1].decode())
            while rows := list(islice(self._kv.items(prefix), ROWS)):
                for key, _ in rows:
                    self._kv.delete(key)
                yield False

    def _drop_of_host(self, host: str) -> Iterator[bool]:
        after = self._records.of(host).head
        while entries := self._store.rows(host, after, ROWS):
            for entry in entries:
                until = self._kv.get(_TWICE + entry.identity)
                if until is not None and sequence_of(entry.key) <= _SEQUENCE.unpack(until)[0]:
                    self._hands.holding.let_go(entry)
                    self._hands.rework.take_out(entry)
                after = entry.key
            yield False
