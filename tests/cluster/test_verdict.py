"""Each judge of what several agents did finds what it is there to find, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fleet import Event, Fleet
from support.polite_crawls import Size
from support.verdict import LATE, SETTLE, Verdict, url_of

from scrapy_spider_suite.testing import Arrival, SyntheticWeb
from scrapy_spider_suite.testing.fake_web import address_text

SIZE = Size(hosts=5, addresses=3, pages=6, host_delay=1.0, ip_delay=0.25)
TOOK = 0.02
Log = list[Arrival]


@pytest.fixture
def web(tmp_path: Path) -> SyntheticWeb:
    """Five hosts, two of which share an address with another; one asks for a Crawl-delay."""
    return SyntheticWeb(SIZE.web(tmp_path / "arrivals"))


@pytest.fixture
def log(web: SyntheticWeb) -> Log:
    """The log of a polite crawl of all of it."""
    return [
        Arrival(
            when := 1000.0 + page * 6 + host * 0.6, when + TOOK, web.host_name(host),
            address_text(web.address_index(host)), web.path(page), web.plan(host, page).status, 1,
        )
        for page in range(SIZE.pages) for host in range(SIZE.hosts)
        if page < web.traits(host).pages
    ]  # fmt: skip


def judged(web: SyntheticWeb, log: Log, *kills: float, **more: Any) -> list[str]:
    """What the verdict says of *log*, every page of which was kept."""
    kept = {url_of(web, each): ["a"] for each in log}
    moments = [(kill, kill) for kill in kills]
    return list(Verdict(web, SIZE, sorted(log), moments, **{"kept": kept, **more}).broken())


def again(log: Log, number: int, later: float) -> Arrival:
    """The same page once more."""
    one = log[number]
    return one._replace(start=one.start + later, end=one.end + later)


def test_a_polite_crawl_passes(web: SyntheticWeb, log: Log) -> None:
    """With robots.txt between, and a page that was refused at first."""
    robots = log[0]._replace(path="/robots.txt", start=990.0, end=990.1)
    refused = log[-1]._replace(status=503, start=2000.0, end=2000.1)
    assert judged(web, [robots, *log, refused]) == []


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (lambda log: log[1:], "not fetched"),
        (lambda log: [*log, again(log, 0, 100)], "fetched twice, and not in flight at a kill"),
        (lambda log: [*log, *(again(log, 0, n) for n in (100, 200))], "fetched twice, and not"),
        (lambda log: [*log, log[0]._replace(path="/robots.txt", start=1001.0, end=1001.1)],
         "too early: 1: h000000"),
        (lambda log: [*log, log[3]._replace(path="/robots.txt", start=1003.4, end=1003.5)],
         "too early: 1: h000003"),
        (lambda log: [*log, log[4]._replace(path="/robots.txt", start=1000.7, end=1000.71)],
         "too early: 1: 127.8.0.2"),
    ],
    ids=["lost", "twice", "three times", "host", "Crawl-delay", "address"],
)  # fmt: skip
def test_each_fault_is_found(
    spoil: Callable[[Log], Log], name: str, web: SyntheticWeb, log: Log
) -> None:
    """Once, with its name, and no other."""
    kept = {url_of(web, each): ["a"] for each in log}
    (found,) = judged(web, spoil(log), kept=kept)
    assert found.startswith(name)


def test_what_was_not_kept_is_found(web: SyntheticWeb, log: Log) -> None:
    """Although it was fetched."""
    good = [url_of(web, each) for each in log if each.status == 200]
    (found,) = judged(web, log, kept={url: ["a"] for url in good[1:]})
    assert found == f"not kept: 1: {good[0]}"


def test_what_processes_did_is_told(web: SyntheticWeb, log: Log) -> None:
    """As whoever ran them found."""
    assert judged(web, log, said=["a ended with code 6"]) == [
        "processes: 1: a ended with code 6"
    ]


def test_a_kill_excuses_what_was_in_flight_and_nothing_else(web: SyntheticWeb, log: Log) -> None:
    """Before it was settled; once for each kill; never long before the kill."""
    twice = [*log, again(log, 0, 100)]
    end = log[0].end
    assert judged(web, twice, end + SETTLE / 2) == []
    for other in (log[0].start - LATE - 0.01, end + SETTLE + 0.01, end + 200):
        assert judged(web, twice, other) != []
    thrice = [*twice, again(log, 0, 200)]
    assert judged(web, thrice, end + SETTLE / 2) != []
    assert judged(web, thrice, end + SETTLE / 2, end + 100 + SETTLE / 2) == []


def test_a_kill_takes_its_time(web: SyntheticWeb, log: Log) -> None:
    """What was sent before the process was gone was in flight; a busy server reads it late."""
    twice, start = [*log, again(log, 0, 100)], log[0].start
    kept = {url_of(web, each): ["a"] for each in log}
    for kill, expected in (
        ((start - 2, start - LATE + 0.1), []), ((start - 2, start - LATE - 0.1), ["f"])
    ):
        verdict = Verdict(web, SIZE, sorted(twice), [kill], kept)
        assert [wrong[0] for wrong in verdict.broken()] == expected


def test_who_takes_over_fetches_again(web: SyntheticWeb, log: Log) -> None:
    """What had been fetched before a lease ended, and not what is fetched twice after that."""
    twice, end = [*log, again(log, 0, 100)], log[0].end
    assert judged(web, twice, lapses=[Event(end + 50, "pause", "a")]) == []
    for when in (log[0].start, end + 101):
        assert judged(web, twice, lapses=[Event(when, "pause", "a")]) != []


def test_an_agent_is_away_for_longer_than_its_lease_or_not() -> None:
    """From a stop, a kill or a pause to its next start, or for good."""
    fleet = Fleet(Path(), lambda name: {}, {})
    fleet.events = [
        Event(when, what, name) for when, what, name in (
            (0, "join", "a"), (1, "kill", "a"), (2, "join", "b"), (2, "start", "a"),
            (5, "join", "a"), (6, "pause", "b"), (20, "resume", "b"), (21, "lapse", "a"),
            (22, "stop", "b"),
        )
    ]  # fmt: skip
    ended = [Event(21, "lapse", "a"), Event(22, "stop", "b")]
    assert fleet.lapses(18) == [Event(6, "pause", "b"), *ended]
    assert fleet.lapses(20) == ended
    assert fleet.lapses(3) == [Event(1, "kill", "a"), Event(6, "pause", "b"), *ended]
    assert fleet.lapses(100) == ended
