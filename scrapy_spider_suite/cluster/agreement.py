"""What all agents must share: fixed settings, and phases (KSpider, §2.2; K1-K8).

Of *n* phases the *i*-th agent has (i + t // T) mod n. There is a phase for each agent (K5); a guard
at its end covers a fetch, a delay and clock skew. The ledger keeps longer delays and back-offs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_64_hexdigest

from scrapy_spider_suite.cluster.assignment import Assignment, fingerprint
from scrapy_spider_suite.cluster.membership import SKEW_MAX, folder_identity
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.runtime.text import counted
from scrapy_spider_suite.settings.declarations import SettingKind, setting_name, shown_value
from scrapy_spider_suite.settings.suite import DECLARATIONS, SuiteSettings
from scrapy_spider_suite.settings.values import RedisUrl
from scrapy_spider_suite.signals import settings_changing

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.ownership import Ownership
    from scrapy_spider_suite.crawl.context import Crawl

logger = logging.getLogger(__name__)

_TELLS: Final = 0.5
"""Seconds by which clocks may always differ; the ledger keeps a host's delay all the same."""


def agent_rank(name: str, names: Collection[str]) -> int | None:
    """Return the number of the agent *name* among *names*, from 0; None if it is missing (K2)."""
    return sorted(names).index(name) if name in names else None


@dataclass(frozen=True, slots=True)
class PhaseTerms:
    """The settings of phases of one agent; durations in seconds.

    Attributes:
        timeout: the longest fetch.
        delay: the longest delay of a host or an address.
    """

    assignment: str
    phases: int
    guard: float
    timeout: float
    delay: float
    ledger: bool

    @property
    def skew(self) -> float:
        """Seconds by which each of two clocks may be off within the guard."""
        return min(SKEW_MAX, max(_TELLS, (self.guard - self.timeout - self.delay) / 2))

    def check(self, agents: int = 1) -> None:
        """Raise `SettingsError` if *agents* cannot keep a host's delay."""
        whose = f"with SUITE_ASSIGNMENT = {self.assignment!r}"
        if not self.ledger:
            raise SettingsError(
                f"SUITE_RATE_LEDGER is not set: {whose} every agent fetches from every host, and "
                "only in a ledger they know of each other's delays and back-offs"
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


class AgentPhase:
    """The phase of an agent that has a part of every host."""

    def __init__(self, crawl: Crawl, ownership: Ownership) -> None:
        self._crawl = crawl
        self._ownership = ownership
        self._told = 0
        crawl.crawler.signals.connect(self._check_settings, settings_changing)

    def check(self, names: tuple[str, ...] = ()) -> None:
        """Raise `SettingsError` unless this agent and *names* can each have a phase."""
        names = (*names, self._ownership.name)
        self.terms.check(len(set(names)))

    @property
    def terms(self) -> PhaseTerms:
        return _terms(self._crawl, self._crawl.settings)

    def changed(self) -> None:
        """Members changed: take the phase of this agent's rank."""
        table, policy = self._ownership.table, self._crawl.policy_file.policy
        names = [] if table is None else [member.name for member in table.members]
        node = agent_rank(self._ownership.name, names)
        if node is None:
            return
        if len(names) > self._crawl.settings.phases and len(names) != self._told:
            self._told = len(names)
            logger.error(
                "%s %s: some have the same, and take turns by the ledger (SUITE_PHASES)",
                counted(len(names), "agent has", "agents have"),
                counted(self._crawl.settings.phases, "phase"),
            )  # fmt: skip
        if node != policy.node:
            policy.update(node=node)

    def _check_settings(self, old: SuiteSettings, new: SuiteSettings) -> None:
        _terms(self._crawl, new).check()


def _terms(crawl: Crawl, settings: SuiteSettings) -> PhaseTerms:
    project = settings.project
    rules = crawl.policy_file.policy.overrides
    return PhaseTerms(
        settings.assignment, settings.phases, settings.phase_guard, project.longest_fetch,
        max(settings.longest_delay, rules.longest_delay), settings.rate_ledger is not None,
    )  # fmt: skip


_OF_PHASES = ("phases", "phase_seconds")
"""Fields that must be equal where each agent has a part of every host."""
_LONGEST = 300  # characters of a value that are compared; of longer values the hash is


def shared_settings(settings: SuiteSettings, assignment: Assignment) -> dict[str, str]:
    """Return the settings that must be equal for all agents, by name, as text."""
    fixed = {
        setting_name(name): _short(shown_value(getattr(settings, name)))
        for name, declared in DECLARATIONS.items() if declared.kind is SettingKind.FIXED
    }  # fmt: skip
    del fixed["SUITE_AGENT_GRACE"]  # which the registry compares
    if not assignment.by_host:
        fixed |= {setting_name(name): shown_value(getattr(settings, name)) for name in _OF_PHASES}
    fixed["SUITE_ASSIGNMENT"] += f" ({fingerprint(assignment)})"
    fixed["SUITE_RATE_LEDGER"] = _ledger(settings.rate_ledger)
    return fixed


def _ledger(where: RedisUrl | Path | None) -> str:
    """Return the identity of a ledger: a file serves one machine."""
    if not isinstance(where, Path):
        return shown_value(None if where is None else str(where))
    with suppress(OSError):
        return shown_value(
            f"{where} ({xxh3_64_hexdigest(folder_identity(where.absolute().parent).encode())})"
        )
    return shown_value(str(where))


def _short(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… ({xxh3_64_hexdigest(text.encode())})"
