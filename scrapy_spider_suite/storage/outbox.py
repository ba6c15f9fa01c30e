"""What other agents are to have: rows in the database until they say that they keep them (K21).

A row goes in with the commit of the page that led there, so that a kill finds each URL on disk: in
the outbox or with its owner. Rows of one receiver are numbered through for the life of the job,
with a gap from run to run. They begin anywhere, and gaps are of any length: so the rows of a
directory that was lost, or of an earlier state of one, and those of the next of the same agent
have other numbers.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator
from typing import Final

from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.store.interface import KV

_NUMBER: Final = struct.Struct(">Q")
LEAST: Final = 1 << 32
"""The lowest number of a row: lower ones are for letters that come from no outbox."""
_BITS: Final = 62
_AHEAD: Final = 1_000
"""Numbers that are set aside at a time: a run that is killed leaves some of them unused."""
_GAP_BITS: Final = 40
_ROW, _NEXT = b"r", b"n"


class Outbox:
    """The rows in *kv*, by the names of their receivers. Raises `JobDamagedError`.

    Attributes:
        put_in: rows that were put in or were there, since it was made.
        dropped: rows that were dropped.
    """

    def __init__(self, kv: KV) -> None:
        self.put_in = self.dropped = 0
        self._kv = kv
        self._next: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._all = 0
        self._set_aside: dict[str, int] = {}
        for key, _ in kv.items(_ROW):
            self._count(_receiver(key[len(_ROW) : -_NUMBER.size - 1]), 1)
        for key, value in kv.items(_NEXT):
            name = _receiver(key[len(_NEXT) :])
            number = _number(value) + secrets.randbits(_GAP_BITS)
            self._next[name] = self._set_aside[name] = number
        self.put_in = len(self)

    def __len__(self) -> int:
        """How many rows wait, or are on their way."""
        return self._all

    @property
    def receivers(self) -> dict[str, int]:
        """How many rows each receiver is to have; none without any."""
        return dict(self._waiting)

    def put(self, to: str, row: bytes) -> None:
        """Let *to* have *row*; part of the store's next batch."""
        number = self._next.get(to) or LEAST + secrets.randbits(_BITS)
        if number >= self._set_aside.get(to, 0):
            self._set_aside[to] = number + _AHEAD
            self._kv.put(_NEXT + to.encode(), _NUMBER.pack(number + _AHEAD))
        self._next[to] = number + 1
        self._kv.put(_prefix(to) + _NUMBER.pack(number), row)
        self._count(to, 1)
        self.put_in += 1

    def rows(self, to: str, since: int = 0) -> Iterator[tuple[int, bytes]]:
        """The rows for *to*, those of the moment, numbered *since* or higher, in order."""
        prefix = _prefix(to)
        for key, row in self._kv.items(prefix, _NUMBER.pack(since)):
            yield _number(key[len(prefix) :]), row

    def drop(self, to: str, first: int, last: int) -> int:
        """*to* keeps the rows from *first* to *last*: forget them; how many there were."""
        prefix, dropped = _prefix(to), 0
        for number, _ in self.rows(to, first):
            if number > last:
                break
            self._kv.delete(prefix + _NUMBER.pack(number))
            dropped += 1
        self._count(to, -dropped)
        self.dropped += dropped
        return dropped

    def _count(self, to: str, change: int) -> None:
        self._all += change
        self._waiting[to] = self._waiting.get(to, 0) + change
        if not self._waiting[to]:
            del self._waiting[to]


def _prefix(to: str) -> bytes:
    return _ROW + to.encode() + b"\0"


def _receiver(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise JobDamagedError(f"the outbox names no agent ({error})") from error


def _number(data: bytes) -> int:
    try:
        return int(_NUMBER.unpack(data)[0])
    except struct.error as error:
        raise JobDamagedError(f"the outbox has a number that is none ({error})") from error
