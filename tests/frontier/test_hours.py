"""The hours of the day at which a host may be visited."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.frontier.policy import Hours


def at(text: str) -> float:
    """The time of day *text* on some day, in seconds since the epoch."""
    return datetime.fromisoformat(f"2026-11-21T{text}").replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("hours", "now", "opens"),
    [
        ("9-17", "08:00", "09:00"),
        ("9-17", "09:00", "09:00"),
        ("9-17", "16:59:59", "16:59:59"),
        ("22-6", "21:30", "22:00"),
        ("22-6", "23:30", "23:30"),
        ("22-6", "05:59", "05:59"),
        ("22-6", "06:00", "22:00"),
        ("8:30-12,13-17:15", "12:30", "13:00"),
        ("8:30-12,13-17:15", "08:29", "08:30"),
        ("0-24", "23:59:59", "23:59:59"),
        ("18-24", "12:00", "18:00"),
        ("1-3,2-5,22-24", "04:00", "04:00"),
        ("12-24,0-12", "12:00", "12:00"),
        ("6-0", "05:00", "06:00"),
        ("24-6", "05:00", "05:00"),
    ],
)
def test_when_they_open(hours: str, now: str, opens: str) -> None:
    """Now, or when the next range begins."""
    assert Hours.parse(hours).opens(at(now)) == at(opens)


def test_they_open_tomorrow() -> None:
    """Once the last range of a day is over."""
    assert Hours.parse("9-17").opens(at("17:00")) == at("09:00") + 86_400


@pytest.mark.parametrize(
    "text", ["", "9", "9-", "9-9", "0-24:01", "25-26", "9:60-10", "9-17;", "9-17,,", "-1-5", "a-b"]
)
def test_what_are_no_hours(text: str) -> None:
    """A range that is empty, or no range."""
    with pytest.raises(ValueError, match="no range of hours"):
        Hours.parse(text)


MINUTES = st.integers(0, 24 * 60 - 1)


@given(
    st.lists(st.tuples(MINUTES, MINUTES).filter(lambda pair: pair[0] != pair[1]), min_size=1),
    st.integers(0, 10 * 86_400),
)
def test_as_a_clock_that_is_looked_at_each_minute(
    ranges: list[tuple[int, int]], now: int
) -> None:
    """The first minute that lies in any range, found by looking at each."""
    text = ",".join(f"{a // 60}:{a % 60:02}-{b // 60}:{b % 60:02}" for a, b in ranges)

    def within(minute: int) -> bool:
        clock = minute % 1440
        return any(a <= clock < b if a < b else clock >= a or clock < b for a, b in ranges)

    minute = now // 60
    expected = now if within(minute) else None
    while expected is None:
        minute += 1
        expected = minute * 60 if within(minute) else None
    assert Hours.parse(text).opens(float(now)) == expected
