"""How many files this process may have open, raised as far as it goes."""

from __future__ import annotations

import contextlib
import logging
from typing import Final

logger = logging.getLogger(__name__)

_UNKNOWN: Final = 1_024
"""Assumed where the system does not tell (Windows: select() stops at 512, proactors do not)."""
_ENOUGH: Final = (1 << 20, 1 << 16, 10_240)
"""Tried in turn where the hard limit is "infinity", which not every system lets one set."""


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one; return the limit that holds then.

    Every idle connection is an open file, and many systems start programs with 256 or 1,024.
    """
    try:
        import resource
    except ImportError:
        return _UNKNOWN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    for wanted in _ENOUGH if hard == infinite else (hard, *(n for n in _ENOUGH if n < hard)):
        if soft == infinite or soft >= wanted:
            break
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            logger.debug("Raised the limit of open files from %d to %d", soft, wanted)
            soft = wanted
    return _ENOUGH[0] if soft == infinite else soft
