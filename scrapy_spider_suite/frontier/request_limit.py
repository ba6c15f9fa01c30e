"""How many requests may be under way: additive increase, multiplicative decrease (RFC 5681, 3.1).

Erachnid's fetchers keep a number of pending requests that adjusts itself. Pure: the caller tells
what came of each request, and the time.
"""

from __future__ import annotations

from typing import Final

WINDOW: Final = 5.0  # seconds over which requests are judged
SIGNIFICANT: Final = 20  # requests without which a window says nothing
_LEAST: Final = 16  # requests, and of the most a tenth, to which the limit falls
_FALL, _RISE = 0.7, 0.05  # of the limit; of the most
_MEMORY: Final = 1 / 60  # the weight of a window in what is usual: some five minutes
_SLOW: Final = 2.0  # times the usual seconds of an answer
_SLOW_BUSY: Final = 1.5  # the same while the processor is busy
_SLACK: Final = 0.1  # seconds, and shares, that are no sign
_BUSY: Final = 0.95  # of a processor core


class RequestLimit:
    """*limit*: from *most* down to a tenth of it, while answers are slow, or requests are lost.

    Slow and lost are compared with what is usual in this crawl. *now*: monotonic seconds; *busy*:
    seconds of a processor that the process has had.
    """

    def __init__(self, most: int, now: float, busy: float) -> None:
        self.reason = ""  # of the last decrease, in words
        self._usual: tuple[float, float] | None = None  # seconds of an answer, share of losses
        self._judged = True  # whether the last window was; after a decrease one is not
        self.set_most(most)
        self._begin(now, busy)

    def set_most(self, most: int) -> None:
        self.most = self.limit = most
        self._least = min(most, max(_LEAST, most // 10))

    def _begin(self, now: float, busy: float) -> None:
        self._since, self._busy = now, busy
        self._answers = self._lost = 0
        self._seconds = 0.0

    def note_answer(self, seconds: float) -> None:
        """A request was answered after *seconds*."""
        self._answers += 1
        self._seconds += seconds

    def note_loss(self) -> None:
        """A request to a host that answered before had no answer."""
        self._lost += 1

    def update(self, now: float, busy: float) -> bool:
        """Judge the window if it is over; whether the limit has changed."""
        width = now - self._since
        if width < WINDOW:
            return False
        count, load, before = self._answers + self._lost, (busy - self._busy) / width, self.limit
        self.reason = ""
        if count >= SIGNIFICANT:
            usual = self._usual or (0.0, 0.0)
            seconds = self._seconds / self._answers if self._answers else usual[0]
            found = seconds, self._lost / count
            usual = self._usual = found if self._usual is None else usual
            self.reason = _trouble(found, usual, load) if self._judged else ""
            self._judged = not self.reason
            self._usual = (
                usual[0] + (found[0] - usual[0]) * _MEMORY,
                usual[1] + (found[1] - usual[1]) * _MEMORY,
            )
            if self.reason:
                self.limit = max(self._least, int(self.limit * _FALL))
        if not self.reason:
            self.limit = min(self.most, self.limit + max(1, round(self.most * _RISE)))
        self._begin(now, busy)
        return self.limit != before


def _trouble(found: tuple[float, float], usual: tuple[float, float], load: float) -> str:
    """What shows that too many requests are under way; "" if nothing does."""
    (seconds, lost), (usual_seconds, usual_lost) = found, usual
    if lost > usual_lost + _SLACK:
        return (
            f"lost requests to hosts that answered before: {lost:.0%} (as a rule {usual_lost:.0%})"
        )
    slow = f"an answer takes {seconds:.2f} s, {usual_seconds:.2f} s as a rule"
    if seconds > _SLOW * usual_seconds + _SLACK:
        return slow
    if load > _BUSY and seconds > _SLOW_BUSY * usual_seconds + _SLACK:
        return f"the processor is busy, and {slow}"
    return ""
