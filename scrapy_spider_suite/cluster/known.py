"""Which rows of other agents' outboxes are here already: of each sender intervals of numbers.

Letters come at least once. That a URL comes twice does no harm, but a request that is not to be
filtered would be fetched twice.
"""

from __future__ import annotations

import struct
from typing import Final

from scrapy_spider_suite.agents.letters import Letter
from scrapy_spider_suite.storage.kv import KV

_INTERVAL: Final = struct.Struct(">QQ")
_MOST: Final = 256
"""Intervals of a sender; of rows before those that are known nothing is."""
_GAP: Final = 10_000
"""Numbers that a letter may leave out: a sender that was killed leaves out a thousand."""


class KnownRows:
    """The intervals in *kv*, which change with the next batch of the store."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._of: dict[str, list[tuple[int, int]]] = {}

    def covers(self, letter: Letter) -> bool:
        """Whether all rows of *letter* have come."""
        known = self._known(letter.sender)
        return any(first <= letter.first and letter.last <= last for first, last in known)

    def add(self, letter: Letter) -> None:
        """The rows of *letter* are here, or will be with the next batch."""
        first, last = letter.first, letter.last
        if last - first >= len(letter.rows) + _GAP:
            return  # no agent sends that; it would hide what is sent later
        kept = []
        for each in self._known(letter.sender):
            if each[1] + 1 < first or each[0] > last + 1:
                kept.append(each)
            else:
                first, last = min(first, each[0]), max(last, each[1])
        known = self._of[letter.sender] = sorted([*kept, (first, last)])[-_MOST:]
        data = b"".join(_INTERVAL.pack(*each) for each in known)
        self._kv.put(letter.sender.encode(), data)

    def _known(self, sender: str) -> list[tuple[int, int]]:
        known = self._of.get(sender)
        if known is None:
            data = self._kv.get(sender.encode()) or b""
            whole = len(data) - len(data) % _INTERVAL.size
            known = self._of[sender] = list(_INTERVAL.iter_unpack(data[:whole]))
        return known
