"""The lease of an agent: how long it may go on without a word from Redis, and by whose clock.

Redis counts a lease from when it hears of the agent, the agent from before it spoke: so the agent's
end is the earlier one. Nobody takes what an agent holds before the end that Redis knows; the agent
starts no fetch that may last longer, nor one whose host, or address, may be fetched from again only
after that: whoever takes it knows nothing of what was fetched, and begins at once.

Time is read twice, by a clock that goes on in sleep (``CLOCK_BOOTTIME``) and by the wall's, for a
virtual machine that was frozen knows of it by one of them, if at all; whichever is further decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

DRIFT: Final = 500e-6
"""Seconds by second that a clock errs at most: as far as adjtimex(2) lets NTP slew it."""

SLACK: Final = 1.0
"""Seconds between the check of a lease and the first byte on the wire."""


SPARE: Final = 30.0
"""Seconds that a lease lasts beyond the longest fetch and delay: it is renewed every five."""

_RENEWAL: Final = SPARE / 2
"""Seconds within which it is renewed, if anything answers."""


@dataclass(frozen=True, slots=True)
class Skew:
    """How far this machine's wall clock is behind that of Redis, in seconds.

    The truth lies *bound* around *offset*: half of what the question took.
    """

    offset: float
    bound: float

    def __str__(self) -> str:
        return f"{self.offset:+.3f} s ± {self.bound:.3f} s"

    @classmethod
    def measured(cls, wall: float, took: float, server: float) -> Skew:
        """Asked at *wall*, answered *took* seconds later with the time *server*."""
        return cls(server - wall - took / 2, took / 2)


class Lease:
    """What one process knows of its lease.

    Args:
        timeout: seconds that a fetch may last.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._end = self._wall_end = -math.inf
        self._margin = 0.0
        self._length = 0.0  # of the longest that was granted

    def renewed(self, sent: float, wall: float, granted: float | None) -> None:
        """It was granted for *granted* seconds, None for ever, to who asked at *sent* and *wall*.

        The end that is known never comes earlier by this.
        """
        seconds = math.inf if granted is None else granted
        self._margin = 0.0 if granted is None else SLACK + 2 * DRIFT * seconds
        self._length = max(self._length, seconds)
        self._end = max(self._end, sent + seconds)
        self._wall_end = max(self._wall_end, wall + seconds)

    def dropped(self) -> None:
        """It is over: another process has it, or nobody."""
        self._end = self._wall_end = -math.inf

    def live(self, now: float, wall: float) -> bool:
        """Nobody else can have been given what this agent holds."""
        return now < self._end - self._margin and wall < self._wall_end - self._margin

    def may_fetch(self, now: float, wall: float, delay: float = 0.0) -> bool:
        """A fetch that is started now ends before the lease does, also by the clock of Redis, and
        *delay* seconds after it are over.

        Of a delay for which a lease is too short counts as much as there is room for: otherwise
        nothing were ever fetched there.
        """
        ahead = self._timeout + self._margin
        if delay:
            ahead += max(0.0, min(delay, self._length - ahead - _RENEWAL))
        return now < self._end - ahead and wall < self._wall_end - ahead

    def seconds(self, now: float, wall: float) -> float:
        """How long fetches may still be started, unless it is renewed; below 0 when not at all."""
        return min(self._end - now, self._wall_end - wall) - self._timeout - self._margin
