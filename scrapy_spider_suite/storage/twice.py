"""URLs that wait at the taker of a parcel, and of which the parcel says more.

A row is found by walking over the queue of its host, so what becomes of it is put off until all of
the parcel is merged. What was asked for stays, whatever came. Of two rows that ask for the same one
stays: that of the giver, unless only the other was asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Final, NamedTuple

import xxhash

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.frontier.entries import Entry, sequence_of
from scrapy_spider_suite.frontier.outcomes import State
from scrapy_spider_suite.storage.asked import asked_for, due_again
from scrapy_spider_suite.storage.giving import NAME, ROWS
from scrapy_spider_suite.storage.hands import Hands
from scrapy_spider_suite.store.rows import UrlState

Write = Callable[[str, bytes, UrlState], None]
"""Writes, of a host, under a state key, that a URL is done or failed."""

_TWICE: Final = b"d"
_UNTIL: Final = struct.Struct(">Q")
_ROW, _ASKED, _INSTEAD, _STATE = b"r", b"a", b"i", b"s"
"""What came: a row, one that was asked for, one instead of which another stays; a state."""
_UNTRIED: Final = UrlState(State.PENDING)


class Mark(NamedTuple):
    """What came for a URL that was pending.

    Attributes:
        until: the sequence number of the last row that was here by then.
        kind: see above.
        data: a state, packed; or a digest of what a row asks for.
    """

    until: int
    kind: bytes
    data: bytes

    def to_bytes(self) -> bytes:
        """As a row holds it."""
        return _UNTIL.pack(self.until) + self.kind + self.data

    @classmethod
    def from_bytes(cls, data: bytes) -> Mark:
        """Read it back; earlier releases kept no more than the number. Raises `JobDamagedError`."""
        at = _UNTIL.size
        try:
            return cls(_UNTIL.unpack_from(data)[0], data[at : at + 1] or _ROW, data[at + 1 :])
        except struct.error as error:
            raise JobDamagedError(f"what waits twice cannot be read ({error})") from error


class Twice:
    """The marks of a store; *write* writes states that were put off."""

    def __init__(self, hands: Hands, write: Write) -> None:
        self._hands = hands
        self._store = hands.store
        self._records = hands.residents.records
        self._write = write
        self._kv = hands.store.kv(NAME)

    @property
    def left(self) -> bool:
        """Whether any mark has not come to its end."""
        return next(self._kv.items(_TWICE), None) is not None

    def row(self, entry: Entry, state: UrlState) -> None:
        """*entry*, which is about to come, with *state*, waits here already."""
        self._mark(entry.identity, _ASKED if asked_for(entry, state) else _ROW, _digest(entry))

    def state(self, key: bytes, theirs: UrlState) -> None:
        """What waits here under this state key is done or failed, as *theirs* says."""
        self._mark(key, _STATE, theirs.to_bytes())

    def _mark(self, key: bytes, kind: bytes, data: bytes) -> None:
        mark = Mark(self._hands.ledger.counters.sequence, kind, data)
        self._kv.put(_TWICE + key, mark.to_bytes())

    # When all of it is merged

    def end(self, since: int) -> Iterator[bool]:
        """Have every mark come to its end; all rows of the parcel have numbers behind *since*."""
        while (first := next(self._kv.items(_TWICE), None)) is not None:
            prefix = first[0][: first[0].index(b"\0", len(_TWICE) + 2) + 1]
            host = prefix[len(_TWICE) + 2 : -1].decode()
            while (yield from self._walk(host, since)):
                pass
            while rows := list(islice(self._kv.items(prefix), ROWS)):
                for key, data in rows:
                    self._kv.delete(key)
                    mark = Mark.from_bytes(data)
                    if mark.kind == _STATE:  # nothing of it waits any more
                        self._conclude(host, key[len(_TWICE) :], mark)
                self._records.save()
                yield False

    def _walk(self, host: str, since: int) -> Generator[bool, None, bool]:
        """Go over the queue of *host*; whether that has to be done once more."""
        after, again = self._records.of(host).head, False
        while entries := self._store.rows(host, after, ROWS):
            for entry in entries:
                mark = self._kv.get(_TWICE + entry.identity)
                if mark is not None:
                    again = self._judge(entry, Mark.from_bytes(mark), since) or again
                after = entry.key
            self._records.save()
            yield False
        return again

    def _judge(self, entry: Entry, mark: Mark, since: int) -> bool:
        """Take out a marked *entry*, or leave it; whether the queue is to be gone over again."""
        early = sequence_of(entry.key) <= mark.until
        if mark.kind == _STATE:
            data = self._store.row(entry.identity)
            state = _UNTRIED if data is None else UrlState.from_bytes(data)
            if early and not asked_for(entry, state) and self._take_out(entry):
                self._conclude(entry.host, entry.identity, mark)  # at once: it must not be neither
            else:
                self._kv.delete(_TWICE + entry.identity)
            return False
        same, asked = mark.data == _digest(entry), asked_for(entry, _UNTRIED)
        if not early:
            if mark.kind == _INSTEAD and same and not asked:
                self._take_out(entry)
            return False
        if asked and same and mark.kind == _ROW:
            self._kv.put(_TWICE + entry.identity, mark._replace(kind=_INSTEAD).to_bytes())
            return True
        if asked:
            goes = same and mark.kind == _ASKED
        else:
            # A spider's request that the giver had, too, before the one that was asked for.
            of_parcel = mark.kind == _ASKED and sequence_of(entry.key) > since
            goes = not (of_parcel and entry.payload is not None)
        if goes:
            self._take_out(entry)
        return False

    def _conclude(self, host: str, key: bytes, mark: Mark) -> None:
        self._write(host, key, UrlState.from_bytes(mark.data))
        due_again(self._hands.revisits, key)

    def _take_out(self, entry: Entry) -> bool:
        self._hands.holding.let_go(entry)
        return self._hands.rework.take_out(entry)


def _digest(entry: Entry) -> bytes:
    """What *entry* asks for, as far as its identity does not say it."""
    return xxhash.xxh3_64_digest(entry.payload or b"")
