"""The receiving side of a hand-over: a file is checked, then merged.

Of a URL known on both sides the further state counts (done, failed, pending), of two pending ones
the sender's, of clocks the later. Forced entries stay pending. Conflicts of pending URLs are
marked, and decided by a walk over the queue after the merge.

Each portion is one batch with its position, so a merge resumes after a kill.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack  # type: ignore[import-untyped]
import xxhash

from scrapy_spider_suite.cluster.handover.dump import MAPPING, REQUEST_KEY, ROWS
from scrapy_spider_suite.cluster.handover.fingerprints import FingerprintLoad, item_weight
from scrapy_spider_suite.cluster.handover.handover_context import (
    HandoverContext,
    Steps,
    is_forced,
    refuse_sieve,
    restore_revisit,
)
from scrapy_spider_suite.cluster.handover.handover_file import (
    CLOCK,
    DROPPED,
    HOST,
    KEPT,
    PRINTS,
    ROW,
    SIEVE,
    STATE,
    HandoverLabel,
    HandoverReader,
    Item,
    UnitSet,
    unpack_units,
)
from scrapy_spider_suite.cluster.handover.row_kinds import kind_of_row
from scrapy_spider_suite.cluster.routing import unpack_foreign_row
from scrapy_spider_suite.crawl.queue.traps import unpack
from scrapy_spider_suite.errors import HandoverFileError, JobDamagedError
from scrapy_spider_suite.frontier.entries import Entry, host_key, sequence_of
from scrapy_spider_suite.frontier.outcomes import Event, State
from scrapy_spider_suite.store.host_queues import LATEST, NEVER, RESIDENT, seconds_until_due
from scrapy_spider_suite.store.revisit_plans import RevisitPlan
from scrapy_spider_suite.store.rows import COUNT_MAX, HostRecord, UrlState, unpack_row
from scrapy_spider_suite.store.seen_index import DONE_200

WriteState = Callable[[str, bytes, UrlState], None]
"""Writes the final state of a URL: host, state key, state."""

_CONFLICT: Final = b"d"
_UNTIL: Final = struct.Struct(">Q")
_ROW, _FORCED, _REPLACES, _STATE = b"r", b"a", b"i", b"s"
"""What came: a row; a forced row; a row that replaces another one; a state."""
_UNTRIED: Final = UrlState(State.PENDING)


class ConflictMark(NamedTuple):
    """What came for a pending URL.

    Attributes:
        until: sequence number of the last row here then.
        data: a packed state, or the digest of a row's request.
    """

    until: int
    kind: bytes
    data: bytes

    def to_bytes(self) -> bytes:
        return _UNTIL.pack(self.until) + self.kind + self.data

    @classmethod
    def from_bytes(cls, data: bytes) -> ConflictMark:
        """Raises `JobDamagedError`."""
        at = _UNTIL.size
        try:
            return cls(_UNTIL.unpack_from(data)[0], data[at : at + 1], data[at + 1 :])
        except struct.error as error:
            raise JobDamagedError(f"what waits twice cannot be read ({error})") from error


class Conflicts:
    """The marks of a store; *write* writes deferred states."""

    def __init__(self, context: HandoverContext, write: WriteState) -> None:
        self._context = context
        self._store = context.store
        self._records = context.residents.records
        self._write = write
        self._kv = context.store.kv(MAPPING)

    @property
    def left(self) -> bool:
        return next(self._kv.items(_CONFLICT), None) is not None

    def row(self, entry: Entry, state: UrlState) -> None:
        """*entry* comes though its URL is pending here."""
        self._mark(entry.identity, _FORCED if is_forced(entry, state) else _ROW, _digest(entry))

    def state(self, key: bytes, theirs: UrlState) -> None:
        """A URL that is pending here is done or failed."""
        self._mark(key, _STATE, theirs.to_bytes())

    def _mark(self, key: bytes, kind: bytes, data: bytes) -> None:
        mark = ConflictMark(self._context.states.counters.sequence, kind, data)
        self._kv.put(_CONFLICT + key, mark.to_bytes())

    # When all of it is merged

    def end(self, since: int) -> Iterator[bool]:
        """Decide all marks; rows of the file have numbers behind *since*."""
        while (first := next(self._kv.items(_CONFLICT), None)) is not None:
            prefix = first[0][: first[0].index(b"\0", len(_CONFLICT) + 2) + 1]
            host = prefix[len(_CONFLICT) + 2 : -1].decode()
            while (yield from self._walk(host, since)):
                pass
            while rows := list(islice(self._kv.items(prefix), ROWS)):
                for key, data in rows:
                    self._kv.delete(key)
                    mark = ConflictMark.from_bytes(data)
                    if mark.kind == _STATE:  # nothing of it waits any more
                        self._conclude(host, key[len(_CONFLICT) :], mark)
                self._records.save()
                yield False

    def _walk(self, host: str, since: int) -> Generator[bool, None, bool]:
        after, again = self._records.get(host).head, False
        while entries := self._store.rows(host, after, ROWS):
            for entry in entries:
                mark = self._kv.get(_CONFLICT + entry.identity)
                if mark is not None:
                    again = self._judge(entry, ConflictMark.from_bytes(mark), since) or again
                after = entry.key
            self._records.save()
            yield False
        return again

    def _judge(self, entry: Entry, mark: ConflictMark, since: int) -> bool:
        """Unqueue a marked *entry*, or leave it; return whether to walk again."""
        early = sequence_of(entry.key) <= mark.until
        if mark.kind == _STATE:
            data = self._store.row(entry.identity)
            state = _UNTRIED if data is None else UrlState.from_bytes(data)
            if early and not is_forced(entry, state) and self._take_out(entry):
                self._conclude(entry.host, entry.identity, mark)  # at once: it must not be neither
            else:
                self._kv.delete(_CONFLICT + entry.identity)
            return False
        same, asked = mark.data == _digest(entry), is_forced(entry, _UNTRIED)
        if not early:
            if mark.kind == _REPLACES and same and not asked:
                self._take_out(entry)
            return False
        if asked and same and mark.kind == _ROW:
            self._kv.put(_CONFLICT + entry.identity, mark._replace(kind=_REPLACES).to_bytes())
            return True
        if asked:
            goes = same and mark.kind == _FORCED
        else:
            # A spider's request that the sender had, too, before the one that was asked for.
            of_file = mark.kind == _FORCED and sequence_of(entry.key) > since
            goes = not (of_file and entry.payload is not None)
        if goes:
            self._take_out(entry)
        return False

    def _conclude(self, host: str, key: bytes, mark: ConflictMark) -> None:
        self._write(host, key, UrlState.from_bytes(mark.data))
        restore_revisit(self._context.plans, key)

    def _take_out(self, entry: Entry) -> bool:
        self._context.foreign.release(entry)
        return self._context.edits.remove(entry)


def _digest(entry: Entry) -> bytes:
    return xxhash.xxh3_64_digest(entry.payload or b"")


_LOADED: Final = b"t"
_PLAN: Final = b"p"
_RANK: Final = {State.PENDING: 0, State.FAILED: 1, State.DONE: 2}
_END: Final = -1


def _check_record(record: HostRecord) -> None:
    sane = record.next_fetch <= NEVER and 0.0 <= record.crawl_delay < LATEST
    numbers = (record.pending, record.done, record.failed, record.attempts)
    if not sane or max(numbers) > COUNT_MAX:
        raise ValueError("a host's row with numbers beyond all bounds")


def _check_kept(host: str, name: str, key: bytes, value: bytes) -> None:
    part = kind_of_row(name, key, host)
    if part is None or type(value) is not bytes:
        raise ValueError(f"no row of {str(name)[:100]!r} that goes with {host!r}")
    part.merge(None, value)
    if name == "revisits" and key.startswith(_PLAN):
        plan = RevisitPlan.from_bytes(value)
        if unpack_foreign_row(plan.host, plan.row).identity != key[len(_PLAN) :]:
            raise ValueError(f"a plan for another page than one of {host!r}")


class LoadPosition(NamedTuple):
    """How far a file is merged; *since* is the last earlier sequence number."""

    at: int
    items: int
    since: int = 0


class HostLoad:
    """Merges the file at *path* into the frontier; *counts* has merged items by kind."""

    def __init__(
        self, context: HandoverContext, units: UnitSet, path: Path, label: HandoverLabel
    ) -> None:  # fmt: skip
        refuse_sieve(context, units)
        self._printed = FingerprintLoad(context, units)
        self._context = context
        self._store = context.store
        self._records = context.residents.records
        self._units = units
        self._path = path
        self._label = label
        self._kv = context.store.kv(MAPPING)
        self._conflicts = Conflicts(context, self._write_state)
        self.counts: Counter[int] = Counter()

    @property
    def done(self) -> bool:
        """Whether all is on disk: the sender may forget it."""
        return self._place(0).at == _END

    def take(self) -> Steps:
        """Check the whole file, then merge it. Raises `HandoverFileError`: nothing was changed."""
        if not self.done:
            with HandoverReader(self._path) as reader:
                if self._kv.get(self._key) is None:
                    yield from self._check(reader)
                yield from self._merge(reader)
                yield from self._conflicts.end(self._place(0).since)
                yield from self._printed.finish(reader)
            self._note(LoadPosition(_END, 0))
            self._context.flush()

    # What was broken off

    @property
    def broken_off(self) -> bool:
        """Whether marks of a broken-off merge are left: no fetch before `settle`."""
        return self._conflicts.left

    def settle(self) -> Steps:
        """Decide these marks: their merge may never go on."""
        rows = (msgpack.unpackb(data) for _, data in self._kv.items(_LOADED))
        since = [LoadPosition(*map(int, row)).since for row in rows if row[0] != _END]
        yield from self._conflicts.end(min(since, default=self._context.states.counters.sequence))

    # Where

    @property
    def _key(self) -> bytes:
        return _LOADED + self._label.file_id.encode()

    def _place(self, first: int) -> LoadPosition:
        data = self._kv.get(self._key)
        if data is None:
            return LoadPosition(first, 0, self._context.states.counters.sequence)
        try:
            return LoadPosition(*map(int, msgpack.unpackb(data)))
        except (ValueError, TypeError) as error:
            raise JobDamagedError(
                f"how far a hand-over file is merged cannot be read ({error})"
            ) from error

    def _note(self, place: LoadPosition) -> None:
        self._kv.put(self._key, msgpack.packb(place))

    # Checking

    def _check(self, reader: HandoverReader) -> Iterator[bool]:
        if reader.label != self._label or unpack_units(self._label.units) != self._units.numbers:
            raise HandoverFileError(f"{self._path} is another file than was offered")
        for items, at in reader.chunks():
            for count, item in enumerate(items, 1):
                try:
                    self._check_item(*item)
                except Exception as error:  # whatever it is: an agent that lies chooses
                    why = " ".join(str(error).split())[:200]
                    raise HandoverFileError(f"{self._path}, before byte {at}: {why}") from error
                if not count % ROWS:
                    yield False
            yield False

    def _check_item(self, kind: int, host: str, *rest: Any) -> None:
        """Raise anything unless the item is valid, and of a host of the units."""
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
            self._check_url(host, unpack_foreign_row(host, row).url)
        elif kind == STATE:
            name, state = rest
            known = UrlState.from_bytes(state)
            if known.state is State.PENDING or type(name) is not bytes or not name:
                raise ValueError("a URL that is neither done nor failed")
            url = "" if name.startswith(REQUEST_KEY) else name.decode()
            self._check_url(host, known.url or url, name)
        elif kind == KEPT:
            _check_kept(host, *rest)
        elif kind == DROPPED:
            self._printed.check(kind, host, rest)
        else:
            raise ValueError(f"no item has the number {kind!r}")

    def _check_url(self, host: str, url: str, name: bytes = b"") -> None:
        known = self._units.by_host or name.startswith(REQUEST_KEY)
        if not known and not self._units.has(host, url):
            raise ValueError(f"{url[:200]!r} lies in no unit that was to be handed over")

    # Merging

    def _merge(self, reader: HandoverReader) -> Iterator[bool]:
        place = self._place(reader.first)
        items, end = reader.chunk(place.at)
        while items:
            yield from self._printed.relieve()
            portion = items[place.items : place.items + ROWS]
            for item in portion:
                self._take(item)
                self.counts[item[0]] += item_weight(item, self._printed.width)
            self._records.save()
            place = place._replace(items=place.items + ROWS)
            if place.items >= len(items):
                place = place._replace(at=end, items=0)
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
            now, wall = self._context.clock()
            self._context.residents.clocks.not_before(host, now + min(rest[0] - wall, LATEST))

    def _take_host(self, host: str, theirs: HostRecord) -> None:
        now, wall = self._context.clock()
        record, context = self._records.touch(host), self._context
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
                context.residents.waiting.leave(host, record)
            record.next_fetch, record.why = theirs.next_fetch, theirs.why
            if waits:
                context.residents.waiting.add(host, record, wall)
        if theirs.entered is not None:
            mine = theirs.entered if record.entered is None else record.entered
            record.entered = min(mine, theirs.entered)
        if theirs.counted and not record.counted:
            record.counted = True
            context.states.domains.count(host, hosts=1)
        if self._units.by_host:
            record.attempts += theirs.attempts
            if theirs.dead and not record.dead:
                record.dead = theirs.dead
                context.states.counters.dead_hosts += theirs.dead == Event.HOST_DEAD.value

    def _known(self, key: bytes) -> bytes | None:
        row = self._store.row(key)
        return DONE_200 if row is None and self._printed.knows(key) else row

    def _take_row(self, host: str, row: bytes, packed: bytes, last: bool) -> None:
        entry, theirs = unpack_row(host, b"", row), UrlState.from_bytes(packed)
        record, data = self._records.touch(host), self._known(entry.identity)
        if data is not None:
            mine = UrlState.from_bytes(data)
            if mine.state is State.PENDING:
                self._conflicts.row(entry, theirs)
            elif is_forced(entry, theirs):
                self._context.states.uncount(host, record, mine)
            else:
                return
        self._context.states.import_pending(entry, record, packed, last=last)
        self._context.residents.push(entry, record, self._context.clock()[0])

    def _take_state(self, host: str, key: bytes, theirs: UrlState) -> None:
        data = self._known(key)
        if data is not None and UrlState.from_bytes(data).state is State.PENDING:
            self._conflicts.state(key, theirs)
        else:
            self._write_state(host, key, theirs)

    def _write_state(self, host: str, key: bytes, theirs: UrlState) -> None:
        """Write the final state *theirs* of a URL that is not pending, if it is further."""
        record, data = self._records.touch(host), self._known(key)
        if data is not None:
            mine = UrlState.from_bytes(data)
            if _RANK[mine.state] >= _RANK[theirs.state]:
                return
            self._context.states.uncount(host, record, mine)
        self._context.states.import_state(key, host, record, theirs)

    def _take_kept(self, host: str, name: str, key: bytes, value: bytes) -> None:
        if name == "revisits" and key.startswith(_PLAN):
            data = self._store.row(key[1:])
            waits = data is None or UrlState.from_bytes(data).state is not State.PENDING
            self._context.plans.import_plan(key[1:], RevisitPlan.from_bytes(value), waits=waits)
        elif name == "traps" and key == host.encode():
            if self._context.trap_stats.get(host) is None:
                self._context.trap_stats.change(host, unpack(host, value))
                self._context.trap_stats.save()
        else:
            kv, part = self._store.kv(name), kind_of_row(name, key, host)
            kept = None if part is None else part.merge(kv.get(key), value)
            if kept is not None:
                kv.put(key, kept)
