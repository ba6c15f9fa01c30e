"""Revisits: what visits tell of a page, what it is worth to come again, and whose turn it is."""

from __future__ import annotations

import argparse
import random
from math import exp, expm1, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import revisits
from benchmarks.report import Report
from scrapy_spider_suite.frontier.revisit_rules import (
    CHANGES_MAX,
    DAY,
    ChangeRates,
    History,
    LastmodTrust,
    Mode,
    RevisitPolicy,
    RevisitShare,
    Validators,
    VisitBudget,
    interval_for,
)

PRIOR = 1 / (30 * DAY)
rates = st.floats(1e-8, 1e-3)


def worth(rate: float, interval: float) -> float:
    """Seconds of freshness that a visit *interval* after the last one is worth."""
    product = rate * interval
    return -(expm1(-product) + product * exp(-product)) / rate



def watched(rate: float, interval: float, visits: int, seed: int, *, dated: bool) -> History:
    """What so many visits find, at intervals that differ, of a page that changes at *rate*."""
    draw = random.Random(seed)
    history = History(0.0)
    for _ in range(visits):
        now = history.last + interval * draw.uniform(0.5, 1.5)
        modified = now - draw.expovariate(rate)
        changed = modified > history.last
        history = history.visited(now, changed=changed, modified=modified if dated else None)
    return history


@pytest.mark.parametrize("dated", [False, True])
@pytest.mark.parametrize("changes", [0.3, 1.0, 2.0])
def test_the_rate_is_estimated(changes: float, dated: bool) -> None:
    """At so many changes an interval, from forty visits: right on average, within a third."""
    rate = changes / (5 * DAY)
    found = [
        watched(rate, 5 * DAY, 40, seed, dated=dated).rate(PRIOR) / rate for seed in range(60)
    ]
    assert 0.85 < sorted(found)[30] < 1.2
    assert sum(abs(ratio - 1) < 0.5 for ratio in found) > 45


def test_what_is_not_known() -> None:
    """No visit: the prior. None changed: less and less. All changed: more, but within bounds."""
    assert History(0.0).rate(PRIOR) == pytest.approx(PRIOR, rel=1e-2)
    quiet = [History(0.0, quiet=days * DAY).rate(PRIOR) for days in (10, 100, 1000)]
    assert PRIOR > quiet[0] > quiet[1] > quiet[2] > PRIOR / 200
    busy = History(0.0, changed=(DAY,) * 10).rate(PRIOR)
    assert 1 / DAY < busy < 20 / DAY


def test_a_page_that_changes_its_ways() -> None:
    """After a busy time, that it is at rest counts more and more."""
    history = watched(1 / DAY, DAY, 60, 1, dated=False)
    busy = history.rate(PRIOR)
    assert len(history.changed) == CHANGES_MAX
    calm = watched(1 / DAY, DAY, 60, 1, dated=True)
    assert calm.dated <= CHANGES_MAX
    for _ in range(40):
        history = history.visited(history.last + 10 * DAY, changed=False)
    assert history.rate(PRIOR) < busy / 5


def test_dates_that_cannot_be() -> None:
    """Those before the last visit or in the future say only that there was a change."""
    history = History(100 * DAY)
    for modified in (90 * DAY, 120 * DAY):
        found = history.visited(110 * DAY, changed=True, modified=modified)
        assert found == History(110 * DAY, changed=(10 * DAY,))
    found = history.visited(110 * DAY, changed=True, modified=108 * DAY)
    assert found == History(110 * DAY, quiet=2 * DAY, dated=1)
    found = history.visited(110 * DAY, changed=False, modified=108 * DAY)
    assert found == History(110 * DAY, quiet=10 * DAY)
    assert history.visited(50 * DAY, changed=False) == History(50 * DAY, quiet=1.0)


@given(rates, st.floats(1, 1e8))
def test_an_interval_is_worth_its_price(rate: float, price: float) -> None:
    """And grows with it, until no interval is."""
    interval = interval_for(rate, price)
    if rate * price >= 1:
        assert interval == inf
    else:
        assert worth(rate, interval) == pytest.approx(price, rel=1e-3)
        assert interval < interval_for(rate, price * 1.1)


def test_what_a_visit_is_worth_is_what_it_adds() -> None:
    """The freshness of a page visited every t seconds is (1 - exp(-rt)) / rt; its derivative by
    the number of visits a second is the worth of the last of them."""
    rate, interval, step = 1 / DAY, 1.7 * DAY, 1e-4

    def freshness(frequency: float) -> float:
        return (1 - exp(-rate / frequency)) * frequency / rate

    often = 1 / interval
    slope = (freshness(often * (1 + step)) - freshness(often)) / (often * step)
    assert worth(rate, interval) == pytest.approx(slope, rel=1e-3)


@settings(max_examples=40)
@given(st.lists(rates, min_size=1, max_size=40), st.floats(1e-7, 1e-3))
def test_the_price_spends_all_visits(rates: list[float], visits: float) -> None:
    """Within what bins of a quarter octave and the bounds of the intervals allow."""
    demand = ChangeRates()
    for rate in rates:
        demand.changed(None, rate)
    least, most = 600.0, 400 * DAY
    price = demand.price(visits, least, most)
    spent = sum(1 / min(most, max(least, interval_for(rate, price))) for rate in rates)
    if len(rates) / most < visits < len(rates) / least and price > 1:
        dear = sum(1 / min(most, max(least, interval_for(rate, price * 1.25))) for rate in rates)
        cheap = sum(1 / min(most, max(least, interval_for(rate, price / 1.25))) for rate in rates)
        assert dear * 0.95 <= visits <= cheap * 1.05, spent
    again = ChangeRates(demand.bins)
    assert again.price(visits, least, most) == price
    for rate in rates:
        again.changed(rate, None)
    assert len(again) == 0


