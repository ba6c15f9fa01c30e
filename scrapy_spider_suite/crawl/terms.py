"""What the agents of one crawl have to agree on: the settings that a job fixes, and the ledger.

So a crawl is upgraded, or has its other settings changed, agent by agent.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from scrapy_spider_suite.agents.assignment import fingerprint
from scrapy_spider_suite.agents.seats import seat_of
from scrapy_spider_suite.agents.tables import Assignment
from scrapy_spider_suite.settings.declarations import Kind, full_name, words
from scrapy_spider_suite.settings.suite import DECLARATIONS, SuiteSettings
from scrapy_spider_suite.settings.values import RedisUrl

_OF_PHASES = ("phases", "phase_seconds")
"""Where every agent has a part of every host, they have to agree on which of them has it when."""
_LONGEST = 300
"""Characters of a setting's value, in which agents are compared; of longer ones the hash."""


def fixed_of(settings: SuiteSettings, assignment: Assignment) -> dict[str, str]:
    """The settings in which the agents of a crawl have to agree, by name, as text."""
    fixed = {
        full_name(name): _short(words(getattr(settings, name)))
        for name, declared in DECLARATIONS.items() if declared.kind is Kind.FIXED
    }  # fmt: skip
    del fixed["SUITE_AGENT_GRACE"]  # which the registry compares
    if not assignment.by_host:
        fixed |= {full_name(name): words(getattr(settings, name)) for name in _OF_PHASES}
    fixed["SUITE_ASSIGNMENT"] += f" ({fingerprint(assignment)})"
    fixed["SUITE_LEDGER"] = _ledger(settings.ledger)
    return fixed


def _ledger(where: RedisUrl | Path | None) -> str:
    """What tells a ledger from others: a file serves one machine, whatever has its name elsewhere.

    By two of them agents could visit one address at a time.
    """
    if not isinstance(where, Path):
        return words(None if where is None else str(where))
    with suppress(OSError):
        return words(f"{where} ({xxh3_64_hexdigest(seat_of(where.absolute().parent).encode())})")
    return words(str(where))


def _short(text: str) -> str:
    """*text*, or what tells it from others."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… ({xxh3_64_hexdigest(text.encode())})"
