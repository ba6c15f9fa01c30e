"""When the pages of the in-vitro web change: Poisson processes, as pure functions of the time.

Nothing is kept: time is cut into windows of some changes each, and what happens in a window is
drawn from the numbers of web, host, page and window. So whoever knows the configuration knows when
each page changed, whether it was asked for or not.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import shake_128
from math import exp
from random import Random
from statistics import NormalDist
from struct import unpack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy_spider_suite.testing.config import FakeWebConfig

_WINDOW = 4.0
"""Changes in a window, on average."""
_ONE = 1 << 32
_NORMAL = NormalDist()


class Changes:
    """Those of the pages of *config*. Times are seconds since the epoch; a host is its number."""

    def __init__(self, config: FakeWebConfig) -> None:
        self._config = config
        # Bounded: what is asked for lately.
        self.rate = lru_cache(1 << 14)(self._rate)
        self._times = lru_cache(1 << 14)(self._draw)

    @property
    def any(self) -> bool:
        """Whether pages change at all."""
        return self._config.changes > 0

    def _rate(self, host: int, page: int) -> float:
        """How often a page changes, in changes a second."""
        config = self._config
        wide, _ = self._numbers(host, page)
        spread = config.changes_sigma * _NORMAL.inv_cdf((wide + 0.5) / _ONE)
        return exp(spread) / config.changes

    def conditional(self, host: int, page: int) -> bool:
        """Whether a page has an ETag and a Last-Modified, and is answered with 304 by them."""
        return self._numbers(host, page)[1] < self._config.conditional * _ONE

    def _numbers(self, host: int, page: int) -> tuple[int, int]:
        digest = shake_128(b"changes %d %d %d" % (self._config.seed, host, page)).digest(8)
        wide, conditional = unpack("<II", digest)
        return wide, conditional

    def last(self, host: int, page: int, now: float) -> float:
        """When a page changed last, at *now*."""
        window = int(now * self.rate(host, page) / _WINDOW)
        while True:
            for when in reversed(self._times(host, page, window)):
                if when <= now:
                    return when
            window -= 1

    def next(self, host: int, page: int, now: float) -> float:
        """When a page changes for the first time after *now*."""
        window = int(now * self.rate(host, page) / _WINDOW)
        while True:
            for when in self._times(host, page, window):
                if when > now:
                    return when
            window += 1

    def _draw(self, host: int, page: int, window: int) -> tuple[float, ...]:
        """The times of the changes in a window."""
        rate = self.rate(host, page)
        draw = Random(f"{self._config.seed} {host} {page} {window}")
        when, end = window * _WINDOW / rate, (window + 1) * _WINDOW / rate
        times = []
        while (when := when + draw.expovariate(rate)) < end:
            times.append(when)
        return tuple(times)
