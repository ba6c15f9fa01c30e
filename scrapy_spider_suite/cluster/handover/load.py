"""The receiving side of a hand-over: a file is checked, then merged.

Of a URL known on both sides the further state counts (done, failed, pending), of two pending ones
the sender's, of clocks the later. Forced entries stay pending. Conflicts of pending URLs are
marked, and decided by a walk over the queue after the merge.

Each portion is one batch with its position, so a merge resumes after a kill. Fingerprints are added
by a flush of the sieve; then URLs that are done are unqueued, except for forced entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack  # type: ignore[import-untyped]
import numpy as np
import xxhash

from scrapy_spider_suite.cluster.handover.dump import (
    COOKIES,
    PIECE,
    PLAN,
    REQUEST_KEY,
    ROWS,
    item_weight,
    kind_of_row,
    unpack_jar,
)
from scrapy_spider_suite.cluster.handover.handover_context import HandoverContext, Steps, is_forced
from scrapy_spider_suite.cluster.handover.handover_file import (
    HandoverLabel,
    HandoverReader,
    ItemKind,
    UnitSet,
    pack_units,
)
from scrapy_spider_suite.cluster.mailbox import unpack_foreign_row
from scrapy_spider_suite.crawl.queue.traps import unpack
from scrapy_spider_suite.errors import HandoverFileError
from scrapy_spider_suite.frontier.entries import Entry, host_key, sequence_of
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.seen import fingerprints
from scrapy_spider_suite.seen.fingerprints import Rows
from scrapy_spider_suite.store.host_queues import LATEST, NEVER, RESIDENT, seconds_until_due
from scrapy_spider_suite.store.revisit_plans import RevisitPlan
from scrapy_spider_suite.store.rows import COUNT_MAX, HostRecord, UrlState, unpack_row
from scrapy_spider_suite.store.seen_index import DONE_200, SieveIndex
from scrapy_spider_suite.store.value_codec import ValueCodec

_values = ValueCodec()
_LOADED: Final = b"t"
_RANK: Final = {State.PENDING: 0, State.FAILED: 1, State.DONE: 2}
_END: Final = -1
_MOST_DROPS: Final = 1 << 31  # exclusive bound of a host's drops, a count of four bytes
_CONFLICT: Final = b"d"
# What came: a row; a forced row; a row that replaces another one; a state.
_ROW, _FORCED, _REPLACES, _STATE = b"r", b"a", b"i", b"s"
_UNTRIED: Final = UrlState(State.PENDING)


class ConflictMark(NamedTuple):
    until: int  # sequence number of the last row here then
    kind: bytes
    data: bytes  # a packed state, or the digest of a row's request


class Conflicts:
    """Marks of what came for URLs that are pending here."""

    def __init__(self, context: HandoverContext) -> None:
        self._context = context
        self._store, self._records, self._kv = context.store, context.records, context.kv

    @property
    def left(self) -> bool:
        """Whether marks are left: after a broken-off merge no fetch before `settle`."""
        return next(self._kv.items(_CONFLICT), None) is not None

    def mark_row(self, entry: Entry, state: UrlState) -> None:
        self._mark(entry.identity, _FORCED if is_forced(entry, state) else _ROW, _digest(entry))

    def mark_state(self, key: bytes, theirs: UrlState) -> None:
        self._mark(key, _STATE, theirs.to_bytes())

    def _mark(self, key: bytes, kind: bytes, data: bytes) -> None:
        mark = ConflictMark(self._context.states.counters.sequence, kind, data)
        self._kv.put(_CONFLICT + key, msgpack.packb(mark))

    def settle(self) -> Steps:
        """Decide the marks of broken-off merges, which may never go on."""
        rows = (msgpack.unpackb(data) for _, data in self._kv.items(_LOADED))
        since = [LoadPosition(*row).since for row in rows if row[0] != _END]
        yield from self.decide(min(since, default=self._context.states.counters.sequence))

    def decide(self, since: int) -> Iterator[bool]:
        """Decide all marks of a merged file, whose rows have numbers behind *since*."""
        while (first := next(self._kv.items(_CONFLICT), None)) is not None:
            prefix = first[0][: first[0].index(b"\0", len(_CONFLICT) + 2) + 1]
            host = prefix[len(_CONFLICT) + 2 : -1].decode()
            while (yield from self._walk(host, since)):
                pass
            while rows := list(islice(self._kv.items(prefix), ROWS)):
                for key, data in rows:
                    self._kv.delete(key)
                    mark = ConflictMark(*msgpack.unpackb(data))
                    if mark.kind == _STATE:  # no row of the URL waits any more
                        self._conclude(host, key[len(_CONFLICT) :], mark)
                yield False

    def _walk(self, host: str, since: int) -> Generator[bool, None, bool]:
        after, again = self._records.current(host).head, False
        while entries := self._store.rows(host, after, ROWS):
            for entry in entries:
                mark = self._kv.get(_CONFLICT + entry.identity)
                if mark is not None:
                    again = self._judge(entry, ConflictMark(*msgpack.unpackb(mark)), since) or again
                after = entry.key
            yield False
        return again

    def _judge(self, entry: Entry, mark: ConflictMark, since: int) -> bool:
        """Unqueue a marked *entry*, or leave it; return whether to walk again."""
        early = sequence_of(entry.key) <= mark.until
        if mark.kind == _STATE:
            data = self._store.state(entry.identity, sieved=False)
            state = _UNTRIED if data is None else UrlState.from_bytes(data)
            if early and not is_forced(entry, state) and self._context.unqueue(entry):
                self._conclude(entry.host, entry.identity, mark)  # at once: no URL is lost
            else:
                self._kv.delete(_CONFLICT + entry.identity)
            return False
        same, asked = mark.data == _digest(entry), is_forced(entry, _UNTRIED)
        if not early:
            if mark.kind == _REPLACES and same and not asked:
                self._context.unqueue(entry)
            return False
        if asked and same and mark.kind == _ROW:
            self._kv.put(_CONFLICT + entry.identity, msgpack.packb(mark._replace(kind=_REPLACES)))
            return True
        if asked:
            goes = same and mark.kind == _FORCED
        else:
            # A spider's request that the sender, too, had before the forced one.
            of_file = mark.kind == _FORCED and sequence_of(entry.key) > since
            goes = not (of_file and entry.payload is not None)
        if goes:
            self._context.unqueue(entry)
        return False

    def _conclude(self, host: str, key: bytes, mark: ConflictMark) -> None:
        write_state(self._context, host, key, UrlState.from_bytes(mark.data))
        self._context.restore_revisit(key)


def known_state(context: HandoverContext, key: bytes) -> bytes | None:
    """Return the packed state here of the URL with *key*, also if only the sieve has it."""
    row, sieved = context.store.state(key, sieved=False), context.store.sieve
    return DONE_200 if row is None and sieved is not None and sieved.has(key) else row


def write_state(context: HandoverContext, host: str, key: bytes, theirs: UrlState) -> None:
    """Write the final state *theirs* of a URL that is not pending, if it is further."""
    record, data = context.records.touch(host), known_state(context, key)
    if data is not None:
        mine = UrlState.from_bytes(data)
        if _RANK[mine.state] >= _RANK[theirs.state]:
            return
        context.states.uncount(host, record, mine)
    context.states.import_state(key, host, record, theirs)


def _digest(entry: Entry) -> bytes:
    return xxhash.xxh3_64_digest(entry.payload or b"")


def _check_kept(host: str, name: str, key: bytes, value: bytes) -> None:
    part = kind_of_row(name, key, host)
    if part is None or type(value) is not bytes:
        raise ValueError(f"no row of {str(name)[:100]!r} that goes with {host!r}")
    part.merge(None, value)
    if name == "revisits" and key.startswith(PLAN):
        plan = RevisitPlan.from_bytes(value)
        if unpack_foreign_row(plan.host, plan.row).identity != key[len(PLAN) :]:
            raise ValueError(f"a plan for another page than one of {host!r}")


class ItemMerge:
    """Checks items, and merges them into the frontier. *counted*: they have no URLs, but their
    counts.
    """

    def __init__(
        self, context: HandoverContext, units: UnitSet, *, counted: bool = False
    ) -> None:  # fmt: skip
        context.refuse_sieve(units)
        self._context = context
        self._store, self._records = context.store, context.records
        self._units = units
        self._conflicts = Conflicts(context)
        self._slots = fingerprints.mask_of(units.numbers)
        self._bits = 0  # of the fingerprints that come
        self._counted = counted

    def check(self, kind: int, host: str, *rest: Any) -> None:
        """Raise anything unless the item is valid, and of a host of the units."""
        if kind == ItemKind.CLOCK:
            (wall,) = rest
            if not (isinstance(host, str) and -LATEST < wall < 1e12):
                raise ValueError("no clock of an address")
            return
        if kind in (ItemKind.SIEVE, ItemKind.PRINTS) and host == "":
            self._check_fingerprints(kind, *rest)
            return
        if not isinstance(host, str) or "\0" in host or not self._units.has_host(host):
            raise ValueError(f"{str(host)[:100]!r} is no host of what was to be handed over")
        if kind == ItemKind.HOST:
            record = HostRecord.from_bytes(*rest)
            sane = record.next_fetch <= NEVER and 0.0 <= record.crawl_delay < LATEST
            counts = (record.pending, record.done, record.failed, record.attempts, record.failures)
            deep = not 0 <= (record.entered or 0) <= COUNT_MAX
            if not sane or deep or max(counts) > COUNT_MAX:
                raise ValueError("a host's row with numbers beyond all bounds")
        elif kind == ItemKind.ROW:
            row, state, last = rest
            if UrlState.from_bytes(state).state is not State.PENDING or type(last) is not bool:
                raise ValueError("a URL that is not pending")
            self._check_url(host, unpack_foreign_row(host, row).url)
        elif kind == ItemKind.STATE:
            name, state = rest
            known = UrlState.from_bytes(state)
            if known.state is State.PENDING or type(name) is not bytes or not name:
                raise ValueError("a URL that is neither done nor failed")
            url = "" if name.startswith(REQUEST_KEY) else name.decode()
            self._check_url(host, known.url or url, name)
        elif kind == ItemKind.KEPT:
            _check_kept(host, *rest)
        elif kind == ItemKind.DROPPED:
            (value,) = rest
            if not (isinstance(value, int) and 0 < value < _MOST_DROPS):
                raise ValueError(f"{host[:100]!r} was dropped {value!r} times")
        else:
            raise ValueError(f"no item has the number {kind!r}")

    def _check_url(self, host: str, url: str, name: bytes = b"") -> None:
        known = self._units.by_host or name.startswith(REQUEST_KEY)
        if not known and not self._units.has(host, url):
            raise ValueError(f"{url[:200]!r} lies in no unit that was to be handed over")

    def _check_fingerprints(self, kind: int, value: Any) -> None:
        own = self._store.sieve
        if kind == ItemKind.SIEVE:
            if not self._units.slots or (own is None and self._context.open_sieve is None):
                raise ValueError("fingerprints, for which there is no sieve here")
            if value not in (64, 128) or (own is not None and value != own.width * 8):
                raise ValueError(f"fingerprints of {value!r} bits are not those of the sieve here")
            self._bits = value
        elif not (isinstance(value, bytes) and value and self._bits):
            raise ValueError("no fingerprints")
        else:
            slots = fingerprints.slots_of(fingerprints.rows_of(value, self._bits // 8))
            if not self._slots[slots].all():
                raise ValueError("fingerprints that lie in no unit that was to be handed over")

    def apply(self, kind: int, host: str, *rest: Any) -> None:
        context, sieved = self._context, self._store.sieve
        if kind == ItemKind.HOST:
            self._merge_host(host, HostRecord.from_bytes(rest[0]))
        elif kind == ItemKind.ROW:
            self._merge_row(host, *rest)
        elif kind == ItemKind.STATE:
            key, theirs = host_key(host) + rest[0], UrlState.from_bytes(rest[1])
            data = known_state(context, key)
            if data is not None and UrlState.from_bytes(data).state is State.PENDING:
                self._conflicts.mark_state(key, theirs)
            else:
                write_state(context, host, key, theirs)
        elif kind == ItemKind.KEPT:
            self._merge_kept(host, *rest)
        elif kind == ItemKind.CLOCK:
            now, wall = context.clock()
            context.residents.clocks.not_before(host, now + min(rest[0] - wall, LATEST))
        elif kind == ItemKind.SIEVE and sieved is None and context.open_sieve is not None:
            context.open_sieve()
        elif kind == ItemKind.DROPPED and sieved is not None:
            sieved.note_drops(host, rest[0])
        elif kind == ItemKind.PRINTS and context.states.sieve_queue is not None:
            context.states.sieve_queue.offer_prints(rest[0])

    def _merge_host(self, host: str, theirs: HostRecord) -> None:
        record, context = self._records.touch(host), self._context
        now, wall = context.clock()
        record.failures = max(record.failures, theirs.failures)
        record.crawl_delay = theirs.crawl_delay or record.crawl_delay
        resident = context.workbench.hosts.get(host)
        if resident is not None:
            context.residents.set_crawl_delay(resident, record.crawl_delay)
            wait = seconds_until_due(theirs, resident.gap(), wall)
            context.workbench.postpone(resident, now + wait, theirs.why)
        elif theirs.next_fetch > record.next_fetch:
            waits = record.due is not None and record.due != RESIDENT
            if waits:
                context.waiting.leave(host, record)
            record.next_fetch, record.why = theirs.next_fetch, theirs.why
            if waits:
                context.waiting.add(host, record, wall)
        if theirs.entered is not None:
            mine = theirs.entered if record.entered is None else record.entered
            record.entered = min(mine, theirs.entered)
        if theirs.counted and not record.counted:
            record.counted = True
            context.states.domains.count(host, hosts=1)
        if self._counted:
            context.states.count_done(host, record, theirs.done)
            record.failed += theirs.failed
            context.states.counters.failed += theirs.failed
        if self._units.by_host:
            record.attempts = min(record.attempts + theirs.attempts, COUNT_MAX)
            if theirs.dead and not record.dead:
                record.dead = theirs.dead
                context.states.counters.dead_hosts += theirs.dead == Event.HOST_DEAD.value

    def _merge_row(self, host: str, row: bytes, packed: bytes, last: bool) -> None:
        entry, theirs = unpack_row(host, b"", row), UrlState.from_bytes(packed)
        record, data = self._records.touch(host), known_state(self._context, entry.identity)
        if data is not None:
            mine = UrlState.from_bytes(data)
            if mine.state is State.PENDING:
                self._conflicts.mark_row(entry, theirs)
            elif is_forced(entry, theirs):
                self._context.states.uncount(host, record, mine)
            else:
                return
        self._context.states.import_pending(entry, record, packed, last=last)
        self._context.residents.push(entry, record, self._context.clock()[0])

    def _merge_kept(self, host: str, name: str, key: bytes, value: bytes) -> None:
        context = self._context
        if name == "revisits" and key.startswith(PLAN):
            data = self._store.state(key[1:], sieved=False)
            waits = data is None or UrlState.from_bytes(data).state is not State.PENDING
            context.plans.import_plan(key[1:], RevisitPlan.from_bytes(value), waits=waits)
        elif name == "traps" and key == host.encode():
            if context.trap_stats.get(host) is None:
                context.trap_stats.change(host, unpack(host, value))
                context.trap_stats.save()
        elif name == "cookies" and (running := context.cookies()) is not None:
            running.take(_values.loads(key[len(COOKIES) :]), *unpack_jar(value))
        else:
            kv, part = self._store.kv(name), kind_of_row(name, key, host)
            kept = None if part is None else part.merge(kv.get(key), value)
            if kept is not None:
                kv.put(key, kept)


class LoadPosition(NamedTuple):
    """How far a file is merged."""

    at: int
    items: int
    since: int = 0  # the last earlier sequence number


class HostLoad(ItemMerge):
    """Merges the file at *path* into the frontier. After a kill it goes on where it was."""

    def __init__(
        self, context: HandoverContext, units: UnitSet, path: Path, label: HandoverLabel
    ) -> None:  # fmt: skip
        super().__init__(context, units)
        self._kv, self._path, self._label = context.kv, path, label
        self._key = _LOADED + label.file_id.encode()
        self.counts: Counter[int] = Counter()  # of merged items, by kind

    @property
    def done(self) -> bool:
        """Whether all is on disk: the sender may forget it."""
        return self._place(0).at == _END

    def merge(self) -> Steps:
        """Check the whole file, then merge it. Raises `HandoverFileError`: nothing was changed."""
        if not self.done:
            with HandoverReader(self._path) as reader:
                if self._kv.get(self._key) is None:
                    yield from self._check(reader)
                yield from self._merge(reader)
                yield from self._conflicts.decide(self._place(0).since)
                if self._store.sieve is not None:
                    yield from self._finish_fingerprints(reader, self._store.sieve)
            self._kv.put(self._key, msgpack.packb(LoadPosition(_END, 0)))
            self._context.flush()

    def _place(self, first: int) -> LoadPosition:
        data = self._kv.get(self._key)
        if data is None:
            return LoadPosition(first, 0, self._context.states.counters.sequence)
        return LoadPosition(*msgpack.unpackb(data))

    # Checking

    def _check(self, reader: HandoverReader) -> Iterator[bool]:
        label = self._label
        if reader.label != label or label.units != pack_units(self._units.numbers):
            raise HandoverFileError(f"{self._path} is another file than was offered")
        for items, at in reader.chunks():
            for count, item in enumerate(items, 1):
                try:
                    self.check(*item)
                except Exception as error:  # a hostile file may raise anything
                    why = " ".join(str(error).split())[:200]
                    raise HandoverFileError(f"{self._path}, before byte {at}: {why}") from error
                if not count % ROWS:
                    yield False
            yield False

    # Merging

    def _merge(self, reader: HandoverReader) -> Iterator[bool]:
        place = self._place(reader.first)
        items, end = reader.chunk(place.at)
        while items:
            # A known URL without a row is done, until the next step.
            sifter = self._context.states.sieve_queue
            if sifter is not None and sifter.sieve.full:
                yield from self._context.drain_sieve()
            yield from self._context.finish_flush()
            portion = items[place.items : place.items + ROWS]
            for item in portion:
                self.apply(*item)
                self.counts[item[0]] += item_weight(item, self._store.sieve)
            place = place._replace(items=place.items + ROWS)
            if place.items >= len(items):
                place = place._replace(at=end, items=0)
                items, end = reader.chunk(end)
            self._kv.put(self._key, msgpack.packb(place))
            yield False

    # Fingerprints

    def _finish_fingerprints(self, reader: HandoverReader, sieved: SieveIndex) -> Steps:
        yield from self._context.drain_sieve()
        come, size, printed = list[Rows](), 0, False
        for items, _ in reader.chunks():
            for number, (kind, host, *rest) in enumerate(items, 1):
                printed = printed or kind == ItemKind.SIEVE
                if kind == ItemKind.PRINTS:
                    come.append(fingerprints.rows_of(rest[0], sieved.width))
                    size += len(come[-1])
                elif kind == ItemKind.HOST and printed:
                    record, theirs = self._records.touch(host), HostRecord.from_bytes(rest[0])
                    if theirs.done > record.done:
                        more = theirs.done - record.done
                        self._context.states.count_done(host, record, more)
                if not number % ROWS:
                    yield False
            yield False
            if size > PIECE:
                yield from self._unqueue_done(sieved, fingerprints.merge_rows(*come))
                come, size = [], 0
        if come:
            yield from self._unqueue_done(sieved, fingerprints.merge_rows(*come))

    def _unqueue_done(self, sieved: SieveIndex, rows: Rows) -> Steps:
        slots = fingerprints.slots_of(rows)
        for begin, stop in self._units.prefixes(int(slots.min()), int(slots.max()) + 1):
            after = begin
            while hosts := list(islice(self._store.records(after, stop), ROWS)):
                for host, _ in hosts:
                    if self._records.get(host).pending:
                        yield from self._unqueue_done_of(host, sieved, rows)
                after = host_key(hosts[-1][0]) + b"\0"
                yield False

    def _unqueue_done_of(self, host: str, sieved: SieveIndex, rows: Rows) -> Steps:
        after = self._records.current(host).head
        while entries := self._store.rows(host, after, ROWS):
            asked = fingerprints.rows_of(
                sieved.prints(entry.identity for entry in entries), sieved.width
            )
            for number in np.flatnonzero(fingerprints.are_among(rows, asked)).tolist():
                entry = entries[number]
                data = self._store.state(entry.identity, sieved=False)
                forced = is_forced(entry, UrlState.from_bytes(data or DONE_200))
                if not forced and self._context.unqueue(entry):
                    self._store.put_state(entry.identity, None)
                    self._context.restore_revisit(entry.identity)
            after = entries[-1].key
            yield False
