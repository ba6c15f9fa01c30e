"""The sending side of a hand-over: all rows of the hosts of some units, into a file.

Order: the router knows the new owner, the units are held back, `HostDump.pack`; then
`DumpSettlement.forget` once the receiver keeps the file, or `keep` if it is called off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from scrapy_spider_suite.cluster.handover.fingerprints import FingerprintDump, item_weight
from scrapy_spider_suite.cluster.handover.handover_context import (
    HandoverContext,
    Steps,
    refuse_sieve,
)
from scrapy_spider_suite.cluster.handover.handover_file import (
    CLOCK,
    HOST,
    KEPT,
    ROW,
    STATE,
    HandoverLabel,
    HandoverWriter,
    Item,
    UnitSet,
    unpack_units,
)
from scrapy_spider_suite.cluster.handover.row_kinds import (
    TRANSFERRED,
    KeyedBy,
    cookie_domain,
    kinds_by_host,
    robots_origin,
)
from scrapy_spider_suite.crawl.queue.traps import page_rows
from scrapy_spider_suite.frontier.entries import LAST, Entry, host_key
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.store.revisit_plans import RevisitPlan
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import PENDING, HostRecord, UrlState, pack_row
from scrapy_spider_suite.store.seen_index import DONE_200
from scrapy_spider_suite.store.seen_transfer import archived, bring_back, while_locked
from scrapy_spider_suite.urls.hosts import registered_domain
from scrapy_spider_suite.urls.normalize import host_of

MAPPING: Final = "handover"
"""The mapping of a store that lists dumps and progress of loads."""
DUMPED: Final = b"g"
ROWS: Final = 100
"""Rows of a portion: some milliseconds."""
_RANGES: Final = 50
REQUEST_KEY: Final = b"\xff"
"""Begins, behind the host's key, the state keys of requests known by fingerprint."""


