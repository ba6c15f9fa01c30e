"""Back-off, Retry-After, pace and bandwidth: how long a host waits, by its answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

from scrapy_spider_suite.frontier.outcomes import OUTCOMES, Event, Health

FIRST_GUESS = 20_000.0
"""Bytes of an answer, before there was one."""
_WEIGHT = 1 / 32
"""Of the newest answer in the mean."""
_CREDIT = 1.0
"""Seconds whose bytes may be saved up by receiving less."""


class BandwidthLimit:
    """*rate* in bytes per second; 0 is no limit. Times are monotonic seconds."""

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
        paid = self.rate * (now - self._at)
        self._at = now
        # Without a limit nothing is owed, now or when there is one again.
        self._debt = max(-self.rate * _CREDIT, self._debt - paid) + size if self.rate else 0.0


LONGEST_WISH = 14 * 86400.0
"""Seconds; a longer Retry-After is a mistake, or outlives the crawl."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How one host may be visited: seconds between visits, how many at once, URLs a visit."""

    delay: float
    concurrency: int = 1
    burst: int = 1


@dataclass(frozen=True, slots=True)
class BackOff:
    """Seconds to wait, and failed connections in a row before giving up.

    *refused* is the base after a refused connection, where that is shorter.
    """

    base: float = 5.0
    longest: float = 3600.0
    dead_after: int = 5
    refused: float = math.inf

    def after(self, failures: int, event: Event | None = None) -> float:
        """Seconds to wait after *failures* in a row: the base for *event*, doubled each time."""
        base = min(self.base, self.refused) if event is Event.REFUSED else self.base
        return min(self.longest, base * 2.0 ** min(failures - 1, 30))


@dataclass(frozen=True, slots=True)
class HostVerdict:
    failures: int
    wait: float = 0.0
    why: str = ""
    dead: bool = False


def judge_host(
    event: Event, failures: int, rules: BackOff, retry_after: float | None
) -> HostVerdict:
    """What *event* means for a host that had *failures* in a row before it.

    The longer of back-off and *retry_after* (seconds) holds; `LONGEST_WISH` at most.
    """
    health = OUTCOMES[event].health
    if health is Health.NONE:
        return HostVerdict(failures)
    if health is Health.WELL:
        return HostVerdict(0)
    failures += 1
    wait, why = rules.after(failures, event), f"back-off after {event.value}"
    if retry_after is not None and retry_after >= wait:
        wait, why = min(retry_after, max(wait, LONGEST_WISH)), "Retry-After"
    dead = health is Health.UNREACHABLE and failures >= rules.dead_after
    return HostVerdict(failures, wait, why, dead)


def parse_retry_after(value: str, wall: float) -> float | None:
    """Seconds to wait by a ``Retry-After`` header, 0.0 to `LONGEST_WISH`; None if it is invalid.

    *wall* is the time now in seconds since the epoch.
    """
    value = value.strip()
    if value.isascii() and value.isdigit():
        return min(float(value[:12]), LONGEST_WISH)
    when = parse_http_date(value)
    return None if when is None else min(max(0.0, when - wall), LONGEST_WISH)


def parse_http_date(text: str) -> float | None:
    """Seconds since the epoch of an HTTP-date (RFC 9110 §5.6.7); None if it is invalid."""
    try:
        when = parsedate_to_datetime(text)
        if when.tzinfo is None:  # the obsolete asctime form names no zone: it is UTC
            when = when.replace(tzinfo=UTC)
        return when.timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
