"""Hosts on disk that are held back no more: they do not wait to be looked at again."""

from __future__ import annotations

from scrapy_spider_suite.storage.residents import HELD, Residents
from scrapy_spider_suite.storage.waiting import BARRED

_PORTION = 200
"""Hosts that are looked at at a time, some 10 us each."""


class Freed:
    """Has them wait for their own times, once others are held back than before.

    They are found among the hosts that are due within the time after which such a host is looked
    at again: also those that an earlier process has put off.
    """

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        self._waiting = residents.waiting
        self._records = residents.records
        self._revision = 0
        self._left: list[tuple[float, float, str]] = []  # since, until, after which host

    @property
    def at_work(self) -> bool:
        """Whether more is to be looked at."""
        return bool(self._left) or self._revision != self._residents.revision

    def go_on(self, wall: float) -> bool:
        """Look at a portion; whether there is more.

        What changes meanwhile has it begin again at the end, so that it comes to one.
        """
        if not self._left and self.at_work:
            self._revision = self._residents.revision
            self._left = [(band + wall, band + wall + HELD, "") for band in (BARRED, 0.0)]
        if self._left:
            since, until, after = self._left.pop()
            rows = self._waiting.rows(since, after, _PORTION)
            for due, key in rows:
                if due <= until:
                    self._look(key, wall)
            self._records.save()
            if len(rows) == _PORTION and rows[-1][0] <= until:
                self._left.append((rows[-1][0], until, rows[-1][1]))
        return self.at_work

    def _look(self, key: str, wall: float) -> None:
        if self._residents.held_back(key):
            return
        record = self._records.of(key)
        if self._waiting.bring_forward(key, record, wall):
            self._records.changed(key, record)
