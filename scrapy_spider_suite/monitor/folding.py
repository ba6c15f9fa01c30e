"""Which of many alike lines of a log are written, and which are only counted.

The first lines of a kind are written whole; while it keeps coming, one in each interval, and how
many there were beside it. A kind that was silent for an interval begins anew. Decides only: what a
line's kind is, and what is done with the counts, is the business of `extensions.quietlog`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FIRST = 10
"""Lines of a new kind that are written whole."""
INTERVAL = 60.0
"""Seconds between two counts."""
KINDS_MAX = 1_000
"""Most kinds at a time; what comes after that is one kind."""
REST = "other messages"


@dataclass(slots=True)
class _Kind:
    level: int
    left: int
    """Lines that are still written in this interval."""
    held: int = 0
    """Lines that were not, in this interval."""
    last: str = ""
    """The last of them."""
    seen: bool = True
    """Whether there were any in this interval."""


@dataclass(frozen=True, slots=True)
class Held:
    """*count* lines of *kind*, which would have had the log *level*, were held back; *last* too."""

    kind: str
    level: int
    count: int
    last: str


class Folding:
    """Keeps count of the kinds of one log."""

    def __init__(self, first: int = FIRST, kinds_max: int = KINDS_MAX) -> None:
        self._first = first
        self._kinds_max = kinds_max
        self._kinds: dict[str, _Kind] = {}

    def __repr__(self) -> str:
        held = sum(kind.held for kind in self._kinds.values())
        return f"<Folding: {len(self._kinds)} kinds, {held} lines held back>"

    def passes(self, kind: str, level: int, text: Callable[[], str]) -> bool:
        """Whether a line of *kind* is written; if not, it is counted, and its *text* kept."""
        known = self._kinds.get(kind)
        if known is None:
            if len(self._kinds) >= self._kinds_max:
                kind = REST
            known = self._kinds.setdefault(kind, _Kind(level, self._first))
        known.seen = True
        known.level = max(known.level, level)
        if known.left:
            known.left -= 1
            return True
        known.held += 1
        known.last = text()
        return False

    def turn(self) -> list[Held]:
        """An interval is over: return what was held back in it, the most frequent first."""
        held = [Held(name, k.level, k.held, k.last) for name, k in self._kinds.items() if k.held]
        self._kinds = {name: kind for name, kind in self._kinds.items() if kind.seen}
        for kind in self._kinds.values():
            # Still new if it has not used up its first lines.
            kind.left = max(kind.left, 1)
            kind.held, kind.last = 0, ""
            kind.seen = False
        return sorted(held, key=lambda each: -each.count)
