"""`testing/optimum.py`: how fast a polite crawl can be."""

from __future__ import annotations

import pytest
from support.best_schedule import optimal_seconds, seconds_of

from scrapy_spider_suite.testing import Arrival


def _fetch(host: str, address: str, start: float, service: float = 0.5) -> Arrival:
    return Arrival(start, start + service, host, address, "/", 200, 1)


def test_one_host_takes_its_services_and_the_pauses_between_them() -> None:
    """Three fetches of half a second with two pauses of four seconds take 9.5 seconds."""
    fetches = [_fetch("a", "1", start) for start in (0, 10, 20)]
    assert optimal_seconds(fetches, lambda _: 4.0, 0.3) == pytest.approx(9.5)
    assert seconds_of(fetches) == 20.5


def test_hosts_of_one_address_share_its_time() -> None:
    """Where the address is what takes the time, it is never idle for longer than its delay."""
    fetches = [_fetch(host, "1", start) for host in "abcd" for start in (0, 10)]
    assert optimal_seconds(fetches, lambda _: 1.0, 1.0) == pytest.approx(8 * 0.5 + 7 * 1.0)


def test_the_host_with_most_left_goes_first() -> None:
    """A long host is not kept waiting by a short one."""
    fetches = [_fetch("short", "1", 0), *(_fetch("long", "1", start) for start in (1, 10, 20))]
    assert optimal_seconds(fetches, lambda _: 4.0, 0.1) == pytest.approx(9.5)


def test_addresses_do_not_wait_for_each_other() -> None:
    """The slowest address counts, and a pause may depend on the answer."""
    fetches = [_fetch("a", "1", 0), _fetch("a", "1", 10), _fetch("b", "2", 0), _fetch("b", "2", 9)]
    assert optimal_seconds(fetches, lambda each: 7.0 if each.host == "b" else 1.0, 0.0) == 8.0


def test_nothing_takes_no_time() -> None:
    """An empty log needs no time at all."""
    assert optimal_seconds([], lambda _: 4.0, 0.3) == 0.0
