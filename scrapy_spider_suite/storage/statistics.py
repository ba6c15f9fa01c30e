"""What the frontier says of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FrontierStatistics:
    """A snapshot. All are counts."""

    pending: int
    leased: int
    hosts: int
    addresses: int
    unresolved: int
    abandoning: int
    in_sieve: int = 0
    unextracted: int = 0
    fetched: int = 0
    """Pages done by this process."""
