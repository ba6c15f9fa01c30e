"""Which phase this agent has, where every agent has a part of every host (`cluster.phasing`)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy_spider_suite.cluster.phasing import Terms, rank
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.signals import settings_changing
from scrapy_spider_suite.wording import counted

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.shares import Shares
    from scrapy_spider_suite.crawl.context import CrawlCore
    from scrapy_spider_suite.settings.suite import SuiteSettings

logger = logging.getLogger(__name__)

_SAME = {"phases": "SUITE_PHASES", "phase_seconds": "SUITE_PHASE_SECONDS"}
"""What all agents have to agree on."""


class Phasing:
    """The phases of the agent of *shares*, whose assignment is one of URLs."""

    def __init__(self, core: CrawlCore, shares: Shares) -> None:
        self._core = core
        self._shares = shares
        self._told = 0
        core.crawler.signals.connect(self._changing, settings_changing)

    def check(self, names: tuple[str, ...] = ()) -> None:
        """Raise `SettingsError` if the phases are none for this agent and those with *names*."""
        names = (*names, self._shares.name)
        self.terms.check(len(set(names)))

    @property
    def terms(self) -> Terms:
        """What is set."""
        return _terms(self._core, self._core.settings)

    def changed(self) -> None:
        """There may be other agents: each has the phase of its rank by name."""
        table, policy = self._shares.table, self._core.overriding.policy
        names = [] if table is None else [member.name for member in table.members]
        node = rank(self._shares.name, names)
        if node is None:
            return
        if len(names) > self._core.settings.phases and len(names) != self._told:
            self._told = len(names)
            logger.error(
                "%s %s: some have the same, and take turns by the ledger (SUITE_PHASES)",
                counted(len(names), "agent has", "agents have"),
                counted(self._core.settings.phases, "phase"),
            )  # fmt: skip
        if node != policy.node:
            policy.change(node=node)

    def _changing(self, old: SuiteSettings, new: SuiteSettings) -> None:
        for field, name in _SAME.items():
            if getattr(old, field) != getattr(new, field):
                raise SettingsError(
                    f"{name} is the same for all agents, with SUITE_ASSIGNMENT = "
                    f"{old.assignment!r}: stop them, and start them all with it"
                )
        _terms(self._core, new).check()


def _terms(core: CrawlCore, settings: SuiteSettings) -> Terms:
    project = settings.project
    rules = core.overriding.policy.overrides
    return Terms(
        settings.assignment, settings.phases, settings.phase_guard, project.longest_fetch,
        max(settings.longest_delay, rules.longest_delay), settings.ledger is not None,
    )  # fmt: skip
