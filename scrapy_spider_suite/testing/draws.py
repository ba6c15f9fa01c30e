"""The arithmetic under the synthetic web: random numbers by hashing, sizes, tree shapes."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from math import exp, log
from statistics import NormalDist

QUANTILES = 1024
"""Entries of a table of equally likely values."""


def words(data: bytes) -> Sequence[int]:
    """Read *data* as little-endian 64-bit numbers, on any machine."""
    numbers = array("Q", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def quantiles(mean: int, sigma: float, least: int) -> tuple[int, ...]:
    """Equally likely values of a log-normal distribution, never more than 20 times its mean."""
    if sigma == 0 or mean == 0:
        return (max(least, mean),) * QUANTILES
    normal = NormalDist(log(mean) - sigma * sigma / 2, sigma)
    draws = (exp(normal.inv_cdf((k + 0.5) / QUANTILES)) for k in range(QUANTILES))
    return tuple(min(20 * mean, max(least, round(draw))) for draw in draws)


def branching(pages: int, depth: int) -> int:
    """Least number of children with which *pages* pages fit into a tree of *depth* levels.

    1 + b + … + b**depth lies between b**depth and (b + 1)**depth, so few values need a try.
    """
    children = max(1, int(pages ** (1 / depth)) - 2)
    while not _fits(pages, children, depth):
        children += 1
    return children


def _fits(pages: int, children: int, depth: int) -> bool:
    if children == 1:
        return depth + 1 >= pages
    total = level = 1
    for _ in range(depth):
        if total >= pages:
            break
        level *= children
        total += level
    return total >= pages
