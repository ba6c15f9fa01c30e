"""Phases: KSpider's vectors, and who may fetch what when."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.frontier.policy import Phases, Policy, excluded_pattern, waits_for_rule
from scrapy_spider_suite.urls.hosts import phase_of

DAY = 1_800_000_000.0


def test_the_paper_s_vectors() -> None:
    """K4: six phases (figure 4)."""
    phases = Phases(6, 100.0)
    assert phase_of("www.sun.com", phases.count) == 0
    assert phase_of("www.sgi.com", phases.count) == 5


@settings(max_examples=60)
@given(
    st.integers(1, 9), st.floats(1.0, 1e4), st.floats(0.0, 0.99), st.floats(0.0, 1e6),
    st.text("abc.", min_size=1, max_size=9),
)  # fmt: skip
def test_one_node_at_a_time_and_all_in_turn(
    count: int, seconds: float, guard: float, after: float, host: str
) -> None:
    """No two nodes have a host at once (K6), none in the guard, and each has it within a round."""
    wall = DAY + after
    nodes = [Phases(count, seconds, guard * seconds, node) for node in range(count)]
    assert sorted(phases.active(wall) for phases in nodes) == list(range(count))
    may = [phases for phases in nodes if phases.opens(host, wall) <= wall]
    left = seconds - wall % seconds
    assert len(may) == 1 or (not may and left <= guard * seconds + 1e-6)
    for phases in nodes:
        opens = phases.opens(host, wall)
        assert wall <= opens <= wall + count * seconds + 1e-6
        if opens > wall:
            middle = opens + seconds / 2 * (1 - guard)
            assert phase_of(host, phases.count) == phases.active(middle)


def test_a_visit_ends_before_the_next_node_begins() -> None:
    """The guard: in it nobody begins."""
    first, second = Phases(2, 100.0, 30.0, 0), Phases(2, 100.0, 30.0, 1)
    begin = 200 * 100.0
    (host,) = [each for each in ("a", "b") if first.opens(each, begin) == begin]
    assert first.opens(host, begin + 69.9) == begin + 69.9
    assert first.opens(host, begin + 70.0) == begin + 200.0
    assert second.opens(host, begin + 70.0) == begin + 100.0


@pytest.mark.parametrize(
    "wrong", [(0, 1.0, 0.0, 0), (2, 1.0, 1.0, 0), (2, 1.0, -0.1, 0), (2, 1.0, 0.0, 2)]
)
def test_numbers_that_make_none(wrong: tuple[int, float, float, int]) -> None:
    """Also fewer phases than nodes (K5)."""
    with pytest.raises(ValueError, match="expected"):
        Phases(*wrong)


def test_a_host_out_of_its_phase_waits_by_a_rule() -> None:
    """It says so, and what is asked for beside visits does not wait."""
    policy = Policy(phases=Phases(2, 100.0))
    begin = 200 * 100.0
    bars = {host: policy.exclusion_of_visit(host, "", begin) for host in ("a", "b")}
    assert [bar for bar in bars.values() if bar is None] == [None]
    (bar,) = [bar for bar in bars.values() if bar is not None]
    assert bar.until == begin + 100.0
    assert waits_for_rule(str(bar))
    assert excluded_pattern(str(bar)) is None
    assert "SUITE_PHASES" in str(bar)
    assert policy.exclusion("a", "", begin) is policy.exclusion("b", "", begin) is None
