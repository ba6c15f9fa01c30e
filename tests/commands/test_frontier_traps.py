"""``why`` and ``test`` of URLs in traps, and of what was mined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.frontier_command import Frontier
from support.jobs import Made

from scrapy_spider_suite.crawl.queue.traps import BEHIND
from scrapy_spider_suite.frontier.entries import Flag
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.urls.traps import TrapLimits

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """A job to be filled."""
    made = Made(tmp_path / "job")
    yield made
    made.job._lock.close()


@pytest.fixture
def ask(made: Made, frontier: Frontier) -> Ask:
    """Ask a verb about a URL."""

    def asking(verb: str, url: str, *more: str) -> dict[str, Any]:
        row: dict[str, Any] = frontier(verb, url, "-j", str(made.path), "--json", *more).rows[0]
        return row

    return asking


@pytest.mark.parametrize(
    ("path", "why", "where"),
    [
        ("/" + "x" * 1_100, "longer than pages' URLs are", "SUITE_TRAPS: length=fail"),
        ("/a" * 5, "a segment comes again and again", "SUITE_TRAPS: repeats=fail"),
        ("/1/2/3/4/5" * 5, "more segments", "SUITE_TRAPS: segments=fail"),
        ("/calendar/2077/01", "years ahead", "SUITE_TRAPS: calendar=fail"),
    ],
)
def test_by_the_url_alone(made: Made, ask: Ask, path: str, why: str, where: str) -> None:
    """The same answer from both verbs; a seed is meant, whatever it looks like."""
    made.close()
    url = f"http://a.test{path}"
    row = ask("why", url)
    assert (row["if_it_were_found"], row["decided_by"]) == ("refuse", "trap")
    assert why in row["why"]
    assert row["where"].startswith(where)
    tested = ask("test", url)
    assert (tested["judgement"], tested["why"]) == ("refuse", row["why"])
    assert ask("test", url, "--depth", "0")["decided_by"] != "trap"


def test_by_what_was_found(made: Made, ask: Ask) -> None:
    """Which space is closed, and what becomes of what waits in it."""
    limits = TrapLimits(same=3, query=3, sessions=1, hosts=3, permuted=1)
    made.behind.policy.update(traps=limits)
    traps, body = made.behind.traps, b"<p>There is nothing here, and there never was anything.</p>"
    for number in range(5):
        traps.learn_page(f"http://a.test/cal/{number}", "a.test", body, (), pages=9)
        made.behind.traps.stats.learn("a.test").combined("/s", ("a", "b"), 3, 0)
        made.behind.traps.stats.learn("a.test").repeated("sid", 1, vain=True)
        made.find(f"http://a.test/p?sid={number:020}")
        host = f"h{number}.farm.test"
        traps.learn_page(f"http://{host}/", host, body, (), pages=0)
    made.find("http://a.test/cal/99")
    made.find("http://a.test/cal/98", flags=Flag.START)
    made.end("http://a.test/list?a=1&b=2", Event.SUCCESS, 200)
    made.find(f"http://a.test/more?{'&'.join('abcdefg')}")
    for value in ("a=1", "b=2"):
        made.find(f"http://a.test/s?{value}")
    made.behind.traps.stats.save()
    made.close()
    for url, why, where in (
        ("http://a.test/cal/7", "the pages of /cal/0 all said the same", "same"),
        ("http://a.test/s?a=1&b=2", "the queries of /s combine what was there", "query"),
        ("http://a.test/p?sid=abcdef0123456789ab", "/p comes with ever new", "sessions"),
        ("http://more.farm.test/", "the hosts of farm.test all said the same", "hosts"),
        ("http://a.test/list?b=2&a=1", "/list?a=1&b=2 has the same", "permuted"),
        (f"http://a.test/more?{'&'.join('gfedcba')}", "/more?a&b&c&d&e&f&g has", "permuted"),
    ):
        row = ask("why", url)
        assert (row["state"], row["decided_by"]) == ("unknown", "trap"), url
        assert why in row["why"]
        assert row["where"].startswith(f"SUITE_TRAPS: {where}=fail")
    assert ask("why", "http://a.test/s?a=1&b=3")["decided_by"] != "trap", "b=3 may be a page"
    waiting = ask("why", "http://a.test/cal/99")
    assert waiting["next_try"] == "it will fail at its turn"
    assert waiting["why_then"].startswith("trap: a trap: the pages of /cal/0")
    for url in ("http://a.test/cal/98", f"http://a.test/p?sid={0:020}"):
        assert ask("why", url)["next_try"] != "it will fail at its turn", url


def test_what_comes_last(made: Made, ask: Ask) -> None:
    """A folder that has had its share is named, the closest of those that have."""
    made.find("http://a.test/a/b/1", priority=5 - 2 * BEHIND)
    made.find("http://a.test/a/b/2", priority=-BEHIND)
    made.find("http://a.test/a/b/3", priority=-1_000)
    made.find("http://a.test/a/b/4", priority=-BEHIND, flags=Flag.START)
    made.close()
    said = [ask("why", f"http://a.test/a/b/{number}").get("put_last") for number in (1, 2, 3, 4)]
    for folder, late in zip(("/a/b/", "/a/"), said, strict=False):
        assert late.startswith(f"trap: {folder} has had its share of the host"), late
        assert "[SUITE_TRAPS: prefix=last" in late
    assert said[2:] == [None, None]


def test_what_was_mined(made: Made, ask: Ask) -> None:
    """It says so, and from where; later the reason does; and what is not worth a try any more."""
    made.keep(SUITE_GUESS_URLS="both")
    made.end("http://c.test/c/", Event.NOT_THERE, 404)
    made.find("http://a.test/b/", flags=Flag.SPECULATIVE)
    made.find("http://d.test/b/", flags=Flag.SPECULATIVE)
    made.behind.traps.stats.learn("d.test").add("missed", "", 99)
    made.behind.traps.stats.save()
    made.close()
    row = ask("why", "http://d.test/b/")
    assert row["next_try"] == "it will be forgotten at its turn"
    assert row["why_then"].startswith("mining: guessed, and too many like it are not there")
    assert "[SUITE_GUESS_URLS = 'both'" in row["why_then"]
    assert ask("why", "http://a.test/b/")["came_from"] == "guessed from http://page.test/that/led/there"
    row = ask("why", "http://c.test/c/")
    assert (row["state"], row["reason"], row["status"]) == ("failed", "not_there", 404)
    assert "nobody linked to" in row["because"]
