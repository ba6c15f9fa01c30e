"""Failed is not seen: what failed long enough ago is tried once more when a link leads there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.virtual_crawl import WALL, Crawl, Web, entry

from scrapy_spider_suite.frontier.outcomes import BackOff, Event, Pace, State
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.store.rows import UrlState

PAGE, OTHER = "http://a.t/page", "http://a.t/other"
HOUR = 3600.0


def crawl_of(folder: Path, events: dict[str, list[Event]], **policy: Any) -> Crawl:
    """A crawl of a.t, whose pages end as *events* say, one after the other, and then well."""

    def event(url: str, attempt: int) -> Event:
        left = events.get(url)
        return left.pop(0) if left else Event.SUCCESS

    rules = Policy(
        host=Pace(1.0), address=Pace(0.1), retry_times=0,
        back_off=BackOff(base=1.0, longest=2.0, dead_after=2), **policy,
    )  # fmt: skip
    return Crawl(
        RocksStore(folder / "store", memory=4 << 20), Web({"a.t": "10.0.0.1"}, event=event), rules
    )


def offer(crawl: Crawl, url: str, after: float) -> int:
    """How many are new of *url*, to which a page leads *after* so many seconds, and crawl on."""
    crawl.now += after
    new = crawl.frontier.admission.schedule([entry(url)], crawl.now)
    crawl.run(until=crawl.now + 60.0)
    crawl.frontier.flush()
    return new


def state_of(crawl: Crawl, url: str) -> UrlState:
    """What the store says."""
    data = crawl.frontier.store.state(entry(url).identity)
    assert data is not None
    return UrlState.from_bytes(data)


WELL = frozenset({Event.SERVER_ERROR})


def test_never_unless_the_policy_says_so(tmp_path: Path) -> None:
    """A URL that failed is known, like one that is done."""
    crawl = crawl_of(tmp_path, {PAGE: [Event.SERVER_ERROR]}, retry_failed=WELL)
    assert offer(crawl, PAGE, 0.0) == 1
    assert offer(crawl, PAGE, 1000 * HOUR) == 0
    assert state_of(crawl, PAGE).state is State.FAILED


def test_a_link_after_the_time_has_it_tried_once_more(tmp_path: Path) -> None:
    """Not before, and not what is done; every count agrees at every moment."""
    events = {PAGE: [Event.SERVER_ERROR, Event.SERVER_ERROR]}
    crawl = crawl_of(tmp_path, events, retry_failed_after=HOUR, retry_failed=WELL)
    assert offer(crawl, PAGE, 0.0) == 1
    assert offer(crawl, PAGE, HOUR - 100.0) == 0
    assert offer(crawl, PAGE, 200.0) == 1
    assert state_of(crawl, PAGE).state is State.FAILED  # again: the hour begins anew
    assert offer(crawl, PAGE, 100.0) == 0
    assert offer(crawl, PAGE, HOUR) == 1
    assert state_of(crawl, PAGE).state is State.DONE
    assert offer(crawl, PAGE, 10 * HOUR) == 0
    counters = crawl.frontier.counters
    assert (counters.pending, counters.done, counters.failed) == (0, 1, 0)
    assert counters.events == {Event.SUCCESS: 1}
    assert crawl.frontier.admission.retry_failed.retried == 2
    assert crawl.urls == [PAGE] * 3
    with StoreReader(tmp_path) as reader:
        assert list(reader.check()) == []


def test_for_some_reasons_only(tmp_path: Path) -> None:
    """What is gone stays failed."""
    events = {PAGE: [Event.CLIENT_ERROR], OTHER: [Event.SERVER_ERROR]}
    crawl = crawl_of(tmp_path, events, retry_failed_after=HOUR, retry_failed=WELL)
    offer(crawl, PAGE, 0.0)
    offer(crawl, OTHER, 0.0)
    assert offer(crawl, PAGE, 2 * HOUR) == 0
    assert offer(crawl, OTHER, 2 * HOUR) == 1


@pytest.mark.parametrize("forgives", [False, True])
def test_a_host_that_was_given_up(tmp_path: Path, forgives: bool) -> None:
    """Comes back only where that reason is named, with all that is found of it then."""
    reasons = WELL | {Event.CONNECTION_LOST} | ({Event.HOST_DEAD} if forgives else set())
    lost = [Event.CONNECTION_LOST]
    crawl = crawl_of(
        tmp_path, {PAGE: lost * 1, OTHER: lost * 1}, retry_failed_after=HOUR, retry_failed=reasons
    )
    crawl.seed(PAGE, OTHER, "http://a.t/third")
    crawl.run()
    assert state_of(crawl, "http://a.t/third").event is Event.HOST_DEAD
    assert crawl.frontier.counters.dead_hosts == 1
    assert offer(crawl, PAGE, 2 * HOUR) == 0  # of a host that is given up nothing is fetched
    assert offer(crawl, "http://a.t/third", 1.0) == forgives
    assert crawl.frontier.counters.dead_hosts == (not forgives)
    assert offer(crawl, PAGE, 1.0) == forgives
    expected = State.DONE if forgives else State.FAILED
    assert {state_of(crawl, url).state for url in (PAGE, "http://a.t/third")} == {expected}
    with StoreReader(tmp_path) as reader:
        assert list(reader.check()) == []


def test_a_clock_that_was_set_back_gives_no_chance(tmp_path: Path) -> None:
    """What failed in the future has not failed long ago."""
    crawl = crawl_of(
        tmp_path, {PAGE: [Event.SERVER_ERROR]}, retry_failed_after=HOUR, retry_failed=WELL
    )
    offer(crawl, PAGE, 10 * HOUR)
    crawl.frontier.wall_offset = WALL - 100 * HOUR
    assert offer(crawl, PAGE, HOUR) == 0
