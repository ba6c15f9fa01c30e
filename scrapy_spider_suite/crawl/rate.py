"""How many pages a second are done."""

from __future__ import annotations

from typing import Final

_SECONDS: Final = 10.0
"""Over which the rate is told."""


class Rate:
    """Pages by second, over the last ten seconds or so."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def of(self, now: float, done: int) -> float:
        """The rate, where *done* pages are done at *now*."""
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _SECONDS:
            self._seen.pop(0)
        then, before = self._seen[0]
        return round((done - before) / (now - then), 2) if now > then else 0.0
