"""Sliding windows: which hosts, or which of their leaves, are admitted next (Tarantula, §5.2).

The paper's two windows are one table here, with a column for each host and a row for each leaf:

- the *top* window (T15) has one row, and so many columns as its size says: the left-most leaf of
  each of so many hosts. When all of them were visited, it moves on by its size (w = 2: hosts 1 and
  2, then 3 and 4), and in the end to the first host again;
- the *leaf* window (T16) has as many columns as there is room for, and so many rows as its size
  says: the next leaves of each host, taken row by row. To and fro it goes by the keys of the leaves
  (`orders.BottomUp`).

A host that is not visited in its row, since it must wait for longer than its delay or has nothing
left, is passed over. When a host may be visited is no business of a window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


class Window:
    """One place of a sliding window: the table of its hosts, and how far it has come in it.

    *columns* is the most hosts that enter it, *rows* how many visits each of them has in it.

    Invariant: a row is over if and only if nobody owes, and who owes is in the window.
    """

    def __init__(self, columns: float, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self.hosts: dict[str, None] = {}
        """Those in the window, in the order in which they came."""
        self._owing: set[str] = set()
        self._entered = 0
        self._row = 0

    def __repr__(self) -> str:
        return f"<Window {len(self.hosts)} hosts, row {self._row} of {self.rows}>"

    @classmethod
    def of(cls, kind: str, size: int) -> Window | None:
        """That of ``SUITE_WINDOW`` and ``SUITE_WINDOW_SIZE``; None for none."""
        if kind == "top":
            return cls(size, 1)
        return cls(math.inf, size) if kind == "leaf" else None

    @property
    def room(self) -> float:
        """How many hosts may still enter before it moves; who has left makes no room."""
        return self.columns - self._entered

    @property
    def owing(self) -> frozenset[str]:
        """The hosts that have yet to be visited in this row."""
        return frozenset(self._owing)

    @property
    def over(self) -> bool:
        """Whether everyone has been visited in this row."""
        return not self._owing and bool(self._entered)

    def enter(self, host: str) -> None:
        """*host* comes in, and is to be visited in this row."""
        self._entered += host not in self.hosts
        self.hosts[host] = None
        self._owing.add(host)

    def leave(self, host: str) -> None:
        """*host* is not in memory any more."""
        self.hosts.pop(host, None)
        self._owing.discard(host)

    def give(self, host: str) -> None:
        """*host* was visited, or passed over."""
        self._owing.discard(host)

    def next_row(self, having: Iterable[str]) -> bool:
        """Begin another row with the hosts *having* a leaf; False if it has to move on."""
        self._row += 1
        self._owing = set(having) if self._row < self.rows else set()
        return bool(self._owing)

    def move(self, staying: Iterable[str]) -> None:
        """It has moved on: the hosts *staying* are the first of its new place."""
        self.hosts = dict.fromkeys(staying)
        self._owing = set(self.hosts)
        self._entered = len(self.hosts)
        self._row = 0
