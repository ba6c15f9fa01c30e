"""Leases: an agent's end never comes after the one that Redis knows, whatever happens to time."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.cluster.membership import DRIFT, SLACK, AgentLease

FETCH = 180.0


def lease(granted: float | None = 900.0) -> AgentLease:
    """One that was granted at 0, and at 1,000 by the wall's clock."""
    new = AgentLease(FETCH)
    new.renewed(0, 1_000, granted)
    return new


def test_who_was_granted_nothing_may_fetch_nothing() -> None:
    """Nor who lost it."""
    dropped = lease()
    dropped.dropped()
    for each in (AgentLease(FETCH), dropped):
        assert not each.live(0, 0)
        assert not each.may_fetch(0, 0)
        assert each.seconds(0, 0) == -math.inf


def test_fetches_end_before_the_lease_does() -> None:
    """They may last for their whole time."""
    new, margin = lease(), SLACK + 2 * DRIFT * 900
    last = 900 - FETCH - margin
    assert new.may_fetch(last - 0.01, 1_000)
    assert not new.may_fetch(last + 0.01, 1_000)
    assert new.live(last + 0.01, 1_000)
    assert not new.live(900 - margin, 1_000)
    assert math.isclose(new.seconds(100, 1_100), last - 100)
    new.renewed(500, 1_500, 900)
    assert new.may_fetch(last + 499, 1_000)


def test_a_delay_is_over_before_the_lease_is() -> None:
    """Who takes the host then begins at once. A longer one counts as far as there is room."""
    new, margin = lease(), SLACK + 2 * DRIFT * 900
    last = 900 - FETCH - margin
    assert new.may_fetch(last - 10.01, 1_000, delay=10)
    assert not new.may_fetch(last - 9.99, 1_000, delay=10)
    for seconds in (800, 10**6):
        assert new.may_fetch(10, 1_010, delay=seconds)
        assert not new.may_fetch(20, 1_020, delay=seconds)
    new.renewed(300, 1_300, 600)  # it was removed: the end stays what it was
    assert not new.may_fetch(last - 9.5, 1_000, delay=10)
    assert lease(None).may_fetch(1e12, 1e12, delay=10**6)


def test_the_clock_that_is_further_decides() -> None:
    """A machine that was frozen may learn of it by either."""
    for now, wall in ((800, 1_000), (0, 1_800), (10**9, 0)):
        assert not lease().may_fetch(now, wall)
    assert lease().may_fetch(0, -(10**9))


def test_a_lease_for_ever_has_no_end() -> None:
    """No time will do."""
    assert lease(None).may_fetch(1e12, 1e12)


def test_what_is_left_of_a_removed_agents_lease_makes_it_no_longer() -> None:
    """Redis grants it what is left, and that ends when it did."""
    new = lease()
    new.renewed(300, 1_300, 600)
    assert not new.live(900, 1_000)


@settings(max_examples=60)
@given(
    st.floats(16, 100_000), st.floats(0, 10), st.floats(-DRIFT, DRIFT), st.floats(-DRIFT, DRIFT),
    st.floats(0, 2),
)  # fmt: skip
def test_no_fetch_outlives_what_redis_knows(
    granted: float, on_its_way: float, ours: float, theirs: float, part: float
) -> None:
    """Redis counts from when it hears, by a clock of its own, as wrong as may be."""
    new = AgentLease(FETCH)
    new.renewed(0, 0, granted)
    true = part * granted
    if new.may_fetch(true * (1 + ours), true * (1 + ours)):
        assert (true + FETCH - on_its_way) * (1 + theirs) < granted
