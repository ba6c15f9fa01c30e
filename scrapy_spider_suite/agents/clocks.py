"""The clock of leases and grants."""

from __future__ import annotations

import time


def boottime() -> float:
    """Seconds of a clock that nobody sets, and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
