"""The alerts of a running crawl: found in its overview, logged, and posted to a webhook.

docs/watching/alerts.yml has the same rules for Prometheus.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scrapy_spider_suite.frontier.outcomes import Event, Health, Retry, State
from scrapy_spider_suite.frontier.workbench import WaitReason
from scrapy_spider_suite.runtime.tasks import DaemonCalls
from scrapy_spider_suite.runtime.text import counted, printable

if TYPE_CHECKING:
    from scrapy_spider_suite.analysis.time_series import Rows

logger = logging.getLogger(__name__)

WINDOW: Final = 300.0  # seconds that alerts look back
_LEAST_COVER: Final = 0.8  # of the window, which a crawl that has just begun does not fill
_LEAST_ATTEMPTS: Final = 50  # fewest of the window that a share is taken of
_LEAST_PAGES: Final = 10  # fewest of the window that an agent's part comes to
_ERROR_SHARE: Final = 0.5
_REFUSED_SHARE: Final = 0.1
_DISK_FREE: Final = 1 << 30  # bytes
_SKEW: Final = 3.0

FETCH_FAILURES: Final = tuple(
    event for event in Event
    if event.outcome.health is not Health.NONE and event.outcome.state is not State.DONE
)
"""Fetches that failed; other errors are of URLs that were not fetched."""
FAULTS: Final = (
    Event.PIPELINE_ERROR, *(event for event in Event if event.outcome.retry is Retry.STORE),
)
"""Failures of servers, of the network or of the project; a page that is not there is none."""


@dataclass(frozen=True, slots=True)
class Alert:
    """*name*: a key of `RULES`."""

    name: str
    text: str


class _Window:
    """The sums of the last `WINDOW` seconds."""

    def __init__(self, now: float, rows: Rows) -> None:
        self._rows = rows
        self._recent = rows.times > now - WINDOW

    def total(self, name: str) -> float:
        return float(np.nansum(self._rows.total(name)[self._recent]))

    def cover(self) -> float:
        """The part of the window with a crawl."""
        known = np.isfinite(self._rows.total("pages")[self._recent])
        return float(np.count_nonzero(known)) * self._rows.width / WINDOW

    def errors(self, *events: Event) -> float:
        return sum(self.total(f"errors.{event.value}") for event in events)

    def attempts(self) -> float:
        """Pages that are done, and fetches that failed, also those that are tried again."""
        return self.total("pages") + self.errors(*FETCH_FAILURES)


def _stalled(overview: Mapping[str, Any], window: _Window) -> str:
    if overview.get("paused") or window.cover() < _LEAST_COVER or window.attempts():
        return ""
    ready = sum(row["hosts"] for row in overview["waits"] if row["reason"] == WaitReason.READY)
    if not ready:
        return ""
    ready_hosts = counted(int(ready), "host is", "hosts are")
    return f"nothing was fetched for {WINDOW / 60:.0f} minutes, and {ready_hosts} ready"


def _errors(overview: Mapping[str, Any], window: _Window) -> str:
    attempts, faults = window.attempts(), window.errors(*FAULTS)
    if attempts < _LEAST_ATTEMPTS or faults <= _ERROR_SHARE * attempts:
        return ""
    return f"{faults / attempts:.0%} of the fetches of the last minutes failed"


def _disk(overview: Mapping[str, Any], window: _Window) -> str:
    free = overview["gauges"].get("disk_free")
    if free is None or not free < _DISK_FREE:
        return ""
    return f"the disk of the job has {free / (1 << 20):,.0f} MB left"


def _too_many_requests(overview: Mapping[str, Any], window: _Window) -> str:
    attempts, refused = window.attempts(), window.errors(Event.TOO_MANY_REQUESTS)
    if attempts < _LEAST_ATTEMPTS or refused <= _REFUSED_SHARE * attempts:
        return ""
    return f"{refused / attempts:.0%} of the fetches of the last minutes were answered with 429"


def _skew(overview: Mapping[str, Any], window: _Window) -> str:
    agents = [each for each in overview["agents"] if each["state"] == "running"]
    rates = [each["rate"] or 0.0 for each in agents]
    shares = [each["share"] or 0.0 for each in agents]
    whole, parts = sum(rates), sum(shares)
    if len(agents) < 2 or not parts or whole * WINDOW < _LEAST_PAGES * len(agents):
        return ""
    for agent, rate, share in zip(agents, rates, shares, strict=True):
        expected = whole * share / parts
        # An agent without URLs has done its part.
        if rate > _SKEW * expected or (rate * _SKEW < expected and agent["pending"]):
            return (
                f"{agent['name']} has a rate of {rate:,.1f}/s, and {expected:,.1f}/s would be its "
                "share of the crawl"
            )
    return ""


RULES: Final[Mapping[str, Callable[[Mapping[str, Any], _Window], str]]] = {
    "stalled": _stalled, "errors": _errors, "disk": _disk,
    "too_many_requests": _too_many_requests, "skew": _skew,
}  # fmt: skip
"""Each returns the text of its alert; "" for none."""


def find_alerts(overview: Mapping[str, Any], rows: Rows) -> list[Alert]:
    """The alerts of a running crawl; *rows* reach back `WINDOW` seconds."""
    if overview["state"] != "running":
        return []
    window = _Window(overview["when"], rows)
    found = ((name, rule(overview, window)) for name, rule in RULES.items())
    return [Alert(name, text) for name, text in found if text]


_CALM: Final = 60.0  # seconds without an alert after which it has ended
_WEBHOOK_TIMEOUT: Final = 10.0
_MESSAGES: Final = 20  # most messages that wait for a slow webhook; the oldest are dropped


class AlertLog:
    """Logs each alert when it begins and when it ends, and posts both to *webhook*, if not "".

    *facts* go with each message.
    """

    def __init__(self, webhook: str, **facts: str) -> None:
        self._facts = facts
        self._active: dict[str, tuple[Alert, float]] = {}  # with the time it was last found
        self._webhook = webhook
        self._posts = DaemonCalls("alerts", _MESSAGES)
        self._failing = False

    def update(self, alerts: Iterable[Mapping[str, str]], now: float) -> None:
        """Compare the *alerts* of an overview, found at *now* (monotonic), with those before."""
        for alert in (Alert(**each) for each in alerts):
            if alert.name not in self._active:
                logger.warning("Alert %s: %s", alert.name, printable(alert.text))
                self._post(alert, "begins")
            self._active[alert.name] = alert, now
        for alert, last in list(self._active.values()):
            if now - last >= _CALM:
                del self._active[alert.name]
                logger.info("Alert %s has ended", alert.name)
                self._post(alert, "ends")

    def end(self) -> DaemonCalls:
        """End all alerts; return the posts that are under way."""
        self.update([], math.inf)
        return self._posts

    def _post(self, alert: Alert, state: str) -> None:
        if self._webhook:
            text = alert.text if state == "begins" else f"over: {alert.text}"
            message = {
                "text": f"{self._facts.get('crawl') or 'crawl'}: {text}", "alert": alert.name,
                "state": state, "when": round(time.time()), **self._facts,
            }  # fmt: skip
            self._posts.add(lambda: self._send(json.dumps(message).encode()))

    def _send(self, data: bytes) -> None:
        from urllib.request import Request, urlopen  # most crawls do without

        request = Request(self._webhook, data, {"Content-Type": "application/json"})
        try:
            with urlopen(request, timeout=_WEBHOOK_TIMEOUT):
                self._failing = False
        except Exception as error:  # whatever it is, the crawl goes on
            if not self._failing:
                logger.warning("SUITE_ALERT_URL does not take an alert: %s", error)
            self._failing = True
