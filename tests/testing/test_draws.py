"""The arithmetic under the graph: tree shapes, distributions, numbers from bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.testing.synthetic_site import QUANTILES, branching, quantiles, words


def room(children: int, depth: int) -> int:
    """Pages that a tree of *depth* levels holds."""
    return sum(children**level for level in range(depth + 1))


@given(st.integers(1, 200_000), st.integers(1, 12))
def test_branching_is_the_least_that_fits(pages: int, depth: int) -> None:
    """The pages fit, and with one child fewer they would not."""
    children = branching(pages, depth)
    assert room(children, depth) >= pages
    assert children == 1 or room(children - 1, depth) < pages


def test_branching_of_extremes_ends() -> None:
    """A chain, a star, and more levels than pages."""
    assert branching(1, 1) == 1
    assert branching(1_000_000, 1) == 999_999
    assert branching(10, 10**9) == 1


def test_without_spread_all_values_are_the_mean() -> None:
    """Sigma 0 is no distribution at all."""
    assert set(quantiles(40, 0.0, 0)) == {40}
    assert set(quantiles(0, 1.0, 0)) == {0}


def test_spread_keeps_the_mean_and_the_bounds() -> None:
    """Log-normal values average to the mean, none is above 20 times it."""
    values = quantiles(1000, 0.8, 1)
    assert len(values) == QUANTILES
    assert abs(sum(values) / len(values) - 1000) < 20
    assert min(values) >= 1
    assert max(quantiles(1000, 4.0, 1)) == 20_000


def test_words_are_little_endian() -> None:
    """The same numbers come out on every machine."""
    assert list(words(bytes(range(16)))) == [0x0706050403020100, 0x0F0E0D0C0B0A0908]
