"""The sending side of a hand-over: all rows of the hosts of some units, into a file.

Order: the router knows the new owner, the units are held back, `HostDump.pack`; then
`HostDump.forget` once the receiver keeps the file, or `HostDump.keep` if it is called off.

With a sieve, URLs that are done and have no row go as fingerprints. Fingerprints begin with their
slot, the unit. The sieve is drained first; fingerprints are forgotten before rows.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import msgpack  # type: ignore[import-untyped]
import numpy as np

from scrapy_spider_suite.cluster.handover.handover_context import HandoverContext, Steps
from scrapy_spider_suite.cluster.handover.handover_file import (
    HandoverLabel,
    HandoverWriter,
    Item,
    ItemKind,
    Mask,
    UnitSet,
    unpack_units,
)
from scrapy_spider_suite.crawl.queue.traps import page_rows, unpack
from scrapy_spider_suite.crawl.robots import is_row, later_row
from scrapy_spider_suite.errors import CodecError
from scrapy_spider_suite.frontier.entries import LAST, Entry, host_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.frontier.revisit_rules import Validators
from scrapy_spider_suite.seen import fingerprints
from scrapy_spider_suite.seen.fingerprints import Rows
from scrapy_spider_suite.seen.sieve import Sieve
from scrapy_spider_suite.store.request_codec import merge_cookies
from scrapy_spider_suite.store.revisit_plans import UNPACKED, RevisitPlan
from scrapy_spider_suite.store.rows import PENDING, HostRecord, UrlState, pack_row
from scrapy_spider_suite.store.seen_index import DONE_200, SieveIndex
from scrapy_spider_suite.store.seen_transfer import archived, bring_back, while_locked
from scrapy_spider_suite.store.value_codec import ValueCodec
from scrapy_spider_suite.urls.hosts import registered_domain
from scrapy_spider_suite.urls.normalize import host_of

DUMPED: Final = b"g"
ROWS: Final = 100  # rows of a portion: some milliseconds
PIECE: Final = 1 << 17  # fingerprints compared with rows at a time: 2 MiB
REQUEST_KEY: Final = b"\xff"  # begins, behind the host's key, keys of requests by fingerprint
PLAN: Final = b"p"  # begins the key of a revisit plan
_RANGES: Final = 50
_PRINTS: Final = 1 << 10  # fingerprints of an item
_KEYS: Final = 500  # state keys of a portion: some milliseconds


# Other rows of a host, and the merge of two values


class KeyedBy(Enum):
    """What a key is, or begins with, behind the prefix of its kind."""

    IDENTITY = auto()
    HOST = auto()
    HOST_AND_PAGE = auto()
    ORIGIN = auto()
    DOMAIN = auto()


Merge = Callable[[bytes | None, bytes], bytes | None]
"""Returns the new value of the own and the other agent's value; None: no change.

