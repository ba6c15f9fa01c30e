"""The hours of the day at which a host may be visited.

In UTC: the machines of a crawl and the sites that it visits have local times of their own, and
UTC has no hour that is missing or comes twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DAY = 86_400.0
_RANGE = re.compile(r"(\d{1,2})(?::(\d\d))?-(\d{1,2})(?::(\d\d))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Hours:
    """Times of day as written (``22-6``, ``8:30-12,13-17:15``), and as seconds of a UTC day.

    Invariant: *spans* are sorted, none of them is empty, and no two touch.
    """

    text: str
    spans: tuple[tuple[float, float], ...]

    @classmethod
    def parse(cls, text: str) -> Hours:
        """Read ranges separated by commas; one that ends before it begins goes over midnight.

        Raises `ValueError`.
        """
        parts: list[tuple[float, float]] = []
        for word in text.split(","):
            begin, end = _range(word)
            # 22-6 is 0-6 and 22-24.
            parts += [(begin, end)] if begin < end else [(0.0, end), (begin, DAY)]
        spans: list[tuple[float, float]] = []
        for begin, end in sorted(part for part in parts if part[0] < part[1]):
            if spans and begin <= spans[-1][1]:
                spans[-1] = spans[-1][0], max(end, spans[-1][1])
            else:
                spans.append((begin, end))
        return cls(text, tuple(spans))

    def opens(self, wall: float) -> float:
        """When a visit may begin next (seconds since the epoch): *wall* itself, if now."""
        midnight = wall // DAY * DAY
        clock = wall - midnight
        for begin, end in self.spans:
            if clock < end:
                return max(wall, midnight + begin)
        return midnight + DAY + self.spans[0][0]


def _range(word: str) -> tuple[float, float]:
    match = _RANGE.fullmatch(word.strip())
    if match is None:
        raise ValueError(f"{word!r} is no range of hours")
    begin, end = (
        3600.0 * int(match[group]) + 60.0 * int(match[group + 1] or 0) for group in (1, 3)
    )
    if begin == end or max(begin, end) > DAY or any(int(match[m] or 0) > 59 for m in (2, 4)):
        raise ValueError(f"{word!r} is no range of hours")
    return begin, end
