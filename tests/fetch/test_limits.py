"""Tests of the bounds of a resolver."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ttl_min", -1),
        ("ttl_min", 1e9),
        ("negative_ttl", -0.1),
        ("cache_size", 0),
        ("timeout", 0),
        ("concurrency", 0),
    ],
)
def test_bad_numbers(name: str, value: Any) -> None:
    """A number out of its range is named in the error."""
    with pytest.raises(ValueError, match=name):
        replace(ResolverLimits(), **{name: value})