Raises anything for an invalid value.
"""
_MOST: Final = 1e12  # exclusive bound of counts and wall times


class RowKind(NamedTuple):
    """Rows of a mapping that go."""

    by: KeyedBy
    merge: Merge
    prefix: bytes = b""  # of the keys


def _first(mine: bytes | None, theirs: bytes) -> bytes | None:
    return theirs if mine is None else None


def _longer(mine: bytes | None, theirs: bytes) -> bytes | None:
    theirs.decode()
    return theirs if len(theirs) > len(mine or b"") else None


def _word(mine: bytes | None, theirs: bytes) -> bytes | None:
    theirs.decode()
    return _first(mine, theirs)


def _greater(mine: bytes | None, theirs: bytes) -> bytes | None:
    struct.unpack(">I", theirs)
    return theirs if mine is None or theirs > mine else None


def _plan(mine: bytes | None, theirs: bytes) -> bytes | None:
    plan = RevisitPlan.from_bytes(theirs)
    plan.entry()
    history, tags, packed = plan.history, plan.validators, plan.packed or UNPACKED
    headers = tags.etag.encode("latin-1"), tags.last_modified.encode("latin-1")
    if tags != Validators.from_headers(*headers):
        raise ValueError("a plan of a page that its server cannot be asked by")
    numbers = (plan.misses, plan.due, history.last, history.quiet, history.dated, packed.when)
    if not all(0.0 <= number < _MOST for number in numbers):
        raise ValueError("a plan of a page with numbers beyond all bounds")
    if not all(0.0 < number < _MOST for number in (plan.rate, *history.changed)):
        raise ValueError("a plan of a page that never changes, or always")
    return _first(mine, theirs)


def _traps(mine: bytes | None, theirs: bytes) -> bytes | None:
    ground = unpack("", theirs)
    counts = [count for each in ground.counts.values() for count in each.values()]
    if max((ground.mined, *map(abs, counts))) >= _MOST or ground.mined < 0:
        raise ValueError("what is known of traps with counts beyond all bounds")
    return _first(mine, theirs)


def _session_url(mine: bytes | None, theirs: bytes) -> bytes | None:
    struct.unpack(">Q", theirs)
    return _first(mine, theirs)


def _claims(mine: bytes | None, theirs: bytes) -> bytes | None:
    made, true = map(float, msgpack.unpackb(theirs))
    if not (0.0 <= true < _MOST and 0.0 <= made < _MOST):
        raise ValueError("claims beyond all bounds")
    return theirs if made >= true and mine is None else None


def _robots(mine: bytes | None, theirs: bytes) -> bytes | None:
    if not is_row(theirs):
        raise ValueError("no row of robots.txt")
    return theirs if mine is None or later_row(theirs, mine) else None


_WHEN: Final = struct.Struct(">d")


def pack_jar(when: float, packed: bytes) -> bytes:
    """The cookies of a jar, and *when* they changed last (seconds since the epoch, 0: unknown)."""
    return _WHEN.pack(when) + packed


def unpack_jar(data: bytes) -> tuple[float, bytes]:
    """What `pack_jar` packed. Raises `ValueError`, `struct.error`."""
    (when,) = _WHEN.unpack_from(data)
    if not 0.0 <= when < _MOST:
        raise ValueError("cookies that changed beyond all bounds")
    return when, data[_WHEN.size :]


def _cookies(mine: bytes | None, theirs: bytes) -> bytes | None:
    packed = merge_cookies(mine, unpack_jar(theirs)[1])
    return packed if packed != mine else None


COOKIES: Final = b"host\0"  # prefix of the cookie rows that go

TRANSFERRED: Final = {  # the mappings that go, with their kinds of rows
    "cookies": (RowKind(KeyedBy.DOMAIN, _cookies, COOKIES),),
    "lastmod": (RowKind(KeyedBy.IDENTITY, _greater),),
    "robots": (RowKind(KeyedBy.ORIGIN, _robots),),
    "seeds": (RowKind(KeyedBy.IDENTITY, _longer),),
    "sitemaps": (RowKind(KeyedBy.IDENTITY, _word),),
    "sitemap_counts": (RowKind(KeyedBy.HOST, _greater),),
    "revisits": (RowKind(KeyedBy.IDENTITY, _plan, b"p"), RowKind(KeyedBy.HOST, _claims, b"c")),
    "traps": (RowKind(KeyedBy.HOST, _traps), RowKind(KeyedBy.HOST_AND_PAGE, _session_url)),
}


def kind_of_row(name: str, key: bytes, host: str) -> RowKind | None:
    for kind in TRANSFERRED.get(name, ()):
        if key.startswith(kind.prefix) and _belongs(kind.by, key[len(kind.prefix) :], host):
            return kind
    return None


def _belongs(by: KeyedBy, rest: bytes, host: str) -> bool:
    match by:
        case KeyedBy.IDENTITY:
            return rest.startswith(host_key(host)) and len(rest) > len(host_key(host))
        case KeyedBy.HOST:
            return rest == host.encode()
        case KeyedBy.HOST_AND_PAGE:
            return rest.startswith(page_rows(host))
        case KeyedBy.ORIGIN:
            return b"://" in rest and host_of(robots_origin(rest)) == host
        case KeyedBy.DOMAIN:
            return cookie_domain(rest) == registered_domain(host)


def robots_origin(key: bytes) -> str:
    """Return the origin of a robots.txt row, behind its bucket byte."""
    return key[1:].decode() + "/"


_values = ValueCodec()


def cookie_domain(key: bytes) -> str:
    """Return the domain of a cookie row without prefix; "" if invalid."""
    with suppress(CodecError, TypeError):
        match _values.loads(key):
            case tuple([jar, str(domain)]):
                hash(jar)  # a list, for one, is no key
                return domain
    return ""


def item_weight(item: Item, sieved: SieveIndex | None) -> int:
    return len(item[2]) // sieved.width if item[0] == ItemKind.PRINTS and sieved is not None else 1


class HostDump:
    """Writes the rows of *units* to a file, then forgets or keeps them; *counts* items by kind.

    Raises `JobError`: see `HandoverContext.refuse_sieve`.
    """

    def __init__(self, context: HandoverContext, units: UnitSet) -> None:
        context.refuse_sieve(units)
        self._context = context
        self._store, self._records = context.store, context.records
        self._units = units
        self.counts: Counter[int] = Counter()  # of items, by kind

    # Packing

    def pack(self, path: Path, label: HandoverLabel) -> Steps:
        """Write all rows of the units to *path*, which exists once it is whole.

        Raises `OSError` and the store's errors; then call it again, or `keep`.
        """
        self._context.kv.put(DUMPED + label.file_id.encode(), label.units)
        # Not synced: after a kill the file is checked before use.
        new = path.with_name(f"{path.name}.new")
        with HandoverWriter(new, label) as writer:
            for count, item in enumerate(self.items(), 1):
                if isinstance(item, bool):
                    yield item
                    continue
                self.counts[item[0]] += item_weight(item, self._store.sieve)
                if writer.put(item) or not count % ROWS:
                    yield False
        new.replace(path)

    def items(self) -> Iterator[Item | bool]:
        """The rows of the units; a flag between portions, as of a step."""
        if self._store.sieve is not None:
            yield from self._context.drain_sieve(self._units.numbers)
            yield [ItemKind.SIEVE, "", self._store.sieve.width * 8]
            for dropped, times in self._store.sieve.dropped.items():
                if self._units.has_host(dropped):
                    yield [ItemKind.DROPPED, dropped, times]
        jars = self._jars()
        for host in self.hosts():
            if host is None:
                yield False
                continue
            yield from self._host_items(host)
            yield from self._cookie_items(jars, host)
        if self._store.sieve is not None:
            yield from self._fingerprints(self._store.sieve)
        yield from self._robots()
        now, wall = self._context.clock()
        for key, address in list(self._context.workbench.addresses.items()):
            if address.next_fetch > now:
                yield [ItemKind.CLOCK, key, address.next_fetch - now + wall]

    def _jars(self) -> dict[str, Sequence[tuple[Hashable, str]]]:
        """The keys of cookie jars by domain."""
        if (running := self._context.cookies()) is not None:
            return dict(running.by_domain())
        jars = defaultdict[str, list[tuple[Hashable, str]]](list)
        for key, _ in self._store.kv("cookies").items(COOKIES):
            if domain := cookie_domain(key[len(COOKIES) :]):
                jars[domain].append(_values.loads(key[len(COOKIES) :]))
        return dict(jars)

    def _cookie_items(
        self, jars: dict[str, Sequence[tuple[Hashable, str]]], host: str
    ) -> Iterator[Item]:
        """The rows of *jars* of the domain of *host*, once."""
        running, kv = self._context.cookies(), self._store.kv("cookies")
        for jar in jars.pop(registered_domain(host), ()):
            try:
                key = COOKIES + _values.dumps(jar)
            except CodecError:  # such a jar is not kept over a restart, either
                continue
            when, packed = 0.0, kv.get(key)
            if running is not None:
                when, packed = running.row(jar) or (0.0, None)
            if packed is not None:
                yield [ItemKind.KEPT, host, "cookies", key, pack_jar(when, packed)]

    def hosts(self) -> Iterator[str | None]:
        """Yield the hosts of the units; None between portions."""
        for count, (begin, end) in enumerate(self._units.prefixes(), 1):
            after = begin
            while portion := list(islice(self._store.records(after, end), ROWS)):
                for host, _ in portion:
                    if self._units.has_host(host):
                        yield host
                after = host_key(portion[-1][0]) + b"\0"
                yield None
            if not count % _RANGES:
                yield None

    def _host_items(self, host: str) -> Iterator[Item | bool]:
        if self._units.by_host:
            while not self.park(host):
                yield True
        record = self._records.current(host)
        yield [ItemKind.HOST, host, record.to_bytes()]
        yield from self._rows(host, record)
        for portion in self._states(host):
            for name, state in portion:
                if state.state is not State.PENDING:
                    yield [ItemKind.STATE, host, name, state.to_bytes()]
            yield False
        for name in archived(self._store, host):
            if self._units.by_host or self._units.has(host, name.decode()):
                yield [ItemKind.STATE, host, name, DONE_200]
        for rows in self._kept(host):
            yield from ([ItemKind.KEPT, host, *row] for row in rows)
            yield False

    def park(self, host: str) -> bool:
        """Move all of *host* to disk, where it is not admitted; False: not yet.

        Leased entries return first; volatile entries fail.
        """
        context, (now, wall) = self._context, self._context.clock()
        context.trap_stats.save()
        resident = context.workbench.hosts.get(host)
        if host in context.health.given_up or context.residents.fronts.leased(host):
            return False
        record = self._records.touch(host)
        if resident is not None:
            if not resident.idle():
                return False
            for _, entry in [item for item in resident.front if item[1].volatile]:
                context.residents.fronts.remove(resident, entry)
                context.health.fail(entry, Event.ELSEWHERE, now)
            clock = resident.next_fetch - now + wall, resident.why
            context.residents.leave(resident, now)
            context.waiting.leave(host, record)
            # The clock of an exclusion would hide when the host was visited.
            record.next_fetch, record.why = clock
        context.waiting.leave(host, record)
        return True

    def _rows(self, host: str, record: HostRecord) -> Iterator[Item | bool]:
        after = record.head
        while rows := self._store.rows(host, after, ROWS):
            for entry in rows:
                if self._units.has(host, entry.url):
                    leased = self._context.residents.fronts.is_leased(entry)
                    if leased and not self._context.foreign.counts_as_leased(entry):
                        yield True  # the lease ends by a retry or a result
                        break
                    state = self._pending_state(host, entry)
                    yield [ItemKind.ROW, host, pack_row(entry), state, entry.key.startswith(LAST)]
                after = entry.key

    def _pending_state(self, host: str, entry: Entry) -> bytes:
        """Return the packed state of *entry*, made pending: a file holds a row or a state."""
        data = self._store.state(entry.identity)
        if data is None:
            return PENDING
        state = UrlState.from_bytes(data)
        if state.state is not State.PENDING:
            self._context.states.uncount(host, self._records.touch(host), state)
            data = replace(state, state=State.PENDING).to_bytes()
            self._store.put_state(entry.identity, data)
        return data

    def _states(self, host: str) -> Iterator[list[tuple[bytes, UrlState]]]:
        after = b""
        while portion := list(islice(self._store.states(host_key(host), after), ROWS)):
            found = [(name, UrlState.from_bytes(data)) for name, data in portion]
            yield [each for each in found if self._goes(host, each[0], each[1].url)]
            after = portion[-1][0]

    def _goes(self, host: str, name: bytes, url: str = "") -> bool:
        if self._units.by_host:
            return True
        if not url and name.startswith(REQUEST_KEY):
            return False  # the URL of the request is not known
        return self._units.has(host, url or name.decode("utf-8", "replace"))

    def _kept(self, host: str) -> Iterator[list[tuple[str, bytes, bytes]]]:
        """Yield portions of the other rows of *host* that go: mapping, key, value."""
        for name, kind in ((name, kind) for name, kinds in TRANSFERRED.items() for kind in kinds):
            if kind.by in (KeyedBy.DOMAIN, KeyedBy.ORIGIN):
                continue  # its key does not begin with the host
            kv = self._store.kv(name)
            if kind.by is KeyedBy.HOST:
                key = kind.prefix + host.encode()
                value = kv.get(key)
                yield [] if value is None else [(name, key, value)]
                continue
            by_identity = kind.by is KeyedBy.IDENTITY
            begin, since = kind.prefix + (host_key if by_identity else page_rows)(host), b""
            while portion := list(islice(kv.items(begin, since), ROWS)):
                rows = ((name, key, value) for key, value in portion)
                yield [row for row in rows if not by_identity or self._is_kept(host, begin, row)]
                since = portion[-1][0][len(begin) :] + b"\0"

    def _is_kept(self, host: str, begin: bytes, row: tuple[str, bytes, bytes]) -> bool:
        name, key, value = row
        url = ""
        if not self._units.by_host and key.startswith(REQUEST_KEY, len(begin)):
            if name == "revisits":
                url = RevisitPlan.from_bytes(value).entry().url
            elif name == "seeds":
                url = value.partition(b"\n")[0].decode("utf-8", "replace")
        return self._goes(host, key[len(begin) :], url)

    def _robots(self) -> Iterator[Item | bool]:
        kv, since = self._store.kv("robots"), b""
        while portion := list(islice(kv.items(since=since), ROWS)):
            for key, value in portion:
                host = host_of(robots_origin(key))
                if self._units.has_host(host):
                    yield [ItemKind.KEPT, host, "robots", key, value]
            since = portion[-1][0] + b"\0"
            yield False

    def _fingerprints(self, sieved: SieveIndex) -> Iterator[Item | bool]:
        """Yield fingerprints without a row, once all hosts of the units stand still."""
        slots, sieve = fingerprints.mask_of(self._units.numbers), sieved.sieve
        for low, high in list(sieve.parts.spans(slots, PIECE)):
            read = list[Rows]()
            yield from self._context.with_sieve_locked(
                sieved, partial(_read, sieve, slots, low, high, read)
            )
            (rows,) = read
            left = np.ones(len(rows), np.bool_)
            yield False
            for known in self._fingerprints_of_rows(sieved, low >> 48, (high - 1 >> 48) + 1):
                hit, places = fingerprints.find_rows(rows, known)
                left[places[hit]] = False
                yield False
            data, step = fingerprints.bytes_of(rows[left]), _PRINTS * sieved.width
            for at in range(0, len(data), step):
                yield [ItemKind.PRINTS, "", data[at : at + step]]

    def _fingerprints_of_rows(self, sieved: SieveIndex, first: int, end: int) -> Iterator[Rows]:
        for begin, stop in self._units.prefixes(first, end):
            after = begin
            while keys := [
                key for key, _ in islice(self._store.states(b"", after), _KEYS) if key < stop
            ]:
                yield fingerprints.rows_of(sieved.prints(keys), sieved.width)
                after = keys[-1]

    # After the transfer

    def keep(self, file_id: str) -> Steps:
        """Let the hosts wait here again: the file is called off."""
        context = self._context
        for host in self.hosts():
            if host is None:
                yield False
                continue
            record = self._records.get(host)
            if record.pending and record.due is None:
                context.waiting.add(host, record, context.clock()[1])
                self._store.put_record(host, record)
        self._finish(file_id)

    def forget(self, file_id: str) -> Steps:
        """Delete all rows once the receiver keeps the file; idempotent.

        Robots.txt and cookies stay: they are bounded, and other hosts of a site use them.
        """
        if self._store.sieve is not None:  # before rows: a URL without both is new again
            slots, sieve = fingerprints.mask_of(self._units.numbers), self._store.sieve.sieve
            yield from self._context.with_sieve_locked(
                self._store.sieve, lambda: sieve.removing(slots)
            )
        for host in self.hosts():
            if host is None:
                yield False
            else:
                yield from self._forget_urls(host)
        self._forget_seen()
        self._finish(file_id)

    def _forget_seen(self) -> None:
        self._context.states.cache.clear()

    def _finish(self, file_id: str) -> None:
        self._context.kv.delete(DUMPED + file_id.encode())
        self._context.flush()

    def _forget_urls(self, host: str) -> Iterator[bool]:
        if not self._units.by_host:
            # The archive removes whole hosts: URLs that stay get rows until the archive takes them.
            for waits in while_locked(self._store.archive, bring_back(self._store, host)):
                self._context.flush()
                yield waits
        yield from self._forget_rows(host)
        yield from self._forget_kept(host)
        prefix = host_key(host)
        for portion in self._states(host):
            for name, state in portion:
                if state.state is State.PENDING:
                    self._store.put_state(prefix + name, None)
                    self._context.states.forget(prefix + name)
                else:
                    self._context.edits.forget_state(host, name, state)
            yield False
        left = next(self._store.states(prefix), None)
        if self._units.by_host or (left is None and not self._records.get(host).pending):
            yield from self._forget_host(host)

    def _forget_rows(self, host: str) -> Iterator[bool]:
        after = self._records.current(host).head
        while entries := self._store.rows(host, after, ROWS):
            for entry in entries:
                if self._units.has(host, entry.url):
                    self._context.foreign.release(entry)
                    if not self._context.edits.forget(entry):
                        yield True
                        break
                after = entry.key
            yield False

    def _forget_kept(self, host: str) -> Iterator[bool]:
        for portion in self._kept(host):
            for name, key, _ in portion:
                if name == "revisits" and key.startswith(PLAN):
                    self._context.plans.forget(key[len(PLAN) :])
                elif name != "traps":
                    self._store.kv(name).delete(key)
            yield False

    def _forget_host(self, host: str) -> Iterator[bool]:
        archive, context = self._store.archive, self._context
        if archive is not None:  # before the record, which a kill would leave
            context.flush()
            while archive.behind or archive.urls.poll():
                yield True
            archive.remove(host)
        counters = context.states.counters
        while True:
            record = self._records.get(host)
            done, dead = record.done, record.dead
            counted = counters.events.get(Event.SUCCESS, 0)
            if context.edits.forget_host(host, context.clock()[0]):
                break
            yield True
        # Archived URLs had no rows to count down.
        if counted > done:
            counters.events[Event.SUCCESS] = counted - done
        else:
            counters.events.pop(Event.SUCCESS, None)
        counters.dead_hosts -= dead == Event.HOST_DEAD.value
        context.trap_stats.forget(host)
        yield False


def _read(
    sieve: Sieve, slots: Mask, low: int, high: int, into: list[Rows]
) -> Generator[None, None, None]:
    pieces = list[Rows]()
    for rows in sieve.parts.rows(slots, low, high):
        pieces.append(rows)
        yield
    into.append(fingerprints.merge_rows(fingerprints.no_rows(sieve.parts.words), *pieces))


def unfinished_dumps(context: HandoverContext) -> dict[str, Mask]:
    rows = context.kv.items(DUMPED)
    return {key[len(DUMPED) :].decode(): unpack_units(units) for key, units in rows}
