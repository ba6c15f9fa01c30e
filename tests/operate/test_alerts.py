"""Alerts: when each begins and ends, and what the log and the webhook get."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.running_crawl import until
from support.websites import Answer, Site, running

from scrapy_spider_suite.analysis.time_series import Rows
from scrapy_spider_suite.crawl.pulse import COLUMNS
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.operate.alerts import FAULTS, FETCH_FAILURES, AlertLog, find_alerts

NOW = 1_795_900_000.0
WELL: dict[str, Any] = {
    "state": "running", "paused": False, "when": NOW, "agents": [], "gauges": {"disk_free": 1e12},
    "waits": [{"reason": "ready", "hosts": 3, "next": None},
              {"reason": "host delay", "hosts": 9, "next": 1.0}],
}  # fmt: skip


def rows(seconds: int = 300, **totals: float) -> Rows:
    """Rows of the last *seconds* whose counters come to *totals*; ``__`` stands for a dot."""
    values = np.array([COLUMNS.blank_row(NOW - seconds + each) for each in range(seconds)])
    values[:, 1] = 1.0
    for name, total in totals.items():
        values[:, COLUMNS.places(name.replace("__", "."))[0]] = total / seconds
    return Rows(values[:, 0], 1.0, COLUMNS, values)


def agents(*rates: float, pending: int = 9) -> list[dict[str, Any]]:
    """Agents of equal shares with these rates."""
    return [
        {"name": f"agent-{number}", "state": "running", "rate": rate, "share": 1 / len(rates),
         "pending": pending} for number, rate in enumerate(rates)
    ]  # fmt: skip


def names(overview: dict[str, Any], recent: Rows) -> list[str]:
    """The names of the alerts."""
    return [alert.name for alert in find_alerts({**WELL, **overview}, recent)]


def test_a_crawl_that_is_well_has_no_alert() -> None:
    """Pages that are not there are no errors."""
    assert names({}, rows(pages=500, errors__client_error=5_000, errors__timeout=20)) == []


@pytest.mark.parametrize(
    ("overview", "recent", "expected"),
    [
        ({}, rows(), ["stalled"]),
        ({}, rows(errors__timeout=1), []),  # something is being fetched
        ({}, rows(errors__robots=500, errors__host_dead=500), ["stalled"]),  # nothing is
        ({}, rows(seconds=100), []),  # it has just begun
        ({"paused": True}, rows(), []),
        ({"waits": WELL["waits"][1:]}, rows(), []),  # all hosts wait for good reasons
        ({"state": "ended"}, rows(), []),
        ({}, rows(pages=100, errors__timeout=60, errors__server_error=60), ["errors"]),
        ({}, rows(pages=10, errors__timeout=30), []),  # too few to say
        ({}, rows(pages=40, errors__timeout=60, errors__budget=9_000), ["errors"]),
        ({}, rows(pages=60, errors__timeout=55, errors__callback_error=60), []),
        ({}, rows(pages=80, errors__too_many_requests=20), ["too_many_requests"]),
        ({}, rows(pages=95, errors__too_many_requests=5), []),
        ({"gauges": {"disk_free": 5e8}}, rows(pages=1), ["disk"]),
        ({"gauges": {}}, rows(pages=1), []),  # without a job
        ({"agents": agents(10, 10, 1)}, rows(pages=1), ["skew"]),
        ({"agents": agents(1, 1, 1, 11)}, rows(pages=1), ["skew"]),
        ({"agents": agents(10, 10, 9)}, rows(pages=1), []),
        ({"agents": agents(0.001, 0, 0)}, rows(pages=1), []),  # nearly at its end
        ({"agents": agents(10, 10, 0, pending=0)}, rows(pages=1), []),  # it has no URLs left
        ({"agents": agents(10)}, rows(pages=1), []),
    ],
)
def test_rules(overview: dict[str, Any], recent: Rows, expected: list[str]) -> None:
    assert names(overview, recent) == expected


def test_rows_before_the_window_do_not_count() -> None:
    """Errors of an hour ago are over."""
    old = rows(seconds=3_600, pages=500, errors__timeout=60_000)
    begin = np.searchsorted(old.times, NOW - 300)
    old.values[begin:, COLUMNS.places("errors.timeout")[0]] = 0
    assert names({}, old) == []


def test_every_failure_that_is_counted_has_its_column() -> None:
    """The alerts look for events by their names."""
    counted = {name.removeprefix("errors.") for name in COLUMNS.counters if "errors." in name}
    assert counted <= {event.value for event in Event}
    assert {"timeout", "too_many_requests", "pipeline_error"} <= counted


def test_the_rules_for_prometheus_count_the_same_events() -> None:
    """Lists of events in docs/watching/alerts.yml."""
    rules = Path(__file__).parents[2] / "docs" / "watching" / "alerts.yml"
    lists = [set(each.split("|")) for each in re.findall(r'event=~"([^"]+)"', rules.read_text())]
    assert lists == [set(FETCH_FAILURES), set(FAULTS)]
    assert {"robots", "budget", "host_dead", "callback_error"}.isdisjoint(FETCH_FAILURES)


def test_an_alert_is_told_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A minute without it ends it: what comes and goes is one alert."""
    caplog.set_level(logging.INFO)
    log, alert = AlertLog(""), {"name": "disk", "text": "the disk has 3 MB left"}
    for now, found in (0.0, [alert]), (15.0, []), (30.0, [alert]), (75.0, []), (91.0, []):
        log.update(found, now)
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "Alert disk: the disk has 3 MB left"), ("INFO", "Alert disk has ended"),
    ]  # fmt: skip


def test_the_webhook_gets_json() -> None:
    """Its text is what a chat shows."""
    with running(Site({"/hook": "thanks"})) as site:
        log = AlertLog(f"{site.url}/hook", job="crawls/news", crawl="news")
        log.update([{"name": "disk", "text": "no room"}], 0.0)
        log.update([], 100.0)
        until(lambda: len(site.visits) == 2)
    begins, ends = (json.loads(visit.body) for visit in site.visits)
    assert begins | {"when": 0} == {
        "text": "news: no room", "alert": "disk", "state": "begins", "when": 0,
        "job": "crawls/news", "crawl": "news",
    }  # fmt: skip
    assert (ends["state"], ends["text"]) == ("ends", "news: over: no room")
    assert site.visits[0].headers["Content-Type"] == "application/json"


def test_a_webhook_that_fails_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Until it works again; nobody waits for it."""
    with running(Site({"/hook": Answer(status=500)})) as site:
        log = AlertLog(f"{site.url}/hook")
        for number in range(3):
            log.update([{"name": str(number), "text": "wrong"}], 0.0)
        until(lambda: len(site.visits) == 3)
        until(lambda: "does not take" in caplog.text)
    assert caplog.text.count("SUITE_ALERT_URL does not take an alert: HTTP Error 500") == 1
    assert site.url not in caplog.text


def test_the_end_of_a_crawl_ends_its_alerts() -> None:
    """What is still to be posted goes out; nobody waits for a webhook that hangs."""
    with running(Site({"/hook": "thanks", "/slow": Answer(wait=60.0)})) as site:
        for path, patience in ("/slow", 0.1), ("/hook", 30.0):
            log = AlertLog(f"{site.url}{path}")
            log.update([{"name": "disk", "text": "no room"}], 0.0)
            asyncio.run(log.end().drain(patience))
        states = [json.loads(each.body)["state"] for each in site.visits if each.path == "/hook"]
    assert states == ["begins", "ends"]
