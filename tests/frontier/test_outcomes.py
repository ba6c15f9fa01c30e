"""The table of outcomes is whole, and agrees with itself."""

from __future__ import annotations

import pytest

from scrapy_spider_suite.frontier.outcomes import (
    Event,
    Health,
    Retry,
    State,
    event_of_status,
)

EVENTS = list(Event)

# Stored by position: add at the end, never reorder.
STORED = [
    "success", "not_stored", "callback_error", "pipeline_error", "disk_full", "redirect",
    "replaced", "client_error", "too_many_requests", "unavailable", "server_error", "timeout",
    "refused", "connection_lost", "bad_response", "data_loss", "too_large", "dns", "no_such_host",
    "private_address", "ignored", "robots", "robots_unavailable", "too_many_hops",
    "redirect_loop", "unsupported", "dropped", "budget", "host_dead", "out_of_files",
    "interrupted", "download_error",
]  # fmt: skip


def test_every_event_has_a_row() -> None:
    """It says in words what it is."""
    assert all(event.outcome.meaning for event in EVENTS)


def test_stored_positions_stay() -> None:
    """Jobs on disk name events and states by their positions."""
    assert [event.value for event in EVENTS][: len(STORED)] == STORED
    assert [state.value for state in State] == ["pending", "done", "failed"]


@pytest.mark.parametrize("event", EVENTS)
def test_pending_is_where_another_attempt_is_somebodys_business(event: Event) -> None:
    """A URL that stays pending is tried again, and one that is over is not."""
    outcome = event.outcome
    assert (outcome.state is State.PENDING) == (outcome.retry is not Retry.NOBODY)


@pytest.mark.parametrize("event", EVENTS)
def test_what_makes_a_host_wait_is_tried_again(event: Event) -> None:
    """A back-off for a URL that is over would help nobody."""
    outcome = event.outcome
    if outcome.health in (Health.OVERLOADED, Health.UNREACHABLE):
        assert outcome.retry is Retry.STORE


@pytest.mark.parametrize("event", EVENTS)
def test_no_blame_means_no_counting(event: Event) -> None:
    """Retries without an attempt are for what is not the URL's fault, nor that of its host.

    `DISK_FULL` comes after an answer: the host is well.
    """
    outcome = event.outcome
    if outcome.retry is Retry.HOST and event is not Event.DISK_FULL:
        assert outcome.health is Health.NONE


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("ours", [True, False])
def test_nothing_is_tried_for_ever(event: Event, ours: bool) -> None:
    """After retry_times attempts more, what counts attempts is over."""
    outcome = event.outcome
    after = outcome.after(6, 5, ours=ours)
    if outcome.retry is Retry.STORE:
        assert after is State.FAILED
        assert outcome.after(5, 5, ours=ours) is (State.PENDING if ours else State.FAILED)
        assert outcome.after(1, 0, ours=ours) is State.FAILED
    else:
        assert after is outcome.state


@pytest.mark.parametrize(
    ("status", "event"),
    [
        (200, Event.SUCCESS), (204, Event.SUCCESS), (299, Event.SUCCESS), (304, Event.SUCCESS),
        (300, Event.REDIRECT), (301, Event.REDIRECT), (307, Event.REDIRECT), (399, Event.REDIRECT),
        (400, Event.CLIENT_ERROR), (404, Event.CLIENT_ERROR), (499, Event.CLIENT_ERROR),
        (408, Event.SERVER_ERROR), (429, Event.TOO_MANY_REQUESTS), (500, Event.SERVER_ERROR),
        (502, Event.SERVER_ERROR), (503, Event.UNAVAILABLE), (599, Event.SERVER_ERROR),
        (999, Event.SERVER_ERROR),
    ],
)  # fmt: skip
def test_statuses(status: int, event: Event) -> None:
    """Every status stands for one event."""
    assert event_of_status(status) is event


def test_every_answer_says_that_its_host_lives() -> None:
    """Whatever it is; 429 and 503 say that it is too busy."""
    for status in range(100, 1000):
        health = event_of_status(status).outcome.health
        assert health is (Health.OVERLOADED if status in (429, 503) else Health.WELL), status
