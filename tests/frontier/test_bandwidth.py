"""A limit of bytes per second, in virtual time."""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random

import pytest

from scrapy_spider_suite.frontier.outcomes import FIRST_GUESS, BandwidthLimit

RATE = 100_000.0


class Line:
    """A crawl with so many *seats*, whose answers take *latency* seconds and have random sizes."""

    def __init__(self, bandwidth: BandwidthLimit, *, seats: int, latency: float, seed: int) -> None:
        self.bandwidth = bandwidth
        self.now = 1_000.0
        self.came: list[tuple[float, int]] = []
        self.starts: list[float] = []
        self._seats, self._latency, self._random = seats, latency, Random(seed)
        self._out: list[tuple[float, int, float]] = []

    def run(self, seconds: float) -> None:
        """Ask for as much as is allowed."""
        end = self.now + seconds
        while self.now < end:
            wait = self.bandwidth.wait(self.now)
            if not wait and len(self._out) < self._seats:
                self.starts.append(self.now)
                took = self._latency * self._random.uniform(0.1, 2.0)
                size = int(self._random.paretovariate(1.5) * 5_000)
                heappush(self._out, (self.now + took, size, self.bandwidth.book(self.now)))
                continue
            times = [self.now + wait] if wait and len(self._out) < self._seats else []
            times += [self._out[0][0]] if self._out else []
            self.now = max(self.now + 1e-9, min(times))
            while self._out and self._out[0][0] <= self.now:
                when, size, booked = heappop(self._out)
                self.came.append((when, size))
                self.bandwidth.settle(booked, size, self.now)

    def rate(self, begin: float, end: float) -> float:
        """Bytes a second that came between two times after the start."""
        sizes = [size for when, size in self.came if begin <= when - 1_000.0 < end]
        return sum(sizes) / (end - begin)


@pytest.mark.parametrize("latency", [0.01, 1.0, 20.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_rate_is_kept_however_long_answers_take(latency: float, seed: int) -> None:
    """And used: neither more nor much less than was allowed."""
    line = Line(BandwidthLimit(RATE), seats=1_000, latency=latency, seed=seed)
    line.run(3_000.0)
    assert 0.93 * RATE < line.rate(100.0, 3_000.0) < 1.05 * RATE


def test_requests_go_out_evenly_from_the_first_one_on() -> None:
    """A thousand places are free, and nothing has been received yet."""
    line = Line(BandwidthLimit(RATE), seats=1_000, latency=50.0, seed=1)
    line.run(2.0)
    # And the second that may be saved up.
    assert len(line.starts) == pytest.approx(3.0 * RATE / FIRST_GUESS, abs=1.0)


def test_what_was_not_received_is_not_saved_up() -> None:
    """After an hour of nothing a second's bytes are free, and no more."""
    bandwidth = BandwidthLimit(RATE)
    assert bandwidth.wait(0.0) == 0.0
    bandwidth.charge(int(RATE), 3_600.0)
    assert bandwidth.wait(3_600.0) == 0.0
    bandwidth.charge(int(RATE), 3_600.0)
    assert bandwidth.wait(3_600.0) == pytest.approx(1.0)


def test_what_touched_no_wire_costs_nothing() -> None:
    """Cache hits and refused requests give back what they had paid."""
    bandwidth = BandwidthLimit(RATE)
    booked = [bandwidth.book(0.0) for _ in range(100)]
    assert bandwidth.wait(0.0) > 10.0
    for paid in booked:
        bandwidth.settle(paid, 0, 0.0)
    assert bandwidth.wait(0.0) == 0.0


def test_a_limit_that_changes() -> None:
    """It holds from then on; without one, nothing is owed."""
    bandwidth = BandwidthLimit(RATE)
    bandwidth.charge(1_000_000, 0.0)
    assert bandwidth.wait(0.0) == pytest.approx(10.0)
    bandwidth.rate = 10 * RATE
    assert bandwidth.wait(0.0) == pytest.approx(1.0)
    bandwidth.rate = 0.0
    assert bandwidth.wait(0.5) == 0.0
    bandwidth.charge(1_000_000, 0.5)
    bandwidth.rate = RATE
    assert bandwidth.wait(0.6) == 0.0
