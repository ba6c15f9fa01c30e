"""What `grants` keeps of each grant, here or asked for. Times are seconds of its clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Need(NamedTuple):
    """A fetch has to do with this key, and *delay* seconds have to pass there before and after."""

    key: str
    delay: float


@dataclass(slots=True)
class Figures:
    """What was done so far, in numbers of keys."""

    asked: int = 0
    granted: int = 0
    refused: int = 0
    ended: int = 0
    returned: int = 0
    calls: int = 0
    failures: int = 0
    losses: int = 0
    """Times that the ledger had lost what it knew."""


@dataclass(slots=True)
class Lease:
    """A grant: fetches may start from *opens* to *closes*; *out* are those that were."""

    serial: int
    opens: float
    closes: float
    asked: float
    """The delay that it was granted for."""
    out: int = 0
    ended: float = -1.0
    delay: float = 0.0


@dataclass(slots=True)
class Asking:
    """Grants that are wanted, all or none."""

    serial: int
    needs: tuple[Need, ...]
    again: float
    """When to ask."""
    wanted: float
    """When somebody last asked for them here."""
    queued: bool = False
    flying: bool = False
    maybe: bool = False
    """They may have been granted without our knowledge."""
