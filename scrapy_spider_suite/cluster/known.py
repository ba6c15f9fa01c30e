"""Which rows of other agents' outboxes are here already: of each sender intervals of numbers.

Letters come at least once. That a URL comes twice does no harm, but a request that is not to be
filtered would be fetched twice. So each row is noted in the batch in which what it holds is kept: a
receiver that dies within a letter takes the rest of it when it comes again, and no more.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Final

from scrapy_spider_suite.agents.letters import Letter
from scrapy_spider_suite.store.interface import KV

_INTERVAL: Final = struct.Struct(">QQ")
_MOST: Final = 256
"""Intervals of a sender; of rows before those that are known nothing is."""
_SENDERS: Final = 500
"""Of which the intervals are in memory, some 30 KB each at most: anybody may make up names."""
_GAP: Final = 10_000
"""Numbers that a letter may leave out: a sender that was killed leaves out a thousand."""


class KnownRows:
    """The intervals in *kv*, which change with the next batch of the store."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._of: OrderedDict[str, list[tuple[int, int]]] = OrderedDict()

    def covers(self, letter: Letter) -> bool:
        """Whether all rows of *letter* have come."""
        return self.has(letter.sender, letter.first, letter.last)

    def has(self, sender: str, first: int, last: int) -> bool:
        """Whether the rows of *sender* from *first* to *last* have come."""
        return any(each[0] <= first and last <= each[1] for each in self._known(sender))

    def add(self, letter: Letter) -> None:
        """The rows of *letter* are here, or will be with the next batch."""
        if letter.last - letter.first < len(letter.rows) + _GAP:
            self.put(letter.sender, letter.first, letter.last)
        # Otherwise no agent sends that; it would hide what is sent later.

    def put(self, sender: str, first: int, last: int) -> None:
        """The rows of *sender* from *first* to *last* are here, or will be with the next batch."""
        known = self._known(sender)
        if known and known[-1][1] + 1 == first:
            known[-1] = known[-1][0], last
        else:
            kept = []
            for each in known:
                if each[1] + 1 < first or each[0] > last + 1:
                    kept.append(each)
                else:
                    first, last = min(first, each[0]), max(last, each[1])
            known[:] = sorted([*kept, (first, last)])[-_MOST:]
        self._kv.put(sender.encode(), b"".join(_INTERVAL.pack(*each) for each in known))

    def _known(self, sender: str) -> list[tuple[int, int]]:
        known = self._of.get(sender)
        if known is None:
            data = self._kv.get(sender.encode()) or b""
            whole = len(data) - len(data) % _INTERVAL.size
            known = self._of[sender] = list(_INTERVAL.iter_unpack(data[:whole]))
            if len(self._of) > _SENDERS:
                self._of.popitem(last=False)
        self._of.move_to_end(sender)
        return known
