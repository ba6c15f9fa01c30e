"""How long hosts must wait after what they answered."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.frontier.outcomes import (
    LONGEST_WISH,
    BackOff,
    Event,
    Health,
    HostVerdict,
    judge_host,
    parse_retry_after,
)

RULES = BackOff(base=5.0, longest=3600.0, dead_after=5)
WALL = 1_800_000_000.0
SICK = (Health.OVERLOADED, Health.UNREACHABLE)
BAD = [event for event in Event if event.outcome.health in SICK]


def test_back_off_doubles_up_to_its_longest() -> None:
    """5, 10, 20 … seconds, then an hour for ever."""
    waits = [RULES.after(failures) for failures in range(1, 13)]
    assert waits[:4] == [5.0, 10.0, 20.0, 40.0]
    assert waits[-1] == RULES.after(100_000) == 3600.0
    assert waits == sorted(waits)


def test_a_refused_connection_may_have_a_shorter_base() -> None:
    """It grows as the others do, from where it begins; no other failure is taken for one."""
    rules = BackOff(base=5.0, longest=30.0, refused=1.0)
    refused = [judge_host(Event.REFUSED, failures, rules, None).wait for failures in range(7)]
    assert refused == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert judge_host(Event.TIMEOUT, 0, rules, None).wait == 5.0
    assert judge_host(Event.REFUSED, 0, BackOff(base=0.5, refused=1.0), None).wait == 0.5
    assert judge_host(Event.TIMEOUT, 7, rules, None, 2).wait == 10.0  # eight failures in two rounds


@pytest.mark.parametrize("event", BAD)
def test_failures_add_up(event: Event) -> None:
    """Each one in a row makes the wait longer, and the reason names it."""
    first = judge_host(event, 0, RULES, None)
    second = judge_host(event, first.failures, RULES, None)
    assert (first.failures, first.wait) == (1, 5.0)
    assert (second.failures, second.wait) == (2, 10.0)
    assert second.why == f"back-off after {event.value}"


@pytest.mark.parametrize("event", [e for e in Event if e.outcome.health is Health.WELL])
def test_an_answer_forgives_everything(event: Event) -> None:
    """Whoever answers, even with 404, is neither overloaded nor away."""
    assert judge_host(event, 4, RULES, None) == HostVerdict(0)


@pytest.mark.parametrize("event", [e for e in Event if e.outcome.health is Health.NONE])
def test_what_touched_no_wire_says_nothing(event: Event) -> None:
    """The failures of before are neither forgotten nor added to."""
    assert judge_host(event, 3, RULES, None) == HostVerdict(3)


def test_only_silence_kills() -> None:
    """A host that answers 503 for ever is alive; one that never answers is given up."""
    assert not any(judge_host(Event.UNAVAILABLE, n, RULES, None).dead for n in range(50))
    dead = [judge_host(Event.TIMEOUT, n, RULES, None).dead for n in range(6)]
    assert dead == [False] * 4 + [True] * 2


def test_the_longer_of_retry_after_and_back_off_counts() -> None:
    """A server's own wish wins over a shorter back-off, and loses to a longer one."""
    assert judge_host(Event.TOO_MANY_REQUESTS, 0, RULES, 60.0).why == "Retry-After"
    assert judge_host(Event.TOO_MANY_REQUESTS, 0, RULES, 60.0).wait == 60.0
    later = judge_host(Event.TOO_MANY_REQUESTS, 6, RULES, 60.0)
    assert (later.wait, later.why) == (320.0, "back-off after too_many_requests")


def test_no_wish_is_granted_for_ever() -> None:
    """More than two weeks is a mistake, or outlives the crawl."""
    assert judge_host(Event.UNAVAILABLE, 0, RULES, 1e11).wait == LONGEST_WISH
    patient = BackOff(base=5.0, longest=1e9)
    assert judge_host(Event.UNAVAILABLE, 29, patient, 1e11).wait == patient.after(30)


def test_retry_after_of_an_answer_that_is_well_means_nothing() -> None:
    """It belongs to 429 and 503."""
    assert judge_host(Event.SUCCESS, 0, RULES, 60.0) == HostVerdict(0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("9" * 40, LONGEST_WISH),
        ("Fri, 31 Dec 9999 23:59:59 GMT", LONGEST_WISH),
        ("Fri, 15 Jan 2027 08:02:00 GMT", 120.0),
        ("Friday, 15-Jan-27 08:02:00 GMT", 120.0),
        ("Fri Jan 15 08:02:00 2027", 120.0),
        ("Fri, 15 Jan 2027 08:02:00 -0000", 120.0),
        ("Fri, 15 Jan 2027 09:02:00 +0100", 120.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("", None),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("٣", None),
        ("Fri, 99 Jan 2027 99:99:99 GMT", None),
    ],
)
def test_retry_after_in_both_forms(text: str, seconds: float | None) -> None:
    """Seconds, or a date in any of the three forms of HTTP; anything else is no wish."""
    assert parse_retry_after(text, WALL) == seconds


def test_dates_without_a_zone_are_utc_wherever_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The asctime form names no zone, and must not take this machine's."""
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    try:
        assert parse_retry_after("Fri Jan 15 08:02:00 2027", WALL) == 120.0
    finally:
        monkeypatch.undo()
        time.tzset()


@given(st.floats(WALL - 1e8, WALL + 1e8))
def test_dates_mean_what_they_say(when: float) -> None:
    """A date that the standard library writes is read to the second, as far as wishes go."""
    wait = parse_retry_after(formatdate(when, usegmt=True), WALL)
    assert wait is not None
    assert abs(wait - min(max(0.0, when - WALL), LONGEST_WISH)) <= 1.0


@given(st.text(max_size=40))
def test_no_header_breaks_anything(text: str) -> None:
    """A server may send what it likes."""
    wait = parse_retry_after(text, WALL)
    assert wait is None or 0.0 <= wait <= LONGEST_WISH
