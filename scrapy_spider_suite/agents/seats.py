"""What tells a folder of a running machine from all others."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """What this run of the machine is known by; the same for all processes until it is over.

    Raises `OSError`: the system does not tell.
    """
    return _BOOT.read_text(encoding="ascii").strip()


def seat_of(folder: Path) -> str:
    """What only the same *folder* on the same running machine has. Raises `OSError`."""
    status = folder.stat()
    try:
        boot = boot_id()
    except OSError:
        boot = secrets.token_hex(8)  # no proof: it is nobody else's
    return f"{boot}:{status.st_dev}:{status.st_ino}"
