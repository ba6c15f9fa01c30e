"""The clock of leases and grants."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final


def boottime() -> float:
    """Seconds of a clock that nobody sets, and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """What this run of the machine is known by; the same for all processes until it is over.

    Raises `OSError`: the system does not tell.
    """
    return _BOOT.read_text(encoding="ascii").strip()
