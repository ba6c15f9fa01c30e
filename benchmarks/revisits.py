"""Revisits in virtual time: how many pages of a copy are fresh, by how their visits are chosen.

    python -m benchmarks revisits

Pages change as Poisson processes, as often as those of Cho and Garcia-Molina ("The evolution of the
web and implications for an incremental crawler", VLDB 2000): 23 % within a day, 15 % within a week,
16 % within a month, 16 % within four months, 30 % more rarely. All ways have the same number of
visits a day, enough for each page once in three, ten and thirty days, and begin with a copy that is
fresh, and nothing else known. Who is due first has the turn, late or early.

- fixed: every page in turn;
- adaptive: a visit tells only whether the page changed since the last one;
- dated: adaptive, and the page tells when it changed last (Last-Modified);
- known: as adaptive, but with the rates known and the best price for them: the most there is.

Freshness is the part of the pages whose copy is as the page is, over all pages and the time; the
age is how long copies that are not have not been, over all pages.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from math import exp, log

from benchmarks.report import Report
from scrapy_spider_suite.frontier.revisit_rules import (
    DAY,
    ChangeRates,
    History,
    Mode,
    RevisitPolicy,
    interval_for,
)

CLASSES = ((0.23, 0.2, 1), (0.15, 1, 7), (0.16, 7, 30), (0.16, 30, 120), (0.30, 120, 1000))
"""Parts of the pages, and the days between two changes, from and to."""
LEAST = 3600.0


@dataclass
class Copy:
    """How fresh a copy of *pages* pages is, day by day."""

    pages: int
    days: int
    fresh: list[float] = field(default_factory=list)
    stale_seconds: float = 0.0
    age: float = 0.0

    def __post_init__(self) -> None:
        self.fresh = [0.0] * (self.days + 1)

    def lived(self, begin: float, first: float, end: float) -> None:
        """A page was visited at *begin* and at *end*, and changed first at *first*, if before."""
        until = min(first, end, self.days * DAY)
        while begin < until:
            day = int(begin // DAY)
            upto = min(until, (day + 1) * DAY)
            self.fresh[day] += upto - begin
            begin = max(upto, begin + 1e-6)
        self.age += max(0.0, end - first) ** 2 / 2

    def freshness(self) -> list[float]:
        """Of each day, from 0 to 1."""
        return [seconds / DAY / self.pages for seconds in self.fresh[: self.days]]


class Page:
    """A page that changes; what happened since the last visit is drawn at the next one."""

    def __init__(self, rate: float, draw: random.Random) -> None:
        self.rate = rate
        self._draw = draw

    def changes(self, since: float, now: float) -> tuple[float, float | None]:
        """When it changed first after *since* (or would have), and last before *now*, if it did."""
        last = now - self._draw.expovariate(self.rate)
        if last <= since:
            return now + 1.0, None
        first = since + self._draw.expovariate(self.rate)
        return min(first, last), last


class Way:
    """One way to choose the interval of a page: *every* so many seconds."""

    dated = False
    price = 0.0

    def __init__(self, every: float) -> None:
        self.every = every

    def interval(self, page: Page, old: History | None, new: History) -> float:
        """Seconds until its next visit; *old* is what was known before its last one."""
        return self.every

    def tick(self) -> None:
        """Some hours went by."""


class Adaptive(Way):
    """As the suite does, from what the visits tell."""

    def __init__(self, every: float, pages: int, prior: float, *, dated: bool = False) -> None:
        super().__init__(every)
        self.dated = dated
        self._visits = pages / every
        self._settings = RevisitPolicy(Mode.ADAPTIVE, least=LEAST, prior=prior)
        self._demand = ChangeRates()

    def interval(self, page: Page, old: History | None, new: History) -> float:
        """See `Way`."""
        before = None if old is None else self.rate(page, old)
        rate = self.rate(page, new)
        self._demand.changed(before, rate)
        wanted = interval_for(rate, self.price) if self.price else self.every
        return min(self._settings.most, max(LEAST, wanted))

    def rate(self, page: Page, history: History) -> float:
        """Of the changes of a page."""
        return history.rate(self._settings.prior)

    def tick(self) -> None:
        """See `Way`."""
        self.price = self._demand.price(self._visits, LEAST, self._settings.most)


class Known(Adaptive):
    """With the rates known: the most that there is."""

    def rate(self, page: Page, history: History) -> float:
        """See `Adaptive`."""
        return page.rate


def simulate(rates: list[float], days: int, way: Way) -> tuple[Copy, float]:
    """Simulate; the copy, and the microseconds of CPU of a visit."""
    draw = random.Random(2)
    pages = [Page(rate, draw) for rate in rates]
    copy = Copy(len(pages), days)
    histories = [History(0.0) for _ in pages]
    # Spread over the first round, as a crawl finds them.
    heap = [(way.every * draw.random(), n) for n in range(len(pages))]
    for page, history in zip(pages, histories, strict=True):
        way.interval(page, None, history)
    heapify(heap)
    step, now, visits = way.every / len(pages), 0.0, 0
    began = time.process_time()
    while now < days * DAY:
        if visits % max(1, len(pages) // 20) == 0:
            way.tick()
        now += step
        number = heap[0][1]
        page, old = pages[number], histories[number]
        first, last = page.changes(old.last, now)
        copy.lived(old.last, first, now)
        dated = last if way.dated else None
        new = histories[number] = old.visited(now, changed=last is not None, modified=dated)
        heapreplace(heap, (now + way.interval(page, old, new), number))
        visits += 1
    spent = time.process_time() - began
    for page, history in zip(pages, histories, strict=True):
        first, _ = page.changes(history.last, now)
        copy.lived(history.last, first, now)
    return copy, spent / visits * 1e6


def compare(
    report: Report, number: int, days: int, every: float
) -> dict[str, list[tuple[float, float]]]:
    """A table of what the four ways come to; the freshness of each by day, over ten days each."""
    draw = random.Random(1)
    parts, begins, ends = zip(*CLASSES, strict=True)
    rates = []
    for kind in draw.choices(range(len(CLASSES)), parts, k=number):
        rates.append(1 / DAY / exp(draw.uniform(log(begins[kind]), log(ends[kind]))))
    prior = 1 / (30 * DAY)
    ways = {
        "fixed": Way(every * DAY),
        "adaptive": Adaptive(every * DAY, number, prior),
        "dated": Adaptive(every * DAY, number, prior, dated=True),
        "known": Known(every * DAY, number, prior),
    }
    lines = {}
    table = report.table(
        f"{number:,} pages, {days} days, {number / every:,.0f} visits a day",
        ["way", "fresh in the second half", "age, days", "µs a visit"],
    )
    for name, way in ways.items():
        copy, micros = simulate(rates, days, way)
        fresh = copy.freshness()
        lines[name] = [(n + 5.0, sum(fresh[n : n + 10]) / 10) for n in range(0, days, 10)]
        half = fresh[days // 2 :]
        age = copy.age / number / days / DAY / DAY
        table.rows.append([name, f"{sum(half) / len(half):.1%}", age, micros])
    report.show(table)
    return lines


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """None."""


def run(options: argparse.Namespace, report: Report) -> None:
    """Compare the ways, and draw the days."""
    number, days = (300, 300) if options.small else (2_000, 400)
    every = (10,) if options.small else (3, 10, 30)
    charts = {f"fresh, a visit in {n} days": compare(report, number, days, n) for n in every}
    report.lines("Freshness by day", charts, "days", least=0.4)
