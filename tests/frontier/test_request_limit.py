"""The number of requests under way: down when answers are slow or lost, up again step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.frontier.request_limit import SIGNIFICANT, WINDOW, RequestLimit

MOST = 200


@dataclass
class Town:
    limit: RequestLimit = field(default_factory=lambda: RequestLimit(MOST, 0.0, 0.0))
    now: float = 0.0
    busy: float = 0.0

    def window(
        self, seconds: float = 0.5, lost: int = 0, load: float = 0.3, count: int = 100
    ) -> int:
        for _ in range(count - lost):
            self.limit.note_answer(seconds)
        for _ in range(lost):
            self.limit.note_loss()
        self.now += WINDOW
        self.busy += load * WINDOW
        self.limit.update(self.now, self.busy)
        return self.limit.limit


@pytest.mark.parametrize("trouble", [
    {"seconds": 1.5}, {"lost": 30}, {"seconds": 1.0, "load": 0.99},
])  # fmt: skip
def test_it_falls_at_once_and_rises_step_by_step(trouble: dict[str, float]) -> None:
    town = Town()
    assert [town.window() for _ in range(5)] == [MOST] * 5
    assert town.window(**trouble) == 140  # type: ignore[arg-type]
    assert "as a rule" in town.limit.reason
    # What was under way before counts in the next window: that is not judged.
    assert town.window(**trouble) == 150  # type: ignore[arg-type]
    assert town.window(**trouble) == 105  # type: ignore[arg-type]
    assert [town.window() for _ in range(11)][-2:] == [MOST, MOST]


def test_it_rises_from_the_floor_and_falls_when_all_is_lost() -> None:
    """Also where so few answers come that no window says anything; also without an answer."""
    town = Town()
    town.window()
    while town.limit.limit > MOST // 10:
        town.window(seconds=50.0)
        town.limit._judged = True
    found = [town.window(seconds=50.0, count=10) for _ in range(3)]
    assert found == [30, 40, 50]
    town = Town()
    town.window()
    assert town.window(lost=100) == 140


def test_what_is_usual_is_no_trouble() -> None:
    """Hosts far away, and hosts that are dead: they are no sign of too many requests."""
    town = Town()
    assert {town.window(seconds=4.0, lost=30, load=0.99) for _ in range(20)} == {MOST}


def test_the_usual_follows_slowly() -> None:
    """After some minutes another part of the web is the usual one."""
    town = Town()
    town.window(0.2)
    found = [town.window(1.0) for _ in range(200)]
    assert min(found) < MOST // 4
    assert found[-1] == MOST


def test_a_window_of_few_requests_says_nothing() -> None:
    town = Town()
    town.window()
    assert town.window(seconds=60.0, count=SIGNIFICANT - 1) == MOST


@given(st.integers(1, 5_000), st.lists(st.tuples(
    st.floats(0, 100), st.integers(0, 100), st.floats(0, 2), st.integers(0, 200),
)))  # fmt: skip
def test_it_stays_in_its_bounds(
    most: int, windows: list[tuple[float, int, float, int]]
) -> None:
    town = Town(RequestLimit(most, 0.0, 0.0))
    for seconds, lost, load, count in windows:
        assert min(most, 16) <= town.window(seconds, min(lost, count), load, count) <= most
