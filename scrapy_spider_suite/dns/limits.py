"""The bounds of a resolver and the counts that it gives out. Pure."""

from __future__ import annotations

from dataclasses import dataclass

ZERO_TTL = 600.0
"""Seconds that an answer with TTL 0 is used for.

RFC 1035 §3.2.1 means it for one transaction only, which a crawl that comes back every few seconds
cannot honour. The hosts file has no TTL, and counts as 0 as well.
"""


@dataclass(frozen=True)
class ResolverLimits:
    """Bounds in time and number.

    Raises:
        ValueError: a number is out of its range; the message names it.
    """

    ttl_min: float = 600.0
    """Seconds that an answer is kept at least."""

    ttl_max: float = 86_400.0
    """Seconds that an answer is kept at most."""

    negative_ttl: float = 300.0
    """Seconds that it is remembered that a name does not exist. `outcome` bounds the rest."""

    cache_size: int = 100_000
    """Names in the cache, found or not."""

    timeout: float = 10.0
    """Seconds within which a name is resolved or given up, not counting the wait for its turn."""

    concurrency: int = 256
    """Names that are asked for at a time; more wait for their turn."""

    def __post_init__(self) -> None:
        if not 0 <= self.ttl_min <= self.ttl_max:
            raise ValueError(f"ttl_min {self.ttl_min} is not between 0 and ttl_max {self.ttl_max}")
        if self.negative_ttl < 0:
            raise ValueError(f"negative_ttl {self.negative_ttl} is negative")
        for name in ("cache_size", "timeout", "concurrency"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} {getattr(self, name)} is not positive")

    def lifetime(self, ttl: float) -> float:
        """Return for how many seconds an answer with this *ttl* is used.

        One with its highest bit set is negative here, and counts as 0 (RFC 2181 §8).
        """
        return min(max(ttl if ttl > 0 else ZERO_TTL, self.ttl_min), self.ttl_max)


@dataclass(frozen=True, slots=True)
class ResolverStatistics:
    """Counts since the resolver was made, and two sizes at this moment."""

    queries: int
    """Questions put to the name servers or the hosts file, IPv4 and IPv6 apart."""
    hits: int
    """Look-ups answered with addresses from the cache."""
    negative_hits: int
    """Look-ups answered with a failure from the cache."""
    shared: int
    """Look-ups that joined a question which was open already."""
    timeouts: int
    """Names given up because no server answered in time."""
    failures: int
    """Names asked for and not resolved for any other reason: no such host, server failure."""
    refused: int
    """Names asked for whose addresses the policy refuses, all of them."""
    in_flight: int
    """Names that are being asked for or wait for their turn."""
    cached: int
    """Names in the cache, some of them possibly expired."""
