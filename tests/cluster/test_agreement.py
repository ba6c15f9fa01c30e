"""An agent of an assignment of URLs: its phase as others come and go, and what it is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from scrapy.settings import Settings

from scrapy_spider_suite.cluster.assignment import Member, load_assignment
from scrapy_spider_suite.cluster.membership import AgentPhase, Ownership
from scrapy_spider_suite.crawl.crawl_policy import policy_fields
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.policy import Overrides, Phases, Policy
from scrapy_spider_suite.settings.suite import SuiteSettings

GIVEN = {
    "SUITE_ASSIGNMENT": "url-sum", "SUITE_PHASES": 3, "SUITE_PHASE_GUARD": 30.0,
    "SUITE_PHASE_SECONDS": 60.0, "SUITE_HOST_DELAY": 4.0, "DOWNLOAD_TIMEOUT": 20.0,
    "SUITE_RATE_LEDGER": "/tmp/ledger",
}  # fmt: skip


def _agent(**changes: Any) -> tuple[AgentPhase, Policy, Ownership, SuiteSettings]:
    settings = SuiteSettings.from_settings(Settings(GIVEN | changes))
    policy = Policy(**policy_fields(settings))
    crawl: Any = SimpleNamespace(
        settings=settings, policy_file=SimpleNamespace(policy=policy),
        crawler=SimpleNamespace(signals=SimpleNamespace(connect=lambda *_: None)),
    )  # fmt: skip
    shares = Ownership(load_assignment("url-sum"), "m")
    return AgentPhase(crawl, shares), policy, shares, settings


def test_it_has_the_phase_of_its_rank(caplog: pytest.LogCaptureFixture) -> None:
    """With more agents than phases one that is had already, which is said once for each number."""
    phasing, policy, shares, _ = _agent()
    phasing.changed()
    found = []
    for names in ("m", "am", "amz", "abm", "abcm", "abcm"):
        shares.set_members(len(found) + 1, [Member(name) for name in names])
        phasing.changed()
        assert policy.phases is not None
        found.append(policy.phases.node)
    assert found == [0, 1, 1, 2, 0, 0]
    (record,) = caplog.records
    assert record.getMessage().startswith("4 agents have 3 phases: some have the same")


def test_what_would_not_be_polite_is_refused() -> None:
    """At the start and while it runs; an exception for a host counts as a delay."""
    phasing, policy, _, settings = _agent()
    phasing.check(("a", "b"))
    with pytest.raises(SettingsError, match="SUITE_PHASES = 3: expected 4 or more"):
        phasing.check(("a", "b", "c"))
    policy.update(overrides=Overrides.parse(["a.test delay=7", "b.test delay=11"], "rules"))
    with pytest.raises(SettingsError, match=r"SUITE_PHASE_GUARD = 30: expected 31 or more"):
        phasing.check()
    policy.update(overrides=Overrides())
    with pytest.raises(SettingsError, match="SUITE_PHASE_GUARD = 30: expected"):
        phasing._check_settings(settings, settings.with_value("host_delay", 90.0))
    phasing._check_settings(settings, settings.with_value("requests_per_visit", 2))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"SUITE_RATE_LEDGER": None}, "SUITE_RATE_LEDGER is not set: with SUITE_ASSIGNMENT = 'ur"),
        ({"SUITE_PHASES": 2}, "SUITE_PHASES = 2: expected 3 or more with SUITE_ASSIGNMENT = 'url"),
        ({"SUITE_PHASE_GUARD": 23.9}, "SUITE_PHASE_GUARD = 23.9: expected 24 or more with SUITE"),
        ({"SUITE_HOST_DELAY": 11.0}, r"DOWNLOAD_TIMEOUT \(20\), the longest delay \(11\), and"),
    ],
)
def test_a_refusal_names_the_settings(wrong: dict[str, Any], words: str) -> None:
    """In one line, with three agents."""
    phasing, *_ = _agent()
    phasing.check("ab")
    assert phasing.skew == 3.0  # one is early by that, and one late
    with pytest.raises(SettingsError, match=words) as refusal:
        _agent(**wrong)[0].check("ab")
    assert "\n" not in str(refusal.value)


def test_at_each_time_each_agent_has_another_phase() -> None:
    """In as many turns as there are phases each has all (K6)."""
    policies = [Policy(phases=Phases(4, 10.0)) for _ in range(3)]
    for node, policy in enumerate(policies):
        policy.update(node=node)
        policy.update(phases=Phases(4, 10.0))  # another setting changes nothing of it
    seen = [[policy.phases.active(10.0 * turn) for policy in policies] for turn in range(4)]
    assert all(len(set(row)) == 3 for row in seen)
    assert all(sorted(column) == [0, 1, 2, 3] for column in zip(*seen, strict=True))
    assert seen[0] == [0, 1, 2]
