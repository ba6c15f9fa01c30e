"""Phases for agents of which each has a part of every host (KSpider, §2.2; K1-K8).

Where URLs are assigned and not hosts, no agent alone can keep a host's delay. So at each time each
agent has another phase, a part of the hosts, and swaps it by the clock on its wall for the next,
without a message: of *n* phases, the agent whose name is the *i*-th has phase (i + t // T) mod n.
There have to be as many phases as agents (K5), and at the end of each a guard in which no fetch
begins, as long as a fetch and a delay may last and as clocks may differ. Delays that are longer
than that, and back-offs, are known to the ledger, which grants the next fetch from a host whoever
makes it; it also bridges the moments in which agents do not agree on how many they are.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from scrapy_spider_suite.agents.members import SKEW_MAX
from scrapy_spider_suite.errors import SettingsError

_TELLS: Final = 0.5
"""Seconds by which clocks may always differ: by less than that nobody can say. The ledger keeps a
host's delay all the same."""


def rank(name: str, names: Collection[str]) -> int | None:
    """The number of the agent *name* among *names*, from 0; None if it is none of them (K2)."""
    return sorted(names).index(name) if name in names else None


@dataclass(frozen=True, slots=True)
class Terms:
    """What is set for the phases of one agent; durations are seconds.

    Attributes:
        assignment: that of URLs, by the name of its setting's value.
        timeout: as long as a fetch may last.
        delay: the longest that is set for a host or an address.
        ledger: whether there is one.
    """

    assignment: str
    phases: int
    guard: float
    timeout: float
    delay: float
    ledger: bool

    @property
    def skew(self) -> float:
        """Seconds by which each clock may be off: what the guard leaves, for two of them."""
        return min(SKEW_MAX, max(_TELLS, (self.guard - self.timeout - self.delay) / 2))

    def check(self, agents: int = 1) -> None:
        """Raise `SettingsError` if *agents* cannot keep any host's delay by them; its one line
        names the settings.
        """
        whose = f"with SUITE_ASSIGNMENT = {self.assignment!r}"
        if not self.ledger:
            raise SettingsError(
                f"SUITE_LEDGER is not set: {whose} every agent fetches from every host, and only "
                "in a ledger they know of each other's delays and back-offs"
            )
        if self.phases < agents:
            raise SettingsError(
                f"SUITE_PHASES = {self.phases}: expected {agents} or more {whose}, as many as "
                "there are agents"
            )
        least = self.timeout + self.delay
        if self.guard < least:
            raise SettingsError(
                f"SUITE_PHASE_GUARD = {self.guard:g}: expected {least:.4g} or more {whose}: "
                f"DOWNLOAD_TIMEOUT ({self.timeout:g}), the longest delay ({self.delay:g}), and "
                "twice by how much a clock may be off"
            )
