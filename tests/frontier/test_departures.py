"""When requests go out where several may be out at a time."""

from __future__ import annotations

import pytest

from scrapy_spider_suite.frontier.workbench import (
    FOREVER,
    AddressState,
    Departure,
    HostState,
    Visit,
    departure,
)


def places(
    host: tuple[float, int] = (0.0, 1), address: tuple[float, int] = (0.0, 0)
) -> tuple[HostState, AddressState]:
    """A host and an address, each with its delay and its concurrency."""
    return HostState("a.example", *host, burst=1), AddressState("192.0.2.1", *address, 0.0)


def of(host: HostState, address: AddressState, freed: list[str]) -> Departure:
    """The departure of a transfer."""
    found = departure(host, address, lambda: freed.append("again"))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("host", "address"), [((4.0, 1), (0.5, 1)), ((4.0, 1), (0.0, 0)), ((0.0, 8), (0.5, 1))]
)
def test_one_at_a_time_has_none(host: tuple[float, int], address: tuple[float, int]) -> None:
    """There the delay runs from the end; and without a delay nothing waits."""
    assert departure(*places(host, address), lambda: None) is None


@pytest.mark.parametrize("which", ["host", "address"])
def test_nothing_begins_until_it_is_gone(which: str) -> None:
    """From then on the delay runs, and who waits looks again."""
    host, address = places(**{which: (4.0, 2)})
    freed: list[str] = []
    leaves = of(host, address, freed)
    other = Visit(host, address, [], 0, 0, (0.0,) * 4, (0.0, 0.0))
    leaves.hold()
    assert other.pause_to_begin(10.0) == FOREVER
    assert freed == []
    leaves.gone(10.0)
    assert freed == ["again"]
    assert other.pause_to_begin(11.0) == 3.0
    assert other.pause_to_begin(14.0) == 0.0
    place = host if which == "host" else address
    assert (place.began, place.fetched, place.next_fetch) == (10.0, 10.0, 14.0)


def test_what_never_goes_holds_nobody() -> None:
    """A connection that cannot be made; and one is held for each time that is asked for it."""
    host, address = places((4.0, 2))
    leaves = of(host, address, [])
    leaves.hold()
    leaves.hold()
    leaves.release()
    leaves.release()
    assert host.departing == address.departing == 0


def test_a_clock_that_runs_from_the_end_is_left_alone() -> None:
    """A host with one request at a time, at an address with several."""
    host, address = places((4.0, 1), (0.5, 2))
    host.next_fetch = 3.0
    of(host, address, []).gone(10.0)
    assert (host.next_fetch, address.next_fetch) == (3.0, 10.5)
