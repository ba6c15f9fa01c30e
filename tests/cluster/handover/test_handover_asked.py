"""What somebody asked for is fetched, whatever the other side of a hand-over knows of its URL."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.handover_sides import Side, drain, hand_over, label, units_of
from support.virtual_crawl import WALL, entry

from scrapy_spider_suite.frontier.entries import Flag, state_key
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.revisit_rules import History, Validators
from scrapy_spider_suite.store.job_reader import StoreReader
from scrapy_spider_suite.store.revisit_plans import RevisitPlan
from scrapy_spider_suite.store.rows import pack_row

URL = "http://h0.t/1"
AGAIN = int(Flag.DONT_FILTER)
SPIDERS = int(Flag.USER | Flag.DONT_FILTER)
STARTS = int(Flag.USER | Flag.START | Flag.DONT_FILTER)


def sides(folder: Path, *, sieve: bool = False) -> tuple[Side, Side]:
    """Two agents."""
    return Side(folder / "a", sieve=sieve), Side(folder / "b", sieve=sieve)


def ask(side: Side, flags: int = AGAIN, payload: bytes | None = None) -> None:
    """Somebody asks for the URL."""
    side.frontier.admission.schedule([entry(URL, flags=flags, payload=payload)], side.now)
    side.frontier.flush()


def payloads(side: Side) -> list[bytes | None]:
    """What waits of the host, in its order."""
    return [each.payload for each in side.store.rows("h0.t", b"", 100)]


def ended(*both: Side) -> None:
    """End the runs; everything agrees in what they leave."""
    for side in both:
        side.close()
        with StoreReader(side.folder) as reader:
            assert list(reader.check()) == []


@pytest.mark.parametrize("known", ["done", "failed", "archived"])
def test_a_row_that_was_asked_for_is_taken_over_what_is_known(tmp_path: Path, known: str) -> None:
    """The receiver has fetched it before, the sender is to fetch it once more; a link is none."""
    a, b = sides(tmp_path)
    b.put("h0.t", 1, known)
    b.put("h0.t", 2, known)
    a.put("h0.t", 1, "asked")
    a.put("h0.t", 2, "pending")
    hand_over(a, b, tmp_path)
    assert b.queues() == {"h0.t": [URL]}
    counters = b.frontier.counters
    ends = counters.done + counters.failed
    assert (counters.pending, ends, sum(counters.events.values())) == (1, 1, 1)
    b.check()
    ended(a, b)


@pytest.mark.parametrize("known", ["done", "failed", "archived"])
def test_what_waits_is_left_to_whoever_asked_for_it(tmp_path: Path, known: str) -> None:
    """An old directory comes, which knows the URL: the holder is to fetch it all the same."""
    a, b = sides(tmp_path)
    a.put("h0.t", 1, known)
    a.put("h0.t", 2, known)
    b.put("h0.t", 1, "asked")
    b.put("h0.t", 2, "pending")
    hand_over(a, b, tmp_path)
    assert b.queues() == {"h0.t": [URL]}
    b.check()
    ended(a, b)


@pytest.mark.parametrize("flags", [SPIDERS, STARTS])
def test_a_retry_that_waits_goes_along(tmp_path: Path, flags: int) -> None:
    """A middleware has put it in the place of a request, which is done by that; to whoever knows
    nothing, has fetched the URL itself once, or is asked for another."""
    a = Side(tmp_path / "a")
    ask(a, flags, b"first")
    (host,) = a.frontier.unresolved_hosts(a.now, 9)
    a.frontier.set_address(host, "10.0.0.1", "10.0.0.1", 1e18, a.now)
    a.now = 1.0
    (fetch,) = a.frontier.leases.acquire(a.now)
    fetch.event = Event.REPLACED
    a.frontier.admission.adopt(fetch, [entry(URL, flags=flags, payload=b"retry")], a.now)
    a.frontier.leases.release(fetch, a.now)
    a.frontier.commit.settle([fetch], a.now)
    a.frontier.flush()
    assert (a.known(), payloads(a)) == ({URL: "done"}, [b"retry"])
    for number, known in enumerate(["", "done", "asked"]):
        b = Side(tmp_path / f"b{number}")
        b.put("h0.t", 1, known)
        hand_over(a, b, tmp_path)
        assert payloads(b) == ([None, b"retry"] if known == "asked" else [b"retry"])
        assert b.known() == {URL: "pending"}
        ended(a)
        a = b
    ended(a)


def test_what_start_yields_is_asked_for_by_every_agent(tmp_path: Path) -> None:
    """Who has just begun does not fetch again what another one has done, or has waiting."""
    a, b = sides(tmp_path)
    a.put("h0.t", 1, "done")
    ask(b, STARTS, b"start")
    hand_over(a, b, tmp_path)
    assert (b.known(), b.queues()) == ({URL: "done"}, {})
    b.check()
    ended(a, b)


def test_requests_for_one_url_are_not_taken_for_each_other(tmp_path: Path) -> None:
    """Of those that ask for the same one is left, of others all that were asked for, and what the
    sender knew first."""
    a, b = sides(tmp_path)
    for flags, payload in ((int(Flag.USER), b"1"), (SPIDERS, b"2"), (SPIDERS, b"3")):
        ask(a, flags, payload)
    for flags, payload in ((int(Flag.USER), b"0"), (SPIDERS, b"3"), (SPIDERS, b"4")):
        ask(b, flags, payload)
    hand_over(a, b, tmp_path)
    assert payloads(b) == [b"4", b"1", b"2", b"3"]
    assert (b.known(), b.frontier.counters.pending) == ({URL: "pending"}, 4)
    ended(a, b)


def test_a_link_is_none_beside_what_was_asked_for(tmp_path: Path) -> None:
    """Whoever has which."""
    for number, (here, there) in enumerate([("pending", "asked"), ("asked", "pending")]):
        a, b = sides(tmp_path / str(number))
        a.put("h0.t", 1, here)
        b.put("h0.t", 1, there)
        hand_over(a, b, tmp_path)
        (queued,) = b.store.rows("h0.t", b"", 9)
        assert queued.flags == AGAIN
        b.check()
        ended(a, b)


@pytest.mark.parametrize("sieve", [False, True])
def test_a_page_that_was_due_here_and_is_done_is_due_again(tmp_path: Path, sieve: bool) -> None:
    """Its plan stays, and would wait for nothing."""
    a, b = sides(tmp_path, sieve=sieve)
    a.put("h0.t", 1, "done")
    b.put("h0.t", 1, "pending")
    for side in (a, b):
        drain(side.context().drain_sieve())
    revisits, key = b.frontier.commit.planner.revisits, state_key("h0.t", URL)
    plan = RevisitPlan(
        WALL - 60.0, History(WALL - 90.0), 1e-4, Validators(), b"d", host="h0.t",
        row=pack_row(entry(URL)),
    )  # fmt: skip
    revisits.import_plan(key, plan, waits=False)
    hand_over(a, b, tmp_path)
    assert b.queues() == {}
    assert revisits.waits(key, plan)
    assert revisits.next_due() == plan.due
    ended(a, b)


def test_a_fingerprint_leaves_what_was_asked_for(tmp_path: Path) -> None:
    """It says that the URL is done; of a link that waited, that was all."""
    a, b = sides(tmp_path, sieve=True)
    for page in (1, 2):
        a.put("h0.t", page, "done")
        url = f"http://h0.t/{page}"
        a.frontier.admission.schedule([entry(url, referrer="http://x.t/")], a.now)
        a.frontier.flush()
    drain(a.context().drain_sieve())
    assert not a.store.get("states", state_key("h0.t", URL))
    ask(b)
    b.put("h0.t", 2, "pending")
    hand_over(a, b, tmp_path)
    assert b.queues() == {"h0.t": [URL]}
    assert b.known() == {URL: "pending"}
    assert b.store.state(state_key("h0.t", "http://h0.t/2")) is not None
    c = Side(tmp_path / "c", sieve=True)
    hand_over(b, c, tmp_path)
    assert (c.queues(), c.known()) == ({"h0.t": [URL]}, {URL: "pending"})
    ended(a, b, c)


def test_at_no_moment_a_url_is_neither_queued_nor_over(tmp_path: Path) -> None:
    """Nobody need go on with a hand-over file that a kill has cut short."""
    a, b = sides(tmp_path)
    for page in range(250):
        a.put("h0.t", page, "done")
        b.put("h0.t", page, "pending" if page % 50 else "asked")
    units, path = units_of("ring"), tmp_path / "file"
    drain(a.dump(units).pack(path, label()))
    for _ in b.load(units, path, label()).merge():
        b.frontier.flush()
        waiting = {url for url, state in b.known().items() if state == "pending"}
        assert waiting == set(b.queues()["h0.t"])
        (record,) = [record for _, record in b.store.records()]
        assert (record.pending, record.done) == (len(waiting), len(b.known()) - len(waiting))
    assert len(waiting) == 5
    ended(a, b)
