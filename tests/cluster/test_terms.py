"""What the agents of a crawl have to agree on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

from scrapy_spider_suite.cluster.assignment import load_assignment
from scrapy_spider_suite.cluster.membership import shared_settings
from scrapy_spider_suite.runtime import clock
from scrapy_spider_suite.settings.suite import SuiteSettings


def terms(assignment: str = "ring", **settings: Any) -> dict[str, str]:
    """Those of an agent with these settings."""
    given = Settings({"SUITE_ASSIGNMENT": assignment, **settings})
    return shared_settings(SuiteSettings.from_settings(given), load_assignment(assignment))


def differ(one: dict[str, str], other: dict[str, str]) -> set[str]:
    """The settings in which two agents disagree."""
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def test_what_is_free_may_differ() -> None:
    """And what is fixed may not."""
    assert differ(terms(), terms(SUITE_HOST_DELAY=9, SUITE_PHASES=3)) == set()
    assert differ(terms(), terms(SUITE_DROP_PARAMETERS=["x"])) == {"SUITE_DROP_PARAMETERS"}
    assert differ(terms("url-sum"), terms("url-sum", SUITE_PHASES=3)) == {"SUITE_PHASES"}


def test_agents_have_one_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None, the same Redis, or the same file of the same machine; passwords are not shown."""
    here = tmp_path / "ledger"
    several = [
        terms(**settings) for settings in (
            {},
            {"SUITE_RATE_LEDGER": "redis://10.0.0.5"}, {"SUITE_RATE_LEDGER": "redis://10.0.0.5/1"},
            {"SUITE_RATE_LEDGER": str(here)}, {"SUITE_RATE_LEDGER": str(tmp_path / "other")},
        )
    ]  # fmt: skip
    for one in several:
        for other in several:
            assert differ(one, other) == (set() if one is other else {"SUITE_RATE_LEDGER"})
    secret = terms(SUITE_RATE_LEDGER="redis://:hush@10.0.0.5")["SUITE_RATE_LEDGER"]
    assert "hush" not in secret
    assert differ(several[3], terms(SUITE_RATE_LEDGER=str(here))) == set()
    boot = tmp_path / "boot_id"
    boot.write_text("another machine\n")
    monkeypatch.setattr(clock, "_BOOT", boot)
    assert differ(several[3], terms(SUITE_RATE_LEDGER=str(here))) == {"SUITE_RATE_LEDGER"}
