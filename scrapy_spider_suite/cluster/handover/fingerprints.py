"""Fingerprints in a hand-over: URLs that are done and have no row, in jobs with a sieve.

Fingerprints begin with their slot, the unit. Pending and failed URLs go as rows. The sender drains
the sieve first and forgets fingerprints before rows. The receiver adds fingerprints by a flush,
then unqueues URLs that are done, except for forced entries.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np

from scrapy_spider_suite.cluster.handover.handover_context import (
    HandoverContext,
    Steps,
    drain_sieve,
    finish_flush,
    is_forced,
    restore_revisit,
    with_sieve_locked,
)
from scrapy_spider_suite.cluster.handover.handover_file import (
    DROPPED,
    HOST,
    PRINTS,
    SIEVE,
    HandoverReader,
    Item,
    UnitSet,
)
from scrapy_spider_suite.frontier.entries import Entry, host_key
from scrapy_spider_suite.seen.fingerprints import (
    Mask,
    Rows,
    are_among,
    bytes_of,
    indexes_of,
    mask_of,
    merge_rows,
    no_rows,
    rows_of,
    slots_of,
)
from scrapy_spider_suite.seen.sieve import Sieve
from scrapy_spider_suite.store.rows import HostRecord, UrlState
from scrapy_spider_suite.store.seen_index import DONE_200, SieveIndex

_PIECE: Final = 1 << 17  # fingerprints compared with rows at a time: 2 MiB
_ITEM: Final = 1 << 10
_KEYS: Final = 500  # state keys of a portion: some milliseconds
_ROWS: Final = 100
_OFTEN: Final = 1 << 31  # exclusive bound of a host's drops, a count of four bytes


def item_weight(item: Item, width: int) -> int:
    """Return the number of things in *item*: several for fingerprints of *width* bytes."""
    return len(item[2]) // width if item[0] == PRINTS and width else 1


class FingerprintDump:
    """The fingerprints of *units*; empty without a sieve."""

    def __init__(self, context: HandoverContext, units: UnitSet) -> None:
        self._context = context
        self._units = units
        self._sieved = context.store.sieve

    @property
    def width(self) -> int:
        """Bytes of a fingerprint; 0 without a sieve."""
        return 0 if self._sieved is None else self._sieved.width

    def begin(self) -> Iterator[Item | bool]:
        """Drain the sieve, then yield the items that precede all others."""
        if self._sieved is None:
            return
        yield from drain_sieve(self._context, self._units.numbers)
        yield [SIEVE, "", self._sieved.width * 8]
        for host, times in self._sieved.dropped.items():
            if self._units.has_host(host):
                yield [DROPPED, host, times]

    def done(self) -> Iterator[Item | bool]:
        """Yield fingerprints without a row, once all hosts of the units stand still."""
        if self._sieved is None:
            return
        slots, sieve = mask_of(self._units.numbers), self._sieved.sieve
        for low, high in sieve.spans(slots, _PIECE):
            read = list[Rows]()
            yield from with_sieve_locked(
                self._context, self._sieved, partial(_read, sieve, slots, low, high, read)
            )
            (rows,) = read
            left = np.ones(len(rows), np.bool_)
            yield False
            for asked in self._of_rows(self._sieved, low >> 48, (high - 1 >> 48) + 1):
                left[indexes_of(rows, asked)] = False
                yield False
            data, step = bytes_of(rows[left]), _ITEM * self._sieved.width
            for at in range(0, len(data), step):
                yield [PRINTS, "", data[at : at + step]]

    def _of_rows(self, sieved: SieveIndex, first: int, end: int) -> Iterator[Rows]:
        for begin, stop in key_ranges(self._units, first, end):
            after = begin
            while keys := [
                key
                for key, _ in islice(self._context.store.states(b"", after), _KEYS)
                if key < stop
            ]:
                yield rows_of(sieved.prints(keys), sieved.width)
                after = keys[-1]

    def forget(self) -> Steps:
        """Remove the fingerprints, before rows: a URL without both is new again."""
        if self._sieved is not None:
            slots, sieve = mask_of(self._units.numbers), self._sieved.sieve
            yield from with_sieve_locked(self._context, self._sieved, lambda: sieve.removing(slots))


def _read(
    sieve: Sieve, slots: Mask, low: int, high: int, into: list[Rows]
) -> Generator[None, None, None]:
    pieces = list[Rows]()
    for rows in sieve.rows(slots, low, high):
        pieces.append(rows)
        yield
    into.append(merge_rows(*pieces) if pieces else no_rows(sieve.words))


class FingerprintLoad:
    """The fingerprints of a file; the store gets a sieve if it has none."""

    def __init__(self, context: HandoverContext, units: UnitSet) -> None:
        self._context = context
        self._store = context.store
        self._records = context.residents.records
        self._units = units
        self._slots: Mask = mask_of(units.numbers)
        self._bits = 0  # of those that come

    @property
    def width(self) -> int:
        return 0 if self._store.sieve is None else self._store.sieve.width

    # Checking and merging

    def check(self, kind: int, host: str, rest: Sequence[Any]) -> None:
        """Raise `ValueError` or `TypeError` for an invalid item."""
        (value,) = rest
        if kind == DROPPED:
            if not (isinstance(value, int) and 0 < value < _OFTEN):
                raise ValueError(f"{host[:100]!r} was dropped {value!r} times")
        elif kind == SIEVE:
            own = self._store.sieve
            if not self._units.slots or (own is None and self._context.open_sieve is None):
                raise ValueError("fingerprints, for which there is no sieve here")
            if value not in (64, 128) or (own is not None and value != own.width * 8):
                raise ValueError(f"fingerprints of {value!r} bits are not those of the sieve here")
            self._bits = value
        elif not (isinstance(value, bytes) and value and self._bits):
            raise ValueError("no fingerprints")
        elif not self._slots[slots_of(rows_of(value, self._bits // 8))].all():
            raise ValueError("fingerprints that lie in no unit that was to be handed over")

    def take(self, kind: int, host: str, value: Any) -> None:
        if kind == SIEVE and self._store.sieve is None and self._context.open_sieve is not None:
            self._context.open_sieve()
        elif kind == DROPPED and self._store.sieve is not None:
            self._store.sieve.was_dropped(host, value)
        elif kind == PRINTS and self._context.states.sieve_queue is not None:
            self._context.states.sieve_queue.keep_prints(value)

    def relieve(self) -> Steps:
        """Flush if enough fingerprints wait, so that `knows` holds for the next portion."""
        sifter = self._context.states.sieve_queue
        if sifter is not None and sifter.full:
            yield from drain_sieve(self._context)
        yield from finish_flush(self._context)

    def knows(self, key: bytes) -> bool:
        """Whether a URL without a row is done here."""
        return self._store.sieve is not None and self._store.sieve.has(key)

    # When all of it is merged

    def finish(self, reader: HandoverReader) -> Steps:
        """Flush all fingerprints, and unqueue URLs that are done; idempotent."""
        if self._store.sieve is None:
            return
        yield from drain_sieve(self._context)
        come, size, printed = list[Rows](), 0, False
        for items, _ in reader.chunks():
            for number, (kind, host, *rest) in enumerate(items, 1):
                printed = printed or kind == SIEVE
                if kind == PRINTS:
                    come.append(rows_of(rest[0], self._store.sieve.width))
                    size += len(come[-1])
                elif kind == HOST and printed:
                    self._count(host, HostRecord.from_bytes(rest[0]))
                if not number % _ROWS:
                    self._records.save()
                    yield False
            self._records.save()
            yield False
            if size > _PIECE:
                yield from self._take_out(self._store.sieve, merge_rows(*come))
                come, size = [], 0
        if come:
            yield from self._take_out(self._store.sieve, merge_rows(*come))

    def _count(self, host: str, theirs: HostRecord) -> None:
        record = self._records.touch(host)
        if theirs.done > record.done:
            self._context.states.count_done(host, record, theirs.done - record.done)

    def _take_out(self, sieved: SieveIndex, rows: Rows) -> Steps:
        slots = slots_of(rows)
        for begin, stop in key_ranges(self._units, int(slots.min()), int(slots.max()) + 1):
            after = begin
            while hosts := list(islice(self._store.hosts_between(after, stop), _ROWS)):
                for host in hosts:
                    if self._records.get(host).pending:
                        yield from self._take_out_of(host, sieved, rows)
                after = host_key(hosts[-1]) + b"\0"
                yield False

    def _take_out_of(self, host: str, sieved: SieveIndex, rows: Rows) -> Steps:
        after = self._records.get(host).head
        while entries := self._store.rows(host, after, _ROWS):
            asked = rows_of(sieved.prints(entry.identity for entry in entries), sieved.width)
            for number in np.flatnonzero(are_among(rows, asked)).tolist():
                self._take_out_or_leave(entries[number])
            after = entries[-1].key
            yield False

    def _take_out_or_leave(self, entry: Entry) -> None:
        data = self._store.row(entry.identity)
        if is_forced(entry, UrlState.from_bytes(data or DONE_200)):
            return
        self._context.foreign.release(entry)
        if self._context.edits.remove(entry):
            self._store.delete_state(entry.identity)
            restore_revisit(self._context.plans, entry.identity)


def key_ranges(units: UnitSet, first: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    """Return `UnitSet.prefixes` within the slots from *first* to *end*, exclusive."""
    low, high = first.to_bytes(2, "big"), (end - 1).to_bytes(2, "big") + b"\xff"
    for begin, stop in units.prefixes():
        if begin < high and stop > low:
            yield max(begin, low), min(stop, high)
