"""The clock of leases and grants."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final


def boottime() -> float:
    """Seconds of a clock that is never set, and runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The id of this boot of the machine, the same for all processes. Raises `OSError`."""
    return _BOOT.read_text(encoding="ascii").strip()