class HostDump:
    """Writes the rows of *units* to a file. Raises `JobError`: see `refuse_sieve`.

    Attributes:
        counts: packed items by kind.
        printed: the part in the sieve.
    """

    def __init__(self, context: HandoverContext, units: UnitSet) -> None:
        refuse_sieve(context, units)
        self.printed = FingerprintDump(context, units)
        self._context = context
        self._store = context.store
        self._records = context.residents.records
        self._units = units
        self._kv = context.store.kv(MAPPING)
        self.counts: Counter[int] = Counter()

    # Packing

    def pack(self, path: Path, label: HandoverLabel) -> Steps:
        """Write all rows of the units to *path*, which exists once it is whole.

        Raises `OSError` and the store's errors; then call it again, or `keep`.
        """
        self._kv.put(DUMPED + label.file_id.encode(), label.units)
        # It need not be on the medium: who finds it after a kill looks whether it is whole.
        new = path.with_name(f"{path.name}.new")
        with HandoverWriter(new, label) as writer:
            for count, item in enumerate(self._items(), 1):
                if isinstance(item, bool):
                    yield item
                    continue
                self.counts[item[0]] += item_weight(item, self.printed.width)
                if writer.put(item) or not count % ROWS:
                    yield False
        new.replace(path)

    def _items(self) -> Iterator[Item | bool]:
        yield from self.printed.begin()
        jars = self._jars()
        for host in self.hosts():
            if host is None:
                yield False
                continue
            yield from self._of_host(host)
            for jar in jars.pop(registered_domain(host), ()):
                value = self._store.kv("cookies").get(jar)
                if value is not None:
                    yield [KEPT, host, "cookies", jar, value]
        yield from self.printed.done()
        yield from self._robots()
        now, wall = self._context.clock()
        for key, address in list(self._context.workbench.addresses.items()):
            if address.next_fetch > now:
                yield [CLOCK, key, address.next_fetch - now + wall]

    def _jars(self) -> dict[str, list[bytes]]:
        jars: dict[str, list[bytes]] = {}
        prefix = TRANSFERRED["cookies"].prefix
        for key, _ in self._store.kv("cookies").items(prefix):
            jars.setdefault(cookie_domain(key[len(prefix) :]), []).append(key)
        return jars

    def hosts(self) -> Iterator[str | None]:
        """Yield the hosts of the units; None between portions."""
        for count, (begin, end) in enumerate(self._units.prefixes(), 1):
            after = begin
            while portion := list(islice(self._store.hosts_between(after, end), ROWS)):
                for host in portion:
                    if self._units.has_host(host):
                        yield host
                after = host_key(portion[-1]) + b"\0"
                yield None
            if not count % _RANGES:
                yield None

    def _of_host(self, host: str) -> Iterator[Item | bool]:
        if self._units.by_host:
            while not self.park(host):
                yield True
        record = self._records.get(host)
        yield [HOST, host, record.to_bytes()]
        yield from self._rows(host, record)
        yield from self._states(host)
        yield from self._kept(host)

    def park(self, host: str) -> bool:
        """Move all of *host* to disk, where it is not admitted; False: not yet.

        Leased entries return first; volatile entries fail.
        """
        context, (now, wall) = self._context, self._context.clock()
        context.trap_stats.save()
        resident = context.workbench.hosts.get(host)
        if context.health.given_up(host) or context.residents.fronts.leased(host):
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
            context.residents.waiting.leave(host, record)
            # That of an exclusion would hide when the host was visited.
            record.next_fetch, record.why = clock
        context.residents.waiting.leave(host, record)
        self._records.save()
        return True

    def _rows(self, host: str, record: HostRecord) -> Iterator[Item | bool]:
        after = record.head
        while rows := self._store.rows(host, after, ROWS):
            for entry in rows:
                if self._units.has(host, entry.url):
                    leased = self._context.residents.fronts.is_leased(entry)
                    if leased and not self._context.foreign.counts_as_leased(entry):
                        yield True  # it comes back, or is done
                        break
                    state = self._waiting(host, entry)
                    yield [ROW, host, pack_row(entry), state, entry.key.startswith(LAST)]
                after = entry.key

    def _waiting(self, host: str, entry: Entry) -> bytes:
        """Return the packed state of *entry*, made pending: a file holds a row or a state."""
        data = self._store.state(entry.identity)
        if data is None:
            return PENDING
        state = UrlState.from_bytes(data)
        if state.state is not State.PENDING:
            self._context.states.uncount(host, self._records.touch(host), state)
            data = replace(state, state=State.PENDING).to_bytes()
            self._store.put_state(entry.identity, data)
            self._records.save()
        return data

    def _states(self, host: str) -> Iterator[Item | bool]:
        for portion in self.states(host):
            for name, state in portion:
                if state.state is not State.PENDING:
                    yield [STATE, host, name, state.to_bytes()]
            yield False
        for name in archived(self._store, host):
            if self._units.by_host or self._units.has(host, name.decode()):
                yield [STATE, host, name, DONE_200]

    def states(self, host: str) -> Iterator[list[tuple[bytes, UrlState]]]:
        """Yield portions of the state rows of *host* that go, by the key behind the host's."""
        after = b""
        while portion := list(islice(self._store.states(host_key(host), after), ROWS)):
            found = [(name, UrlState.from_bytes(data)) for name, data in portion]
            yield [each for each in found if self._goes(host, each[0], each[1].url)]
            after = portion[-1][0]

    def _goes(self, host: str, name: bytes, url: str = "") -> bool:
        if self._units.by_host:
            return True
        if not url and name.startswith(REQUEST_KEY):
            return False  # nothing says which one it is
        return self._units.has(host, url or name.decode("utf-8", "replace"))

    def _kept(self, host: str) -> Iterator[Item | bool]:
        for portion in self.kept(host):
            yield from ([KEPT, host, *row] for row in portion)
            yield False

    def kept(self, host: str) -> Iterator[list[tuple[str, bytes, bytes]]]:
        """Yield portions of the other rows of *host* that go: mapping, key, value."""
        for name, part in kinds_by_host():
            kv = self._store.kv(name)
            if part.by is KeyedBy.HOST:
                key = part.prefix + host.encode()
                value = kv.get(key)
                yield [] if value is None else [(name, key, value)]
                if name != "traps":
                    continue
            by_identity = part.by is KeyedBy.IDENTITY
            begin, since = part.prefix + (host_key if by_identity else page_rows)(host), b""
            while portion := list(islice(kv.items(begin, since), ROWS)):
                rows = ((name, key, value) for key, value in portion)
                yield [
                    row
                    for row in rows
                    if part.by is KeyedBy.HOST or self._is_kept(host, begin, row)
                ]
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
                    yield [KEPT, host, "robots", key, value]
            since = portion[-1][0] + b"\0"
            yield False


