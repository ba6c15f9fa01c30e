"""When bytes may go out where several requests may be out at a time."""

from __future__ import annotations

import pytest

from scrapy_spider_suite.frontier.departures import departure
from scrapy_spider_suite.frontier.states import AddressState, HostState


def places(
    host: tuple[float, int] = (0.0, 1), address: tuple[float, int] = (0.0, 0)
) -> tuple[HostState, AddressState]:
    """A host and an address, each with its delay and its concurrency."""
    return HostState("a.example", *host, burst=1), AddressState("192.0.2.1", *address, 0.0)


@pytest.mark.parametrize(
    ("host", "address"), [((4.0, 1), (0.5, 1)), ((4.0, 1), (0.0, 0)), ((0.0, 8), (0.5, 1))]
)
def test_one_at_a_time_has_none(host: tuple[float, int], address: tuple[float, int]) -> None:
    """There the delay runs from the end; and without a delay nothing waits."""
    assert departure(*places(host, address)) is None


@pytest.mark.parametrize("which", ["host", "address"])
def test_the_delay_runs_from_what_went_out(which: str) -> None:
    """Also for a transfer that began before, and for those that have not begun."""
    host, address = places(**{which: (4.0, 2)})
    first, second = departure(host, address), departure(host, address)
    assert first is not None
    assert second is not None
    assert first.pause(10.0) == 0.0
    first.gone(10.0)
    assert second.pause(11.0) == 3.0
    assert second.pause(14.0) == 0.0
    place = host if which == "host" else address
    assert (place.began, place.fetched, place.next_fetch) == (10.0, 10.0, 14.0)


def test_a_clock_that_runs_from_the_end_is_left_alone() -> None:
    """A host with one request at a time, at an address with several."""
    host, address = places((4.0, 1), (0.5, 2))
    host.next_fetch = 3.0
    leaves = departure(host, address)
    assert leaves is not None
    leaves.gone(10.0)
    assert (host.next_fetch, address.next_fetch) == (3.0, 10.5)
