"""What phases agents of an assignment of URLs have, and which they are refused with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrapy_spider_suite.cluster.agreement import PhaseTerms, agent_rank
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.policy import Phases, Policy

GOOD = PhaseTerms("url-sum", phases=4, guard=190.0, timeout=180.0, delay=4.0, ledger=True)


def test_at_each_time_each_agent_has_another_phase() -> None:
    """By the rank of its name, and in as many turns as there are phases each has all (K6)."""
    names = ["c", "a", "b"]
    policies = [Policy(phases=Phases(4, 10.0)) for _ in names]
    for name, policy in zip(names, policies, strict=True):
        policy.update(node=agent_rank(name, names))
        policy.update(phases=Phases(4, 10.0))  # another setting changes nothing of it
    seen = [[policy.phases.active(10.0 * turn) for policy in policies] for turn in range(4)]
    assert all(len(set(row)) == 3 for row in seen)
    assert all(sorted(column) == [0, 1, 2, 3] for column in zip(*seen, strict=True))
    assert seen[0] == [2, 0, 1]
    assert agent_rank("d", names) is None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ledger": False}, "SUITE_RATE_LEDGER is not set: with SUITE_ASSIGNMENT = 'url-sum'"),
        ({"phases": 2}, "SUITE_PHASES = 2: expected 3 or more with SUITE_ASSIGNMENT = 'url-sum'"),
        ({"guard": 183.9}, "SUITE_PHASE_GUARD = 183.9: expected 184 or more with SUITE_ASSIGN"),
        ({"delay": 11.0}, r"DOWNLOAD_TIMEOUT \(180\), the longest delay \(11\), and twice by how"),
    ],
)
def test_what_cannot_be_polite_is_refused(wrong: dict[str, float], words: str) -> None:
    """In one line that names the settings, with three agents."""
    GOOD.check(3)
    assert GOOD.skew == 3.0  # one is early by that, and one late
    with pytest.raises(SettingsError, match=words) as refusal:
        replace(GOOD, **wrong).check(3)
    assert "\n" not in str(refusal.value)