def unfinished_dumps(store: RocksStore) -> dict[str, frozenset[int]]:
    """Return the units of each file that was neither forgotten nor kept."""
    rows = store.kv(MAPPING).items(DUMPED)
    return {key[len(DUMPED) :].decode(): unpack_units(units) for key, units in rows}


_PLAN: Final = b"p"


class DumpSettlement:
    """Ends what `HostDump` began, for the same units."""

    def __init__(self, context: HandoverContext, units: UnitSet) -> None:
        self._context = context
        self._store = context.store
        self._records = context.residents.records
        self._units = units
        self._dump = HostDump(context, units)

    def forget(self, file_id: str) -> Steps:
        """Delete all rows once the receiver keeps the file; idempotent.

        Robots.txt and cookies stay: they are bounded, and other hosts of a site use them.
        """
        yield from self._dump.printed.forget()
        for host in self._dump.hosts():
            if host is None:
                yield False
            else:
                yield from self._forget(host)
        self._context.states.cache.clear()
        self._end(file_id)

    def keep(self, file_id: str) -> Steps:
        for host in self._dump.hosts():
            if host is None:
                yield False
                continue
            record = self._records.get(host)
            if record.pending and record.due is None:
                self._context.residents.waiting.add(host, record, self._context.clock()[1])
                self._records.changed(host, record)
                self._records.save()
        self._end(file_id)

    def _end(self, file_id: str) -> None:
        self._store.kv(MAPPING).delete(DUMPED + file_id.encode())
        self._context.flush()

    def _forget(self, host: str) -> Iterator[bool]:
        if not self._units.by_host:
            # The archive removes whole hosts: what stays has rows until it goes there again.
            for waits in while_locked(self._store.archive, bring_back(self._store, host)):
                self._context.flush()
                yield waits
        yield from self._forget_rows(host)
        yield from self._forget_kept(host)
        prefix = host_key(host)
        for portion in self._dump.states(host):
            for name, state in portion:
                if state.state is State.PENDING:
                    self._store.delete_state(prefix + name)
                    self._context.states.forget(prefix + name)
                else:
                    self._context.edits.forget_state(host, name, state)
            yield False
        left = next(self._store.states(prefix), None)
        if self._units.by_host or (left is None and not self._records.get(host).pending):
            yield from self._forget_host(host)

    def _forget_rows(self, host: str) -> Iterator[bool]:
        after = self._records.get(host).head
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
        for portion in self._dump.kept(host):
            for name, key, _ in portion:
                if name == "revisits" and key.startswith(_PLAN):
                    self._context.plans.forget(key[len(_PLAN) :])
                elif name != "traps":
                    self._store.kv(name).delete(key)
            yield False

    def _forget_host(self, host: str) -> Iterator[bool]:
        """Delete the archive's URLs before the record, which a kill would leave."""
        archive, context = self._store.archive, self._context
        if archive is not None:
            self._context.flush()
            while archive.behind or archive.urls.poll():
                yield True
            archive.remove(host)
        while True:
            record = self._records.get(host)
            done, dead = record.done, record.dead
            counted = context.states.counters.events.get(Event.SUCCESS, 0)
            if context.edits.forget_host(host, self._context.clock()[0]):
                break
            yield True
        counters = context.states.counters
        # It had no rows that said so.
        left = counted - done
        if left > 0:
            counters.events[Event.SUCCESS] = left
        else:
            counters.events.pop(Event.SUCCESS, None)
        counters.dead_hosts -= dead == Event.HOST_DEAD.value
        context.trap_stats.forget(host)
        yield False
