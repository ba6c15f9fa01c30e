"""A limit of bytes per second that delays what is asked for next, and cuts nothing.

Each request pays the mean size of an answer when it goes out, and the difference when its answer
has come. So requests go out evenly from the first one on, however long their answers take, and in
the long run no more is received than was allowed. The rule is that of a leaky bucket (ITU-T I.371,
annex A, "generic cell rate algorithm"), with a price that is corrected afterwards.
"""

from __future__ import annotations

FIRST_GUESS = 20_000.0
"""Bytes of an answer, before there was one."""
_WEIGHT = 1 / 32
"""Of the newest answer in the mean."""
_CREDIT = 1.0
"""Seconds whose bytes may be saved up by receiving less."""


class Bandwidth:
    """One crawl's. *rate* is in bytes per second and may change; 0 is no limit.

    Times are seconds of a monotonic clock.
    """

    def __init__(self, rate: float = 0.0) -> None:
        self.rate = rate
        self.mean = FIRST_GUESS
        self._debt = 0.0  # bytes for which time has not gone by yet
        self._at = 0.0

    def wait(self, now: float) -> float:
        """Seconds until another request may go out."""
        self.charge(0.0, now)
        return max(0.0, self._debt / self.rate) if self.rate else 0.0

    def book(self, now: float) -> float:
        """A request goes out; return the bytes that it has paid, for `settle`."""
        self.charge(self.mean, now)
        return self.mean

    def settle(self, booked: float, size: int, now: float) -> None:
        """What paid *booked* brought *size* bytes."""
        self.charge(size - booked, now)
        self.mean += (size - self.mean) * _WEIGHT

    def charge(self, size: float, now: float) -> None:
        """So many bytes more were received, or are expected."""
        paid = self.rate * (now - self._at)
        self._at = now
        # Without a limit nothing is owed, now or when there is one again.
        self._debt = max(-self.rate * _CREDIT, self._debt - paid) + size if self.rate else 0.0