def test_more_visits_lower_the_price() -> None:
    """And with none at all nothing is worth one."""
    demand = ChangeRates()
    for rate in (1 / DAY, 1 / (10 * DAY), 1 / (100 * DAY)):
        demand.changed(None, rate)
    prices = [demand.price(visits / DAY) for visits in (0.01, 0.1, 1.0, 10.0)]
    assert prices == sorted(prices, reverse=True)
    assert interval_for(1 / DAY, demand.price(0)) == inf


def test_the_modes() -> None:
    """Off: never; fixed: always the same; adaptive: between bounds, sooner where more changes."""
    quiet, busy = History(0.0, quiet=100 * DAY), History(0.0, changed=(5 * DAY,) * 5)
    assert RevisitPolicy().interval(busy, DAY) is None
    fixed = RevisitPolicy(Mode.FIXED, seconds=60.0)
    assert fixed.interval(busy, DAY) == fixed.interval(quiet, DAY) == 60.0
    adaptive = RevisitPolicy(Mode.ADAPTIVE, least=3600, most=50 * DAY)
    soon, late = adaptive.interval(busy, DAY / 2), adaptive.interval(quiet, DAY / 2)
    assert soon is not None
    assert late is not None
    assert 3600 < soon < late <= 50 * DAY
    assert adaptive.interval(busy, 1e-9) == 3600
    assert adaptive.interval(busy, 1e9) == 50 * DAY


@pytest.mark.parametrize("weight", [0.0, 0.2, 0.5, 1.0])
def test_turns_are_shared_by_the_weight(weight: float) -> None:
    """Evenly."""
    turns = RevisitShare(weight)
    given_ = [turns.next() for _ in range(100)]
    assert given_.count(True) == pytest.approx(100 * weight, abs=1)
    for begin in range(0, 100, 10):
        assert given_[begin : begin + 10].count(True) == pytest.approx(10 * weight, abs=1)


def test_sitemaps_are_believed_as_long_as_they_are_right() -> None:
    """A lastmod after the last visit makes a page due, unless most of those before were wrong."""
    history, due = History(100.0), 10_000.0
    claims = LastmodTrust()
    assert claims.due(150.0, history, due, 200.0) == 200.0
    assert claims.due(150.0, history, 180.0, 200.0) == 180.0
    for lastmod in (None, 50.0, 100.0, 300.0):
        assert claims.due(lastmod, history, due, 200.0) == due
    for _ in range(6):
        claims = claims.checked(changed=False)
    assert claims.due(150.0, history, due, 200.0) == due
    for _ in range(20):
        claims = claims.checked(changed=True)
    assert claims.due(150.0, history, due, 200.0) == 200.0
    assert claims.made < 21


def test_validators() -> None:
    """What a server gave comes back to it, word for word; what is no validator does not."""
    found = Validators.from_headers(b' W/"a,b" ', b"Sun, 06 Nov 1994 08:49:37 GMT")
    assert found.headers() == {
        b"If-None-Match": b'W/"a,b"', b"If-Modified-Since": b"Sun, 06 Nov 1994 08:49:37 GMT",
    }  # fmt: skip
    assert found.modified == 784111777.0
    renewed = found.renewed(Validators.from_headers(b'"c"', None))
    assert renewed == Validators('"c"', found.last_modified)
    assert not Validators.from_headers(None, None)
    assert Validators.from_headers(None, None).headers() == {}


@pytest.mark.parametrize(
    "etag", [b"abc", b'"a"b"', b'"a\r\nHost: b"', b'w/"a"', b'"' + b"a" * 600 + b'"', b'"a b"']
)
def test_no_etag(etag: bytes) -> None:
    """RFC 9110 §8.8.3; what could be another header is none."""
    assert Validators.from_headers(etag, None) == Validators()


@pytest.mark.parametrize(
    "date",
    [b"yesterday", b"", b"Sun, 06 Nov 1994 08:49:37 GMT\r\nX: y", b"Mon, 99 Foo 10000 99:99:99",
     b"\xff", b"Sun, 06 Nov 1994 08:49:37 +9999999999"],
)  # fmt: skip
def test_no_date(date: bytes) -> None:
    """A page that does not say when it changed."""
    assert Validators.from_headers(None, date) == Validators()


def test_a_budget_of_visits() -> None:
    """As many as come in time; what was not spent is kept, but not for ever."""
    budget = VisitBudget()
    budget.refill(100.0, 1_000, 50.0)
    assert budget.left == 0
    spent = 0
    for step in range(1, 101):
        budget.refill(100.0 + step, 1_000, 50.0)
        visits = int(budget.left) if step % 3 else 0
        budget.left -= visits
        spent += visits
    assert spent == pytest.approx(100 * 20, abs=50)
    budget.refill(1e6, 1_000, 50.0)
    assert budget.left == 50
    budget.refill(1.0, 1_000, 50.0)
    assert budget.left == 50, "a clock that was set back"


def test_adaptive_is_fresher_than_fixed() -> None:
    """The benchmark `revisits`, small, in virtual time: at equal visits, and not too well."""
    report = Report("revisits", "")
    revisits.run(argparse.Namespace(small=True), report)
    fresh = {str(row[0]): float(str(row[1]).rstrip("%")) for row in report.tables[0].rows}
    assert fresh["fixed"] < fresh["adaptive"] < fresh["known"] + 0.5
    assert fresh["fixed"] + 1 < fresh["dated"] < fresh["known"] + 0.5
