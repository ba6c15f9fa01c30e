"""Phases: a part of the hosts at a time, by the clock on the wall alone (KSpider, §2.2; K4-K8).

The paper does not print when which phase is active, only that on each node exactly one is, that no
two nodes have the same one, and that nodes do not speak when they swap (K6, K7). Here node *n* has
phase ``(n + t // T) mod N`` at time *t*. Nor does it say what becomes of fetches that are under way
at a swap: a guard at the end of each turn, in which none begins, leaves them time to end.
"""

from __future__ import annotations

from dataclasses import dataclass

from scrapy_spider_suite.urls.hosts import phase_of
from scrapy_spider_suite.wording import counted


@dataclass(frozen=True, slots=True)
class Phases:
    """*count* phases, each active for *seconds*; in the last *guard* seconds no fetch begins.

    Nodes are numbered from 0, the clocks of all are those of the wall (seconds since 1970). Raises
    `ValueError` for numbers that make no phases; there are at least as many as nodes (K5).
    """

    count: int
    seconds: float
    guard: float = 0.0
    node: int = 0

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.node < self.count:
            phases = counted(self.count, "phase")
            raise ValueError(f"{phases} for node {self.node}: expected one for each")
        if not 0 <= self.guard < self.seconds:
            raise ValueError(f"a guard of {self.guard:g} s: expected less than {self.seconds:g} s")

    def of(self, host: str) -> int:
        """The phase of *host* (K4)."""
        return phase_of(host, self.count)

    def active(self, wall: float) -> int:
        """The phase that is active here at *wall* (K6)."""
        return (self.node + int(wall // self.seconds)) % self.count

    def opens(self, host: str, wall: float) -> float:
        """When a fetch of *host* may begin next: *wall* itself, if now."""
        turn = int(wall // self.seconds)
        ahead = (self.of(host) - self.node - turn) % self.count
        if not ahead and wall < (turn + 1) * self.seconds - self.guard:
            return wall
        return (turn + (ahead or self.count)) * self.seconds
