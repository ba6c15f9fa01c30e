"""What tells a folder of a running machine from all others."""

from __future__ import annotations

import secrets
from pathlib import Path

from scrapy_spider_suite.runtime.clock import boot_id


def seat_of(folder: Path) -> str:
    """What only the same *folder* on the same running machine has. Raises `OSError`."""
    status = folder.stat()
    try:
        boot = boot_id()
    except OSError:
        boot = secrets.token_hex(8)  # no proof: it is nobody else's
    return f"{boot}:{status.st_dev}:{status.st_ino}"
