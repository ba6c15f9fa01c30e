"""The settings that all agents share, and their phases (KSpider, §2.2).

Of *n* phases the *i*-th agent has (i + t // T) mod n. There is a phase for each agent; a guard
at its end covers a fetch, a delay and clock skew. The ledger keeps longer delays and back-offs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
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
    from scrapy_spider_suite.cluster.membership import Ownership
    from scrapy_spider_suite.crawl.context import Crawl

logger = logging.getLogger(__name__)

_TELLS: Final = 0.5  # seconds by which clocks may always differ: the ledger keeps the delays


class AgentPhase:
    """The phase of an agent that has a part of every host."""

    def __init__(self, crawl: Crawl, ownership: Ownership) -> None:
        self._crawl = crawl
        self._ownership = ownership
        self._told = 0
        crawl.crawler.signals.connect(self._check_settings, settings_changing)

    def _longest_delay(self, settings: SuiteSettings) -> float:
        rules = self._crawl.policy_file.policy.overrides
        return max(settings.longest_delay, rules.longest_delay)

    @property
    def skew(self) -> float:
        """Seconds by which each of two clocks may be off within the guard."""
        settings = self._crawl.settings
        least = settings.project.longest_fetch + self._longest_delay(settings)
        return min(SKEW_MAX, max(_TELLS, (settings.phase_guard - least) / 2))

    def check(self, names: Iterable[str] = (), settings: SuiteSettings | None = None) -> None:
        """Raise `SettingsError` if this agent and *names* cannot keep a host's delay."""
        settings = settings or self._crawl.settings
        agents = len({*names, self._ownership.name})
        whose = f"with SUITE_ASSIGNMENT = {settings.assignment!r}"
        if settings.rate_ledger is None:
            raise SettingsError(
                f"SUITE_RATE_LEDGER is not set: {whose} every agent fetches from every host, and "
                "only in a ledger they know of each other's delays and back-offs"
            )
        if settings.phases < agents:
            raise SettingsError(
                f"SUITE_PHASES = {settings.phases}: expected {agents} or more {whose}, as many as "
                "there are agents"
            )
        fetch, delay = settings.project.longest_fetch, self._longest_delay(settings)
        if settings.phase_guard < fetch + delay:
            raise SettingsError(
                f"SUITE_PHASE_GUARD = {settings.phase_guard:g}: expected {fetch + delay:.4g} or "
                f"more {whose}: DOWNLOAD_TIMEOUT ({fetch:g}), the longest delay ({delay:g}), and "
                "twice by how much a clock may be off"
            )

    def changed(self) -> None:
        """Members changed: take the phase of this agent's rank."""
        table, policy = self._ownership.table, self._crawl.policy_file.policy
        names = [] if table is None else [member.name for member in table.members]  # sorted
        if self._ownership.name not in names:
            return
        node = names.index(self._ownership.name)
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
        self.check(settings=new)


_LONGEST = 300  # bytes of a value that are compared; of longer values the hash is


def shared_settings(settings: SuiteSettings, assignment: Assignment) -> dict[str, str]:
    """Return the settings that must be equal for all agents, by name, as text."""
    shared = {name for name, each in DECLARATIONS.items() if each.kind is SettingKind.FIXED}
    shared.remove("agent_grace")  # which the registry compares
    if not assignment.by_host:
        shared |= {"phases", "phase_seconds"}
    fixed = {
        setting_name(name): shortened(shown_value(getattr(settings, name)), _LONGEST)
        for name in sorted(shared)
    }
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


def shortened(text: str, most: int) -> str:
    """Return *text* in *most* bytes or fewer; a hash stands for the rest."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data.decode()
    return f"{data[: most - 24].decode('utf-8', 'ignore')}… ({xxh3_64_hexdigest(data)})"
