"""Tests of the bounds of a resolver."""

from __future__ import annotations

import pytest

from scrapy_spider_suite.fetch.resolver import ResolverLimits


@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [(-1, 600), (0, 600), (1, 60), (60, 60), (61, 61), (3600, 3600), (2**31 - 1, 86_400)],
)
def test_lifetime(ttl: int, seconds: float) -> None:
    """A TTL counts within the bounds, and TTL 0 as ten minutes."""
    assert ResolverLimits(ttl_min=60, ttl_max=86_400).lifetime(ttl) == seconds


def test_the_bounds_hold_for_ttl_0() -> None:
    """Ten minutes are not more than the longest time allowed."""
    assert ResolverLimits(ttl_min=0, ttl_max=5).lifetime(0) == 5
